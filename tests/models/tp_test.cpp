// Tensor parallelism of a block: two and four ranks (threads) against one, every gradient, every planned collective.
#include "tests/models/tiny.h"

#include "kernels/backend.h"
#include "parallel/comm/threads.h"
#include "parallel/comm/tracing.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::test;
using plan::Axis;

namespace {

struct RankResult {
  std::vector<run::ParamSpec> specs;
  Pass pass;
  std::vector<std::int64_t> traced, planned;
};

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

std::vector<RankResult> run_tp(const Build& build, const NamedValues& values, const BlockData& data, const Edges& e,
                               DType dtype, int tp, bool recompute) {
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
    mine.pass = run_pass(stage, values, data, options, e.in, e.d_out);
    mine.specs = models::parameters_of(stage);
    for (const comm::CommEvent& event : trace.events) mine.traced.push_back(event.bytes);
    for (std::size_t u = 0; u < stage.units.size(); ++u)
      for (const run::InnerEvent& event : stage.units[u]->plan().events[0])
        mine.planned.push_back(event.bytes(data.plan.size));
    for (std::size_t u = stage.units.size(); u-- > 0;) {
      const auto& events = stage.units[u]->plan().events;
      for (const std::size_t phase : {1, 2, 3})
        if (phase != 1 || recompute)
          for (const run::InnerEvent& event : events[phase]) mine.planned.push_back(event.bytes(data.plan.size));
    }
  });
  return results;
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
  // Sums over ranks instead of columns: a few rounding errors of f64.
  const auto close = [](const Values& a, const Values& b) { return max_difference(a, b) <= 1e-12 * (1 + norm2(b)); };
  for (const RankResult& r : ranks) {
    CHECK(close(r.pass.out, one.out));
    CHECK(close(r.pass.d_in[0], one.d_in[0]));
    CHECK(r.traced == r.planned);
    CHECK(r.traced.size() == (recompute ? 10 : 8));  // two blocks: 2 in F, 2 in BI, 1 in R
    for (std::size_t i = 0; i < r.specs.size(); ++i) {
      const run::ParamSpec& spec = r.specs[i];
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
      CHECK(close(g, cut(one.grads.at(canonical_name(spec)), spec)));
    }
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
