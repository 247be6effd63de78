#include "apps/mmtrain/machine.h"

#include "apps/mmtrain/cost_file.h"
#include "apps/mmtrain/job.h"
#include "core/error.h"
#include "core/philox.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>

namespace mmt::app {
namespace {

// Links where nothing is given. Ranks of a node copy through shared memory; the network is ten gigabits a second.
struct DefaultLink {
  bool overlapped;
  double latency_us, gb_per_s;
};
constexpr std::array<DefaultLink, 3> kLinks = {{{false, 0.2, 8.0}, {false, 2.0, 4.0}, {true, 30.0, 1.2}}};
constexpr double kGflops = 50.0;  // of a rank

/// What is written, over what was measured, over the default.
plan::Link link_of(const ClusterConfig::Link& link, const DefaultLink& otherwise, const plan::Link* measured) {
  plan::Link l;
  if (measured != nullptr) {
    l = *measured;
  } else {
    l.overlapped = otherwise.overlapped;
    l.latency = std::llround(1e3 * otherwise.latency_us);
    l.bytes_per_us = std::llround(1e3 * otherwise.gb_per_s);
  }
  if (link.overlapped) l.overlapped = *link.overlapped;
  if (link.latency_us) l.latency = std::llround(1e3 * *link.latency_us);
  if (link.gb_per_s) l.bytes_per_us = std::max(1LL, std::llround(1e3 * *link.gb_per_s));
  return l;
}

/// The same file on all ranks, or Agreed.
CostFile read_costs(const std::string& path, comm::Communicator& world) {
  CostFile costs;
  std::uint64_t hash = 0;
  in_agreement(world, [&] {
    costs = read_cost_file(path);
    std::ifstream in(path, std::ios::binary);
    for (char c = 0; in.get(c);) hash = hash64(hash, static_cast<unsigned char>(c));
  });
  const auto half = static_cast<std::int64_t>(hash >> 1);
  std::array<std::int64_t, 2> ends = {half, -half};
  world.all_reduce(Tensor(ends.data(), DType::i64, {2}), comm::ReduceOp::max);
  if (ends[0] != -ends[1]) {
    throw Agreed(kUsage,
                 fmt::format("cluster.costs: the ranks read different files as {}: the plan follows from it, so "
                             "all must have the same one",
                             path));
  }
  return costs;
}

std::string text_of(const plan::Link& link) {
  return fmt::format("{:.1f} GB/s after {} ({})", 1e-3 * static_cast<double>(link.bytes_per_us),
                     plan::duration_text(link.latency), link.overlapped ? "overlapped" : "inline");
}

}  // namespace

std::int64_t system_memory() {
  std::int64_t bytes = 0;
  std::ifstream info("/proc/meminfo");
  for (std::string word; info >> word;) {
    std::int64_t kib = 0;
    if (word == "MemTotal:" && info >> kib) {
      bytes = 1024 * kib;
      break;
    }
  }
  std::ifstream group("/sys/fs/cgroup/memory.max");
  std::int64_t limit = 0;
  if (group >> limit && limit > 0) bytes = bytes == 0 ? limit : std::min(bytes, limit);
  return bytes;
}

plan::TransferCosts Machine::transfers(int ranks) const {
  plan::TransferCosts t;
  t.local = local;
  t.intra = intra;
  t.inter = inter;
  for (int r = 0; ranks_per_node > 0 && r < ranks; ++r) t.node_of.push_back(r / ranks_per_node);
  return t;
}

Machine machine_of(const Config& config, int ranks, comm::Communicator& world) {
  const ClusterConfig& c = config.cluster;
  Machine m;
  m.ranks_per_node = static_cast<int>(c.ranks_per_node.value_or(0));
  const int per_node = m.ranks_per_node > 0 ? std::min(m.ranks_per_node, ranks) : ranks;
  m.memory = c.memory_per_rank   ? *c.memory_per_rank
             : c.memory_per_node ? *c.memory_per_node / per_node
                                 : system_memory() / std::max(per_node, 1);
  // What was found on a machine differs between machines: the least counts.
  world.all_reduce(Tensor(&m.memory, DType::i64, {1}), comm::ReduceOp::min);
  std::optional<CostFile> measured;
  if (c.costs) measured = read_costs(*c.costs, world);
  m.local = link_of(c.links[0], kLinks[0], measured ? &measured->local : nullptr);
  m.intra = link_of(c.links[1], kLinks[1], measured ? &measured->intra : nullptr);
  m.inter = link_of(c.links[2], kLinks[2], nullptr);
  const double gflops = c.gflops.value_or(kGflops);
  const plan::Ns rate = std::max(1LL, std::llround(1e9 / gflops));  // of 10^9 FLOPs
  plan::CostRates rates{rate, rate, rate};
  if (measured && !c.gflops) rates = measured->rates;
  m.costs = plan::CostModel(rates, measured ? measured->layers : std::vector<plan::MeasuredLayer>());

  const int nodes = (ranks + per_node - 1) / std::max(per_node, 1);
  m.text =
      fmt::format("{} rank{} on {} node{}, {} a rank{}; between ranks of a node {}", ranks, ranks == 1 ? "" : "s",
                  nodes, nodes == 1 ? "" : "s", plan::bytes_text(m.memory),
                  c.memory_per_rank || c.memory_per_node ? "" : " (this machine's memory, shared)", text_of(m.intra));
  if (nodes > 1) m.text += fmt::format(", between nodes {}", text_of(m.inter));
  if (measured) {
    m.text += fmt::format("; layers as measured on {} ({})", measured->machine, *c.costs);
  } else {
    m.text += fmt::format("; layers at {:g} GFLOP/s a rank{}", gflops,
                          c.gflops ? "" : " (not measured: `mmtrain profile` writes a cost file for cluster.costs)");
  }
  return m;
}

}  // namespace mmt::app
