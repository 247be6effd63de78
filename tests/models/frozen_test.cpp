// Freezing: whatever trains beside it, a parameter's gradient has the same bits; what no backward reads is not saved;
// recomputing and delaying the weight gradients change nothing.
#include "tests/models/tiny.h"

#include "kernels/backend.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <set>

using namespace mmt;
using namespace mmt::test;

namespace {

/// A stage of one unit, made anew for each frozen pattern.
struct FrozenCase {
  std::string name;
  BlockData data;
  std::function<run::Stage(DType, Trainable)> build;
  std::string other;  ///< a parameter of an earlier unit: when it trains, the input needs a gradient
};

std::vector<FrozenCase> frozen_cases() {
  std::vector<FrozenCase> list;
  for (const char* family : {"llama", "qwen2", "qwen3", "gpt2"}) {
    const LlmSpec s = tiny_llm(family, 3);
    list.push_back({std::string(family) + " block", llm_block_data(s),
                    [s](DType t, Trainable f) {
                      return models::build_llm(s, {}, setting(t, f), {2, 3});
                    },
                    "llm/model.embed_tokens.weight"});
  }
  // Adapters of some of the linear layers. Without dropout: a frozen adapter has none, so outputs would differ.
  const auto adapted = [](run::UnitPlanner::Setting s) {
    s.adapter = [](const std::string& linear) -> std::optional<run::AdapterSpec> {
      for (const char* name : {"q_proj", "o_proj", "up_proj", "down_proj", "linear_1", "linear_2"})
        if (linear.ends_with(name)) return run::AdapterSpec{.rank = 3, .scale = 0.75};
      return std::nullopt;
    };
    return s;
  };
  for (const char* family : {"llama", "gpt2"}) {
    const LlmSpec s = tiny_llm(family, 3);
    list.push_back({std::string(family) + " block with adapters", llm_block_data(s),
                    [s, adapted](DType t, Trainable f) {
                      return models::build_llm(s, {}, adapted(setting(t, f)), {2, 3});
                    },
                    "llm/model.embed_tokens.weight"});
  }
  {
    const EncoderSpec s = tiny_encoder("siglip", 3);
    list.push_back({"projector with adapters", encoder_block_data(s),
                    [s, adapted](DType t, Trainable f) {
                      return models::build_encoder(s, 24, adapted(setting(t, f)), {5, -1});
                    },
                    s.name + "/embeddings.position_embedding.weight"});
  }
  for (const char* family : {"llama", "gpt2"}) {
    const LlmSpec s = tiny_llm(family, 1);
    list.push_back({std::string(family) + " head", llm_block_data(s),
                    [s](DType t, Trainable f) {
                      return models::build_llm(s, {}, setting(t, f), {2, 3});
                    },
                    "llm/model.embed_tokens.weight"});
    list.push_back({std::string(family) + " embedding", llm_block_data(s, 1),
                    [s](DType t, Trainable f) {
                      return models::build_llm(s, {{"eyes", f("the port")}}, setting(t, f), {0, 1});
                    },
                    "the port"});
  }
  for (const char* kind : {"clip", "siglip", "qwen2_vl", "whisper", "qwen2_audio", "clip tiles"}) {
    EncoderSpec s = tiny_encoder(kind, 3);
    s.train_positions = true;
    const std::string first = s.name + "/" +
                              (s.modality == "audio"  ? "conv1.bias"
                               : s.kind == "qwen2_vl" ? "patch_embed.proj.weight"
                                                      : "embeddings.position_embedding.weight");
    list.push_back({std::string(kind) + " stem", encoder_block_data(s),
                    [s](DType t, Trainable f) {
                      return models::build_encoder(s, 24, setting(t, f), {0, 1});
                    },
                    ""});
    list.push_back({std::string(kind) + " block", encoder_block_data(s),
                    [s](DType t, Trainable f) {
                      return models::build_encoder(s, 24, setting(t, f), {2, 3});
                    },
                    first});
    if (std::string(kind) == "siglip") s.projector.kind = "linear";
    list.push_back({std::string(kind) + " exit and projector", encoder_block_data(s),
                    [s](DType t, Trainable f) {
                      return models::build_encoder(s, 24, setting(t, f), {4, -1});
                    },
                    first});
  }
  return list;
}

NamedValues values_for(const FrozenCase& c) {
  NamedValues values;
  add_random_values(values, c.build(DType::f64, all_train));
  return values;
}

/// Everything, nothing, every parameter alone, all biases, all norms; each with and without an input gradient.
std::vector<std::pair<std::string, Trainable>> frozen_patterns(const FrozenCase& c) {
  std::vector<std::pair<std::string, Trainable>> list;
  const auto add = [&](const std::string& name, Trainable f) {
    list.push_back({name, [f, other = c.other](const std::string& p) { return p != other && f(p); }});
    if (!c.other.empty())
      list.push_back(
          {name + " and the input", [f, other = c.other](const std::string& p) { return p == other || f(p); }});
  };
  add("all", all_train);
  add("nothing", none_train);
  add("biases", [](const std::string& p) { return contains(p, ".bias"); });
  add("norms", [](const std::string& p) { return contains(p, "norm"); });
  for (const run::ParamSpec& spec : models::parameters_of(c.build(DType::f64, all_train))) {
    const std::string name = canonical_name(spec);
    add("only " + name, [name](const std::string& p) { return p == name; });
    add("all but " + name, [name](const std::string& p) { return p != name; });
  }
  return list;
}

bool any_nan(const Pass& pass) {
  const auto nan = [](const Values& v) {
    return std::any_of(v.begin(), v.end(), [](double x) { return std::isnan(x); });
  };
  bool found = std::any_of(pass.d_in.begin(), pass.d_in.end(), nan);
  for (const auto& [name, g] : pass.grads) found = found || nan(g);
  return found;
}

}  // namespace

TEST_CASE("gradients do not depend on what else trains") {
  for (const FrozenCase& c : frozen_cases()) {
    const NamedValues values = values_for(c);
    const run::Stage full = c.build(DType::f64, all_train);
    const Edges e = edges_of(full, c.data);
    const Pass whole = run_pass(full, values, c.data, reference_options(), e.in, e.d_out);
    for (const auto& [name, trainable] : frozen_patterns(c)) {
      INFO(c.name << ": " << name);
      const run::Stage stage = c.build(DType::f64, trainable);
      const Pass pass = run_pass(stage, values, c.data, reference_options(), e.in, e.d_out);
      CHECK(pass.out == whole.out);
      CHECK(pass.loss == whole.loss);
      for (const auto& [parameter, g] : pass.grads) {
        INFO(parameter);
        CHECK(g == whole.grads.at(parameter));
      }
      for (std::size_t p = 0; p < pass.d_in.size(); ++p)
        if (!pass.d_in[p].empty()) CHECK(pass.d_in[p] == whole.d_in[p]);
      std::size_t trains = 0;
      for (const run::ParamSpec& spec : models::parameters_of(stage)) trains += spec.trainable ? 1 : 0;
      CHECK(pass.grads.size() == trains);
    }
  }
}

TEST_CASE("recompute and delayed weight gradients give the same bits") {
  for (const FrozenCase& c : frozen_cases()) {
    const NamedValues values = values_for(c);
    for (const auto& [name, trainable] : frozen_patterns(c)) {
      INFO(c.name << ": " << name);
      const run::Stage stage = c.build(DType::f64, trainable);
      const Edges e = edges_of(stage, c.data);
      const Pass plain = run_pass(stage, values, c.data, reference_options(), e.in, e.d_out);
      for (const int variant : {1, 2, 3, 4, 6}) {
        RunOptions options = reference_options();
        options.recompute = (variant & 1) != 0;
        options.delayed_weights = (variant & 2) != 0;
        options.selective = (variant & 4) != 0;
        const Pass pass = run_pass(stage, values, c.data, options, e.in, e.d_out);
        CHECK(pass.grads == plain.grads);
        CHECK(pass.d_in == plain.d_in);
      }
    }
  }
}

TEST_CASE("selective recompute with the fast kernels gives the same bits") {
  for (const FrozenCase& c : frozen_cases()) {
    const NamedValues values = values_for(c);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      INFO(c.name << " " << name_of(dtype));
      const run::Stage stage = c.build(dtype, all_train);
      const Edges e = edges_of(stage, c.data);
      RunOptions options;
      options.stream = cpu_stream();
      const Pass plain = run_pass(stage, values, c.data, options, e.in, e.d_out);
      options.selective = true;
      const Pass pass = run_pass(stage, values, c.data, options, e.in, e.d_out);
      CHECK(pass.grads == plain.grads);
      CHECK(pass.d_in == plain.d_in);
    }
  }
}

TEST_CASE("selective recompute stores no normed rows and no activations of a training block") {
  const FrozenCase c = frozen_cases().front();
  const run::Stage stage = c.build(DType::f32, all_train);
  std::set<std::string> cheap;
  for (const auto& unit : stage.units) {
    for (const run::TensorSpec& t : unit->plan().tensors) {
      if (t.cheap && (t.life == run::Life::kept || t.life == run::Life::held)) cheap.insert(t.name);
    }
  }
  CHECK(cheap == std::set<std::string>{"normed 1", "normed 2", "mlp middle"});
}

TEST_CASE("every saved tensor is read by a backward") {
  for (const FrozenCase& c : frozen_cases()) {
    const NamedValues values = values_for(c);
    for (const auto& [name, trainable] : frozen_patterns(c)) {
      const run::Stage stage = c.build(DType::f64, trainable);
      const Edges e = edges_of(stage, c.data);
      for (std::size_t u = 0; u < stage.units.size(); ++u) {
        const run::UnitPlan& plan = stage.units[u]->plan();
        for (const run::Life life : {run::Life::kept, run::Life::held, run::Life::stash}) {
          for (const std::string& tensor : saved_names(plan, life)) {
            INFO(c.name << ": " << name << ": " << plan.name << ": " << tensor);
            // The attention kernel takes them whatever it computes; d v alone does not read them.
            if (contains(name, "only") && (contains(name, "v_proj") || contains(name, "attn.v.")) &&
                (tensor == "v" || tensor == "attention"))
              continue;
            RunOptions options = reference_options();
            options.delayed_weights = true;
            options.spoil_unit = static_cast<int>(u);
            options.spoil = tensor;
            CHECK(any_nan(run_pass(stage, values, c.data, options, e.in, e.d_out)));
          }
        }
      }
    }
  }
}

TEST_CASE("frozen llama blocks save what their pattern needs and no more") {
  using Names = std::vector<std::string>;
  const LlmSpec s = tiny_llm("llama", 3);
  const std::string layer = "llm/model.layers.1.", before = "llm/model.embed_tokens.weight";
  const auto unit = [&](Trainable trainable) {
    run::Stage stage = models::build_llm(s, {}, setting(DType::f32, std::move(trainable)), {2, 3});
    return stage.units[0]->plan();
  };
  const auto saved = [&](const run::UnitPlan& plan) {
    return std::vector<Names>{saved_names(plan, run::Life::kept), saved_names(plan, run::Life::held),
                              saved_names(plan, run::Life::stash)};
  };
  const Names attention{"q", "k", "v", "attention", "log-sum-exp"};

  const run::UnitPlan nothing = unit(none_train);
  CHECK(saved(nothing) == std::vector<Names>{{}, {}, {}});
  CHECK_FALSE(nothing.needs_backward());
  CHECK(nothing.bytes(run::Life::kept, {.rows = 100}) == 0);
  CHECK(nothing.cost.backward_input.per_row == 0);

  const run::UnitPlan pass_through = unit([&](const std::string& p) { return p == before; });
  CHECK(saved(pass_through) ==
        std::vector<Names>{{"in x", "model.layers.1.input_layernorm rstd", "q", "k", "v", "attention", "log-sum-exp",
                            "model.layers.1.post_attention_layernorm rstd", "mlp gate", "mlp up", "middle"},
                           {},
                           {}});
  CHECK(pass_through.cost.backward_weight.per_row == 0);

  const run::UnitPlan down = unit([&](const std::string& p) { return p == layer + "mlp.down_proj.weight"; });
  CHECK(saved(down) == std::vector<Names>{{}, {"mlp middle"}, {"d_out"}});
  CHECK(down.cost.backward_input.per_row == 0);
  CHECK(down.cost.backward_input.per_tile == 0);

  const run::UnitPlan query = unit([&](const std::string& p) { return p == layer + "self_attn.q_proj.weight"; });
  CHECK(saved(query) ==
        std::vector<Names>{{"q", "k", "v", "attention", "log-sum-exp", "model.layers.1.post_attention_layernorm rstd",
                            "mlp gate", "mlp up", "middle"},
                           {"normed 1"},
                           {"d q"}});

  const run::UnitPlan norm = unit([&](const std::string& p) { return p == layer + "post_attention_layernorm.weight"; });
  CHECK(saved(norm) ==
        std::vector<Names>{{"model.layers.1.post_attention_layernorm rstd", "mlp gate", "mlp up", "middle"},
                           {},
                           {"grad of model.layers.1.post_attention_layernorm.weight"}});
  CHECK(norm.cost.backward_input.per_tile == 0);
}

TEST_CASE("blocks without rows write zero gradients and nothing else") {
  for (const FrozenCase& c : frozen_cases()) {
    INFO(c.name);
    const run::Stage stage = c.build(DType::f64, all_train);
    const NamedValues values = values_for(c);
    BlockData empty =
        BlockData::text({}, 37, c.data.plan.ports.empty() ? 0 : 1,
                        std::vector<std::int32_t>(c.data.plan.masks.size(), 0), c.data.plan.num_positions);
    empty.source_cols = c.data.source_cols;
    for (const bool recompute : {false, true}) {
      RunOptions options = reference_options();
      options.recompute = recompute;
      const Edges e = edges_of(stage, empty);
      const Pass pass = run_pass(stage, values, empty, options, e.in, e.d_out);
      CHECK(pass.out.empty());
      for (const auto& [name, g] : pass.grads) {
        INFO(name);
        CHECK(norm2(g) == 0.0);
      }
    }
  }
}

TEST_CASE("rows without labels give loss gradients of zero") {
  const LlmSpec s = tiny_llm("llama", 1);
  const BlockData data = BlockData::text({{{.text = 5}}, {{.text = 3}}}, 37, 0);
  const run::Stage stage = models::build_llm(s, {}, setting(DType::f64));
  NamedValues values;
  add_random_values(values, stage);
  const Pass pass = run_pass(stage, values, data, reference_options(), {}, {});
  CHECK(pass.objective == 0.0);
  for (const auto& [name, g] : pass.grads) CHECK(norm2(g) == 0.0);
}

TEST_CASE("a second block adds to the gradients of the first") {
  const LlmSpec s = tiny_llm("qwen2", 1);
  const run::Stage stage = models::build_llm(s, {}, setting(DType::f64));
  NamedValues values;
  add_random_values(values, stage);
  const BlockData a = llm_block_data(s);
  const BlockData b = BlockData::text({{{.text = 2}, {.text = 5, .supervised = true}}}, 37, 0, {0}, 1, 77);
  const Pass pass_a = run_pass(stage, values, a, reference_options(), {}, {}),
             pass_b = run_pass(stage, values, b, reference_options(), {}, {});
  Params params(stage, values);
  params.begin_step();
  for (const BlockData* data : {&a, &b}) {
    StageRun run(stage, params, *data, reference_options());
    run.forward();
    run.backward();
  }
  for (const auto& [name, g] : params.gradients()) {
    INFO(name);
    Values sum = pass_a.grads.at(name);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += pass_b.grads.at(name)[i];
    CHECK(max_difference(g, sum) <= 1e-14 * (1 + norm2(sum)));
  }
}
