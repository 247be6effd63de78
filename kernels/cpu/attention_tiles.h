// What a translation unit per instruction set provides for attention: the work of one item of a tile plan's lists, on
// plain pointers. The driver (attention.cpp) packs, shares out and merges. Internal.
//
// A tile is computed transposed, scores[key][query], with the queries as vector lanes: K and V are read as scalars that
// are spread over the lanes, so neither is transposed, and softmax works on whole vectors without sums across lanes.
#pragma once

#include "core/mask/tiles.h"

namespace mmt::cpu {

inline constexpr int kTileQueries = 48;  ///< TileShape's; a stripe is 16 of them
inline constexpr int kTileKeys = 64;
inline constexpr int kMaxHeadDim = 128;
/// Query blocks whose transposed rows a thread holds at a time in the backward.
inline constexpr int kPackedBlocks = 16;
/// Rows that may be read (never used) behind the last row of packed keys or values.
inline constexpr int kSpareRows = 8;
/// Key blocks of the kOwnRows rows of one sample.
inline constexpr int kOwnBlocks = kOwnRows / kTileKeys;

/// Features rounded up to whole vectors: the row stride of packed f32 matrices. The columns above head_dim are zero.
constexpr std::int64_t padded(std::int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

/// The lists of a TilePlan in one direction.
struct TileLists {
  const std::int32_t* query_start = nullptr;
  const std::int32_t* key_start = nullptr;
  const std::int32_t* first_run = nullptr;
  const TileRun* runs = nullptr;
  const std::int32_t* patterns = nullptr;
  const std::uint64_t* bits = nullptr;
};

/// Rows in memory: f32, or bf16 as bits.
struct RowsIn {
  const void* data = nullptr;
  std::int64_t stride = 0;
  bool bf16 = false;
};
struct RowsOut {
  void* data = nullptr;
  std::int64_t stride = 0;
  bool bf16 = false;
};

struct ForwardWork {
  TileLists lists;  ///< by query
  ForwardItem item;
  int head_dim = 0;
  float scale = 1;
  RowsIn q;                  ///< this head, all query rows
  const float* k = nullptr;  ///< packed, this head, all key rows; null: `k_rows` and `v_rows` are read tile by tile
  const float* v = nullptr;
  std::int64_t key_base = 0;  ///< the row where they begin
  bool fetch = false;         ///< they may lie outside the nearest caches
  RowsIn k_rows;
  RowsIn v_rows;
  RowsOut out;               ///< this head, all query rows; used when the item is the only one of its block
  float* lse = nullptr;      ///< this head
  float* partial = nullptr;  ///< else: kTileQueries x (padded sums), then maximum (base 2) and weight of each row
};
constexpr std::int64_t partial_floats(std::int64_t head_dim) { return kTileQueries * (padded(head_dim) + 2); }

/// Query blocks that see nothing but the keys of their own few blocks (BackwardItem::own), and kv heads with all of
/// their query heads. An item without kv heads is none.
struct OwnItem {
  int first_query = 0, last_query = 0;
  int first_key = 0, last_key = 0;  ///< at most kOwnBlocks
  int first_head = 0, last_head = 0;
};
/// From the caller's tensors to the caller's tensors; all rows begin at head 0.
struct OwnForward {
  TileLists lists;  ///< by query
  OwnItem item;
  OwnItem next;  ///< what the thread will probably do then: its rows are asked for meanwhile
  int head_dim = 0;
  int repeat = 1;  ///< query heads of a kv head
  float scale = 1;
  RowsIn q, k, v;
  RowsOut out;
  float* lse = nullptr;  ///< natural, (heads, rows)
  std::int64_t lse_stride = 0;
};
struct OwnBackward {
  TileLists lists;  ///< by query
  OwnItem item;
  OwnItem next;
  int head_dim = 0;
  int repeat = 1;
  float scale = 1;
  RowsIn q, d_out, out, k, v;
  const float* lse = nullptr;
  std::int64_t lse_stride = 0;
  RowsOut dq, dk, dv;        ///< without data: not wanted
  float* scratch = nullptr;  ///< this thread's, own_floats
};
constexpr std::int64_t own_floats(std::int64_t head_dim) {
  return 6 * (kOwnRows + kSpareRows) * padded(head_dim) + 2 * kOwnRows;
}

/// The work of one item for one query head. The packed matrices begin at query row `query_base` and key row `key_base`.
struct BackwardWork {
  TileLists lists;  ///< by key
  std::int64_t query_base = 0;
  std::int64_t key_base = 0;
  const std::int32_t* keys = nullptr;
  int num_keys = 0;
  int head_dim = 0;
  float scale = 1;
  const float* q = nullptr;      ///< packed
  const float* d_out = nullptr;  ///< packed
  const float* lse = nullptr;    ///< base 2, 0 where a row sees nothing
  const float* delta = nullptr;  ///< sum of d_out * out of each row
  const float* k = nullptr;      ///< packed
  const float* v = nullptr;
  float* dq = nullptr;  ///< packed, added to; or null
  float* dk = nullptr;  ///< packed, added to; or null
  float* dv = nullptr;
  float* transposed = nullptr;  ///< this thread's, transposed_floats
};
constexpr std::int64_t transposed_floats(std::int64_t head_dim) {
  return std::int64_t{2} * kPackedBlocks * kTileQueries * head_dim;
}

struct AttentionTiles {
  void (*forward)(const ForwardWork&) = nullptr;
  void (*forward_own)(const OwnForward&) = nullptr;
  void (*backward)(const BackwardWork&) = nullptr;
  void (*backward_own)(const OwnBackward&) = nullptr;
  /// rows x head_dim to rows x padded(head_dim), f32.
  void (*pack)(const RowsIn& from, std::int64_t rows, int head_dim, float* to) = nullptr;
  /// The sum of `count` packed matrices `step` floats apart, in this order, rounded once.
  void (*unpack)(const float* from, int count, std::int64_t step, std::int64_t rows, int head_dim,
                 const RowsOut& to) = nullptr;
  /// delta[i] = sum over the features of a[i] * b[i].
  void (*row_dots)(const RowsIn& a, const RowsIn& b, std::int64_t rows, int head_dim, float* delta) = nullptr;
  /// Natural logarithms to base 2; -inf, a row that sees nothing, to 0.
  void (*convert_lse)(const float* natural, std::int64_t rows, float* to) = nullptr;
};

const AttentionTiles& attention_tiles_portable();
const AttentionTiles& attention_tiles_avx2();
const AttentionTiles& attention_tiles_avx512();

}  // namespace mmt::cpu
