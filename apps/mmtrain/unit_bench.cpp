#include "apps/mmtrain/unit_bench.h"

#include "apps/mmtrain/model.h"
#include "core/philox.h"
#include "kernels/elementwise.h"
#include "parallel/run/rows.h"
#include "parallel/run/slots.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

namespace mmt::app {
namespace {

using run::Life;
using run::Phase;

constexpr double kSeconds = 0.4;  // that the passes of one measurement take together, about
constexpr int kFewest = 5, kMost = 60;

/// One row of normal numbers, turned from row to row: drawing all of them would take longer than measuring.
void fill_normal(const Tensor& t, const Stream& stream) {
  if (!t.defined() || t.numel() == 0) return;
  std::vector<double> drawn(static_cast<std::size_t>(std::min<std::int64_t>(t.cols(), 4096)));
  random_normals(random_key(1, "profile", "rows"), 0, 0, 0, drawn);
  std::vector<float> row(static_cast<std::size_t>(t.cols()));
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(drawn[i % drawn.size()]);
  for (std::int64_t r = 0; r < t.rows(); ++r) {
    std::ranges::rotate(row, row.begin() + 1 % std::ssize(row));
    ops::copy(stream, t.row_range(r, 1), Tensor(row.data(), DType::f32, {1, t.cols()}));
  }
}

plan::Ns median(std::vector<double>& seconds) {
  if (seconds.empty()) return 0;
  std::ranges::sort(seconds);
  const std::size_t half = seconds.size() / 2;
  const double m = seconds.size() % 2 == 1 ? seconds[half] : (seconds[half - 1] + seconds[half]) / 2;
  return static_cast<plan::Ns>(std::llround(m * 1e9));
}

}  // namespace

/// The rows of one block and the tensors of all units, as the executor would hold them.
struct UnitBench::Memory {
  struct Unit {
    run::Saved saved;
    std::vector<Tensor> in, d_in;
    Tensor out;
  };

  Memory(const UnitBench& bench, const plan::RowsPlan& block) : rows(capacity(bench, block)) {
    rows.reset(block, bench.content_.port_edges, bench.stage_, bench.stream_);
    fill_rows(bench);
    std::size_t bytes = 0;
    place(
        [&](DType dtype, std::int64_t count, std::int64_t cols) {
          bytes += Arena::footprint(static_cast<std::size_t>(count * cols * size_of(dtype)));
          return Tensor();
        },
        bench);
    activations = Arena("activations", bytes);
    place(
        [&](DType dtype, std::int64_t count, std::int64_t cols) {
          return activations.take(dtype, {count, cols});
        },
        bench);
    for (Unit& u : units) {
      for (const Tensor& t : u.in) fill_normal(t, bench.stream_);
      fill_normal(u.saved.d_out, bench.stream_);
    }
    std::int64_t most = 0;
    for (const auto& unit : bench.stage_.units) {
      for (const Phase phase : {Phase::forward, Phase::recompute, Phase::backward_input, Phase::backward_weight}) {
        most = std::max(most, unit->plan().bytes(Life::scratch, block.size) +
                                  unit->plan().scratch_bytes(bench.stream_, phase, block.size));
      }
    }
    work = Arena("work", static_cast<std::size_t>(most));
  }

  run::RowsMemory rows;
  Arena activations, work;
  std::vector<Unit> units;

 private:
  static run::RowsCapacity capacity(const UnitBench& bench, const plan::RowsPlan& block) {
    run::RowsCapacity c;
    c.size = block.size;
    c.num_positions = block.num_positions;
    c.num_masks = static_cast<int>(block.masks.size());
    c.items = std::ssize(block.items);
    if (bench.stage_.rotary) c.rotary_pairs = bench.stage_.rotary->pairs();
    c.source_cols = bench.content_.source_cols;
    for (const plan::PortRows& port : block.ports) c.port_rows.push_back(std::ssize(port.dst));
    return c;
  }

  void fill_rows(const UnitBench& bench) {
    run::Rows& r = rows.rows();
    const auto vocabulary = static_cast<std::uint64_t>(bench.content_.vocabulary);
    const auto draw = [&](std::uint64_t i) { return static_cast<std::int32_t>(hash64(i, 17) % vocabulary); };
    const auto ids = r.ids.span<std::int32_t>();
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = draw(i);
    for (const Tensor& dst : r.port_dst) {
      for (const std::int32_t row : dst.span<std::int32_t>()) ids[static_cast<std::size_t>(row)] = -1;
    }
    const auto labels = r.labels.span<std::int32_t>();
    for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = draw(i + ids.size());
    if (r.weights.numel() > 0) ops::fill(bench.stream_, r.weights, 1.0);
    fill_normal(r.source, bench.stream_);
  }

  /// Calls take(dtype, rows, cols) for every tensor in the same order each time.
  template <class F> void place(F&& take, const UnitBench& bench) {
    const run::Rows& r = rows.rows();
    const auto of_port = [&](const run::PortPlan& port, std::size_t number) {
      const std::int64_t in = port.count == run::RowCount::port ? r.port_dst[number].rows() : 0;
      return take(port.dtype, run::rows_of(port.count, r.size, in), port.cols);
    };
    units.assign(bench.stage_.units.size(), Unit());
    // Gradients go down, and outputs up, through buffers that the units pass each other where nothing keeps them.
    std::array<Tensor, 2> turn, d_turn;
    for (std::size_t u = 0; u < units.size(); ++u) {
      const run::UnitPlan& plan = bench.stage_.units[u]->plan();
      Unit& unit = units[u];
      unit.in.resize(plan.inputs.size());
      unit.d_in.resize(plan.inputs.size());
      for (std::size_t p = 0; p < plan.inputs.size(); ++p) {
        const bool chained = u > 0 && plan.inputs[p].name == "x";
        unit.in[p] = chained ? units[u - 1].out : of_port(plan.inputs[p], p);
        if (!plan.inputs[p].needs_grad) continue;
        if (!d_turn[u % 2].defined()) d_turn[u % 2] = of_port(plan.inputs[p], p);
        unit.d_in[p] = plan.inputs.size() == 1 ? d_turn[u % 2] : of_port(plan.inputs[p], p);
      }
      if (plan.has_output()) {
        const bool kept = plan.needs_backward();
        if (kept || !turn[u % 2].defined()) turn[u % 2] = of_port(plan.output, 0);
        unit.out = turn[u % 2];
      }
      unit.saved.tensors.resize(plan.tensors.size());
      for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
        const run::TensorSpec& spec = plan.tensors[t];
        if (spec.life == Life::scratch) continue;
        unit.saved.tensors[t] = take(spec.dtype, run::rows_of(spec.count, r.size, 0), spec.cols);
      }
    }
    for (std::size_t u = units.size(); u-- > 0;) {
      const run::UnitPlan& plan = bench.stage_.units[u]->plan();
      if (!plan.has_output() || !plan.needs_backward()) continue;
      const bool last = u + 1 == units.size() || !units[u + 1].d_in.front().defined();
      units[u].saved.d_out = last ? of_port(plan.output, 0) : units[u + 1].d_in.front();
    }
  }
};

/// Passes over the units and the seconds of each call.
class UnitBench::Walk {
 public:
  Walk(const UnitBench& bench, Memory& memory) : bench_(bench), memory_(memory) {}

  void pass() {
    const std::size_t n = memory_.units.size();
    for (std::size_t u = 0; u < n; ++u) {
      Memory::Unit& m = memory_.units[u];
      m.saved.in = m.in;
      timed(u, Phase::forward, [&](run::Ctx& ctx) { unit(u).forward(ctx, m.in, m.out, m.saved); });
    }
    for (std::size_t u = n; u-- > 0;) {
      if (!unit(u).plan().needs_backward()) return;  // they are alike
      Memory::Unit& m = memory_.units[u];
      timed(u, Phase::backward_input, [&](run::Ctx& ctx) {
        for (std::size_t p = 0; p < m.d_in.size(); ++p) {
          if (m.d_in[p].defined() && unit(u).plan().inputs[p].add_grad) ops::fill(ctx.stream, m.d_in[p], 0.0);
        }
        unit(u).backward_input(ctx, m.saved.d_out, m.d_in, m.saved);
      });
      if (!unit(u).plan().has_output() || !unit(u).plan().trains()) continue;
      timed(u, Phase::backward_weight, [&](run::Ctx& ctx) { unit(u).backward_weight(ctx, m.saved); });
    }
    for (std::size_t u = n; u-- > 0;) {
      if (!unit(u).plan().has_output()) continue;
      timed(u, Phase::recompute, [&](run::Ctx& ctx) { unit(u).recompute(ctx, memory_.units[u].saved); });
    }
  }

  void forget() {
    for (auto& list : seconds_) list.clear();
  }
  plan::Ns result(Phase phase) { return median(seconds_[static_cast<std::size_t>(phase)]); }

 private:
  const run::Unit& unit(std::size_t u) const { return *bench_.stage_.units[u]; }

  template <class F> void timed(std::size_t u, Phase phase, F&& call) {
    const run::UnitPlan& plan = unit(u).plan();
    run::Saved& saved = memory_.units[u].saved;
    const ArenaScope scope(memory_.work);
    const run::Rows& rows = memory_.rows.rows();
    for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
      const run::TensorSpec& spec = plan.tensors[t];
      if (spec.life == Life::scratch)
        saved.tensors[t] = memory_.work.take(spec.dtype, {run::rows_of(spec.count, rows.size, 0), spec.cols});
    }
    run::Ctx ctx;
    ctx.stream = bench_.stream_;
    ctx.rows = &memory_.rows.rows();
    ctx.params = &bench_.store_->unit(static_cast<int>(u));
    ctx.scratch = &memory_.work;
    ctx.comms[static_cast<std::size_t>(plan::Axis::tp)] = bench_.tp_;
    ctx.loss_scale = 1.0 / static_cast<double>(std::max<std::int64_t>(rows.size.supervised, 1));
    const auto start = std::chrono::steady_clock::now();
    call(ctx);
    seconds_[static_cast<std::size_t>(phase)].push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }

  const UnitBench& bench_;
  Memory& memory_;
  std::array<std::vector<double>, run::kNumPhases> seconds_;
};

UnitBench::UnitBench(run::Stage stage, comm::Communicator* tp, BenchContent content, const Stream& stream)
    : stage_(std::move(stage)),
      tp_(tp),
      content_(std::move(content)),
      stream_(stream),
      store_(run::make_replicated_store(stage_, {nullptr, tp}, stream)) {
  for (run::ParamState& p : store_->params()) run::initialize(*p.spec, 1, p.owned_first, p.master);
  refresh_compute(*store_, stream_);
}

plan::LayerTime UnitBench::measure(const plan::RowsPlan& block, comm::Communicator& world) {
  Memory memory(*this, block);
  Walk walk(*this, memory);
  const auto start = std::chrono::steady_clock::now();
  walk.pass();
  walk.pass();  // the first one of a shape prepares its products
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 2;
  world.all_reduce(Tensor(&seconds, DType::f64, {1}), comm::ReduceOp::max);
  const int passes = std::clamp(static_cast<int>(kSeconds / std::max(seconds, 1e-6)), kFewest, kMost);
  walk.forget();
  for (int i = 0; i < passes; ++i) {
    world.barrier();
    walk.pass();
  }
  std::array<std::int64_t, run::kNumPhases> sums{};
  for (std::size_t p = 0; p < sums.size(); ++p) sums[p] = walk.result(static_cast<Phase>(p));
  world.all_reduce(Tensor(sums.data(), DType::i64, {std::ssize(sums)}), comm::ReduceOp::sum);
  const auto mean = [&](Phase p) { return sums[static_cast<std::size_t>(p)] / world.size(); };
  return {mean(Phase::forward), mean(Phase::backward_input), mean(Phase::backward_weight), mean(Phase::recompute)};
}

}  // namespace mmt::app
