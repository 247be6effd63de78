#include "parallel/plan/wiring.h"

#include "core/at.h"
#include "core/error.h"

#include <algorithm>
#include <utility>

namespace mmt::plan {
Wiring::Wiring(const StageGraph& graph) : graph_(&graph), in_(graph.stages.size()), out_(graph.stages.size()) {
  const std::size_t num_edges = graph.edges.size();
  MMT_CHECK(graph.producers_of.size() == num_edges && graph.routes.size() == num_edges,
            "{} edges, {} tables of blocks, {} of routes", num_edges, graph.producers_of.size(), graph.routes.size());
  for (std::size_t s = 0; s < graph.stages.size(); ++s) {
    MMT_CHECK(graph.stages[s].id == static_cast<int>(s), "stage {} has id {}", s, graph.stages[s].id);
    for (const int rank : graph.stages[s].ranks) {
      MMT_CHECK(rank >= 0, "stage {} runs on rank {}", s, rank);
      num_ranks_ = std::max(num_ranks_, rank + 1);
    }
  }
  stages_of_.resize(at(num_ranks_));
  for (const StageInfo& s : graph.stages) {
    for (const int rank : s.ranks) stages_of_[at(rank)].push_back(s.id);
  }
  std::vector<std::pair<int, int>> ends, all;
  for (std::size_t e = 0; e < num_edges; ++e) {
    const Edge& edge = graph.edges[e];
    MMT_CHECK(edge.id == static_cast<int>(e) && edge.producer >= 0 && edge.producer < edge.consumer &&
                  at(edge.consumer) < graph.stages.size(),
              "edge {} has id {} and goes from stage {} to {}", e, edge.id, edge.producer, edge.consumer);
    in_[at(edge.consumer)].push_back(edge.id);
    out_[at(edge.producer)].push_back(edge.id);
    const int produced = graph.stages[at(edge.producer)].num_blocks;
    const std::size_t consumed = at(graph.stages[at(edge.consumer)].num_blocks);
    MMT_CHECK(graph.producers_of[e].size() == consumed && graph.routes[e].size() == consumed,
              "edge {}: {} rows of the table of blocks and {} routes for {} blocks", e, graph.producers_of[e].size(),
              graph.routes[e].size(), consumed);
    Inverse& inverse = consumers_.emplace_back();
    inverse.first.assign(at(produced) + 1, 0);
    for (const std::vector<int>& read : graph.producers_of[e]) {
      for (const int p : read) {
        MMT_CHECK(p >= 0 && p < produced, "edge {} reads block {} of {}", e, p, produced);
        ++inverse.first[at(p) + 1];
      }
    }
    for (int p = 0; p < produced; ++p) inverse.first[at(p) + 1] += inverse.first[at(p)];
    inverse.blocks.resize(at(inverse.first.back()));
    std::vector<int> next = inverse.first;
    for (std::size_t m = 0; m < consumed; ++m) {
      for (const int p : graph.producers_of[e][m]) inverse.blocks[at(next[at(p)]++)] = static_cast<int>(m);
    }
    std::vector<std::uint32_t>& first = first_message_.emplace_back();
    first.push_back(static_cast<std::uint32_t>(messages_.size()));
    all.clear();
    for (const Route& route : graph.routes[e]) {
      ends.clear();
      for (const RouteSegment& s : route.segments) {
        if (ends.empty() || ends.back() != std::pair{s.src_rank, s.dst_rank}) ends.emplace_back(s.src_rank, s.dst_rank);
      }
      std::ranges::sort(ends);
      ends.erase(std::ranges::unique(ends).begin(), ends.end());
      for (const auto& [src, dst] : ends) messages_.push_back({src, dst, -1});
      first.push_back(static_cast<std::uint32_t>(messages_.size()));
      all.insert(all.end(), ends.begin(), ends.end());
    }
    std::ranges::sort(all);
    all.erase(std::ranges::unique(all).begin(), all.end());
    std::erase_if(all, [](const auto& pair) { return pair.first == pair.second; });
    const auto base = static_cast<int>(channels_.size());
    for (const auto& [src, dst] : all) {
      channels_.push_back({edge.id, false, src, dst});
      channels_.push_back({edge.id, true, dst, src});
    }
    for (std::size_t i = first.front(); i < messages_.size(); ++i) {
      Message& m = messages_[i];
      if (m.src == m.dst) continue;
      const auto found = std::ranges::lower_bound(all, std::pair{m.src, m.dst});
      m.channel = base + 2 * static_cast<int>(found - all.begin());
    }
  }
}

std::span<const int> Wiring::consumer_blocks(int edge, int producer_block) const {
  const Inverse& inverse = consumers_[at(edge)];
  const auto first = at(inverse.first[at(producer_block)]), last = at(inverse.first[at(producer_block) + 1]);
  return std::span(inverse.blocks).subspan(first, last - first);
}

std::span<const Message> Wiring::messages(int edge, int consumer_block) const {
  const auto& first = first_message_[at(edge)];
  return std::span(messages_).subspan(first[at(consumer_block)],
                                      first[at(consumer_block) + 1] - first[at(consumer_block)]);
}

bool Wiring::has_peer(const Action& a, int rank) const {
  const bool from_source = (a.kind == Kind::send) != a.transposed;
  return std::ranges::any_of(messages(a.edge, a.block),
                             [&](const Message& m) { return m.src != m.dst && (from_source ? m.src : m.dst) == rank; });
}

bool Wiring::has_local(int edge, int consumer_block, int rank) const {
  return std::ranges::any_of(messages(edge, consumer_block),
                             [&](const Message& m) { return m.src == rank && m.dst == rank; });
}

}  // namespace mmt::plan
