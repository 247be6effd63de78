#include "apps/mmtrain/profile.h"

#include "apps/mmtrain/engine.h"
#include "apps/mmtrain/layer_infos.h"
#include "apps/mmtrain/step.h"
#include "apps/mmtrain/unit_bench.h"
#include "apps/mmtrain/workload.h"
#include "core/arena.h"
#include "kernels/backend.h"
#include "kernels/elementwise.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

namespace mmt::app {
namespace {

constexpr int kUnits = 4;  // of a kind that are walked: their weights do not stay in a cache, nor do a stage's
constexpr std::array<int, 3> kParts = {4, 2, 1};

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "unknown";
}

std::int64_t rows_of(const plan::SampleMeta& sample, std::size_t module, std::size_t encoders) {
  if (module == encoders) return sample.rows;
  std::int64_t rows = 0;
  for (const plan::ItemMeta& item : sample.items) {
    if (static_cast<std::size_t>(item.encoder) == module) rows += item.inner_rows;
  }
  return rows;
}

/// Blocks of a module, small to large, each of the first samples of the first set that has rows for it.
std::vector<plan::RowsPlan> blocks_of(const Config& c, const Model& model, std::size_t module,
                                      const std::vector<std::vector<plan::SampleMeta>>& sets) {
  const std::size_t encoders = c.encoders.size();
  const auto total = [&](const std::vector<plan::SampleMeta>& set) {
    std::int64_t rows = 0;
    for (const plan::SampleMeta& s : set) rows += rows_of(s, module, encoders);
    return rows;
  };
  const auto set = std::ranges::find_if(sets, [&](const auto& s) { return total(s) > 0; });
  std::vector<plan::RowsPlan> blocks;
  if (set == sets.end()) return blocks;
  const std::int64_t all = total(*set);
  std::int64_t rows = 0;
  std::vector<std::int32_t> block;
  std::size_t next = 0;
  for (const int part : kParts) {
    const std::size_t before = block.size();
    while (next < set->size()) {
      const std::int64_t more = rows_of((*set)[next], module, encoders);
      if (rows > 0 && (rows + more) * part > all) break;
      rows += more;
      block.push_back(static_cast<std::int32_t>(next++));
    }
    if (block.size() == before) continue;  // samples are longer than the part
    blocks.push_back(block_rows(model, *set, block, module));
  }
  return blocks;
}

/// Units that cost the same.
struct Group {
  std::string kind;
  std::vector<std::size_t> units;
};

std::vector<Group> groups_of(const run::Stage& stage, std::span<const plan::LayerInfo> infos,
                             const plan::BlockSize& size) {
  std::vector<Group> groups;
  std::map<std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t, bool>, std::size_t> known;
  for (std::size_t u = 0; u < stage.units.size(); ++u) {
    const plan::LayerFlops f = plan::flops_of(infos[u].cost, size);
    const auto [at, fresh] = known.emplace(
        std::tuple(infos[u].kind, f.forward, f.backward_input, f.backward_weight, infos[u].backward), groups.size());
    if (fresh) groups.push_back({infos[u].kind, {}});
    std::vector<std::size_t>& units = groups[at->second].units;
    // Those that are chained read what the one before them gives.
    if (units.empty() || (stage.units[u]->plan().inputs.size() == 1 && std::ssize(units) < kUnits)) units.push_back(u);
  }
  return groups;
}

run::Stage take_units(run::Stage& stage, const std::vector<std::size_t>& units) {
  run::Stage part;
  part.module = stage.module;
  part.windows = stage.windows;
  part.rotary = stage.rotary;
  for (const std::size_t u : units) part.units.push_back(std::move(stage.units[u]));
  return part;
}

class Profiler {
 public:
  Profiler(const Config& config, const std::vector<std::vector<plan::SampleMeta>>& sets, const RowCaps& caps,
           comm::Communicator& world, const Stream& stream)
      : config_(config), sets_(sets), caps_(caps), world_(world), stream_(stream), layout_(uncut_layout(config)) {
    for (const plan::Mesh& mesh : layout_.meshes()) {
      const int tp = mesh.degree(plan::Axis::tp);
      if (world.size() % tp != 0)
        throw ConfigError(fmt::format(
            "parallel.layout: tp {} is measured by groups of {} ranks, and there are {}: start `mpirun -np {} mmtrain "
            "profile`",
            tp, tp, world.size(), tp));
    }
  }

  Profile run() {
    for (std::size_t s = 0; s < layout_.stages().size(); ++s) measure(static_cast<int>(s));
    set_rates();
    profile_.costs.machine = processor_name();
    profile_.costs.isa = name_of(cpu_isa());
    profile_.costs.dtype = std::string(name_of(config_.train.precision));
    profile_.costs.threads = omp_get_max_threads();
    const CopyLinks links = measure_links(std::max(message_bytes_, std::int64_t{1} << 16), world_, stream_);
    profile_.costs.local = links.local;
    profile_.costs.intra = links.intra;
    return std::move(profile_);
  }

 private:
  void measure(int id) {
    const plan::UnitSpan& span = layout_.stages()[static_cast<std::size_t>(id)].units;
    const auto m = static_cast<std::size_t>(span.module);
    const std::string& name = layout_.modules()[m].name;
    const plan::Mesh& mesh = layout_.mesh_of(id);
    const int tp = mesh.degree(plan::Axis::tp);
    plan::Coord at;
    at[plan::Axis::tp] = world_.rank() % tp;
    const auto comm = tp > 1 ? world_.split(world_.rank() / tp, world_.rank() % tp, name + ".tp") : nullptr;
    Model model = build_model(config_, layout_, mesh.rank_at(at));
    const std::vector<plan::RowsPlan> blocks = blocks_of(config_, model, m, sets_);
    if (blocks.empty()) return;
    const auto infos = layer_infos(config_, model, caps_, stream_);
    const std::span units = std::span(infos[m]).subspan(static_cast<std::size_t>(span.first));
    run::Stage& stage = model.stages[static_cast<std::size_t>(id)];
    for (const Group& group : groups_of(stage, units, blocks.back().size)) {
      const std::size_t first = group.units.front();
      UnitBench bench(take_units(stage, group.units), comm.get(),
                      content(m, first + static_cast<std::size_t>(span.first)), stream_);
      for (const plan::RowsPlan& block : blocks) {
        plan::MeasuredLayer measured{group.kind, plan::flops_of(units[first].cost, block.size),
                                     bench.measure(block, world_)};
        const auto unless_free = [](std::int64_t flops, plan::Ns& time) { time = flops > 0 ? time : 0; };
        unless_free(measured.flops.forward, measured.time.forward);
        unless_free(measured.flops.backward_input, measured.time.backward_input);
        unless_free(measured.flops.backward_weight, measured.time.backward_weight);
        add({name, block.size.rows, measured});
        message_bytes_ = std::max(message_bytes_, units[first].out_bytes(block.size));
      }
    }
  }

  BenchContent content(std::size_t m, std::size_t unit) const {
    BenchContent c;
    c.vocabulary = std::max<std::int64_t>(config_.llm.spec.vocabulary, 1);
    const bool encoder = m < config_.encoders.size();
    if (unit > 0) {
      c.port_edges = {-1};
    } else if (encoder) {
      c.source_cols = source_cols(config_.encoders[m]);
    } else {
      for (std::size_t e = 0; e < config_.encoders.size(); ++e) c.port_edges.push_back(static_cast<int>(e));
    }
    return c;
  }

  void add(ProfiledLayer layer) {
    const plan::MeasuredLayer& m = layer.measured;
    const std::int64_t flops = m.flops.forward + m.flops.backward_input + m.flops.backward_weight;
    const bool known = std::ranges::any_of(profile_.costs.layers, [&](const plan::MeasuredLayer& o) {
      return o.kind == m.kind && o.flops.forward == m.flops.forward &&
             o.flops.backward_input == m.flops.backward_input && o.flops.backward_weight == m.flops.backward_weight;
    });
    if (flops > 0 && !known) profile_.costs.layers.push_back(m);
    profile_.layers.push_back(std::move(layer));
  }

  void set_rates() {
    plan::LayerFlops flops;
    plan::LayerTime time;
    for (const plan::MeasuredLayer& m : profile_.costs.layers) {
      flops.forward += m.flops.forward;
      flops.backward_input += m.flops.backward_input;
      flops.backward_weight += m.flops.backward_weight;
      time += m.time;
    }
    const auto rate = [](plan::Ns ns, std::int64_t f, plan::Ns other) {
      if (f == 0) return other;
      return std::max<plan::Ns>(std::llround(1e9 * static_cast<double>(ns) / static_cast<double>(f)), 1);
    };
    plan::CostRates& r = profile_.costs.rates;
    r.forward = rate(time.forward, flops.forward, 1);
    r.backward_input = rate(time.backward_input, flops.backward_input, r.forward);
    r.backward_weight = rate(time.backward_weight, flops.backward_weight, r.forward);
  }

  const Config& config_;
  const std::vector<std::vector<plan::SampleMeta>>& sets_;
  const RowCaps& caps_;
  comm::Communicator& world_;
  Stream stream_;
  plan::Layout layout_;
  Profile profile_;
  std::int64_t message_bytes_ = 0;
};

/// Median over the repeats of `work`, in ns.
template <class F> double median_ns(int repeats, F&& work) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(work());
  std::ranges::nth_element(times, times.begin() + repeats / 2);
  return times[static_cast<std::size_t>(repeats / 2)];
}

template <class F> double elapsed_ns(F&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

plan::Link link_of(double small_ns, double large_ns, std::int64_t bytes) {
  plan::Link link;
  link.latency = std::max<plan::Ns>(std::llround(small_ns), 0);
  const double rest = std::max(large_ns - small_ns, 1.0);
  link.bytes_per_us = std::clamp<std::int64_t>(std::llround(1e3 * static_cast<double>(bytes) / rest), 1, 1'000'000'000);
  return link;
}

}  // namespace

Profile make_profile(const Config& config, const std::vector<std::vector<plan::SampleMeta>>& sets, const RowCaps& caps,
                     comm::Communicator& world, const Stream& stream) {
  return Profiler(config, sets, caps, world, stream).run();
}

CopyLinks measure_links(std::int64_t bytes, comm::Communicator& world, const Stream& stream) {
  constexpr std::int64_t kSmall = 64;
  constexpr int kRepeats = 41, kBuffers = 4;
  const int partner = world.rank() ^ 1;
  const auto channel = world.split(partner < world.size() ? world.rank() / 2 : -1, world.rank(), "profile.copies");
  if (channel != nullptr) channel->reserve_sends(static_cast<std::size_t>(4 * bytes));
  std::vector<OwnedTensor> buffers;
  for (int i = 0; i < kBuffers; ++i) buffers.emplace_back(DType::u8, std::initializer_list<std::int64_t>{bytes});
  const auto part = [&](int i, std::int64_t n) { return buffers[static_cast<std::size_t>(i)].view().row_range(0, n); };
  // By size: a copy; a copy into the message and its send, or a receive and the copy out of it.
  std::array<double, 5> ns{};  // and how many ranks have a neighbour
  ns[4] = channel != nullptr ? 1.0 : 0.0;
  for (std::size_t s = 0; s < 2; ++s) {
    const std::int64_t n = s == 0 ? kSmall : bytes;
    int turn = 0;
    world.barrier();
    ns[s] = median_ns(kRepeats, [&] {
      turn = (turn + 1) % 2;
      return elapsed_ns([&] { ops::copy(stream, part(2 * turn, n), part(2 * turn + 1, n)); });
    });
    if (channel == nullptr) continue;
    ns[2 + s] = median_ns(kRepeats, [&] {
      turn = (turn + 1) % 2;
      const double sent = elapsed_ns([&] {
        ops::copy(stream, part(2 * turn, n), part(2 * turn + 1, n));
        channel->send(part(2 * turn, n), 1 - channel->rank(), stream);
      });
      channel->barrier();
      const double received = elapsed_ns([&] {
        channel->recv(part(2 * turn, n), 1 - channel->rank(), stream);
        ops::copy(stream, part(2 * turn + 1, n), part(2 * turn, n));
      });
      return (sent + received) / 2;
    });
  }
  world.all_reduce(Tensor(ns.data(), DType::f64, {std::ssize(ns)}), comm::ReduceOp::sum);
  for (std::size_t s = 0; s < 2; ++s) {
    ns[s] /= world.size();
    ns[2 + s] = ns[4] > 0.0 ? ns[2 + s] / ns[4] : 2 * ns[s];
  }
  return {link_of(ns[0], ns[1], bytes), link_of(ns[2], ns[3], bytes)};
}

}  // namespace mmt::app
