// Route: the one boundary operator. Given who holds the rows that a consumer's block reads and who needs them, it lists
// row segments; forward executes it, backward executes its transpose.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace mmt::plan {

/// `count` rows from (src_rank, src_block, src_row) to (dst_rank, dst_row) of the route's port buffer. `src_at` is
/// their place in the order of all rows that the source's lane sends over this route: what comes back is ordered by it.
struct RouteSegment {
  std::int32_t src_rank = 0;
  std::int32_t src_block = 0;
  std::int64_t src_row = 0;
  std::int32_t dst_rank = 0;
  std::int64_t dst_row = 0;
  std::int64_t count = 0;
  std::int64_t src_at = 0;
  friend bool operator==(const RouteSegment&, const RouteSegment&) = default;
};

/// Keyed by (edge, consumer block). Segments are ordered by (dst_rank, dst_row); a destination's port buffer is packed:
/// its rows are covered exactly once.
struct Route {
  int edge = 0;
  int consumer_block = 0;
  std::vector<RouteSegment> segments;

  std::int64_t rows_into(int dst_rank) const;
  std::int64_t rows_out_of(int src_rank) const;  ///< a row used twice counts twice
};

/// An item's rows on the producer's side: where they are in its block's out rows.
struct SourceItem {
  std::int32_t rank = 0;
  std::int32_t block = 0;
  std::int64_t row = 0;
  std::int64_t count = 0;
};

/// Rows that one destination wants, in port-buffer order.
struct WantedItem {
  std::int32_t rank = 0;
  std::int32_t item = 0;   ///< index into the list of SourceItem
  std::int64_t first = 0;  ///< first row within the item
  std::int64_t count = 0;
};

/// Throws std::logic_error naming the item when rows outside an item are wanted.
Route make_route(int edge, int consumer_block, std::span<const SourceItem> sources, std::span<const WantedItem> wanted);

/// The message between two ranks: its segments in order, joined where neighbours continue. The same list on both sides.
std::vector<RouteSegment> message(const Route& route, int src_rank, int dst_rank);
/// Ranks that send to (receive from) `rank` over the route, ascending; `rank` itself is included.
std::vector<int> sources_of(const Route& route, int dst_rank);
std::vector<int> destinations_of(const Route& route, int src_rank);

/// Rows split evenly over `parts`, the first ones get the rest: [first, first + count) of part `index`.
struct Share {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
Share share_of(std::int64_t rows, int index, int parts);

/// A route between lanes (ranks = each lane's first tp rank) spread over their tp ranks, whose copies of the rows are
/// equal: destination i of a lane receives share i of its port buffer, source j of a lane sends share j of what the
/// lane sends. The receivers complete the buffer, and on the way back the senders complete the gradients, by an
/// all-gather of contiguous shares over tp; nothing is summed over tp. The two functions give the tp ranks of a lane by
/// its first rank.
Route spread_over_tp(const Route& lanes, const std::function<std::vector<int>(int)>& producer_group,
                     const std::function<std::vector<int>(int)>& consumer_group);

}  // namespace mmt::plan
