// What a unit for bf16 products (vdpbf16ps, or AMX tiles) provides for attention, and its driver. Internal.
//
// As in attention_tiles.h a tile has the queries as vector lanes, so softmax works on whole vectors. All five products
// are C += A B with sums in f32 and both operands in bf16, two neighbours along the sum to a 32-bit word:
//   A: rows of words, [row][pair]                     K, V by key; their transposes by feature; p, dS by key
//   B: lanes, [pair][lane], the "VNNI" layout          Q, dO by feature pair and by query pair; p, dS by key pair
// vdpbf16ps spreads a word of A over the lanes of B; an AMX tile takes 16 rows of either as they lie. Where a sum ends
// before a multiple of 16, zeros follow on both sides.
// p and dS are rounded to bf16 once, as operands; everything else between the inputs and the outputs is f32.
#pragma once

#include "kernels/cpu/attention_tiles.h"

namespace mmt {
class Arena;
struct AttentionShape;
struct AttentionForwardArgs;
struct AttentionBackwardArgs;
}  // namespace mmt

namespace mmt::cpu {

inline constexpr int kWordsOfKeys = kTileKeys / 2;  ///< row stride of transposed keys or values, in words
inline constexpr int kSpareKeys = 16;               ///< rows that may be read (never used) behind the last row of keys
inline constexpr int kGroupBlocks = 4;              ///< key blocks whose dK and dV a thread holds at a time

struct Bf16Forward {
  TileLists lists;  ///< by query
  ForwardItem item;
  int head_dim = 0;
  float scale = 1;
  RowsIn q;  ///< this head, all query rows
  const std::uint32_t* k =
      nullptr;  ///< [key][padded / 2], this head; null: `k_rows` and `v_rows` are read tile by tile
  const std::uint32_t* v = nullptr;  ///< [key block][padded][kWordsOfKeys]
  std::int64_t key_base = 0;         ///< the row and the block where they begin
  std::int64_t block_base = 0;
  bool fetch = false;  ///< they may lie outside the nearest caches
  RowsIn k_rows;
  RowsIn v_rows;
  RowsOut out;               ///< this head, all query rows; used when the item is the only one of its block
  float* lse = nullptr;      ///< this head
  float* partial = nullptr;  ///< else: as ForwardWork::partial
};

/// The work of one item for one query head. It reads the caller's tensors and writes to them where nobody else adds.
struct Bf16Backward {
  TileLists lists;  ///< by key
  const std::int32_t* keys = nullptr;
  int num_keys = 0;
  int head_dim = 0;
  float scale = 1;
  RowsIn q, d_out, out, k, v;           ///< this head, all rows
  const float* lse = nullptr;           ///< this head, natural
  const float* delta = nullptr;         ///< this head: sum of d_out * out of each row, but where it is alone
  const std::uint8_t* alone = nullptr;  ///< per query block: this item alone adds to its dQ, in one go
  RowsOut dq;                           ///< where it is alone; without data: not wanted
  float* dq_sum = nullptr;              ///< else: added to, rows of padded(head_dim)
  RowsOut dk, dv;                       ///< where kv heads have one query head; without data: not wanted
  float* dk_sum = nullptr;              ///< else: written, rows of padded(head_dim); or null
  float* dv_sum = nullptr;
  std::uint32_t* scratch = nullptr;  ///< this thread's, bf16_backward_words
};

/// Words of a thread's scratch. Items with rows of their own: K and V, K in pairs, Q and dO in pairs, dK and dV.
/// Others: K and V of a group of key blocks, K transposed; Q and dO of a query block in both layouts; dQ of a query
/// block; dK and dV of the group.
constexpr std::int64_t bf16_backward_words(std::int64_t head_dim) {
  const std::int64_t dp = padded(head_dim), group = kGroupBlocks * kTileKeys;
  return 2 * (group + kSpareKeys) * dp / 2 + kGroupBlocks * dp * kWordsOfKeys + 4 * kTileQueries * dp / 2 +
         kTileQueries * dp + 2 * group * dp;
}
static_assert(kGroupBlocks * kTileKeys >= 2 * kOwnRows);  // and what it holds of them takes more than twice the room

struct AttentionBf16 {
  void (*forward)(const Bf16Forward&) = nullptr;
  void (*forward_own)(const OwnForward&) = nullptr;
  void (*backward)(const Bf16Backward&) = nullptr;
  void (*backward_own)(const OwnBackward&) = nullptr;
  /// rows x head_dim to [row][padded / 2] words; the columns above head_dim are zero.
  void (*pack_rows)(const RowsIn& from, std::int64_t rows, int head_dim, std::uint32_t* to) = nullptr;
  /// At most kTileKeys rows to [padded][kWordsOfKeys]; keys up to the next multiple of 32 are zero.
  void (*pack_transposed)(const RowsIn& from, int rows, int head_dim, std::uint32_t* to) = nullptr;
  const AttentionTiles& (*rows)() = nullptr;  ///< for sums and roundings of rows
};

const AttentionBf16& attention_bf16_dot();  ///< needs AVX-512 with BF16
const AttentionBf16& attention_bf16_amx();  ///< needs AMX with BF16 as well

void bf16_forward(const AttentionBf16& unit, const AttentionForwardArgs& args, Arena& scratch);
void bf16_backward(const AttentionBf16& unit, const AttentionBackwardArgs& args, Arena& scratch);
std::size_t bf16_forward_scratch(const AttentionShape& shape, std::int64_t queries, std::int64_t keys);
std::size_t bf16_backward_scratch(const AttentionShape& shape, std::int64_t queries, std::int64_t keys);

}  // namespace mmt::cpu
