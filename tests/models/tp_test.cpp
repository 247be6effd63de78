// Tensor parallelism of a block: two and four ranks (threads) against one, every gradient, every planned collective.
#include "tests/models/tiny.h"

#include "kernels/backend.h"
#include "parallel/comm/threads.h"
#include "parallel/comm/tracing.h"

#include <catch2/catch.hpp>

#include <fmt/ranges.h>

#include <cmath>
#include <map>

using namespace mmt;
using namespace mmt::test;
using plan::Axis;

namespace {

struct RankResult {
  std::vector<run::ParamSpec> specs;
  Pass pass;
  std::vector<std::string> traced, planned;
};

std::string text_of(const run::UnitPlan::Collective& c) {
  constexpr const char* kOps[] = {"all_reduce", "reduce_scatter", "all_gather"};
  return fmt::format("{} {}", kOps[static_cast<int>(c.op)], c.bytes);
}

run::UnitPlanner::Setting tp_setting(DType dtype, int tp, int rank) {
  run::UnitPlanner::Setting s = setting(dtype);
  s.degrees[Axis::tp] = tp;
  s.coord[Axis::tp] = rank;
  return s;
}

/// An adapter with dropout on every linear layer.
run::UnitPlanner::Setting adapted(run::UnitPlanner::Setting s) {
  s.adapter = [](const std::string&) { return run::AdapterSpec{.rank = 3, .scale = 0.75, .dropout = 0.25}; };
  return s;
}

/// Elements of `global` that lie in the box.
Values cut(const Values& global, const run::ParamSpec& spec) {
  Values part;
  std::int64_t n = 1;
  for (const std::int64_t d : spec.shape) n *= d;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t rest = i;
    bool inside = true;
    for (std::size_t d = spec.shape.size(); d-- > 0;) {
      const std::int64_t at = rest % spec.shape[d] - spec.box.offset[d];
      inside = inside && at >= 0 && at < spec.box.shape[d];
      rest /= spec.shape[d];
    }
    if (inside) part.push_back(global[static_cast<std::size_t>(i)]);
  }
  return part;
}

using Build = std::function<run::Stage(const run::UnitPlanner::Setting&)>;

/// Every rank with the weights that `values_of_rank` gives it.
std::vector<RankResult> run_tp(const Build& build, const std::function<const NamedValues&(int)>& values_of_rank,
                               const BlockData& data, const Edges& e, DType dtype, int tp, bool recompute) {
  std::vector<RankResult> results(static_cast<std::size_t>(tp));
  comm::run_threads(tp, [&](comm::Communicator& world) {
    RankResult& mine = results[static_cast<std::size_t>(world.rank())];
    comm::CommTrace trace;
    const auto traced = comm::make_tracing(world, trace);
    const run::Stage stage = build(tp_setting(dtype, tp, world.rank()));
    RunOptions options;
    options.stream = dtype == DType::f64 ? reference_stream() : cpu_stream();
    options.recompute = recompute;
    options.comms[0] = traced.get();
    mine.pass = run_pass(stage, values_of_rank(world.rank()), data, options, e.in, e.d_out);
    mine.specs = models::parameters_of(stage);
    for (const comm::CommEvent& event : trace.events)
      mine.traced.push_back(fmt::format("{} {}", event.op, event.bytes));
    const auto plan = [&](std::size_t u, run::Phase phase) {
      for (const auto& c : stage.units[u]->plan().collectives(phase, run::Purpose::train, data.plan.size))
        mine.planned.push_back(text_of(c));
    };
    for (std::size_t u = 0; u < stage.units.size(); ++u) plan(u, run::Phase::forward);
    for (std::size_t u = stage.units.size(); u-- > 0;) {
      if (!stage.units[u]->plan().needs_backward()) break;
      if (recompute) plan(u, run::Phase::recompute);
      plan(u, run::Phase::backward_input);
      if (stage.units[u]->plan().trains()) plan(u, run::Phase::backward_weight);
    }
  });
  return results;
}

std::vector<RankResult> run_tp(const Build& build, const NamedValues& values, const BlockData& data, const Edges& e,
                               DType dtype, int tp, bool recompute) {
  return run_tp(
      build, [&](int) -> const NamedValues& { return values; }, data, e, dtype, tp, recompute);
}

/// Sums over ranks instead of columns: a few rounding errors of f64.
bool close(const Values& a, const Values& b) { return max_difference(a, b) <= 1e-12 * (1 + norm2(b)); }

/// Every rank's gradients (summed over the ranks where they are partial) are its boxes of the whole ones.
void check_gradients(const std::vector<RankResult>& ranks, const NamedValues& whole) {
  const int tp = static_cast<int>(ranks.size());
  for (const RankResult& r : ranks) {
    for (std::size_t i = 0; i < r.specs.size(); ++i) {
      const run::ParamSpec& spec = r.specs[i];
      if (!spec.trainable) continue;
      INFO(canonical_name(spec));
      Values g = r.pass.grads.at(canonical_name(spec));
      if (!spec.partial_over.empty()) {
        CHECK(spec.partial_over[0].axis == Axis::tp);
        const auto me = static_cast<int>(&r - ranks.data());
        const int size = spec.partial_over[0].size == 0 ? tp : spec.partial_over[0].size;
        std::fill(g.begin(), g.end(), 0.0);
        for (int other = me / size * size; other < me / size * size + size; ++other) {
          CHECK(ranks[static_cast<std::size_t>(other)].specs[i].box == spec.box);
          const Values& part = ranks[static_cast<std::size_t>(other)].pass.grads.at(canonical_name(spec));
          for (std::size_t k = 0; k < g.size(); ++k) g[k] += part[k];
        }
      }
      CHECK(close(g, cut(whole.at(canonical_name(spec)), spec)));
    }
  }
}

}  // namespace

TEST_CASE("tensor parallel blocks equal one rank in outputs and gradients") {
  const std::string family = GENERATE("llama", "qwen2", "qwen3", "gpt2");
  const int tp = GENERATE(2, 4);
  const bool recompute = GENERATE(false, true), adapters = GENERATE(false, true);
  LlmSpec s = tiny_llm(family, 4);
  s.heads = 4;
  s.kv_heads = family == "gpt2" ? 4 : family == "llama" ? 1 : 2;
  INFO(family << " tp " << tp << (adapters ? " with adapters" : ""));
  const Build build = [&](const run::UnitPlanner::Setting& setting) {
    return models::build_llm(s, {}, adapters ? adapted(setting) : setting, {2, 4});
  };
  const BlockData data = llm_block_data(s);
  const run::Stage whole = build(setting(DType::f64));
  NamedValues values;
  add_random_values(values, whole);
  const Edges e = edges_of(whole, data);
  RunOptions options;
  options.stream = reference_stream();
  const Pass one = run_pass(whole, values, data, options, e.in, e.d_out);
  const auto ranks = run_tp(build, values, data, e, DType::f64, tp, recompute);
  for (const RankResult& r : ranks) {
    CHECK(close(r.pass.out, one.out));
    CHECK(close(r.pass.d_in[0], one.d_in[0]));
    CHECK(r.traced == r.planned);
    CHECK(r.traced.size() == (recompute ? 10 : 8));  // two blocks: 2 in F, 2 in BI, 1 in R
  }
  check_gradients(ranks, one.grads);
}

namespace {

/// A decoder whose vocabulary of 37 no number of ranks divides. `head_rows`: its head alone, so many supervised rows.
struct Decoder {
  LlmSpec spec;
  BlockData data;
  NamedValues values;
  Edges edges;
  Build build;

  explicit Decoder(const std::string& family, bool tied, const Trainable& trainable = all_train, int head_rows = 0) {
    spec = tiny_llm(family, 1);
    spec.heads = spec.kv_heads = 4;
    spec.head_dim = 16;
    spec.tie_embeddings = tied;
    data = head_rows == 0 ? llm_block_data(spec, 2)
                          : BlockData::text({{{.text = 3}, {.text = head_rows, .supervised = true}}}, 37, 0);
    build = [spec = spec, trainable, head_rows](const run::UnitPlanner::Setting& s) {
      run::UnitPlanner::Setting setting = s;
      setting.trainable = trainable;
      if (head_rows > 0) return models::build_llm(spec, {}, setting, {2, 3});
      return models::build_llm(spec, {{"eyes", true}, {"ears", false}}, setting);
    };
    const run::Stage whole = build(setting(DType::f64));
    add_random_values(values, whole);
    edges = edges_of(whole, data);
  }
  Pass run(DType dtype, const Stream& stream) const {
    RunOptions options;
    options.stream = stream;
    return run_pass(build(setting(dtype)), values, data, options, edges.in, edges.d_out);
  }
};

}  // namespace

TEST_CASE("a vocabulary over tensor-parallel ranks equals one rank in losses and gradients") {
  const std::string family = GENERATE("llama", "gpt2");
  const bool tied = GENERATE(false, true);
  const int tp = GENERATE(2, 4);
  INFO(family << " tp " << tp << (tied ? " tied" : ""));
  const Decoder d(family, tied);
  const Pass one = d.run(DType::f64, reference_stream());
  const auto ranks = run_tp(d.build, d.values, d.data, d.edges, DType::f64, tp, false);
  std::int64_t rows = 0;
  for (const RankResult& r : ranks) {
    CHECK(close(r.pass.loss, one.loss));
    CHECK(close(r.pass.d_in[0], one.d_in[0]));
    CHECK(r.traced == r.planned);
    const auto table = std::ranges::find(r.specs, "model.embed_tokens.weight", &run::ParamSpec::name);
    REQUIRE(table != r.specs.end());
    CHECK(table->box.offset[0] == rows);
    rows += table->box.shape[0];
    CHECK(table->replica_over.empty());
  }
  CHECK(rows == 37);
  check_gradients(ranks, one.grads);
  // One rank whose share of the head is another changes the loss on all.
  NamedValues wrong = d.values;
  for (double& v : wrong.at(tied ? "llm/model.embed_tokens.weight" : "llm/lm_head.weight")) v *= 1.0001;
  for (const RankResult& r : run_tp(
           d.build, [&](int rank) -> const NamedValues& { return rank == 1 ? wrong : d.values; }, d.data, d.edges,
           DType::f64, tp, false))
    CHECK_FALSE(close(r.pass.loss, one.loss));
}

TEST_CASE("a frozen decoder over tensor-parallel ranks passes gradients through its head") {
  const Decoder d("llama", false, none_train);
  const Pass one = d.run(DType::f64, reference_stream());
  for (const RankResult& r : run_tp(d.build, d.values, d.data, d.edges, DType::f64, 2, false)) {
    CHECK(close(r.pass.loss, one.loss));
    CHECK(close(r.pass.d_in[0], one.d_in[0]));
    CHECK(r.traced == r.planned);
    CHECK(r.pass.grads.empty());
  }
}

TEST_CASE("a head over tensor-parallel ranks works through its chunks of rows") {
  const Decoder d("llama", false, all_train, 1100);  // three chunks
  const Pass one = d.run(DType::f64, reference_stream());
  const auto ranks = run_tp(d.build, d.values, d.data, d.edges, DType::f64, 2, false);
  for (const RankResult& r : ranks) {
    CHECK(close(r.pass.loss, one.loss));
    CHECK(close(r.pass.d_in[0], one.d_in[0]));
    CHECK(r.traced == r.planned);
    CHECK(std::ranges::count(r.traced, fmt::format("all_gather {}", 2 * 3 * 8 * 512)) == 2);
  }
  check_gradients(ranks, one.grads);
}

TEST_CASE("evaluation over tensor-parallel ranks gives one rank's losses, predictions and logits") {
  const int tp = GENERATE(2, 4), head_rows = GENERATE(0, 200);
  const bool shown = GENERATE(false, true);
  const Decoder d("llama", true, all_train, head_rows);
  struct Result {
    Values loss, logits;
    std::vector<std::int32_t> predicted;
  };
  const auto evaluate = [&](const run::UnitPlanner::Setting& s, comm::Communicator* comm) {
    Result result;
    comm::CommTrace trace;
    std::unique_ptr<comm::Communicator> traced;
    if (comm != nullptr) traced = comm::make_tracing(*comm, trace);
    const run::Stage stage = d.build(s);
    Params params(stage, d.values);
    RunOptions options;
    options.stream = reference_stream();
    options.mode = run::Mode::eval;
    options.comms[0] = traced.get();
    const std::function<void(std::int64_t, const Tensor&)> sink = [&](std::int64_t, const Tensor& logits) {
      const Values v = values_of(logits);
      result.logits.insert(result.logits.end(), v.begin(), v.end());
    };
    if (shown) options.logits = &sink;
    StageRun run(stage, params, d.data, options);
    run.forward(d.edges.in);
    result.loss = run.loss();
    result.predicted = run.predicted();
    std::vector<std::string> planned, done;
    for (const auto& unit : stage.units)
      for (const auto& c : unit->plan().collectives(
               run::Phase::forward, shown ? run::Purpose::logits : run::Purpose::evaluate, d.data.plan.size))
        planned.push_back(text_of(c));
    for (const comm::CommEvent& event : trace.events) done.push_back(fmt::format("{} {}", event.op, event.bytes));
    MMT_CHECK(comm == nullptr || planned == done, "planned {}, done {}", fmt::join(planned, ", "),
              fmt::join(done, ", "));
    return result;
  };
  const Result one = evaluate(setting(DType::f64), nullptr);
  REQUIRE(one.logits.size() == (shown ? one.loss.size() * 37 : 0));
  comm::run_threads(tp, [&](comm::Communicator& world) {
    const Result r = evaluate(tp_setting(DType::f64, tp, world.rank()), &world);
    MMT_CHECK(close(r.loss, one.loss) && r.predicted == one.predicted && r.logits.size() == one.logits.size() &&
                  close(r.logits, one.logits),
              "rank {} differs", world.rank());
  });
}

namespace {

/// A stage whose ends have all rows, with its rows shared between layers on several ranks and not on one.
struct SharedRows {
  Build build;
  BlockData one, many;  ///< without and with a tail that makes the rows a multiple of the ranks
  NamedValues values;
  Edges edges;

  SharedRows(Build whole, const BlockData& data, int tp, const std::vector<std::int32_t>& windows) : one(data) {
    build = [whole](const run::UnitPlanner::Setting& s) {
      run::UnitPlanner::Setting setting = s;
      setting.sequence_parallel = true;
      return whole(setting);
    };
    one.plan.masks.resize(windows.size(), one.plan.masks[0]);
    one = with_tail(one, 0, windows);
    many = with_tail(one, static_cast<int>((tp - one.plan.size.rows % tp) % tp), windows);
    const run::Stage stage = build(setting(DType::f64));
    add_random_values(values, stage);
    edges = edges_of(stage, one);
  }

  void check(int tp, bool recompute) const {
    RunOptions options;
    options.stream = reference_stream();
    const Pass whole = run_pass(build(setting(DType::f64)), values, one, options, edges.in, edges.d_out);
    const auto ranks = run_tp(build, values, many, edges, DType::f64, tp, recompute);
    for (const RankResult& r : ranks) {
      CHECK(close(r.pass.out, whole.out));
      CHECK(close(r.pass.loss, whole.loss));
      REQUIRE(r.pass.d_in.size() == whole.d_in.size());
      for (std::size_t i = 0; i < whole.d_in.size(); ++i) CHECK(close(r.pass.d_in[i], whole.d_in[i]));
      CHECK(r.traced == r.planned);
      CHECK(r.pass.grads.size() == whole.grads.size());
    }
    check_gradients(ranks, whole.grads);
  }
};

}  // namespace

TEST_CASE("decoders whose rows are shared between layers equal one rank") {
  const std::string family = GENERATE("llama", "qwen3", "mistral", "gpt2");
  const int tp = GENERATE(2, 4);
  const std::string pattern = GENERATE("", "none", "q_proj", "down_proj.weight", "norm", "o_proj", "embed", "lora");
  LlmSpec s = tiny_llm(family, 2);
  s.heads = s.kv_heads = 4;
  INFO(family << " tp " << tp << " trainable: " << pattern);
  const Build build = [s, pattern](const run::UnitPlanner::Setting& base) {
    run::UnitPlanner::Setting setting = pattern == "lora" ? adapted(base) : base;
    setting.trainable = [pattern](const std::string& name) { return contains(name, pattern); };
    return models::build_llm(s, {{"eyes", pattern == "none"}, {"ears", true}}, setting);
  };
  const SharedRows shared(build, llm_block_data(s, 2), tp, models::mask_windows(s));
  for (const bool recompute : {false, true}) shared.check(tp, recompute);
  if (!pattern.empty()) return;
  // What one rank has of a norm's gradient is not all of it.
  RunOptions options;
  options.stream = reference_stream();
  const run::Stage one = shared.build(setting(DType::f64));
  const Pass whole = run_pass(one, shared.values, shared.one, options, shared.edges.in, shared.edges.d_out);
  for (const RankResult& r : run_tp(shared.build, shared.values, shared.many, shared.edges, DType::f64, tp, false))
    for (const run::ParamSpec& p : r.specs)
      if (contains(p.name, "input_layernorm"))
        CHECK_FALSE(close(r.pass.grads.at(canonical_name(p)), whole.grads.at(canonical_name(p))));
}

TEST_CASE("encoders whose rows are shared between layers equal one rank") {
  const std::string kind = GENERATE("clip", "siglip", "qwen2_vl", "whisper", "qwen2_audio", "clip tiles");
  const int tp = GENERATE(2, 4);
  const std::string pattern = GENERATE("", "projector", "s.1.", "embed", "norm", "lora");
  EncoderSpec s = tiny_encoder(kind, 2);
  s.hidden = 64;
  s.heads = 4;
  s.train_positions = true;
  INFO(kind << " tp " << tp << " trainable: " << pattern);
  const Build build = [s, pattern](const run::UnitPlanner::Setting& base) {
    run::UnitPlanner::Setting setting = pattern == "lora" ? adapted(base) : base;
    setting.trainable = [pattern](const std::string& name) { return contains(name, pattern); };
    return models::build_encoder(s, 32, setting);
  };
  const SharedRows shared(build, encoder_block_data(s), tp, {0});
  for (const bool recompute : {false, true}) shared.check(tp, recompute);
}

TEST_CASE("shared rows take less memory, and gather and scatter where whole ones are summed") {
  LlmSpec s = tiny_llm("llama", 1);
  s.heads = s.kv_heads = 4;
  const auto block = [&](bool shares) {
    run::UnitPlanner::Setting setting = tp_setting(DType::f32, 4, 1);
    setting.sequence_parallel = shares;
    return models::build_llm(s, {}, setting, {1, 2});
  };
  const run::Stage whole = block(false), shared = block(true);
  const run::UnitPlan &a = whole.units[0]->plan(), &b = shared.units[0]->plan();
  const plan::BlockSize size{.rows = 4096};
  const auto count = [&](const run::UnitPlan& plan, run::Phase phase) {
    std::map<run::InnerEvent::Op, int> n;
    for (const auto& c : plan.collectives(phase, run::Purpose::train, size)) ++n[c.op];
    return std::array{n[run::InnerEvent::Op::all_reduce], n[run::InnerEvent::Op::all_gather],
                      n[run::InnerEvent::Op::reduce_scatter]};
  };
  CHECK(count(a, run::Phase::forward) == std::array{2, 0, 0});
  CHECK(count(b, run::Phase::forward) == std::array{0, 2, 2});
  CHECK(count(a, run::Phase::backward_input) == std::array{2, 0, 0});
  CHECK(count(b, run::Phase::backward_input) == std::array{0, 2, 2});
  CHECK(count(b, run::Phase::backward_weight) == std::array{0, 2, 0});
  // Three tensors of (rows, hidden) are a quarter: normed 1, middle, normed 2; with the norms' statistics.
  const auto kept = [&](const run::UnitPlan& p) {
    return p.bytes(run::Life::kept, size) + p.bytes(run::Life::held, size);
  };
  CHECK(kept(a) - kept(b) == 3 * size.rows * (3 * s.hidden + 2) * 4 / 4);
  CHECK(b.inputs[0].count.parts == 4);
  CHECK(b.output.count.parts == 4);
  // Parameters of norms see a share of the rows; what is replicated over tp sees all.
  for (const run::ParamSpec& p : b.params) {
    INFO(p.name);
    CHECK(p.partial_over.empty() == !contains(p.name, "norm"));
  }
}

TEST_CASE("a module that every tensor-parallel rank computes alike has no collectives") {
  const EncoderSpec s = tiny_encoder("clip", 2);
  run::UnitPlanner::Setting alike = tp_setting(DType::f32, 3, 2);  // 2 heads
  alike.replicate_tp = alike.sequence_parallel = true;
  const run::Stage stage = models::build_encoder(s, 32, alike);
  for (const auto& unit : stage.units) {
    for (const auto& events : unit->plan().events) CHECK(events.empty());
    for (const run::ParamSpec& p : unit->plan().params) {
      CHECK(p.box.shape == p.shape);
      CHECK(p.replica_over == std::vector<run::AxisGroup>{{Axis::tp, 0}});
    }
  }
}

TEST_CASE("losses of a bf16 vocabulary over ranks are as near as one rank's") {
  const Decoder d("llama", false);
  const auto distance = [](const Values& a, const Values& b) {
    Values e = a;
    for (std::size_t i = 0; i < e.size(); ++i) e[i] -= b[i];
    return norm2(e);
  };
  const Pass truth = d.run(DType::f64, reference_stream()), one = d.run(DType::bf16, cpu_stream());
  for (const RankResult& r : run_tp(d.build, d.values, d.data, d.edges, DType::bf16, 4, false)) {
    // The order of sums decides which of two neighbours a value is rounded to: another draw of the same error.
    CHECK(distance(r.pass.loss, truth.loss) <= 2 * distance(one.loss, truth.loss));
    CHECK(distance(r.pass.d_in[0], truth.d_in[0]) <= 2 * distance(one.d_in[0], truth.d_in[0]));
  }
}

TEST_CASE("tensor parallel sums in bf16 round once") {
  const bool adapters = GENERATE(false, true);
  LlmSpec s = tiny_llm("llama", 3);
  s.heads = s.kv_heads = 4;
  const Build build = [&](const run::UnitPlanner::Setting& setting) {
    return models::build_llm(s, {}, adapters ? adapted(setting) : setting, {2, 3});
  };
  const BlockData data = llm_block_data(s);
  const run::Stage exact = build(setting(DType::f64));
  NamedValues values;
  add_random_values(values, exact);
  const Edges e = edges_of(exact, data);
  RunOptions options;
  options.stream = reference_stream();
  const Pass truth = run_pass(exact, values, data, options, e.in, e.d_out);
  options.stream = cpu_stream();
  const Pass one = run_pass(build(setting(DType::bf16)), values, data, options, e.in, e.d_out);
  const auto error = [](const Values& a, const Values& b) {
    Values d = a;
    for (std::size_t i = 0; i < d.size(); ++i) d[i] -= b[i];
    return norm2(d);
  };
  for (const RankResult& r : run_tp(build, values, data, e, DType::bf16, 4, false)) {
    CHECK(error(r.pass.out, truth.out) <= 1.5 * error(one.out, truth.out));
    CHECK(error(r.pass.d_in[0], truth.d_in[0]) <= 1.5 * error(one.d_in[0], truth.d_in[0]));
  }
}
