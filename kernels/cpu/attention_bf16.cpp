// The driver of bf16 attention: packs keys of a pass of heads, hands (item, query head) to threads, sums in fixed
// order.
#include "kernels/cpu/attention_bf16.h"

#include "kernels/cpu/attention_driver.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

namespace mmt::cpu {
namespace {

using std::int64_t;

std::uint32_t* take_words(Arena& arena, int64_t words) {
  return static_cast<std::uint32_t*>(arena.take(DType::i32, {words}).data);
}

struct Sizes {
  int64_t queries, keys, dim, repeat;
  int64_t query_head() const { return queries * dim; }  ///< floats of one query head
  int64_t key_words() const { return (keys + kSpareKeys) * dim / 2; }
  /// Key blocks that may be packed transposed, where each takes the room of a whole block: half filled at least.
  int64_t packed_blocks() const { return 2 * keys / kTileKeys; }
  int64_t value_words() const { return packed_blocks() * kTileKeys * dim / 2; }
};
Sizes sizes_of(const AttentionShape& s, int64_t queries, int64_t keys) {
  return {queries, keys, padded(s.head_dim), s.heads / s.kv_heads};
}

int64_t forward_words(const Sizes& s, const AttentionShape& shape, int64_t partials) {
  return s.key_words() + s.value_words() + s.repeat * partials * partial_floats(shape.head_dim);
}
int64_t backward_words(const Sizes& s, int64_t slots) {
  const int64_t key_sums = s.repeat > 1 ? 2 * s.keys * s.dim : 0;  // dK and dV of each query head
  return s.repeat * (slots * s.query_head() + s.queries + key_sums);
}

/// Marks the query blocks to whose dQ one item alone adds, all of its keys at a time. True when some seen block is
/// left.
bool mark_alone(const TilePlan& plan, std::uint8_t* alone) {
  std::memset(alone, 0, static_cast<std::size_t>(plan.query_blocks()));
  for (const BackwardItem& item : plan.backward) {
    if (item.last - item.first > kGroupBlocks) continue;
    for (std::int32_t i = item.first; i < item.last; ++i) {
      const std::int32_t key = at(plan.backward_keys, i);
      for (std::int32_t r = at(plan.key_first_run, key); r < at(plan.key_first_run, key + 1); ++r)
        for (std::int32_t b = at(plan.key_runs, r).first; b < at(plan.key_runs, r).last; ++b)
          alone[b] = at(plan.query_slots, b) == 1;
    }
  }
  for (std::int32_t b = 0; b < plan.query_blocks(); ++b)
    if (!alone[b] && at(plan.query_slots, b) > 0) return true;
  return false;
}

}  // namespace

void bf16_forward(const AttentionBf16& unit, const AttentionForwardArgs& a, Arena& scratch) {
  const AttentionShape& shape = a.shape;
  const TilePlan& plan = *a.mask.tiles;
  const Sizes s = sizes_of(shape, a.q.rows(), a.k.rows());
  const int64_t dim = shape.head_dim, partial_size = partial_floats(dim), blocks = plan.key_blocks();
  const int64_t pass = heads_of_pass(forward_words(s, shape, plan.num_partials), shape.kv_heads);
  const ArenaScope scope(scratch);
  auto* const own = scratch.take(DType::u8, {plan.query_blocks()}).as<std::uint8_t>();
  const int64_t shared_tiles = mark_own(plan, own), shared_keys = static_cast<int64_t>(plan.shared_key_blocks.size());
  const bool packed = shared_tiles * s.repeat > kTilesPerPack * shared_keys && blocks <= s.packed_blocks();
  std::uint32_t* const k = packed ? take_words(scratch, pass * s.key_words()) : nullptr;
  std::uint32_t* const v = packed ? take_words(scratch, pass * s.value_words()) : nullptr;
  float* const partials = take(scratch, pass * s.repeat * plan.num_partials * partial_size);
  float* const lse = a.lse.as<float>();
  for (int64_t g0 = 0; g0 < shape.kv_heads; g0 += pass) {
    const int64_t kv_heads = std::min(pass, shape.kv_heads - g0), heads = kv_heads * s.repeat, h0 = g0 * s.repeat;
    const int64_t packed_blocks = packed ? shared_keys : 0;
    const auto num_items = static_cast<int64_t>(plan.forward.size());
#pragma omp parallel
    {
#pragma omp for schedule(static)
      for (int64_t x = 0; x < kv_heads * packed_blocks; ++x) {
        const int64_t g = x / packed_blocks, b = at(plan.shared_key_blocks, x % packed_blocks), column = (g0 + g) * dim;
        const Block keys = block_of(plan.key_start, b);
        unit.pack_rows(rows_in(a.k, column, keys.row), keys.rows, shape.head_dim,
                       k + g * s.key_words() + keys.row * s.dim / 2);
        unit.pack_transposed(rows_in(a.v, column, keys.row), static_cast<int>(keys.rows), shape.head_dim,
                             v + g * s.value_words() + b * kWordsOfKeys * s.dim);
      }
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t x = 0; x < num_items * heads; ++x) {
        // Head by head where keys are packed: they stay in the caches. Else with the heads inside: their rows do.
        const int64_t h = packed ? x / num_items : x % heads, g = h / s.repeat;
        const ForwardItem& item = at(plan.forward, packed ? x % num_items : x / heads);
        if (own[item.query_block]) continue;
        unit.forward(
            {.lists = lists_by_query(plan),
             .item = item,
             .head_dim = shape.head_dim,
             .scale = static_cast<float>(shape.scale),
             .q = rows_in(a.q, (h0 + h) * dim),
             .k = packed ? k + g * s.key_words() : nullptr,
             .v = packed ? v + g * s.value_words() : nullptr,
             .fetch = true,
             .k_rows = rows_in(a.k, (g0 + g) * dim),
             .v_rows = rows_in(a.v, (g0 + g) * dim),
             .out = rows_out(a.out, (h0 + h) * dim),
             .lse = lse + (h0 + h) * s.queries,
             .partial = item.partial < 0 ? nullptr : partials + (h * plan.num_partials + item.partial) * partial_size});
      }
      if (g0 == 0) forward_own_items(unit.forward_own, a);  // of all heads
#pragma omp barrier
      merge_partials(unit.rows(), a, partials, h0, heads);
    }
  }
}

void bf16_backward(const AttentionBf16& unit, const AttentionBackwardArgs& a, Arena& scratch) {
  const AttentionShape& shape = a.shape;
  const TilePlan& plan = *a.mask.tiles;
  const AttentionTiles& rows = unit.rows();
  const Sizes s = sizes_of(shape, a.q.rows(), a.k.rows());
  const int64_t dim = shape.head_dim;
  const ArenaScope scope(scratch);
  auto* const alone = scratch.take(DType::u8, {plan.query_blocks()}).as<std::uint8_t>();
  const int64_t slots = mark_alone(plan, alone) && a.dq.defined() ? plan.num_slots : 0;
  const int64_t pass = heads_of_pass(backward_words(s, slots), shape.kv_heads), pass_heads = pass * s.repeat;
  float* const delta = take(scratch, pass_heads * s.queries);
  float* const dq = take(scratch, slots * pass_heads * s.query_head());
  const int64_t key_sum = s.repeat > 1 ? s.keys * s.dim : 0;  // kv heads with several query heads: one sum each
  float* const dk = a.dk.defined() ? take(scratch, pass_heads * key_sum) : nullptr;
  float* const dv = a.dv.defined() ? take(scratch, pass_heads * key_sum) : nullptr;
  std::uint32_t* const of_threads = take_words(scratch, omp_get_max_threads() * bf16_backward_words(dim));
  const int64_t slot_size = pass_heads * s.query_head(), query_blocks = plan.query_blocks();
  for (int64_t g0 = 0; g0 < shape.kv_heads; g0 += pass) {
    const int64_t kv_heads = std::min(pass, shape.kv_heads - g0), heads = kv_heads * s.repeat, h0 = g0 * s.repeat;
    const auto num_items = static_cast<int64_t>(plan.backward.size());
    const auto summed_blocks = s.repeat > 1 ? static_cast<int64_t>(plan.shared_key_blocks.size()) : 0;
#pragma omp parallel
    {
#pragma omp for schedule(static)
      for (int64_t x = 0; x < heads * query_blocks; ++x) {
        const int64_t b = x % query_blocks, h = x / query_blocks, column = (h0 + h) * dim;
        if (alone[b]) continue;
        const Block q = block_of(plan.query_start, b);
        rows.row_dots(rows_in(a.d_out, column, q.row), rows_in(a.out, column, q.row), q.rows, shape.head_dim,
                      delta + h * s.queries + q.row);
        for (int64_t slot = 0; slot < slots; ++slot)
          std::memset(dq + slot * slot_size + h * s.query_head() + q.row * s.dim, 0,
                      static_cast<std::size_t>(q.rows * s.dim * kFloat));
      }
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t x = 0; x < num_items * heads; ++x) {
        const int64_t h = x % heads, column = (h0 + h) * dim, key_column = (g0 + h / s.repeat) * dim;
        const BackwardItem& item = at(plan.backward, x / heads);
        if (item.own) continue;
        const auto out_if = [](bool wanted, const Tensor& t, int64_t c) {
          return wanted && t.defined() ? rows_out(t, c) : RowsOut{};
        };
        const auto sum_if = [&](float* sums) { return sums && s.repeat > 1 ? sums + h * key_sum : nullptr; };
        unit.backward({.lists = lists_by_key(plan),
                       .keys = plan.backward_keys.data() + item.first,
                       .num_keys = item.last - item.first,
                       .head_dim = shape.head_dim,
                       .scale = static_cast<float>(shape.scale),
                       .q = rows_in(a.q, column),
                       .d_out = rows_in(a.d_out, column),
                       .out = rows_in(a.out, column),
                       .k = rows_in(a.k, key_column),
                       .v = rows_in(a.v, key_column),
                       .lse = a.lse.as<float>() + (h0 + h) * s.queries,
                       .delta = delta + h * s.queries,
                       .alone = alone,
                       .dq = out_if(true, a.dq, column),
                       .dq_sum = slots > 0 ? dq + item.slot * slot_size + h * s.query_head() : nullptr,
                       .dk = out_if(s.repeat == 1, a.dk, key_column),
                       .dv = out_if(s.repeat == 1, a.dv, key_column),
                       .dk_sum = sum_if(dk),
                       .dv_sum = sum_if(dv),
                       .scratch = of_threads + omp_get_thread_num() * bf16_backward_words(dim)});
      }
      if (g0 == 0)  // of all heads
        backward_own_items(unit.backward_own, a, reinterpret_cast<float*>(of_threads), bf16_backward_words(dim));
#pragma omp barrier
#pragma omp for schedule(static) nowait
      for (int64_t x = 0; x < kv_heads * summed_blocks; ++x) {
        const int64_t g = x / summed_blocks, column = (g0 + g) * dim;
        const Block keys = block_of(plan.key_start, at(plan.shared_key_blocks, x % summed_blocks));
        const int64_t from = g * s.repeat * key_sum + keys.row * s.dim;
        const auto repeat = static_cast<int>(s.repeat);
        if (dk) rows.unpack(dk + from, repeat, key_sum, keys.rows, shape.head_dim, rows_out(a.dk, column, keys.row));
        if (dv) rows.unpack(dv + from, repeat, key_sum, keys.rows, shape.head_dim, rows_out(a.dv, column, keys.row));
      }
      if (a.dq.defined()) {
#pragma omp for schedule(static)
        for (int64_t x = 0; x < heads * query_blocks; ++x) {
          const int64_t b = x % query_blocks, h = x / query_blocks;
          const Block q = block_of(plan.query_start, b);
          if (alone[b]) continue;
          rows.unpack(dq + h * s.query_head() + q.row * s.dim, at(plan.query_slots, b), slot_size, q.rows,
                      shape.head_dim, rows_out(a.dq, (h0 + h) * dim, q.row));
        }
      }
    }
  }
}

std::size_t bf16_forward_scratch(const AttentionShape& shape, int64_t queries, int64_t keys) {
  const int64_t words = forward_words(sizes_of(shape, queries, keys), shape, max_forward_partials(keys));
  return with_overhead(pass_bytes(words, shape.kv_heads) + static_cast<std::size_t>(queries));
}

std::size_t bf16_backward_scratch(const AttentionShape& shape, int64_t queries, int64_t keys) {
  const int64_t words = backward_words(sizes_of(shape, queries, keys), max_backward_slots(keys));
  const int64_t of_threads = omp_get_max_threads() * bf16_backward_words(shape.head_dim);
  return with_overhead(pass_bytes(words, shape.kv_heads) + static_cast<std::size_t>(of_threads * kFloat + queries));
}

}  // namespace mmt::cpu
