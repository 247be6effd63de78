#include "parallel/plan/route.h"

#include "core/error.h"

#include <algorithm>
#include <map>

namespace mmt::plan {

std::int64_t Route::rows_into(int dst_rank) const {
  std::int64_t rows = 0;
  for (const RouteSegment& s : segments) rows += s.dst_rank == dst_rank ? s.count : 0;
  return rows;
}

std::int64_t Route::rows_out_of(int src_rank) const {
  std::int64_t rows = 0;
  for (const RouteSegment& s : segments) rows += s.src_rank == src_rank ? s.count : 0;
  return rows;
}

Route make_route(int edge, int consumer_block, std::span<const SourceItem> sources,
                 std::span<const WantedItem> wanted) {
  Route route{edge, consumer_block, {}};
  std::map<int, std::int64_t> filled;  // rows of each destination's port buffer so far
  for (const WantedItem& w : wanted) {
    MMT_CHECK(w.item >= 0 && static_cast<std::size_t>(w.item) < sources.size(), "item {} of {}", w.item,
              sources.size());
    const SourceItem& s = sources[static_cast<std::size_t>(w.item)];
    MMT_CHECK(w.first >= 0 && w.count >= 0 && w.first + w.count <= s.count,
              "edge {}: rows [{}, {}) of item {}, which has {}", edge, w.first, w.first + w.count, w.item, s.count);
    if (w.count == 0) continue;
    std::int64_t& at = filled[w.rank];
    route.segments.push_back({s.rank, s.block, s.row + w.first, w.rank, at, w.count, 0});
    at += w.count;
  }
  std::ranges::stable_sort(route.segments, {}, &RouteSegment::dst_rank);
  std::map<int, std::int64_t> sent;
  for (RouteSegment& s : route.segments) {
    s.src_at = sent[s.src_rank];
    sent[s.src_rank] += s.count;
  }
  return route;
}

std::vector<RouteSegment> message(const Route& route, int src_rank, int dst_rank) {
  std::vector<RouteSegment> joined;
  for (const RouteSegment& s : route.segments) {
    if (s.src_rank != src_rank || s.dst_rank != dst_rank) continue;
    if (!joined.empty()) {
      RouteSegment& last = joined.back();
      if (last.src_block == s.src_block && last.src_row + last.count == s.src_row &&
          last.dst_row + last.count == s.dst_row && last.src_at + last.count == s.src_at) {
        last.count += s.count;
        continue;
      }
    }
    joined.push_back(s);
  }
  return joined;
}

namespace {
std::vector<int> sorted_unique(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
  return ranks;
}
}  // namespace

std::vector<int> sources_of(const Route& route, int dst_rank) {
  std::vector<int> ranks;
  for (const RouteSegment& s : route.segments) {
    if (s.dst_rank == dst_rank) ranks.push_back(s.src_rank);
  }
  return sorted_unique(std::move(ranks));
}

std::vector<int> destinations_of(const Route& route, int src_rank) {
  std::vector<int> ranks;
  for (const RouteSegment& s : route.segments) {
    if (s.src_rank == src_rank) ranks.push_back(s.dst_rank);
  }
  return sorted_unique(std::move(ranks));
}

Share share_of(std::int64_t rows, int index, int parts) {
  const std::int64_t base = rows / parts, rest = rows % parts;
  return {index * base + std::min<std::int64_t>(index, rest), base + (index < rest ? 1 : 0)};
}

namespace {

/// Which share of `rows` a row falls into, and where that share ends.
std::pair<int, std::int64_t> share_at(std::int64_t rows, std::int64_t row, int parts) {
  for (int i = 0; i < parts; ++i) {
    const Share share = share_of(rows, i, parts);
    if (row < share.first + share.count) return {i, share.first + share.count};
  }
  MMT_CHECK(false, "row {} of {}", row, rows);
  return {};
}

}  // namespace

Route spread_over_tp(const Route& lanes, const std::function<std::vector<int>(int)>& producer_group,
                     const std::function<std::vector<int>(int)>& consumer_group) {
  Route route{lanes.edge, lanes.consumer_block, {}};
  for (const RouteSegment& whole : lanes.segments) {
    const std::vector<int> sources = producer_group(whole.src_rank), targets = consumer_group(whole.dst_rank);
    const std::int64_t sent = lanes.rows_out_of(whole.src_rank), wanted = lanes.rows_into(whole.dst_rank);
    std::int64_t done = 0;
    while (done < whole.count) {
      const auto [source, source_end] = share_at(sent, whole.src_at + done, static_cast<int>(sources.size()));
      const auto [target, target_end] = share_at(wanted, whole.dst_row + done, static_cast<int>(targets.size()));
      RouteSegment s = whole;
      s.src_rank = sources[static_cast<std::size_t>(source)];
      s.dst_rank = targets[static_cast<std::size_t>(target)];
      s.src_row += done;
      s.dst_row += done;
      s.src_at += done;
      s.count = std::min({whole.count - done, source_end - s.src_at, target_end - s.dst_row});
      route.segments.push_back(s);
      done += s.count;
    }
  }
  std::ranges::stable_sort(route.segments, {}, &RouteSegment::dst_rank);
  return route;
}

}  // namespace mmt::plan
