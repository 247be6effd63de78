#include "parallel/plan/schedule.h"

#include "core/at.h"
#include "core/error.h"
#include "parallel/plan/chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace mmt::plan {
namespace {

constexpr std::array<std::pair<Policy, std::string_view>, 5> kPolicies = {{
    {Policy::gpipe, "gpipe"},
    {Policy::one_f_one_b, "1f1b"},
    {Policy::interleaved, "interleaved"},
    {Policy::zero_bubble, "zero-bubble"},
    {Policy::list, "list"},
}};

int count_places(const std::vector<Chunk>& chunks) {
  int places = 0;
  for (const Chunk& c : chunks) places = std::max(places, c.place + 1);
  return places;
}

/// By place, how many chunks it has.
std::vector<int> chunk_counts(const std::vector<Chunk>& chunks) {
  std::vector<int> counts(at(count_places(chunks)), 0);
  for (const Chunk& c : chunks) counts[at(c.place)] = std::max(counts[at(c.place)], c.index + 1);
  return counts;
}

void refuse_chunks(const std::vector<Chunk>& chunks, Policy policy) {
  const std::vector<int> counts = chunk_counts(chunks);
  const auto many = std::ranges::find_if(counts, [](int n) { return n > 1; });
  if (many == counts.end()) return;
  throw ConfigError(fmt::format(
      "policy {}: place {} has {} chunks, each fed through another place: choose policy interleaved or list",
      name_of(policy), many - counts.begin(), *many));
}

/// Order of one place with one chunk: `forwards(k)` = how many forwards stand in front of backward k.
template <class Forwards>
void push_in_turn(const PipelineShape& shape, const Chunk& chunk, const Forwards& forwards, ComputeOrder& order) {
  const int m = shape.num_blocks;
  int done = 0;
  for (int k = 0; chunk.needs_backward && k < m; ++k) {
    for (; done < std::min(m, forwards(k)); ++done) push_forward(chunk, done, order);
    push_backward(shape, chunk, Kind::backward, k, order);
  }
  for (; done < m; ++done) push_forward(chunk, done, order);
}

std::vector<ComputeOrder> one_f_one_b(const PipelineShape& shape, const std::vector<Chunk>& chunks) {
  refuse_chunks(chunks, Policy::one_f_one_b);
  const std::vector<int> distance = distances_of(chunks);
  std::vector<ComputeOrder> orders(at(count_places(chunks)));
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    push_in_turn(
        shape, chunks[c], [&](int k) { return k + 1 + distance[c]; }, orders[at(chunks[c].place)]);
  }
  return orders;
}

/// The places with several chunks, which the interleaved schedule walks in turns.
struct Ring {
  int num_chunks = 0;
  std::vector<std::vector<int>> chunks;  ///< by position in the ring and index: which chunk
};

Ring ring_of(const std::vector<Chunk>& chunks, Policy policy) {
  const std::vector<int> counts = chunk_counts(chunks);
  Ring ring;
  std::vector<int> position(counts.size(), -1);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const auto place = at(chunks[c].place);
    if (counts[place] < 2) continue;
    if (ring.num_chunks == 0) ring.num_chunks = counts[place];
    if (counts[place] != ring.num_chunks) {
      throw ConfigError(fmt::format(
          "policy {}: place {} has {} chunks and another has {}: deal the stages out evenly, or choose policy list",
          name_of(policy), place, counts[place], ring.num_chunks));
    }
    if (position[place] < 0) {
      position[place] = static_cast<int>(ring.chunks.size());
      ring.chunks.emplace_back(at(ring.num_chunks), -1);
    }
    ring.chunks[at(position[place])][at(chunks[c].index)] = static_cast<int>(c);
  }
  for (const auto& own : ring.chunks) {
    if (std::ranges::find(own, -1) == own.end()) continue;
    throw ConfigError(
        fmt::format("policy {}: a place has no stage in one of its {} chunks", name_of(policy), own.size()));
  }
  // The order of the schedule: chunk by chunk, within it place by place.
  const auto turn = [&](const Chunk& c) {
    return c.index * static_cast<int>(ring.chunks.size()) + position[at(c.place)];
  };
  for (const Chunk& c : chunks) {
    for (const int next : c.consumers) {
      const Chunk& n = chunks[at(next)];
      if (position[at(c.place)] < 0 || position[at(n.place)] < 0 || turn(c) < turn(n)) continue;
      throw ConfigError(fmt::format(
          "policy {}: chunk {} of place {} feeds chunk {} of place {}: each round must visit the places in one "
          "order; choose policy list",
          name_of(policy), c.index, c.place, n.index, n.place));
    }
  }
  return ring;
}

/// Blocks in groups of `places` to 2 * places - 1 (the only group may be smaller): sizes differ by 1 at most.
std::vector<int> group_sizes(int num_blocks, int places) {
  const int groups = std::max(1, num_blocks / std::max(1, places));
  std::vector<int> sizes;
  for (int g = 0; g < groups; ++g) sizes.push_back(num_blocks / groups + (g < num_blocks % groups ? 1 : 0));
  return sizes;
}

/// Narayanan et al. 2021: a group of blocks goes through a place's first chunk, then through its second, and so on.
/// `further`: places that gradients have to come from behind the ring, or all forwards for what waits for them all.
void push_ring(const PipelineShape& shape, const std::vector<Chunk>& chunks, const Ring& ring, int further,
               std::vector<ComputeOrder>& orders) {
  const auto num_places = static_cast<int>(ring.chunks.size());
  struct Turn {
    int index, block;
  };
  std::vector<Turn> forwards, backwards;
  const std::vector<int> sizes = group_sizes(shape.num_blocks, num_places);
  int first = 0;
  for (const int size : sizes) {
    for (int v = 0; v < ring.num_chunks; ++v) {
      for (int m = first; m < first + size; ++m) {
        forwards.push_back({v, m});
        backwards.push_back({ring.num_chunks - 1 - v, m});
      }
    }
    first += size;
  }
  for (int p = 0; p < num_places; ++p) {
    const std::vector<int>& own = ring.chunks[at(p)];
    ComputeOrder& order = orders[at(chunks[at(own[0])].place)];
    const auto warm_up = at(2 * (num_places - 1 - p) + (ring.num_chunks - 1) * sizes.front() + further);
    std::size_t done = 0;
    for (std::size_t k = 0; k < backwards.size(); ++k) {
      for (; done < std::min(forwards.size(), k + 1 + warm_up); ++done) {
        push_forward(chunks[at(own[at(forwards[done].index)])], forwards[done].block, order);
      }
      push_backward(shape, chunks[at(own[at(backwards[k].index)])], Kind::backward, backwards[k].block, order);
    }
  }
}

std::vector<ComputeOrder> gpipe(const PipelineShape& shape, const std::vector<Chunk>& chunks) {
  std::vector<ComputeOrder> orders(at(count_places(chunks)));
  const Ring ring = ring_of(chunks, Policy::gpipe);
  push_ring(shape, chunks, ring, ring.num_chunks * shape.num_blocks, orders);
  const std::vector<int> counts = chunk_counts(chunks);
  for (const Chunk& c : chunks) {
    if (counts[at(c.place)] > 1) continue;
    push_in_turn(
        shape, c, [&](int) { return shape.num_blocks; }, orders[at(c.place)]);
  }
  return orders;
}

/// How many forwards of a chunk stand in front of each of its backwards.
std::vector<int> forwards_before(const Chunk& chunk, const ComputeOrder& order, int num_blocks) {
  const int stage = chunk.stages.front();
  int last = chunk.stages.front();
  for (const Action& a : order) {
    if (a.kind == Kind::backward && std::ranges::find(chunk.stages, int{a.stage}) != chunk.stages.end()) last = a.stage;
  }
  std::vector<int> counts;
  int done = 0;
  for (const Action& a : order) {
    if (a.kind == Kind::forward && a.stage == stage) ++done;
    if (a.kind == Kind::backward && a.stage == last) counts.push_back(done);
  }
  counts.resize(at(num_blocks), num_blocks);
  return counts;
}

std::vector<ComputeOrder> interleaved(const PipelineShape& shape, const std::vector<Chunk>& chunks) {
  const Ring ring = ring_of(chunks, Policy::interleaved);
  if (ring.num_chunks == 0) {
    throw ConfigError("policy interleaved: no place has more than one chunk: set chunks to 2 or more, or choose 1f1b");
  }
  std::vector<bool> in_ring(chunks.size(), false);
  for (const auto& own : ring.chunks) {
    for (const int c : own) in_ring[at(c)] = true;
  }
  std::vector<ComputeOrder> orders(at(count_places(chunks)));
  const std::vector<int> distance = distances_of(chunks);
  int further = 0;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    for (const int next : chunks[c].grad_consumers) {
      if (in_ring[c] && !in_ring[at(next)]) further = std::max(further, distance[at(next)] + 1);
    }
  }
  push_ring(shape, chunks, ring, further, orders);
  // Places before the ring do what their consumers do, one block ahead; those behind it are a pipeline of their own.
  std::vector<std::vector<int>> forwards(chunks.size());
  for (std::size_t c = chunks.size(); c-- > 0;) {
    const Chunk& chunk = chunks[c];
    ComputeOrder& order = orders[at(chunk.place)];
    if (!in_ring[c]) {
      std::vector<int> counts(at(shape.num_blocks));
      for (int k = 0; k < shape.num_blocks; ++k) {
        counts[at(k)] = k + 1;
        for (const int next : chunk.grad_consumers) {
          counts[at(k)] = std::max(counts[at(k)], forwards[at(next)][at(k)] + 1);
        }
      }
      push_in_turn(
          shape, chunk, [&](int k) { return counts[at(k)]; }, order);
    }
    forwards[c] = forwards_before(chunk, order, shape.num_blocks);
  }
  return orders;
}

}  // namespace

const char* name_of(Policy policy) {
  return std::ranges::find(kPolicies, policy, &std::pair<Policy, std::string_view>::first)->second.data();
}

std::optional<Policy> parse_policy(std::string_view name) {
  const auto found = std::ranges::find(kPolicies, name, &std::pair<Policy, std::string_view>::second);
  return found == kPolicies.end() ? std::nullopt : std::optional(found->first);
}

PipelineShape shape_of(const StageGraph& graph, std::span<const int> places, const std::vector<bool>& restore,
                       std::span<const int> chunks) {
  MMT_CHECK(places.size() == graph.stages.size(), "{} places of {} stages", places.size(), graph.stages.size());
  PipelineShape shape;
  shape.num_blocks = graph.stages.empty() ? 0 : graph.stages.front().num_blocks;
  for (std::size_t s = 0; s < graph.stages.size(); ++s) {
    const StageInfo& info = graph.stages[s];
    MMT_CHECK(info.num_blocks == shape.num_blocks, "stage {} has {} blocks and stage 0 has {}", info.id,
              info.num_blocks, shape.num_blocks);
    shape.stages.push_back({places[s], info.needs_backward, info.has_weight_grads, !restore.empty() && restore[s],
                            chunks.empty() ? -1 : chunks[s]});
  }
  for (const Edge& e : graph.edges) shape.links.push_back({e.producer, e.consumer, e.needs_grad});
  return shape;
}

namespace {

std::vector<ComputeOrder> order_of(const PipelineShape& shape, const ScheduleOptions& options) {
  switch (options.policy) {
    case Policy::gpipe: return gpipe(shape, chunks_of(shape));
    case Policy::one_f_one_b: return one_f_one_b(shape, chunks_of(shape));
    case Policy::interleaved: return interleaved(shape, chunks_of(shape));
    case Policy::zero_bubble:
    case Policy::list: return generate_greedy(shape, options);
  }
  MMT_CHECK(false, "policy {}", static_cast<int>(options.policy));
  return {};
}

}  // namespace

std::vector<ComputeOrder> generate(const PipelineShape& shape, const ScheduleOptions& options) {
  std::vector<ComputeOrder> orders = order_of(shape, options);
  if (options.policy != Policy::interleaved) return orders;
  const int needed = credits_of(shape, orders);
  if (needed <= options.credits) return orders;
  throw ConfigError(fmt::format(
      "policy interleaved: {} blocks need {} messages of an edge under way and there are {} credits: choose "
      "policy list, or a number of blocks that the places divide",
      shape.num_blocks, needed, options.credits));
}

int credits_needed(const PipelineShape& shape, Policy policy) {
  ScheduleOptions options;
  options.policy = policy;
  const bool rounds = policy == Policy::interleaved || policy == Policy::gpipe;
  return rounds ? credits_of(shape, order_of(shape, options)) : 2;
}

std::vector<int> distances_to_sink(const PipelineShape& shape) {
  const std::vector<Chunk> chunks = chunks_of(shape);
  refuse_chunks(chunks, Policy::one_f_one_b);
  const std::vector<int> distance = distances_of(chunks);
  std::vector<int> by_place(at(shape.num_places()), 0);
  for (std::size_t c = 0; c < chunks.size(); ++c) by_place[at(chunks[c].place)] = distance[c];
  return by_place;
}

}  // namespace mmt::plan
