// Low-rank adapters: gradients against difference quotients with the mask of dropout fixed by its address, the merged
// weights as another way to the same numbers, what is saved and computed, whom a draw belongs to.
#include "tests/models/tiny.h"

#include "kernels/backend.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;

namespace {

constexpr double kScale = 0.75;

run::UnitPlanner::Setting with_adapters(DType dtype, const std::vector<std::string>& on, double dropout,
                                        Trainable trainable = all_train, std::int64_t rank = 3) {
  run::UnitPlanner::Setting s = setting(dtype, std::move(trainable));
  s.adapter = [=](const std::string& linear) -> std::optional<run::AdapterSpec> {
    for (const std::string& name : on)
      if (linear.ends_with(name)) return run::AdapterSpec{rank, kScale, dropout};
    return std::nullopt;
  };
  return s;
}

bool of_adapter(const std::string& name) { return contains(name, ".lora_"); }

RunOptions reference_at(std::uint32_t step = 5) {
  RunOptions o = reference_options();
  o.seed = 11;
  o.step = step;
  return o;
}

/// A stage of the layers that adapters can stand beside, and their names.
struct AdapterCase {
  std::string name;
  BlockData data;
  std::vector<std::string> linears;
  std::function<run::Stage(const run::UnitPlanner::Setting&)> build;
};

std::vector<AdapterCase> adapter_cases() {
  std::vector<AdapterCase> list;
  for (const char* family : {"llama", "qwen3", "gpt2"}) {
    const LlmSpec s = tiny_llm(family, 3);
    std::vector<std::string> linears = {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"};
    if (s.gated) linears.emplace_back("gate_proj");
    list.push_back({family, llm_block_data(s), linears, [s](const auto& setting) {
                      return models::build_llm(s, {}, setting, {2, 3});
                    }});
  }
  const EncoderSpec ears = tiny_encoder("whisper", 3);
  list.push_back(
      {"whisper", encoder_block_data(ears), {"q_proj", "out_proj", "fc1", "fc2"}, [ears](const auto& setting) {
         return models::build_encoder(ears, 24, setting, {2, 3});
       }});
  for (const char* kind : {"mlp2", "linear"}) {
    EncoderSpec s = tiny_encoder("clip", 3);
    s.projector.kind = kind;
    std::vector<std::string> linears = {"projector/linear"};
    if (s.projector.kind == "mlp2") linears = {"linear_1", "linear_2"};
    list.push_back({std::string("projector ") + kind, encoder_block_data(s), linears, [s](const auto& setting) {
                      return models::build_encoder(s, 24, setting, {5, -1});
                    }});
  }
  return list;
}

NamedValues values_of_stage(const run::Stage& stage) {
  NamedValues values;
  add_random_values(values, stage);
  return values;
}

bool same(const Pass& a, const Pass& b) { return a.out == b.out && a.d_in == b.d_in && a.grads == b.grads; }

}  // namespace

TEST_CASE("gradients of an adapter of each kind of linear layer with dropout") {
  for (const AdapterCase& c : adapter_cases()) {
    std::vector<std::vector<std::string>> choices;
    for (const std::string& linear : c.linears) choices.push_back({linear});
    if (c.linears.size() > 1) choices.push_back(c.linears);
    for (const std::vector<std::string>& on : choices) {
      INFO(c.name << ": " << on.front() << (on.size() > 1 ? " and all others" : ""));
      const run::Stage stage = c.build(with_adapters(DType::f64, on, 0.25));
      int adapters = 0;
      for (const run::ParamSpec& p : models::parameters_of(stage)) adapters += of_adapter(canonical_name(p)) ? 1 : 0;
      REQUIRE(adapters == 2 * static_cast<int>(on.size()));
      const Edges e = edges_of(stage, c.data);
      const auto complaints = gradcheck(stage, values_of_stage(stage), c.data, reference_at(), e.in, e.d_out);
      INFO(join(complaints));
      CHECK(complaints.empty());
    }
  }
}

TEST_CASE("an adapter computes what the merged weights compute") {
  for (const AdapterCase& c : adapter_cases()) {
    INFO(c.name);
    const run::Stage stage = c.build(with_adapters(DType::f64, c.linears, 0.0)), plain = c.build(setting(DType::f64));
    const NamedValues values = values_of_stage(stage);
    const auto merged_by = [&](double scale) {
      NamedValues merged;
      for (const run::ParamSpec& p : models::parameters_of(plain)) {
        const std::string name = canonical_name(p);
        Values& w = merged[name] = values.at(name);
        const std::string layer = name.substr(0, name.size() - std::string(".weight").size());
        if (!values.contains(layer + ".lora_A.weight")) continue;
        const Values &a = values.at(layer + ".lora_A.weight"), &b = values.at(layer + ".lora_B.weight");
        const auto in = static_cast<std::size_t>(p.shape[1]), rank = a.size() / in;
        for (std::size_t i = 0; i < w.size(); ++i)
          for (std::size_t r = 0; r < rank; ++r) w[i] += scale * b[i / in * rank + r] * a[r * in + i % in];
      }
      return merged;
    };
    const Edges e = edges_of(stage, c.data);
    const Pass split = run_pass(stage, values, c.data, reference_at(), e.in, e.d_out);
    const NamedValues merged = merged_by(kScale);
    const Pass whole = run_pass(plain, merged, c.data, reference_at(), e.in, e.d_out);
    // Another order of sums of f64.
    const auto close = [](const Values& a, const Values& b) { return max_difference(a, b) <= 1e-13 * (1 + norm2(b)); };
    CHECK(close(split.out, whole.out));
    CHECK(close(split.d_in.at(0), whole.d_in.at(0)));
    // dA = scale B^T dW and dB = scale dW A^T, with dW of the merged weights.
    for (const run::ParamSpec& p : models::parameters_of(plain)) {
      const std::string name = canonical_name(p);
      const Values& dw = whole.grads.at(name);
      CHECK(close(split.grads.at(name), dw));
      const std::string layer = name.substr(0, name.size() - std::string(".weight").size());
      if (!values.contains(layer + ".lora_A.weight")) continue;
      const Values &a = values.at(layer + ".lora_A.weight"), &b = values.at(layer + ".lora_B.weight");
      const auto in = static_cast<std::size_t>(p.shape[1]), rank = a.size() / in;
      Values da(a.size(), 0.0), db(b.size(), 0.0);
      for (std::size_t i = 0; i < dw.size(); ++i)
        for (std::size_t r = 0; r < rank; ++r) {
          da[r * in + i % in] += kScale * b[i / in * rank + r] * dw[i];
          db[i / in * rank + r] += kScale * a[r * in + i % in] * dw[i];
        }
      INFO(layer);
      CHECK(close(split.grads.at(layer + ".lora_A.weight"), da));
      CHECK(close(split.grads.at(layer + ".lora_B.weight"), db));
    }
    // The comparison sees a scale that is wrong by a part in a million.
    CHECK_FALSE(
        close(split.out, run_pass(plain, merged_by(kScale * 1.000001), c.data, reference_at(), e.in, e.d_out).out));
  }
}

TEST_CASE("a fresh adapter changes no bit of the output and its A starts as PEFT has it") {
  for (const AdapterCase& c : adapter_cases()) {
    INFO(c.name);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const run::Stage stage = c.build(with_adapters(dtype, c.linears, 0.5)), plain = c.build(setting(dtype));
      NamedValues values = values_of_stage(stage);
      for (const run::ParamSpec& p : models::parameters_of(stage)) {
        if (!of_adapter(p.name)) continue;
        if (contains(p.name, ".lora_B.")) {
          CHECK(p.init.kind == run::Init::Kind::zeros);
          values.at(canonical_name(p)).assign(values.at(canonical_name(p)).size(), 0.0);
        } else {
          CHECK((p.init.kind == run::Init::Kind::uniform && p.shape[0] == 3));
          CHECK(p.init.scale == 1.0 / std::sqrt(static_cast<double>(p.shape[1])));
        }
      }
      RunOptions options = reference_at();
      if (dtype != DType::f64) options.stream = cpu_stream();
      const Edges e = edges_of(stage, c.data);
      CHECK(run_pass(stage, values, c.data, options, e.in, {}, false).out ==
            run_pass(plain, values, c.data, options, e.in, {}, false).out);
    }
  }
}

TEST_CASE("dropout draws the same under recompute and delayed weight gradients") {
  for (const AdapterCase& c : adapter_cases()) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      INFO(c.name << " " << name_of(dtype));
      const run::Stage stage = c.build(with_adapters(dtype, c.linears, 0.25, of_adapter));
      const NamedValues values = values_of_stage(stage);
      RunOptions options = reference_at();
      if (dtype != DType::f64) options.stream = cpu_stream();
      const Edges e = edges_of(stage, c.data);
      const Pass plain = run_pass(stage, values, c.data, options, e.in, e.d_out);
      for (const int variant : {1, 2, 3, 4, 6}) {
        RunOptions other = options;
        other.recompute = (variant & 1) != 0;
        other.delayed_weights = (variant & 2) != 0;
        other.selective = (variant & 4) != 0;
        CHECK(same(run_pass(stage, values, c.data, other, e.in, e.d_out), plain));
      }
      // Another step, another seed, evaluation: other outputs.
      RunOptions other = options;
      other.step = 6;
      CHECK(run_pass(stage, values, c.data, other, e.in, {}, false).out != plain.out);
      other = options;
      other.seed = 12;
      CHECK(run_pass(stage, values, c.data, other, e.in, {}, false).out != plain.out);
      other = options;
      other.mode = run::Mode::eval;
      const Values evaluated = run_pass(stage, values, c.data, other, e.in, {}, false).out;
      CHECK(evaluated != plain.out);
      // What is frozen runs as in evaluation.
      CHECK(
          run_pass(c.build(with_adapters(dtype, c.linears, 0.25, none_train)), values, c.data, options, e.in, {}, false)
              .out == evaluated);
      CHECK(run_pass(c.build(with_adapters(dtype, c.linears, 0.0)), values, c.data, options, e.in, {}, false).out ==
            evaluated);
    }
  }
}

TEST_CASE("a sample's draws do not depend on the block that it is in") {
  const LlmSpec s = tiny_llm("llama", 3);
  const auto build = [&](const auto& setting) { return models::build_llm(s, {}, setting, {2, 3}); };
  const run::Stage stage = build(with_adapters(DType::f64, {"q_proj", "down_proj"}, 0.25));
  const NamedValues values = values_of_stage(stage);
  const BlockData together = llm_block_data(s);
  const Edges e = edges_of(stage, together);
  const Values out = run_pass(stage, values, together, reference_at(), e.in, {}, false).out;
  BlockData alone = BlockData::text({{{.text = 6, .supervised = true}}}, 37, 0);
  const plan::SamplePlan& last = together.plan.samples.back();
  REQUIRE(last.rows.count == alone.plan.size.rows);
  const auto part = [&](const Values& v) {
    const auto first = v.begin() + last.rows.first * s.hidden;
    return Values(first, first + last.rows.count * s.hidden);
  };
  alone.plan.samples.front().sample = last.sample;
  // Sums of attention may be cut elsewhere.
  CHECK(max_difference(run_pass(stage, values, alone, reference_at(), {part(e.in[0])}, {}, false).out, part(out)) <
        1e-13);
  alone.plan.samples.front().sample = 0;  // another sample's draws
  CHECK(max_difference(run_pass(stage, values, alone, reference_at(), {part(e.in[0])}, {}, false).out, part(out)) >
        1e-3);

  // Items of an encoder: by sample and by place among the sample's items.
  EncoderSpec eyes = tiny_encoder("clip", 3);
  eyes.projector.kind = "linear";
  const run::Stage tower =
      models::build_encoder(eyes, 24, with_adapters(DType::f64, {"q_proj", "linear"}, 0.25), {2, -1});
  const NamedValues tower_values = values_of_stage(tower);
  BlockData pictures = BlockData::pictures({4, 4}, 12, true, false);
  pictures.plan.items[1].sample = pictures.plan.items[0].sample;
  pictures.plan.items[1].ordinal = 1;
  Values in = random_values(5 * eyes.hidden, 3);
  in.insert(in.end(), in.begin(), in.end());  // the same picture twice
  const Values rows = run_pass(tower, tower_values, pictures, reference_at(), {in}, {}, false).out;
  const Values first(rows.begin(), rows.begin() + 4 * 24), second(rows.begin() + 4 * 24, rows.end());
  CHECK(max_difference(first, second) > 1e-3);
  BlockData one = BlockData::pictures({4}, 12, true, false);
  one.plan.items[0].sample = pictures.plan.items[0].sample;
  one.plan.items[0].ordinal = 1;
  in.resize(in.size() / 2);
  CHECK(max_difference(run_pass(tower, tower_values, one, reference_at(), {in}, {}, false).out, second) < 1e-13);
}

TEST_CASE("an adapter of q_proj alone needs the gradient through the MLP and o_proj and saves no more") {
  using Names = std::vector<std::string>;
  const LlmSpec s = tiny_llm("llama", 3);
  const auto unit = [&](const std::vector<std::string>& on, Trainable trainable, models::UnitRange range) {
    return models::build_llm(s, {}, with_adapters(DType::f32, on, 0.1, std::move(trainable)), range).units[0]->plan();
  };
  const auto saved = [&](const run::UnitPlan& plan) {
    return std::vector<Names>{saved_names(plan, run::Life::kept), saved_names(plan, run::Life::held),
                              saved_names(plan, run::Life::stash)};
  };
  const std::string q = "model.layers.0.self_attn.q_proj";
  const run::UnitPlan first = unit({"q_proj"}, of_adapter, {1, 2});
  CHECK(saved(first) ==
        std::vector<Names>{{"q", "k", "v", "attention", "log-sum-exp", "model.layers.0.post_attention_layernorm rstd",
                            "mlp gate", "mlp up", "middle"},
                           {q + " inner", "normed 1"},
                           {"d " + q + " inner", "d q"}});
  CHECK(first.output.needs_grad);
  CHECK_FALSE(first.inputs[0].needs_grad);
  // F: the plain block, and A and B. BI: o_proj, the MLP, B^T; no dX of q, k, v and no x of A. BW: dA, dB.
  const std::int64_t hidden = s.hidden, inner = s.intermediate, kv = s.kv_heads * s.head_dim;
  const std::int64_t mlp = 2 * 3 * hidden * inner, out = 2 * hidden * hidden, small = 2 * 3 * hidden;
  CHECK(first.cost.forward.per_row == mlp + out + 2 * hidden * (hidden + 2 * kv) + 2 * small);
  CHECK(first.cost.backward_input.per_row == mlp + out + small);
  CHECK(first.cost.backward_weight.per_row == 2 * small);
  // The layer above passes the gradient on, too.
  const run::UnitPlan second = unit({"q_proj"}, of_adapter, {2, 3});
  CHECK(second.inputs[0].needs_grad);
  CHECK(second.cost.backward_input.per_row == mlp + out + 2 * hidden * (hidden + 2 * kv) + 2 * small);

  // One half alone: B reads what A made, A what comes back through B.
  const auto only = [](const char* half) { return [half](const std::string& name) { return contains(name, half); }; };
  const run::UnitPlan b = unit({"down_proj"}, only("lora_B"), {1, 2});
  CHECK(saved(b) == std::vector<Names>{{}, {"model.layers.0.mlp.down_proj inner"}, {"d_out"}});
  CHECK(b.cost.backward_input.per_row == 0);
  const run::UnitPlan a = unit({"down_proj"}, only("lora_A"), {1, 2});
  CHECK(saved(a) == std::vector<Names>{{}, {"mlp middle"}, {"d model.layers.0.mlp.down_proj inner"}});
  CHECK(a.cost.backward_input.per_row == small);
  CHECK(a.cost.backward_weight.per_row == 2 * 3 * inner);

  // Nothing trains: nothing is saved, whatever adapters there are.
  CHECK(saved(unit({"q_proj", "down_proj"}, none_train, {1, 2})) == std::vector<Names>{{}, {}, {}});
}
