#include "parallel/run/stage.h"

#include "core/at.h"
#include "kernels/rotary.h"

#include <algorithm>
#include <set>
#include <utility>

namespace mmt::run {
namespace {

std::int64_t num_rows(RowCount count, const plan::BlockSize& size) {
  if (count.parts > 1) return (num_rows(count.of, size) + count.parts - 1) / count.parts;
  switch (count) {
    case RowCount::one: return 1;
    case RowCount::rows: return size.rows;
    case RowCount::supervised: return size.supervised;
    case RowCount::source: return size.source;
    case RowCount::out: return size.out;
    case RowCount::port: break;
  }
  MMT_CHECK(false, "the rows of a port are not a size of the block");
  return 0;
}

void check_box(const ParamSpec& spec) {
  const std::size_t rank = spec.shape.size();
  MMT_CHECK(rank > 0 && spec.box.shape.size() == rank && spec.box.offset.size() == rank,
            "{}: shape, box and offset have ranks {}, {}, {}", canonical_name(spec), rank, spec.box.shape.size(),
            spec.box.offset.size());
  for (std::size_t d = 0; d < rank; ++d) {
    const std::int64_t first = spec.box.offset[d], count = spec.box.shape[d];
    MMT_CHECK(first >= 0 && count > 0 && first + count <= spec.shape[d], "{}: dim {}: box [{}, {}) of {}",
              canonical_name(spec), d, first, first + count, spec.shape[d]);
  }
}

void keep_larger(plan::Linear& a, const plan::Linear& b) {
  a.constant = std::max(a.constant, b.constant);
  a.per_row = std::max(a.per_row, b.per_row);
  a.per_supervised = std::max(a.per_supervised, b.per_supervised);
  a.per_source = std::max(a.per_source, b.per_source);
  a.per_out = std::max(a.per_out, b.per_out);
  a.per_tile = std::max(a.per_tile, b.per_tile);
}

}  // namespace

std::string canonical_name(const ParamSpec& spec) { return spec.module + "/" + spec.name; }

plan::Linear arena_bytes(DType dtype, RowCount count, std::int64_t cols) {
  const std::int64_t bytes = (cols * size_of(dtype) + count.parts - 1) / count.parts;
  // Rounding up and a guard zone cost at most what a one-byte tensor takes.
  plan::Linear l{.constant = static_cast<std::int64_t>(Arena::footprint(1))};
  switch (count) {
    case RowCount::one: l.constant += bytes; break;
    case RowCount::rows: l.per_row = bytes; break;
    case RowCount::supervised: l.per_supervised = bytes; break;
    case RowCount::source: l.per_source = bytes; break;
    case RowCount::out: l.per_out = bytes; break;
    case RowCount::port: MMT_CHECK(false, "the rows of a port are not a size of the block");
  }
  return l;
}

bool UnitPlan::trains() const {
  return std::any_of(params.begin(), params.end(), [](const ParamSpec& p) { return p.trainable; });
}

bool UnitPlan::needs_backward() const {
  return trains() || std::any_of(inputs.begin(), inputs.end(), [](const PortPlan& p) { return p.needs_grad; });
}

std::int64_t UnitPlan::bytes(Life life, const plan::BlockSize& size) const {
  std::int64_t sum = 0;
  for (const TensorSpec& t : tensors) {
    if (t.life != life) continue;
    sum += static_cast<std::int64_t>(
        Arena::footprint(static_cast<std::size_t>(num_rows(t.count, size) * t.cols * size_of(t.dtype))));
  }
  return sum;
}

std::vector<UnitPlan::Collective> UnitPlan::collectives(Phase phase, Purpose purpose,
                                                        const plan::BlockSize& size) const {
  std::vector<const InnerEvent*> list;
  for (const InnerEvent& e : events[static_cast<std::size_t>(phase)]) {
    if ((e.when & static_cast<std::uint8_t>(purpose)) != 0) list.push_back(&e);
  }
  std::vector<Collective> out;
  for (std::size_t first = 0; first < list.size();) {
    std::size_t last = first + 1;
    const std::int64_t chunk = list[first]->chunk;
    while (chunk > 0 && last < list.size() && list[last]->chunk == chunk) ++last;
    plan::BlockSize part = size;
    std::int64_t rest = size.supervised;
    do {
      if (chunk > 0) part.supervised = std::min(rest, chunk);
      if (chunk > 0 && part.supervised == 0) break;
      for (std::size_t i = first; i < last; ++i) out.push_back({list[i]->op, list[i]->axis, list[i]->bytes(part)});
      rest -= part.supervised;
    } while (chunk > 0 && rest > 0);
    first = last;
  }
  return out;
}

int RotarySpec::num_positions() const { return axis.empty() ? 1 : 1 + *std::max_element(axis.begin(), axis.end()); }

RotaryRows make_rotary_rows(const Stream& stream, const RotarySpec& spec, DType compute, const Tensor& positions,
                            Arena& memory) {
  const RotaryRows rows{memory.take(master_of(compute), {positions.rows(), spec.pairs()}),
                        memory.take(master_of(compute), {positions.rows(), spec.pairs()})};
  ops::rotary_table(stream, rows.cos, rows.sin, positions, spec.inv_freq, spec.axis, spec.scale);
  return rows;
}

std::int64_t UnitPlan::scratch_bytes(const Stream& stream, Phase phase, const plan::BlockSize& size,
                                     std::int64_t key_rows) const {
  std::int64_t bytes = scratch[static_cast<std::size_t>(phase)](size);
  if (kernel_scratch) bytes += kernel_scratch(stream, phase, size, key_rows < 0 ? size.rows : key_rows);
  return bytes;
}

UnitPlanner::UnitPlanner(const Setting& setting, std::string unit_name) : setting_(setting) {
  for (int a = 0; a < plan::kNumAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    MMT_CHECK(setting_.degrees[axis] >= 1 && setting_.coord[axis] >= 0 && setting_.coord[axis] < setting_.degrees[axis],
              "{}: place {} on axis {} of degree {}", unit_name, setting_.coord[axis], a, setting_.degrees[axis]);
  }
  MMT_CHECK(is_float(setting_.dtype), "{}: compute dtype {}", unit_name, name_of(setting_.dtype));
  plan_.name = std::move(unit_name);
}

ParamId UnitPlanner::param(ParamSpec spec) {
  if (spec.module.empty()) spec.module = setting_.module;
  if (spec.box.shape.empty()) spec.box = {std::vector<std::int64_t>(spec.shape.size(), 0), spec.shape};
  spec.dtype = setting_.dtype;
  if (setting_.replicate_tp && setting_.degrees[Axis::tp] > 1) spec.replica_over = {{Axis::tp, 0}};
  spec.trainable = spec.trainable && setting_.trainable(canonical_name(spec));
  check_box(spec);
  plan_.params.push_back(std::move(spec));
  return static_cast<ParamId>(plan_.params.size()) - 1;
}

int UnitPlanner::input(PortPlan port) {
  plan_.inputs.push_back(std::move(port));
  return static_cast<int>(plan_.inputs.size()) - 1;
}

void UnitPlanner::output(PortPlan port) {
  MMT_CHECK(!plan_.has_output(), "{}: a second output", plan_.name);
  MMT_CHECK(port.cols > 0, "{}: output of {} columns", plan_.name, port.cols);
  plan_.output = std::move(port);
}

SlotId UnitPlanner::tensor(std::string name, std::int64_t cols, Life life, RowCount count) {
  return tensor(std::move(name), setting_.dtype, cols, life, count);
}

SlotId UnitPlanner::tensor(std::string name, DType dtype, std::int64_t cols, Life life, RowCount count) {
  MMT_CHECK(cols > 0 && count != RowCount::port, "{}: tensor {} of {} columns", plan_.name, name, cols);
  plan_.tensors.push_back({std::move(name), dtype, count, cols, life});
  return static_cast<SlotId>(plan_.tensors.size()) - 1;
}

void UnitPlanner::lengthen(SlotId id, Life life) {
  TensorSpec& t = plan_.tensors[at(id)];
  MMT_CHECK(t.life != Life::stash && life != Life::stash, "{}: {} is a stash and lives from BI to BW", plan_.name,
            t.name);
  t.life = std::max(t.life, life);
}

void UnitPlanner::scratch(Phase phase, const plan::Linear& bytes) {
  keep_larger(plan_.scratch[static_cast<std::size_t>(phase)], bytes);
}

void UnitPlanner::event(Phase phase, InnerEvent event) {
  MMT_CHECK(setting_.degrees[event.axis] > 1, "{}: a collective over an axis of one rank", plan_.name);
  plan_.events[static_cast<std::size_t>(phase)].push_back(event);
}

void UnitPlanner::cost(const plan::LayerCost& cost) { plan_.cost += cost; }

UnitPlan UnitPlanner::take() {
  const bool backward = plan_.needs_backward();
  std::set<std::string> names;
  for (const ParamSpec& p : plan_.params)
    MMT_CHECK(names.insert(canonical_name(p)).second, "{}: parameter {} declared twice", plan_.name, canonical_name(p));
  names.clear();
  for (const PortPlan& p : plan_.inputs) {
    MMT_CHECK(p.cols > 0 && names.insert(p.name).second, "{}: input port {} of {} columns", plan_.name, p.name, p.cols);
    // Frozen-aware: what no backward reads is not kept.
    MMT_CHECK(p.keep == Life::scratch || (p.keep == Life::kept && backward) || (p.keep == Life::held && plan_.trains()),
              "{}: input {} is kept for a backward that does not run", plan_.name, p.name);
  }
  for (const TensorSpec& t : plan_.tensors) {
    const bool read = t.life == Life::scratch || (t.life == Life::kept && backward) || plan_.trains();
    MMT_CHECK(read, "{}: tensor {} is kept for a backward that does not run", plan_.name, t.name);
  }
  if (plan_.has_output()) plan_.output.needs_grad = backward;
  return std::exchange(plan_, UnitPlan{});
}

void Unit::recompute_cheap(Ctx&, Saved&) const {
  MMT_CHECK(false, "{} has cheap tensors and does not make them", plan_.name);
}

comm::Communicator& Ctx::comm(Axis axis) const {
  comm::Communicator* c = comms[static_cast<std::size_t>(axis)];
  MMT_CHECK(c != nullptr, "no communicator for axis {}", static_cast<int>(axis));
  return *c;
}

std::vector<Stage::Port> Stage::ports() const {
  std::vector<Port> list;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const auto& inputs = units[u]->plan().inputs;
    for (std::size_t p = 0; p < inputs.size(); ++p) {
      if (u > 0 && inputs[p].name == "x") continue;
      list.push_back({inputs[p].name, static_cast<int>(u), static_cast<int>(p)});
    }
  }
  return list;
}

bool Stage::needs_backward() const {
  return std::any_of(units.begin(), units.end(), [](const auto& u) { return u->plan().needs_backward(); });
}

bool Stage::trains() const {
  return std::any_of(units.begin(), units.end(), [](const auto& u) { return u->plan().trains(); });
}

}  // namespace mmt::run
