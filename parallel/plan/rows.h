// RowsPlan: what every rank knows about the rows of a block before any media is read. Integers only.
#pragma once

#include "core/mask/tiles.h"
#include "core/mask/words.h"
#include "parallel/plan/cost.h"

#include <cstdint>
#include <vector>

namespace mmt::plan {

struct RowSpan {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// One media item of an encoder block.
struct ItemPlan {
  std::int64_t sample = 0;   ///< global sample index
  std::int32_t ordinal = 0;  ///< which of the sample's items of this module
  RowSpan source;            ///< its rows of the loader's media
  RowSpan rows;              ///< its rows of the block
  RowSpan out;               ///< its rows of what leaves the module
  std::int32_t tiles = 1;    ///< equal parts of its source and its rows, each seen alone (a picture that was cut)
};

/// One sample of an LLM block.
struct SamplePlan {
  std::int64_t sample = 0;  ///< global sample index
  RowSpan rows;
  RowSpan supervised;              ///< its places in the block's list of supervised rows
  std::int32_t next_position = 0;  ///< of a row of text behind it
};

/// Rows of a block that an edge's port fills, in port-buffer order.
struct PortRows {
  int edge = 0;
  std::vector<std::int32_t> dst;  ///< row of the block, by port row
};

struct RowsPlan {
  BlockSize size;
  std::vector<ItemPlan> items;          ///< encoder blocks
  std::vector<SamplePlan> samples;      ///< LLM blocks
  std::vector<std::int32_t> positions;  ///< (rows, num_positions): rotary or learned positions
  int num_positions = 1;
  std::vector<MaskWords> masks;               ///< one per mask that the module's layers name; holds `order`, too
  std::vector<TilePlan> tiles;                ///< by mask, under its window
  std::vector<std::int32_t> supervised_rows;  ///< rows whose output predicts a label, ascending
  /// By row that leaves over the module's edges: the first row it is of; -1: a newline, which the projector writes.
  std::vector<std::int32_t> out_rows;
  std::vector<PortRows> ports;
};

}  // namespace mmt::plan
