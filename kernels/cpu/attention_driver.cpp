#include "kernels/cpu/attention_driver.h"

#include <omp.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace mmt::cpu {

using std::int64_t;

int64_t mark_own(const TilePlan& plan, std::uint8_t* own) {
  std::memset(own, 0, static_cast<std::size_t>(plan.query_blocks()));
  for (const BackwardItem& item : plan.backward)
    if (own_forward(item))
      std::memset(own + item.first_query, 1, static_cast<std::size_t>(item.last_query - item.first_query));
  int64_t tiles = 0;
  for (std::int32_t b = 0; b < plan.query_blocks(); ++b) {
    if (own[b]) continue;
    for (std::int32_t r = at(plan.query_first_run, b); r < at(plan.query_first_run, b + 1); ++r)
      tiles += at(plan.query_runs, r).last - at(plan.query_runs, r).first;
  }
  return tiles;
}

namespace {

OwnForward own_work(const AttentionForwardArgs& a, const BackwardItem& item, int64_t kv_head, int ahead) {
  const AttentionShape& shape = a.shape;
  const int64_t dim = shape.head_dim, repeat = shape.heads / shape.kv_heads, head = kv_head * repeat;
  const std::int32_t first_key = at(a.mask.tiles->backward_keys, item.first);
  return {.lists = lists_by_query(*a.mask.tiles),
          .first_query = item.first_query,
          .last_query = item.last_query,
          .first_key = first_key,
          .last_key = first_key + item.last - item.first,
          .head_dim = shape.head_dim,
          .heads = static_cast<int>(repeat),
          .scale = static_cast<float>(shape.scale),
          .q = rows_in(a.q, head * dim),
          .k = rows_in(a.k, kv_head * dim),
          .v = rows_in(a.v, kv_head * dim),
          .out = rows_out(a.out, head * dim),
          .lse = a.lse.as<float>() + head * a.q.rows(),
          .lse_stride = a.q.rows(),
          .ahead = ahead};
}

}  // namespace

void forward_own_items(void (*work)(const OwnForward&), const AttentionForwardArgs& a, int64_t first_kv_head,
                       int64_t kv_heads) {
  const TilePlan& plan = *a.mask.tiles;
  const auto count = static_cast<int64_t>(plan.backward.size());
  const int threads = omp_get_num_threads();
#pragma omp for schedule(dynamic, 1)
  for (int64_t x = 0; x < count * kv_heads; ++x) {
    const int64_t g = x % kv_heads;
    const BackwardItem& item = at(plan.backward, x / kv_heads);
    if (own_forward(item)) work(own_work(a, item, first_kv_head + g, g + threads < kv_heads ? threads : 0));
  }
}

namespace {

void merge_block(const AttentionTiles& tiles, const ForwardMerge& m, const float* partials, int head_dim, int64_t rows,
                 const RowsOut& out, float* lse) {
  const int64_t dp = padded(head_dim), partial_size = partial_floats(head_dim);
  alignas(64) float sum[kMaxHeadDim];
  for (int64_t i = 0; i < rows; ++i) {
    const float* first = partials + m.first_partial * partial_size;
    const auto highest_of = [&](int64_t n) { return first[n * partial_size + kTileQueries * dp + i]; };
    const auto weight_of = [&](int64_t n) { return first[n * partial_size + kTileQueries * (dp + 1) + i]; };
    float highest = highest_of(0);
    for (int64_t n = 1; n < m.count; ++n) highest = std::max(highest, highest_of(n));
    std::memset(sum, 0, sizeof sum);
    float weight = 0;
    for (int64_t n = 0; n < m.count; ++n) {
      if (weight_of(n) == 0.0f) continue;
      const float factor = std::exp2(highest_of(n) - highest);
      weight += factor * weight_of(n);
      const float* part = first + n * partial_size + i * dp;
      for (int64_t d = 0; d < dp; ++d) sum[d] += factor * part[d];
    }
    const float inverse = weight == 0.0f ? 0.0f : 1.0f / weight;
    for (int64_t d = 0; d < dp; ++d) sum[d] *= inverse;
    lse[i] = weight == 0.0f ? -std::numeric_limits<float>::infinity() : (highest + std::log2(weight)) * 0.693147181f;
    const RowsOut row{.data = static_cast<char*>(out.data) + i * out.stride * (out.bf16 ? 2 : 4),
                      .stride = out.stride,
                      .bf16 = out.bf16};
    tiles.unpack(sum, 1, 0, 1, head_dim, row);
  }
}

}  // namespace

void merge_partials(const AttentionTiles& tiles, const AttentionForwardArgs& a, const float* partials,
                    int64_t first_head, int64_t heads) {
  const TilePlan& plan = *a.mask.tiles;
  const int dim = a.shape.head_dim;
  const auto count = static_cast<int64_t>(plan.merges.size());
#pragma omp for schedule(dynamic, 1)
  for (int64_t x = 0; x < count * heads; ++x) {
    const int64_t h = x % heads, head = first_head + h;
    const ForwardMerge& m = at(plan.merges, x / heads);
    const Block queries = block_of(plan.query_start, m.query_block);
    merge_block(tiles, m, partials + h * plan.num_partials * partial_floats(dim), dim, queries.rows,
                rows_out(a.out, head * dim, queries.row), a.lse.as<float>() + head * a.q.rows() + queries.row);
  }
}

}  // namespace mmt::cpu
