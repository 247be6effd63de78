// Tiles of an attention mask: query blocks x key blocks, each tile empty, partial or full.
//
// Rows group into segments (equal words, places that count up by one). Between two segments the predicate of words.h
// has a closed form (whole group, or a causal band), so classes and exact pair counts come from segments: the cost
// grows with the segments and the borders of bands, never with rows x rows.
//
// Blocks end where the sample changes. A short sample therefore costs in proportion to its own rows, and what a kernel
// computes for a sample does not depend on what it is packed with.
//
// A plan belongs to one (mask, window) of one block; every layer, head and pass of the block uses it. Pure host data.
#pragma once

#include "core/mask/words.h"

namespace mmt {

enum class TileClass : std::uint8_t { empty, partial, full };

struct TileShape {
  std::int32_t query_rows = 48;  ///< at most 64: a tile's bits hold one query row a bit
  std::int32_t key_rows = 64;
  bool cut_at_samples = true;  ///< false: a fixed grid, for counting only (the kernels want true)
  friend bool operator==(const TileShape&, const TileShape&) = default;
};

struct TileCounts {
  std::int64_t empty = 0;
  std::int64_t full = 0;
  std::int64_t partial = 0;
  std::int64_t area = 0;   ///< query rows x key rows of all full and partial tiles: the work of a kernel
  std::int64_t pairs = 0;  ///< allowed (query, key) pairs, exactly: the work that the mask needs
  std::int64_t tiles() const { return full + partial; }
  friend bool operator==(const TileCounts&, const TileCounts&) = default;
};

/// Rows [first, first + rows) with one word and places order, order + 1, ... (padding rows: word 0, any places).
struct Segment {
  std::uint64_t word = 0;
  std::int32_t order = 0;
  std::int32_t first = 0;
  std::int32_t rows = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};
std::vector<Segment> segments_of(const MaskSide& side);

/// Consecutive non-empty tiles [first, last) of one class within a row (or, transposed, a column) of tiles. Partial
/// tile `t` has its pattern at `bits[pattern + t - first]` of the plan's list for that direction.
struct TileRun {
  std::int32_t first = 0;
  std::int32_t last = 0;
  TileClass kind = TileClass::empty;
  std::int32_t pattern = 0;
  friend bool operator==(const TileRun&, const TileRun&) = default;
};

/// Forward work: the non-empty tiles number [first, last) of a query block, counted over its runs. A block of more than
/// one item leaves partial results in the slots `partial`, merged in the order of the slots; -1: the only item.
struct ForwardItem {
  std::int32_t query_block = 0;
  std::int32_t first = 0;
  std::int32_t last = 0;
  std::int32_t partial = -1;
  std::int64_t cost = 0;
};
struct ForwardMerge {
  std::int32_t query_block = 0;
  std::int32_t first_partial = 0;
  std::int32_t count = 0;
};

/// Backward work: the key blocks backward_keys[first, last), all of one sample, done in this order by one thread. Its
/// contribution to dQ goes to buffer `slot`; a query block sums the slots 0 .. query_slots - 1 of its sample in order.
/// `own`: the item's key blocks and the query blocks [first_query, last_query) are each one run of at most kOwnRows
/// rows that no other item touches, so that one thread may do all of it in its cache.
struct BackwardItem {
  std::int32_t first = 0;
  std::int32_t last = 0;
  std::int32_t slot = 0;
  bool own = false;
  std::int32_t first_query = 0;
  std::int32_t last_query = 0;
  std::int64_t cost = 0;
};
inline constexpr std::int32_t kOwnRows = 128;

struct TilePlan {
  TileShape shape;
  std::int32_t window = 0;
  std::int32_t query_rows = 0;
  std::int32_t key_rows = 0;
  std::vector<std::int32_t> query_start;  ///< first row of each query block, and the number of rows
  std::vector<std::int32_t> key_start;
  TileCounts counts;

  std::vector<std::int32_t>
      query_first_run;              ///< query block b has the runs [query_first_run[b], query_first_run[b + 1])
  std::vector<TileRun> query_runs;  ///< over key blocks
  std::vector<std::int32_t> query_patterns;
  std::vector<std::int32_t> key_first_run;  ///< the same, transposed
  std::vector<TileRun> key_runs;            ///< over query blocks
  std::vector<std::int32_t> key_patterns;
  /// Patterns of partial tiles, equal ones stored once: word j of a pattern is the tile's key row j, bit i its query
  /// row i. query_patterns and key_patterns hold the place of the first word.
  std::vector<std::uint64_t> bits;

  std::vector<ForwardItem> forward;  ///< longest first
  std::vector<ForwardMerge> merges;
  std::int32_t num_partials = 0;
  std::vector<std::int32_t> backward_keys;
  std::vector<BackwardItem> backward;             ///< longest first
  std::vector<std::int32_t> query_slots;          ///< per query block; 0: no key sees it
  std::int32_t num_slots = 0;                     ///< the largest of query_slots
  std::vector<std::int32_t> shared_query_blocks;  ///< those in no item of its own; some are seen by nobody
  std::vector<std::int32_t> shared_key_blocks;

  std::int32_t query_blocks() const { return static_cast<std::int32_t>(query_start.size()) - 1; }
  std::int32_t key_blocks() const { return static_cast<std::int32_t>(key_start.size()) - 1; }
};

/// Throws std::logic_error when words and order differ in length, a shape is out of range, or window < 0. The kernels'
/// patterns and work lists are made for `cut_at_samples` only.
TilePlan make_tile_plan(const MaskSide& queries, const MaskSide& keys, std::int32_t window,
                        const TileShape& shape = {});
/// What the cost model reads; makes no lists.
TileCounts count_tiles(const MaskSide& queries, const MaskSide& keys, std::int32_t window, const TileShape& shape = {});

/// Non-empty tiles and allowed pairs of each query block: the work that a context-parallel planner hands out.
std::vector<TileCounts> count_tiles_by_block(const MaskSide& queries, const MaskSide& keys, std::int32_t window,
                                             const TileShape& shape = {});

/// Bounds over every mask with at most `key_rows` key rows, for capacities fixed before the run.
std::int64_t max_forward_partials(std::int64_t key_rows);
std::int32_t max_backward_slots(std::int64_t key_rows);

}  // namespace mmt
