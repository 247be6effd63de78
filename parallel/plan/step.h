// From the metadata of a step's samples to blocks, rows and programs: integers only, the same on every rank.
#pragma once

#include "parallel/plan/program.h"
#include "parallel/plan/rows.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mmt::plan {

/// A picture in tiles of equal size, each seen alone: the whole picture made small, then rows x cols tiles of it. What
/// leaves: the small picture's rows; then, of the grid that the tiles' rows form side by side, what is left without
/// `trim_rows` lines and `trim_cols` columns at either end, a newline behind each line.
struct TileGrid {
  std::int64_t rows = 0, cols = 0;  ///< 0: the item is no such picture
  std::int64_t trim_rows = 0, trim_cols = 0;
  std::int64_t count() const { return 1 + rows * cols; }
};

/// One media item as one encoder sees it.
struct ItemMeta {
  std::int32_t encoder = 0;
  std::int64_t source_rows = 0;  ///< of the loader's media
  std::int64_t inner_rows = 0;   ///< rows inside the encoder
  std::int64_t rows = 0;         ///< that leave it
  /// Frames, height and width of the rows that leave, where these are a grid in this order; zeros: they are a sequence.
  std::array<std::int64_t, 3> grid{};
  bool is_grid() const { return grid[0] > 0; }
  TileGrid tiles{};
};

/// Consecutive rows of a sample: text (item -1) or all rows of one item. The last `supervised` of them predict a label.
struct RunMeta {
  std::int32_t item = -1;
  std::int64_t length = 0;
  std::int64_t supervised = 0;
};

struct SampleMeta {
  std::int64_t id = 0;  ///< global sample index
  std::int64_t rows = 0;
  std::int64_t supervised = 0;
  std::vector<ItemMeta> items;
  std::vector<RunMeta> runs;
};

/// What the rows of an encoder's blocks look like.
struct EncoderRows {
  std::string name;
  std::int64_t leading_rows = 0;  ///< inner rows of an item in front of those that leave (a class token)
  /// A row that leaves is made of merge x merge inner ones, which stand one after the other (row by row of the square).
  int merge = 1;
  int pool = 1;  ///< a row that leaves is the mean of so many inner ones; what does not fill one at an item's end goes
  /// The inner rows are patches of a grid: their positions are (row, column), and those of a frame see each other
  /// alone.
  bool grid = false;
  /// Above 0: items are pictures in tiles of tile_side x tile_side patches, each with its own leading rows.
  std::int64_t tile_side = 0;
  std::int64_t tile_rows() const { return leading_rows + tile_side * tile_side; }
  int num_positions() const { return grid ? 2 : 1; }
  std::int64_t merged() const { return std::int64_t{merge} * merge; }
  std::int64_t inner_per_row() const { return merged() * pool; }
};

/// What an LLM's blocks look like.
struct LlmRows {
  int num_encoders = 0;
  std::vector<std::int32_t> windows;  ///< one mask each
  bool bidirectional_media = false;   ///< the rows of an item also see the later ones of the same item
  /// 1: a row's position is its place in the sample. 3 (M-RoPE): text has three equal ones; an item that is a grid
  /// has (frame, row, column) from where it starts, and what follows goes on at the start plus the larger of its
  /// height and width.
  int num_positions = 1;
};

struct StepOptions {
  int lanes = 1;
  std::int64_t block_rows = 0;  ///< cap on the rows of an LLM block
  int min_blocks = 1;
};

/// Which samples each lane trains on in which block. A lane with nothing has empty blocks.
struct Assignment {
  int num_blocks = 0;
  std::vector<std::vector<std::vector<std::int32_t>>> samples;  ///< by lane and block: indices, ascending
  std::uint64_t hash() const;
};

/// Longest sample first to the lane with the fewest rows; within a lane to the emptiest block. The number of blocks is
/// max(min_blocks, rows of the heaviest lane / cap), or more where that does not fit. Throws std::logic_error for a
/// sample above the cap (the index refuses those).
Assignment assign(std::span<const SampleMeta> samples, const StepOptions& options);

/// Rows rounded up to a multiple of `quantum`.
std::int64_t round_up(std::int64_t rows, std::int64_t quantum);

/// The LLM's rows of one block. Port `e` of edge `e` takes the rows of encoder e's items, in row order. Rows that
/// nothing uses fill the block up to a multiple of `quantum`.
RowsPlan llm_rows(std::span<const SampleMeta> samples, std::span<const std::int32_t> block, const LlmRows& rows,
                  std::int64_t quantum = 1);

/// An encoder's rows for the items of one LLM block, in the order in which the LLM block reads them.
RowsPlan encoder_rows(std::span<const SampleMeta> samples, std::span<const std::int32_t> block, int encoder,
                      const EncoderRows& rows, std::int64_t quantum = 1);

}  // namespace mmt::plan
