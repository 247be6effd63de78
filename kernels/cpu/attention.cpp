// The fast attention: packs a pass of heads, hands the items of the tile plan to threads, merges in fixed order.
#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_driver.h"
#include "kernels/cpu/tables.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

namespace mmt::cpu {
namespace {

using std::int64_t;

struct Sizes {
  int64_t queries, keys, dim, repeat;
  int64_t query_head() const { return queries * dim; }  ///< floats of a packed matrix, one query head
  int64_t key_head() const { return (keys + kSpareRows) * dim; }
};
Sizes sizes_of(const AttentionShape& s, int64_t queries, int64_t keys) {
  return {queries, keys, padded(s.head_dim), s.heads / s.kv_heads};
}

int64_t forward_floats(const Sizes& s, const AttentionShape& shape, int64_t partials) {
  return 2 * s.key_head() + s.repeat * partials * partial_floats(shape.head_dim);
}
int64_t backward_floats(const Sizes& s, int64_t slots) {
  return s.repeat * ((2 + slots) * s.query_head() + 2 * s.queries + 2 * s.key_head()) + 2 * s.key_head();
}
int64_t thread_floats(const AttentionShape& s) {
  return std::max(own_floats(s.head_dim), transposed_floats(s.head_dim));
}

void forward(const AttentionTiles& tiles, const AttentionForwardArgs& a, Arena& scratch) {
  const AttentionShape& shape = a.shape;
  const TilePlan& plan = *a.mask.tiles;
  const Sizes s = sizes_of(shape, a.q.rows(), a.k.rows());
  const int64_t dim = shape.head_dim, partial_size = partial_floats(dim);
  const int64_t pass = heads_of_pass(forward_floats(s, shape, plan.num_partials), shape.kv_heads);
  const ArenaScope scope(scratch);
  auto* const own = scratch.take(DType::u8, {plan.query_blocks()}).as<std::uint8_t>();
  const int64_t shared_tiles = mark_own(plan, own), shared_keys = static_cast<int64_t>(plan.shared_key_blocks.size());
  const bool packed = shared_tiles * s.repeat > kTilesPerPack * shared_keys;
  float* const k = packed ? take(scratch, pass * s.key_head()) : nullptr;
  float* const v = packed ? take(scratch, pass * s.key_head()) : nullptr;
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
        const int64_t g = x / packed_blocks, column = (g0 + g) * dim;
        const Block keys = block_of(plan.key_start, at(plan.shared_key_blocks, x % packed_blocks));
        const int64_t to = g * s.key_head() + keys.row * s.dim;
        tiles.pack(rows_in(a.k, column, keys.row), keys.rows, shape.head_dim, k + to);
        tiles.pack(rows_in(a.v, column, keys.row), keys.rows, shape.head_dim, v + to);
      }
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t x = 0; x < num_items * heads; ++x) {
        // Long samples head by head: its keys stay in the caches. Short ones with the heads inside: their rows do.
        const int64_t h = packed ? x / num_items : x % heads;
        const ForwardItem& item = at(plan.forward, packed ? x % num_items : x / heads);
        if (own[item.query_block]) continue;
        float* partial = item.partial < 0 ? nullptr : partials + (h * plan.num_partials + item.partial) * partial_size;
        tiles.forward({.lists = lists_by_query(plan),
                       .item = item,
                       .head_dim = shape.head_dim,
                       .scale = static_cast<float>(shape.scale),
                       .q = rows_in(a.q, (h0 + h) * dim),
                       .k = packed ? k + h / s.repeat * s.key_head() : nullptr,
                       .v = packed ? v + h / s.repeat * s.key_head() : nullptr,
                       .fetch = packed,
                       .k_rows = rows_in(a.k, (g0 + h / s.repeat) * dim),
                       .v_rows = rows_in(a.v, (g0 + h / s.repeat) * dim),
                       .out = rows_out(a.out, (h0 + h) * dim),
                       .lse = lse + (h0 + h) * s.queries,
                       .partial = partial});
      }
      if (g0 == 0) forward_own_items(tiles.forward_own, a);  // of all heads
#pragma omp barrier
      merge_partials(tiles, a, partials, h0, heads);
    }
  }
}

void backward(const AttentionTiles& tiles, const AttentionBackwardArgs& a, Arena& scratch) {
  const AttentionShape& shape = a.shape;
  const TilePlan& plan = *a.mask.tiles;
  const Sizes s = sizes_of(shape, a.q.rows(), a.k.rows());
  const int64_t dim = shape.head_dim, slots = a.dq.defined() ? plan.num_slots : 0;
  const int64_t pass = heads_of_pass(backward_floats(s, slots), shape.kv_heads), pass_heads = pass * s.repeat;
  const ArenaScope scope(scratch);
  const auto take_if = [&](const Tensor& wanted, int64_t floats) {
    return wanted.defined() ? take(scratch, floats) : nullptr;
  };
  float* const q = take(scratch, pass_heads * s.query_head());
  float* const d_out = take(scratch, pass_heads * s.query_head());
  float* const lse = take(scratch, pass_heads * s.queries);
  float* const delta = take(scratch, pass_heads * s.queries);
  float* const k = take(scratch, pass * s.key_head());
  float* const v = take(scratch, pass * s.key_head());
  float* const dq = take_if(a.dq, slots * pass_heads * s.query_head());
  // Query heads that share keys sum dK and dV apart, so that threads may share them out.
  float* const dk = take_if(a.dk, pass_heads * s.key_head());
  float* const dv = take_if(a.dv, pass_heads * s.key_head());
  const int64_t slot_size = pass_heads * s.query_head();
  float* const of_threads = take(scratch, omp_get_max_threads() * thread_floats(shape));
  const auto shared_queries = static_cast<int64_t>(plan.shared_query_blocks.size());
  const auto shared_keys = static_cast<int64_t>(plan.shared_key_blocks.size());
  for (int64_t g0 = 0; g0 < shape.kv_heads; g0 += pass) {
    const int64_t kv_heads = std::min(pass, shape.kv_heads - g0), heads = kv_heads * s.repeat, h0 = g0 * s.repeat;
    const auto num_items = static_cast<int64_t>(plan.backward.size());
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
      for (int64_t x = 0; x < kv_heads * shared_keys; ++x) {
        const auto b = static_cast<std::size_t>(plan.shared_key_blocks[static_cast<std::size_t>(x % shared_keys)]);
        const int64_t g = x / shared_keys, row = plan.key_start[b], rows = plan.key_start[b + 1] - row;
        const int64_t at = g * s.key_head() + row * s.dim, column = (g0 + g) * dim;
        tiles.pack(rows_in(a.k, column, row), rows, shape.head_dim, k + at);
        tiles.pack(rows_in(a.v, column, row), rows, shape.head_dim, v + at);
        for (int64_t h = g * s.repeat; h < (g + 1) * s.repeat; ++h)
          for (float* sum : {dk, dv})
            if (sum)
              std::memset(sum + h * s.key_head() + row * s.dim, 0, static_cast<std::size_t>(rows * s.dim * kFloat));
      }
#pragma omp for schedule(static)
      for (int64_t x = 0; x < heads * shared_queries; ++x) {
        const auto b = static_cast<std::size_t>(plan.shared_query_blocks[static_cast<std::size_t>(x % shared_queries)]);
        const int64_t h = x / shared_queries, row = plan.query_start[b], rows = plan.query_start[b + 1] - row;
        const int64_t at = h * s.query_head() + row * s.dim, column = (h0 + h) * dim;
        tiles.pack(rows_in(a.q, column, row), rows, shape.head_dim, q + at);
        tiles.pack(rows_in(a.d_out, column, row), rows, shape.head_dim, d_out + at);
        tiles.row_dots(rows_in(a.d_out, column, row), rows_in(a.out, column, row), rows, shape.head_dim,
                       delta + h * s.queries + row);
        tiles.convert_lse(a.lse.as<float>() + (h0 + h) * s.queries + row, rows, lse + h * s.queries + row);
        for (int64_t slot = 0; slot < slots; ++slot)
          std::memset(dq + slot * slot_size + at, 0, static_cast<std::size_t>(rows * s.dim * kFloat));
      }
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t x = 0; x < num_items * heads; ++x) {
        const int64_t h = x % heads, g = h / s.repeat;
        const BackwardItem& item = plan.backward[static_cast<std::size_t>(x / heads)];
        const std::int32_t* const keys = plan.backward_keys.data() + item.first;
        if (item.own) continue;
        const auto sum_of = [&](float* p) { return p ? p + h * s.key_head() : nullptr; };
        tiles.backward({.lists = lists_by_key(plan),
                        .keys = keys,
                        .num_keys = item.last - item.first,
                        .head_dim = shape.head_dim,
                        .scale = static_cast<float>(shape.scale),
                        .q = q + h * s.query_head(),
                        .d_out = d_out + h * s.query_head(),
                        .lse = lse + h * s.queries,
                        .delta = delta + h * s.queries,
                        .k = k + g * s.key_head(),
                        .v = v + g * s.key_head(),
                        .dq = slots > 0 ? dq + item.slot * slot_size + h * s.query_head() : nullptr,
                        .dk = sum_of(dk),
                        .dv = sum_of(dv),
                        .transposed = of_threads + omp_get_thread_num() * thread_floats(shape)});
      }
      if (g0 == 0) backward_own_items(tiles.backward_own, a, of_threads, thread_floats(shape));  // of all heads
#pragma omp barrier
#pragma omp for schedule(static) nowait
      for (int64_t x = 0; x < kv_heads * shared_keys; ++x) {
        const auto b = static_cast<std::size_t>(plan.shared_key_blocks[static_cast<std::size_t>(x % shared_keys)]);
        const int64_t g = x / shared_keys, row = plan.key_start[b], rows = plan.key_start[b + 1] - row;
        const int64_t at = g * s.repeat * s.key_head() + row * s.dim, column = (g0 + g) * dim;
        const auto repeat = static_cast<int>(s.repeat);
        if (dk) tiles.unpack(dk + at, repeat, s.key_head(), rows, shape.head_dim, rows_out(a.dk, column, row));
        if (dv) tiles.unpack(dv + at, repeat, s.key_head(), rows, shape.head_dim, rows_out(a.dv, column, row));
      }
      if (a.dq.defined()) {
#pragma omp for schedule(static)
        for (int64_t x = 0; x < heads * shared_queries; ++x) {
          const auto b =
              static_cast<std::size_t>(plan.shared_query_blocks[static_cast<std::size_t>(x % shared_queries)]);
          const int64_t h = x / shared_queries, row = plan.query_start[b], rows = plan.query_start[b + 1] - row;
          tiles.unpack(dq + h * s.query_head() + row * s.dim, plan.query_slots[b], slot_size, rows, shape.head_dim,
                       rows_out(a.dq, (h0 + h) * dim, row));
        }
      }
    }
  }
}

std::size_t forward_scratch(const AttentionShape& shape, int64_t queries, int64_t keys) {
  const int64_t floats = forward_floats(sizes_of(shape, queries, keys), shape, max_forward_partials(keys));
  return with_overhead(pass_bytes(floats, shape.kv_heads) + static_cast<std::size_t>(queries));
}

std::size_t backward_scratch(const AttentionShape& shape, int64_t queries, int64_t keys) {
  const int64_t floats = backward_floats(sizes_of(shape, queries, keys), max_backward_slots(keys));
  return with_overhead(pass_bytes(floats, shape.kv_heads) +
                       static_cast<std::size_t>(omp_get_max_threads() * thread_floats(shape) * kFloat));
}

/// Tables are made of plain functions: what they need to know is in the template.
template <const AttentionTiles& (*kTiles)()> AttentionTable table_of() {
  return {.forward = [](const Stream&, const AttentionForwardArgs& a,
                        Arena& scratch) { cpu::forward(kTiles(), a, scratch); },
          .backward = [](const Stream&, const AttentionBackwardArgs& a,
                         Arena& scratch) { cpu::backward(kTiles(), a, scratch); },
          .forward_scratch = [](const AttentionShape& s, DType, int64_t queries,
                                int64_t keys) { return cpu::forward_scratch(s, queries, keys); },
          .backward_scratch = [](const AttentionShape& s, DType, int64_t queries,
                                 int64_t keys) { return cpu::backward_scratch(s, queries, keys); }};
}

/// f32 by AVX-512, bf16 by products of its own.
template <const AttentionBf16& (*kBf16)()> AttentionTable table_with() {
  return {.forward =
              [](const Stream&, const AttentionForwardArgs& a, Arena& scratch) {
                if (a.q.dtype == DType::bf16)
                  bf16_forward(kBf16(), a, scratch);
                else
                  cpu::forward(attention_tiles_avx512(), a, scratch);
              },
          .backward =
              [](const Stream&, const AttentionBackwardArgs& a, Arena& scratch) {
                if (a.q.dtype == DType::bf16)
                  bf16_backward(kBf16(), a, scratch);
                else
                  cpu::backward(attention_tiles_avx512(), a, scratch);
              },
          .forward_scratch =
              [](const AttentionShape& s, DType dtype, int64_t queries, int64_t keys) {
                return dtype == DType::bf16 ? bf16_forward_scratch(s, queries, keys)
                                            : cpu::forward_scratch(s, queries, keys);
              },
          .backward_scratch =
              [](const AttentionShape& s, DType dtype, int64_t queries, int64_t keys) {
                return dtype == DType::bf16 ? bf16_backward_scratch(s, queries, keys)
                                            : cpu::backward_scratch(s, queries, keys);
              }};
}

}  // namespace

AttentionTable fast_attention(const CpuIsa& isa) {
  if (isa.amx) return table_with<attention_bf16_amx>();
  if (isa.avx512bf16) return table_with<attention_bf16_dot>();
  switch (isa.level) {
    case Isa::portable: return table_of<attention_tiles_portable>();
    case Isa::avx2: return table_of<attention_tiles_avx2>();
    case Isa::avx512: return table_of<attention_tiles_avx512>();
  }
  MMT_CHECK(false, "instruction set {}", static_cast<int>(isa.level));
}

}  // namespace mmt::cpu
