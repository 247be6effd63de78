#include "parallel/run/slots.h"

#include <algorithm>

namespace mmt::run {

std::int64_t rows_of(RowCount count, const plan::BlockSize& size, std::int64_t port_rows) {
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

StageLayout::StageLayout(const StageSetup& setup)
    : stage(setup.stage), ports(setup.stage->ports()) {
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
    restarts.push_back(setup.recompute && unit.needs_backward() && unit.has_output());
    chain_life.push_back(Life::scratch);
    if (u == 0) continue;
    MMT_CHECK(x_port[u] >= 0, "{} does not read the unit before it", unit.name);
    const PortPlan& x = unit.inputs[static_cast<std::size_t>(x_port[u])];
    MMT_CHECK(x.cols == plan(u - 1).output.cols && x.dtype == plan(u - 1).output.dtype,
              "{} gives {} columns, {} reads {}", plan(u - 1).name, plan(u - 1).output.cols, unit.name, x.cols);
    // Under recompute, a unit starts again from its inputs.
    chain_life[u - 1] = restarts[u] ? std::max(x.keep, Life::kept) : x.keep;
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
  StageMemory memory;
  std::int64_t chain = 0, staging = 0, unit_work = 0;
  for (std::size_t s = 0; s < layout.ports.size(); ++s) {
    const Stage::Port& at = layout.ports[s];
    const PortPlan& port = layout.plan(static_cast<std::size_t>(at.unit)).inputs[static_cast<std::size_t>(at.port)];
    const std::int64_t bytes = port_bytes(port, cap, setup.port_cap[s]);
    memory.ports += port.needs_grad ? 2 * bytes : bytes;
    staging = std::max(staging, 2 * bytes);
  }
  for (std::size_t u = 0; u < layout.num_units(); ++u) {
    const UnitPlan& unit = layout.plan(u);
    const std::int64_t kept = unit.bytes(Life::kept, cap), held = unit.bytes(Life::held, cap),
                       stash = unit.bytes(Life::stash, cap);
    if (!layout.restarts[u] && unit.needs_backward()) {
      memory.kept += kept;
      memory.held += held;
    }
    if (layout.restarts[u]) {
      memory.restored += kept;
      memory.held += held;  // between a split BI and its BW
    }
    memory.stash += stash;
    std::int64_t scratch = 0;
    for (int phase = 0; phase < kNumPhases; ++phase) {
      scratch = std::max(scratch, unit.scratch_bytes(stream, static_cast<Phase>(phase), cap));
    }
    unit_work = std::max(unit_work, unit.bytes(Life::scratch, cap) + kept + held + stash + scratch);
    if (!unit.has_output()) continue;
    const std::int64_t out = port_bytes(unit.output, cap, 0);
    if (u + 1 == layout.num_units()) {
      memory.ports += unit.output.needs_grad ? 2 * out : out;
      staging = std::max(staging, 2 * out);
      continue;
    }
    chain = std::max(chain, out);
    if (layout.chain_life[u] == Life::kept) memory.kept += out;
    if (layout.chain_life[u] == Life::held) memory.held += out;
    if (unit.output.keep_grad == Life::stash) memory.stash += out;
  }
  memory.work = 2 * chain + std::max(unit_work, staging);
  return memory;
}

std::int64_t StageMemory::total(const plan::LiveBlocks& live) const {
  return live.kept * kept + live.held * held + live.stash * stash + live.ports * ports + live.restored * restored +
         work;
}

}  // namespace mmt::run
