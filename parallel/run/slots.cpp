#include "parallel/run/slots.h"

#include <algorithm>

namespace mmt::run {

std::int64_t rows_of(RowCount count, const plan::BlockSize& size, std::int64_t port_rows) {
  if (count.parts > 1) return (rows_of(count.of, size, port_rows) + count.parts - 1) / count.parts;
  switch (count) {
    case RowCount::one: return 1;
    case RowCount::rows: return size.rows;
    case RowCount::supervised: return size.supervised;
    case RowCount::source: return size.source;
    case RowCount::out: return size.out;
    case RowCount::port: return port_rows;
  }
  return 0;
}

Recompute effective(const UnitPlan& unit, Recompute wanted) {
  if (!unit.needs_backward() || !unit.has_output()) return Recompute::none;
  const bool cheap = std::ranges::any_of(
      unit.tensors, [](const TensorSpec& t) { return t.cheap && (t.life == Life::kept || t.life == Life::held); });
  return wanted == Recompute::selective && !cheap ? Recompute::none : wanted;
}

StageLayout::StageLayout(const StageSetup& setup) : stage(setup.stage), ports(setup.stage->ports()) {
  for (std::size_t u = 0; u < num_units(); ++u) {
    const UnitPlan& unit = plan(u);
    x_port.push_back(-1);
    stage_port.emplace_back(unit.inputs.size(), -1);
    for (std::size_t p = 0; p < unit.inputs.size(); ++p) {
      const auto found = std::ranges::find_if(ports, [&](const Stage::Port& port) {
        return port.unit == static_cast<int>(u) && port.port == static_cast<int>(p);
      });
      if (found != ports.end()) {
        stage_port[u][p] = static_cast<int>(found - ports.begin());
      } else {
        x_port[u] = static_cast<int>(p);
      }
    }
    MMT_CHECK(setup.recompute.empty() || setup.recompute.size() == num_units(), "{} units, recompute is set for {}",
              num_units(), setup.recompute.size());
    const Recompute mode = effective(unit, setup.recompute.empty() ? Recompute::none : setup.recompute[u]);
    recompute.push_back(mode);
    chain_life.push_back(Life::scratch);
    if (u == 0) continue;
    MMT_CHECK(x_port[u] >= 0, "{} does not read the unit before it", unit.name);
    const PortPlan& x = unit.inputs[static_cast<std::size_t>(x_port[u])];
    const PortPlan& out = plan(u - 1).output;
    MMT_CHECK(x.cols == out.cols && x.dtype == out.dtype, "{} gives {} columns, {} reads {}", plan(u - 1).name,
              out.cols, unit.name, x.cols);
    MMT_CHECK(x.count.parts == out.count.parts, "{} gives one of {} shares of the rows, {} reads one of {}",
              plan(u - 1).name, out.count.parts, unit.name, x.count.parts);
    // Under full recompute, a unit starts again from its inputs.
    chain_life[u - 1] = mode == Recompute::full ? std::max(x.keep, Life::kept) : x.keep;
  }
}

ArenaPool::ArenaPool(std::string name, int count, std::size_t bytes) : name_(std::move(name)) {
  for (int i = 0; i < count; ++i) {
    all_.push_back(std::make_unique<Arena>(name_, bytes));
    free_.push_back(all_.back().get());
  }
}

Arena* ArenaPool::take() {
  MMT_CHECK(!free_.empty(), "{}: all {} blocks are in flight", name_, all_.size());
  Arena* arena = free_.back();
  free_.pop_back();
  most_in_use_ = std::max(most_in_use_, all_.size() - free_.size());
  return arena;
}

void ArenaPool::give_back(Arena*& arena) {
  if (arena == nullptr) return;
  arena->release_to(0);
  free_.push_back(arena);
  arena = nullptr;
}

std::size_t ArenaPool::capacity() const {
  std::size_t bytes = 0;
  for (const auto& arena : all_) bytes += arena->capacity();
  return bytes;
}

std::size_t ArenaPool::peak() const {
  std::size_t most = 0;
  for (const auto& arena : all_) most = std::max(most, arena->peak());
  return most * most_in_use_;
}

namespace {

std::int64_t footprint(DType dtype, std::int64_t rows, std::int64_t cols) {
  return static_cast<std::int64_t>(Arena::footprint(static_cast<std::size_t>(rows * cols * size_of(dtype))));
}

std::int64_t port_bytes(const PortPlan& port, const plan::BlockSize& size, std::int64_t port_rows) {
  return footprint(port.dtype, rows_of(port.count, size, port_rows), port.cols);
}

}  // namespace

StageMemory stage_memory(const StageSetup& setup, const Stream& stream) {
  const StageLayout layout(setup);
  const plan::BlockSize& cap = setup.cap;
  // Whether BW ever runs within the backward.
  const bool joint = setup.live.joint || setup.live.stash == 0;
  StageMemory memory;
  std::int64_t chain = 0, alone = 0, between = 0;  // work beside the chain's buffers, and without them
  for (std::size_t s = 0; s < layout.ports.size(); ++s) {
    const Stage::Port& at = layout.ports[s];
    const PortPlan& port = layout.plan(static_cast<std::size_t>(at.unit)).inputs[static_cast<std::size_t>(at.port)];
    const std::int64_t bytes = port_bytes(port, cap, setup.port_cap[s]);
    memory.ports += port.needs_grad ? 2 * bytes : bytes;
    alone = std::max(alone, 2 * bytes);
  }
  for (std::size_t u = 0; u < layout.num_units(); ++u) {
    const UnitPlan& unit = layout.plan(u);
    std::int64_t stored_kept = 0, stored_held = 0, again_kept = 0, again_held = 0;
    for (const TensorSpec& t : unit.tensors) {
      if (t.life != Life::kept && t.life != Life::held) continue;
      const std::int64_t bytes = footprint(t.dtype, rows_of(t.count, cap, 0), t.cols);
      const bool kept = t.life == Life::kept;
      (layout.stored(u, t) ? (kept ? stored_kept : stored_held) : (kept ? again_kept : again_held)) += bytes;
    }
    const std::int64_t stash = unit.bytes(Life::stash, cap), again = again_kept + again_held;
    const auto call = [&](Phase phase) {
      return unit.bytes(Life::scratch, cap) + unit.scratch_bytes(stream, phase, cap);
    };
    std::int64_t forward = again;
    if (unit.needs_backward()) {
      memory.kept += stored_kept;
      memory.held += stored_held;
      memory.restored += again;
      memory.stash += stash + again_held;
      std::int64_t back = std::max(call(Phase::backward_input), again > 0 ? call(Phase::recompute) : 0);
      if (joint) back = std::max(back, call(Phase::backward_weight));
      between = std::max(between, back + again_kept + (joint ? again_held + stash : 0));
      alone = std::max({alone, call(Phase::backward_weight), setup.live.restored > 0 ? call(Phase::recompute) : 0});
    }
    if (setup.evaluates || !unit.needs_backward()) forward = again + stored_kept + stored_held;
    between = std::max(between, forward + call(Phase::forward));
    if (!unit.has_output()) continue;
    const std::int64_t out = port_bytes(unit.output, cap, 0);
    if (u + 1 == layout.num_units()) {
      memory.ports += unit.output.needs_grad ? 2 * out : out;
      alone = std::max(alone, 2 * out);
      continue;
    }
    chain = std::max(chain, out);
    if (layout.chain_life[u] == Life::kept) memory.kept += out;
    if (layout.chain_life[u] == Life::held) memory.held += out;
    if (unit.output.keep_grad == Life::stash) memory.stash += out;
  }
  memory.work = std::max(2 * chain + between, alone);
  return memory;
}

std::int64_t StageMemory::total(const plan::LiveBlocks& live) const {
  return live.kept * kept + live.held * held + live.stash * stash + live.ports * ports + live.restored * restored +
         work;
}

}  // namespace mmt::run
