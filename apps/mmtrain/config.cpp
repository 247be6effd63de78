#include "apps/mmtrain/config_read.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace mmt::app {
namespace {

using config::as_bytes;
using config::as_choice;
using config::as_path;
using config::at_least;
using config::between;
using config::Reader;
using config::Value;

void read_run(Reader& r, RunConfig& run) {
  r.required("output_dir", as_path(run.output_dir));
  r.optional("seed", run.seed);
  using Device = RunConfig::Device;
  r.optional("device", as_choice(run.device, {{"auto", Device::automatic}, {"cpu", Device::cpu}}, {"cuda"}));
}

/// One word for all modules, or a map of modules; those that it does not name keep everything.
struct RecomputeTarget {
  const Config& config;
  std::vector<run::Recompute>& by_module;
};

bool bind_value(Value& v, RecomputeTarget& out, const config::Bounds& bounds) {
  using run::Recompute;
  const auto read = [&](Value& from, Recompute& into) {
    auto choice =
        as_choice(into, {{"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}});
    return bind_value(from, choice, bounds);
  };
  const std::size_t modules = out.config.encoders.size() + 1;
  out.by_module.assign(modules, Recompute::none);
  if (v.kind() != config::Kind::map) {
    Recompute all = Recompute::none;
    if (!read(v, all)) return false;
    out.by_module.assign(modules, all);
    return true;
  }
  bool good = true;
  return v.read_entries([&](const std::string& name, Value& entry) {
    std::vector<std::string> names;
    for (std::size_t m = 0; m < modules; ++m) names.push_back(module_name(out.config, m));
    const auto at = std::ranges::find(names, name);
    if (at == names.end()) {
      entry.problem(fmt::format("there is no such module: {}", fmt::join(names, ", ")));
      good = false;
      return;
    }
    good = read(entry, out.by_module[static_cast<std::size_t>(at - names.begin())]) && good;
  }) && good;
}
config::Node default_node(const RecomputeTarget&, const Value&) { return config::show_word("none"); }

void read_train(Reader& r, const Config& c, TrainConfig& t) {
  r.exactly_one({"steps", "epochs"});
  r.optional("steps", t.steps, at_least(1));
  r.optional("epochs", t.epochs, at_least(1));
  r.required("global_batch_size", t.global_batch_size, between(1, 1 << 24));
  r.optional("tokens_per_microbatch", t.tokens_per_microbatch, between(8, 1 << 20));
  r.optional("microbatches", config::or_word("auto", t.microbatches), between(1, 1 << 16));
  r.optional("precision", as_choice(t.precision, {{"fp32", DType::f32}, {"bf16", DType::bf16}}));
  r.optional("max_grad_norm", t.max_grad_norm, at_least(0));
  t.recompute_auto = r.is("recompute", "auto");
  if (t.recompute_auto) {
    r.value("recompute", [](Value& v) { return v.read_word("auto"); });
  } else {
    r.optional("recompute", RecomputeTarget{c, t.recompute});
  }
  r.optional("loss", as_choice(t.loss, {{"token", data::LossWeights::token}, {"sample", data::LossWeights::sample}}));
  r.optional("consistency_every", t.consistency_every, at_least(0));
}

void read_optimizer(Reader& r, OptimizerConfig& o) {
  std::string kind = "adamw";
  r.optional("kind", as_choice(kind, {{"adamw", std::string("adamw")}}));
  r.required("lr", o.lr, at_least(0));
  r.optional("betas", o.betas);
  for (const double b : o.betas) {
    if (!(b >= 0.0 && b < 1.0)) r.problem("betas", fmt::format("{} is not in [0, 1)", b));
  }
  r.optional("eps", o.eps, config::above(0));
  r.optional("weight_decay", o.weight_decay, at_least(0));
  r.list("groups", [&](Value& v) {
    v.read_map([&](Reader& m) {
      ParamGroup& group = o.groups.emplace_back();
      m.required("match", group.match);
      m.optional("lr", group.lr, at_least(0));
      m.optional("weight_decay", group.weight_decay, at_least(0));
    });
  });
}

void read_learning_rate(Reader& r, run::Schedule& s) {
  using Kind = run::ScheduleKind;
  r.optional("kind", as_choice(s.kind, {{"constant", Kind::constant},
                                        {"linear", Kind::linear},
                                        {"cosine", Kind::cosine},
                                        {"wsd", Kind::wsd},
                                        {"inverse_sqrt", Kind::inverse_sqrt}}));
  r.optional("warmup_steps", s.warmup_updates, at_least(0));
  r.optional("min_lr", s.min_lr, at_least(0));
  r.optional("decay_steps", s.decay_updates, at_least(0));
  using Shape = run::DecayShape;
  r.optional("decay", as_choice(s.decay, {{"linear", Shape::linear},
                                          {"cosine", Shape::cosine},
                                          {"one_minus_sqrt", Shape::one_minus_sqrt}}));
}

void read_set(Value& v, std::vector<SetConfig>& sets, bool weighted) {
  v.read_map([&](Reader& m) {
    SetConfig& set = sets.emplace_back();
    m.required("path", as_path(set.path));
    std::filesystem::path path(set.path);
    if (!path.has_filename()) path = path.parent_path();  // a folder with a slash at its end
    set.name = path.stem().string();
    set.media_root = path.parent_path().string();
    m.optional("name", set.name);
    using Format = SetConfig::Format;
    m.optional("format", as_choice(set.format, {{"llava", Format::llava},
                                                {"messages", Format::messages},
                                                {"webdataset", Format::webdataset}}));
    if (set.format != Format::webdataset) {
      m.optional("media_root", as_path(set.media_root));
    } else if (m.has("media_root")) {
      m.problem("media_root", "pictures and sounds of a webdataset are in its shards: leave this key out");
    }
    if (weighted) m.optional("weight", set.weight, between(0, 1e6));
  });
}

void read_template(Reader& r, data::TemplateSpec& spec) {
  spec = data::named_template("chatml");
  r.value("template", [&](Value& v) {
    if (v.kind() == config::Kind::scalar) {
      std::string name;
      if (!v.read(name)) return false;
      const std::vector<std::string> names = data::template_names();
      if (std::ranges::find(names, name) == names.end()) {
        v.problem(fmt::format("unknown template \"{}\": known are {}; or give prefixes and suffixes", name,
                              fmt::join(names, ", ")));
        return false;
      }
      spec = data::named_template(name);
      return true;
    }
    spec = data::TemplateSpec{};
    spec.name = "custom";
    return v.read_map([&](Reader& m) {
      m.optional("start", spec.start);
      m.optional("default_system", spec.default_system);
      const auto turn = [&](const char* key, data::TurnFormat& format) {
        m.section(key, [&](Reader& t) {
          t.optional("prefix", format.prefix);
          t.optional("lead", format.lead);
          t.optional("suffix", format.suffix);
        });
      };
      turn("system", spec.system);
      turn("user", spec.user);
      turn("assistant", spec.assistant);
      turn("tool", spec.tool);
      const auto slot = [&](const char* key, data::SlotFormat& format) {
        m.section(key, [&](Reader& s) {
          s.optional("before", format.before);
          s.optional("token", format.token);
          s.optional("after", format.after);
        });
      };
      slot("image", spec.image);
      slot("audio", spec.audio);
      slot("video", spec.video);
      m.optional("media_first", spec.media_first);
      m.optional("user_text", spec.user_text);
      m.optional("trim", spec.trim);
    });
  });
}

/// `published`: the folder that the LLM starts from, whose tokenizer is the default; empty: none.
void read_data(Reader& r, DataConfig& d, const std::string& published) {
  if (!r.list("sets", [&](Value& v) { read_set(v, d.sets, true); })) r.missing("sets");
  read_template(r, d.chat);
  d.tokenizer = published;
  if (published.empty())
    r.required("tokenizer", as_path(d.tokenizer));
  else
    r.optional("tokenizer", as_path(d.tokenizer));
  r.optional("max_sequence", d.max_sequence, at_least(0));
  r.optional("over_length",
             as_choice(d.over_length, {{"drop", data::OverLength::drop}, {"text", data::OverLength::text}}));
  using Bad = DataConfig::Bad;
  r.optional("bad_samples", as_choice(d.bad_samples, {{"error", Bad::error}, {"skip", Bad::skip}}));
  r.optional("shuffle", d.shuffle);
  r.optional("workers", d.workers, between(1, 256));
  r.optional("prefetch_steps", d.prefetch_steps, between(1, 1024));
  r.optional("index_dir", as_path(d.index_dir));
  r.section("image", [&](Reader& m) {
    m.optional("apply_exif", d.image.apply_exif);
    std::array<std::int32_t, 3> background{d.image.background[0], d.image.background[1], d.image.background[2]};
    m.optional("background", background, between(0, 255));
    std::ranges::transform(background, d.image.background.begin(),
                           [](std::int32_t x) { return static_cast<std::uint8_t>(x); });
    m.optional("max_decode_pixels", d.image.max_decode_pixels, at_least(1));
    m.optional("scale_16_bit", d.image.scale_16_bit);
  });
  r.section("video", [&](Reader& m) {
    m.optional("max_decode_frames", d.video.max_frames, between(1, 1 << 20));
    m.optional("max_decode_pixels", d.video.max_pixels, at_least(1));
  });
  r.section("audio", [&](Reader& m) { m.optional("max_seconds", d.audio.max_seconds, config::above(0)); });
}

void read_eval(Reader& r, EvalConfig& e) {
  r.optional("every_steps", e.every_steps, at_least(0));
  r.optional("generate", e.generate, at_least(0));
  r.optional("max_new_tokens", e.max_new_tokens, between(1, 1 << 20));
  r.list("sets", [&](Value& v) { read_set(v, e.sets, false); });
  if (e.every_steps > 0 && e.sets.empty()) r.problem("every_steps", "there are no eval.sets to evaluate on");
}

void read_checkpoint(Reader& r, CheckpointConfig& c) {
  r.optional("every_steps", c.every_steps, at_least(0));
  r.optional("keep_last", c.keep_last, at_least(1));
  r.optional("keep_every", c.keep_every, at_least(0));
  r.optional("keep_best", as_choice(c.keep_best, {{"none", std::string()},
                                                  {"answer_accuracy", std::string("answer_accuracy")},
                                                  {"token_accuracy", std::string("token_accuracy")},
                                                  {"loss", std::string("loss")}}));
  r.optional("async", c.async);
  r.optional("embed_frozen", c.embed_frozen);
}

}  // namespace

Config read_config(const config::Sources& sources, int ranks) {
  config::Document document(sources);
  Config c;
  document.read([&](Reader& r) {
    c = Config{};
    r.section("run", [&](Reader& s) { read_run(s, c.run); });
    read_modules(r, c);
    r.value("edges", [](Value& v) {
      if (v.is("auto")) return v.read_word("auto");
      v.problem("only \"auto\" is supported yet: every encoder writes into the LLM");
      return false;
    });
    c.cluster = ClusterConfig{};
    r.value("cluster", [&](Value& v) {
      read_cluster(v, c.cluster);
      return true;
    });
    read_parallel(r, c, ranks);
    r.section("train", [&](Reader& s) { read_train(s, c, c.train); });
    r.section("optimizer", [&](Reader& s) { read_optimizer(s, c.optimizer); });
    r.section("learning_rate", [&](Reader& s) { read_learning_rate(s, c.learning_rate); });
    r.section("data", [&](Reader& s) { read_data(s, c.data, c.llm.init.hf); });
    r.section("eval", [&](Reader& s) { read_eval(s, c.eval); });
    r.section("checkpoint", [&](Reader& s) { read_checkpoint(s, c.checkpoint); });
    r.value("resume", [&](Value& v) {
      for (const char* word : {"auto", "none"}) {
        if (!v.is(word)) continue;
        c.resume = word;
        return v.read_word(word);
      }
      return v.read_path(c.resume);
    });
    r.section("log", [&](Reader& s) {
      s.optional("every_steps", c.log.every_steps, at_least(1));
      s.optional("tensorboard", c.log.tensorboard);
      c.log.trace.reset();
      s.map("trace", [&](Reader& t) {
        std::array<std::int64_t, 2> steps{};
        if (!t.required("steps", steps, at_least(1))) return;
        if (steps[0] > steps[1]) t.problem("steps", fmt::format("[{}, {}] ends before it begins", steps[0], steps[1]));
        c.log.trace = steps;
      });
    });
  });
  check_modules(document, c);
  check_parallel(document, c, ranks);
  // Learned positions end somewhere.
  const std::int64_t positions = c.llm.spec.rotary ? c.train.tokens_per_microbatch : c.llm.spec.max_positions;
  if (c.data.max_sequence == 0) c.data.max_sequence = std::min(c.train.tokens_per_microbatch, positions);
  if (!c.llm.spec.rotary && c.data.max_sequence > positions) {
    document.problem("data.max_sequence", fmt::format("{} is above modules.{}.max_positions ({})", c.data.max_sequence,
                                                      c.llm.spec.name, positions));
  }
  const auto& rope = c.llm.spec.rope_scaling;
  if (rope && rope->kind == models::RopeKind::dynamic && c.data.max_sequence > rope->original_max_position) {
    document.problem(
        "data.max_sequence",
        fmt::format("{} is above rope_scaling.original_max_position ({}) of modules.{}: `dynamic` stretches longer "
                    "samples by the longest of a batch, so that a sample's loss would depend on its "
                    "neighbours; take type: yarn or linear",
                    c.data.max_sequence, rope->original_max_position, c.llm.spec.name));
  }
  if (c.data.max_sequence > c.train.tokens_per_microbatch) {
    document.problem("data.max_sequence",
                     fmt::format("{} is above train.tokens_per_microbatch ({}): a sample must fit into a microbatch",
                                 c.data.max_sequence, c.train.tokens_per_microbatch));
  }
  if (!c.checkpoint.keep_best.empty() && c.eval.every_steps == 0) {
    document.problem("checkpoint.keep_best", "needs an evaluation during training: set eval.every_steps");
  }
  std::set<std::string> names;
  for (const SetConfig& set : c.eval.sets) {
    if (!names.insert(set.name).second)
      document.problem("eval.sets", fmt::format("two sets are called \"{}\": give one a name of its own", set.name));
  }
  c.learning_rate.lr = c.optimizer.lr;
  if (c.learning_rate.min_lr > c.optimizer.lr) {
    document.problem("learning_rate.min_lr",
                     fmt::format("{} is above optimizer.lr ({})", c.learning_rate.min_lr, c.optimizer.lr));
  }
  document.throw_problems();
  c.resolved = document.resolved();
  return c;
}

bool changes_mathematics(const std::string& key) {
  // What may change between a save and a resume without changing what is computed. Everything else may not.
  constexpr const char* kFree[] = {"run.output_dir",
                                   "run.device",
                                   "parallel",
                                   "cluster",
                                   "data.workers",
                                   "data.prefetch_steps",
                                   "data.index_dir",
                                   "data.tokenizer",  // what it holds is compared beside the config, as of the sets
                                   "data.bad_samples",
                                   "train.steps",
                                   "train.epochs",
                                   "train.tokens_per_microbatch",
                                   "train.microbatches",
                                   "train.recompute",
                                   "train.consistency_every",
                                   "eval",
                                   "checkpoint",
                                   "resume",
                                   "log",
                                   "extends"};
  if (key.starts_with("data.sets.") && std::ranges::any_of(std::array{".path", ".media_root", ".name"},
                                                           [&](const char* end) { return key.ends_with(end); }))
    return false;
  return std::ranges::none_of(kFree, [&](std::string_view free) {
    return key == free || key.starts_with(std::string(free) + ".") || key.starts_with(std::string(free) + "[");
  });
}

}  // namespace mmt::app
