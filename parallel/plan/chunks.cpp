#include "parallel/plan/chunks.h"

#include "core/at.h"
#include "core/error.h"

#include <algorithm>
#include <map>

namespace mmt::plan {
namespace {

void check_shape(const PipelineShape& shape) {
  const auto n = static_cast<int>(shape.stages.size());
  MMT_CHECK(shape.num_blocks >= 0, "{} blocks", shape.num_blocks);
  for (const PipelineShape::Stage& s : shape.stages) {
    MMT_CHECK(s.place >= 0, "a stage stands at place {}", s.place);
    MMT_CHECK(s.needs_backward || !s.trains, "a stage at place {} trains without a backward", s.place);
  }
  for (const PipelineShape::Link& l : shape.links) {
    MMT_CHECK(l.producer >= 0 && l.producer < l.consumer && l.consumer < n,
              "link {} -> {} of {} stages: ids are in topological order", l.producer, l.consumer, n);
    MMT_CHECK(
        !l.needs_grad || (shape.stages[at(l.producer)].needs_backward && shape.stages[at(l.consumer)].needs_backward),
        "link {} -> {} returns gradients between stages without a backward", l.producer, l.consumer);
  }
}

}  // namespace

std::vector<int> chunk_indices(const PipelineShape& shape) {
  const auto num_places = at(shape.num_places());
  if (std::ranges::any_of(shape.stages, [](const PipelineShape::Stage& s) { return s.chunk >= 0; })) {
    std::vector<int> given;
    for (const PipelineShape::Stage& s : shape.stages) {
      MMT_CHECK(s.chunk >= 0, "a stage at place {} is in no chunk, others are", s.place);
      given.push_back(s.chunk);
    }
    return given;
  }
  std::vector<std::vector<int>> in(shape.stages.size());
  for (const PipelineShape::Link& l : shape.links) in[at(l.consumer)].push_back(l.producer);
  std::vector<std::vector<int>> last(shape.stages.size(), std::vector<int>(num_places, -1));
  std::vector<int> index(shape.stages.size(), 0);
  for (std::size_t s = 0; s < shape.stages.size(); ++s) {
    const auto place = at(shape.stages[s].place);
    for (const int u : in[s]) {
      const bool same = shape.stages[at(u)].place == shape.stages[s].place;
      index[s] = std::max(index[s], same ? index[at(u)] : last[at(u)][place] + 1);
      for (std::size_t p = 0; p < num_places; ++p) last[s][p] = std::max(last[s][p], last[at(u)][p]);
    }
    for (const int u : in[s]) {
      int& known = last[s][at(shape.stages[at(u)].place)];
      known = std::max(known, index[at(u)]);
    }
  }
  return index;
}

namespace {

void insert_once(std::vector<int>& list, int value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

std::vector<Chunk> connect(const PipelineShape& shape, std::vector<Chunk> chunks, const std::vector<int>& chunk_of) {
  for (Chunk& c : chunks) {
    for (const int s : c.stages) {
      c.needs_backward |= shape.stages[at(s)].needs_backward;
      c.trains |= shape.stages[at(s)].trains;
      c.restore |= shape.stages[at(s)].restore;
    }
  }
  for (const PipelineShape::Link& l : shape.links) {
    const int from = chunk_of[at(l.producer)], to = chunk_of[at(l.consumer)];
    if (from == to) continue;
    insert_once(chunks[at(from)].consumers, to);
    insert_once(chunks[at(to)].producers, from);
    if (!l.needs_grad) continue;
    insert_once(chunks[at(from)].grad_consumers, to);
    insert_once(chunks[at(to)].grad_producers, from);
  }
  return chunks;
}

/// Order in which producers come first, first ids first; shorter than the list when there is a circle.
std::vector<int> topological(const std::vector<Chunk>& chunks) {
  std::vector<std::size_t> waits;
  for (const Chunk& c : chunks) waits.push_back(c.producers.size());
  std::vector<int> order;
  std::vector<int> ready;
  for (std::size_t c = chunks.size(); c-- > 0;) {
    if (waits[c] == 0) ready.push_back(static_cast<int>(c));
  }
  while (!ready.empty()) {
    const int c = ready.back();
    ready.pop_back();
    order.push_back(c);
    for (const int next : chunks[at(c)].consumers) {
      if (--waits[at(next)] == 0) ready.push_back(next);
    }
  }
  return order;
}

}  // namespace

int PipelineShape::num_places() const {
  int places = 0;
  for (const Stage& s : stages) places = std::max(places, s.place + 1);
  return places;
}

std::vector<Chunk> chunks_of(const PipelineShape& shape) {
  check_shape(shape);
  const std::vector<int> index = chunk_indices(shape);
  std::vector<Chunk> chunks;
  std::vector<int> chunk_of(shape.stages.size());
  std::map<std::pair<int, int>, int> known;
  for (std::size_t s = 0; s < shape.stages.size(); ++s) {
    const std::pair key{shape.stages[s].place, index[s]};
    const auto [found, fresh] = known.try_emplace(key, static_cast<int>(chunks.size()));
    if (fresh) chunks.push_back({.place = key.first, .index = key.second});
    chunks[at(found->second)].stages.push_back(static_cast<int>(s));
    chunk_of[s] = found->second;
  }
  chunks = connect(shape, std::move(chunks), chunk_of);
  const std::vector<int> order = topological(chunks);
  if (order.size() != chunks.size()) {
    throw ConfigError(
        "places feed each other in both directions, so that no order of their blocks ends: choose policy list, or give "
        "the modules places of their own");
  }
  std::vector<int> rank(chunks.size());
  for (std::size_t i = 0; i < order.size(); ++i) rank[at(order[i])] = static_cast<int>(i);
  std::vector<Chunk> sorted;
  for (const int c : order) {
    Chunk& chunk = chunks[at(c)];
    for (auto* list : {&chunk.producers, &chunk.consumers, &chunk.grad_producers, &chunk.grad_consumers}) {
      for (int& other : *list) other = rank[at(other)];
      std::ranges::sort(*list);
    }
    sorted.push_back(std::move(chunk));
  }
  return sorted;
}

std::vector<Chunk> single_stages(const PipelineShape& shape) {
  check_shape(shape);
  std::vector<Chunk> chunks;
  std::vector<int> chunk_of;
  for (std::size_t s = 0; s < shape.stages.size(); ++s) {
    chunks.push_back({.place = shape.stages[s].place, .index = 0, .stages = {static_cast<int>(s)}});
    chunk_of.push_back(static_cast<int>(s));
  }
  return connect(shape, std::move(chunks), chunk_of);
}

std::vector<int> distances_of(const std::vector<Chunk>& chunks) {
  // Links without gradients count, too: a place that computes for a deep pipeline must run ahead of its own backwards.
  std::vector<int> distance(chunks.size(), 0);
  for (std::size_t c = chunks.size(); c-- > 0;) {
    for (const int next : chunks[c].consumers) {
      const int step = chunks[at(next)].place == chunks[c].place ? 0 : 1;
      distance[c] = std::max(distance[c], distance[at(next)] + step);
    }
  }
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    if (!chunks[c].needs_backward) distance[c] = 0;
  }
  return distance;
}

void push_forward(const Chunk& chunk, int block, ComputeOrder& order) {
  for (const int s : chunk.stages) {
    order.push_back({.kind = Kind::forward, .stage = static_cast<std::int16_t>(s), .block = block});
  }
}

void push_backward(const PipelineShape& shape, const Chunk& chunk, Kind kind, int block, ComputeOrder& order) {
  const auto push = [&](Kind what, auto wanted) {
    for (std::size_t i = chunk.stages.size(); i-- > 0;) {
      const PipelineShape::Stage& stage = shape.stages[at(chunk.stages[i])];
      if (stage.needs_backward && wanted(stage)) {
        order.push_back({what, static_cast<std::int16_t>(chunk.stages[i]), block});
      }
    }
  };
  using Stage = PipelineShape::Stage;
  if (kind == Kind::backward_weight) return push(kind, [](const Stage& s) { return s.trains; });
  push(Kind::recompute, [](const Stage& s) { return s.restore; });
  push(kind, [](const Stage&) { return true; });
}

}  // namespace mmt::plan
