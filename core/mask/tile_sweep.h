// How tiles.cpp finds the classes of one row or column of tiles; private to core/mask.
#pragma once

#include "core/mask/tiles.h"

namespace mmt::tile_sweep {

/// One side of a mask, cut into segments and blocks, with its segments listed by sample.
struct Side {
  std::vector<Segment> segments;
  std::vector<std::int32_t> start;       ///< first row of each block, and the number of rows
  std::vector<std::int32_t> first_part;  ///< block b touches the segments from first_part[b] on
  std::vector<std::int32_t> by_sample;   ///< segment numbers sorted by (sample, row); padding left out
  std::vector<std::uint32_t> samples;    ///< the samples in by_sample, ascending
  std::vector<std::int32_t> sample_first;

  std::int32_t blocks() const { return static_cast<std::int32_t>(start.size()) - 1; }
  std::int32_t rows_of(std::int32_t block) const {
    return start[static_cast<std::size_t>(block) + 1] - start[static_cast<std::size_t>(block)];
  }
  std::int32_t block_of(std::int32_t row) const;
  std::span<const std::int32_t> segments_of_sample(std::uint32_t sample) const;
  /// The parts of the segments that lie in a block, appended to `parts` (cleared first).
  void parts_of(std::int32_t block, std::vector<Segment>& parts) const;
};
Side make_side(const MaskSide& side, std::int32_t block_rows, bool cut_at_samples);

/// What the predicate says between two segments.
enum class Relation : std::uint8_t { none, all, band };
struct Pairing {
  Relation relation = Relation::none;
  std::int64_t window = 0;  ///< of a band: 0 <= place of the query - place of the key < window
};
Pairing pairing(const Segment& query, const Segment& key, std::int32_t window);

/// Classifies a block of one side against all blocks of the other.
class Sweep {
 public:
  /// `along_keys`: blocks of queries are swept over blocks of keys; else the transpose.
  Sweep(const Side& own, const Side& other, std::int32_t window, bool along_keys);
  /// Appends the runs of non-empty tiles of `block` and returns its counts (empty: the other side's blocks left over).
  TileCounts run(std::int32_t block, std::vector<TileRun>& runs);

 private:
  struct Change {
    std::int32_t block = 0;
    std::int32_t touch = 0;   ///< intervals that reach the tiles from here on
    std::int64_t cover = 0;   ///< own rows that allow whole tiles
    std::int64_t inside = 0;  ///< allowed pairs of rows that allow a part of one tile only
  };
  void add(const Segment& part, const Segment& other);
  void touch(std::int32_t first, std::int32_t last);
  void cover(std::int32_t first, std::int32_t last, std::int64_t own_rows);

  const Side& own_;
  const Side& other_;
  std::int32_t window_;
  bool along_keys_;
  std::vector<Segment> parts_;
  std::vector<Change> changes_;
  std::int64_t pairs_ = 0;
};

/// Writes `key rows` words: bit i of word j says whether query row i of the tile may read key row j.
void tile_bits(const std::vector<Segment>& queries, std::int32_t query_start, const std::vector<Segment>& keys,
               std::int32_t key_start, std::int32_t window, std::span<std::uint64_t> words);

}  // namespace mmt::tile_sweep

namespace mmt {
/// Fills the work lists of a plan whose runs are made (tile_work.cpp).
void make_work_lists(TilePlan& plan, const MaskSide& queries, const MaskSide& keys);
}  // namespace mmt
