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

void forward_own_items(void (*work)(const OwnForward&), const AttentionForwardArgs& a) {
  const AttentionShape& shape = a.shape;
  for_own_items(*a.mask.tiles, shape.kv_heads, omp_get_num_threads(), own_forward,
                [&](const OwnItem& item, const OwnItem& next) {
                  work({.lists = lists_by_query(*a.mask.tiles),
                        .item = item,
                        .next = next,
                        .head_dim = shape.head_dim,
                        .repeat = shape.heads / shape.kv_heads,
                        .scale = static_cast<float>(shape.scale),
                        .q = rows_in(a.q, 0),
                        .k = rows_in(a.k, 0),
                        .v = rows_in(a.v, 0),
                        .out = rows_out(a.out, 0),
                        .lse = a.lse.as<float>(),
                        .lse_stride = a.q.rows()});
                });
}

void backward_own_items(void (*work)(const OwnBackward&), const AttentionBackwardArgs& a, float* scratch,
                        int64_t scratch_size) {
  const AttentionShape& shape = a.shape;
  const auto out_if = [](const Tensor& t) { return t.defined() ? rows_out(t, 0) : RowsOut{}; };
  for_own_items(
      *a.mask.tiles, shape.kv_heads, omp_get_num_threads(), [](const BackwardItem& item) { return item.own; },
      [&](const OwnItem& item, const OwnItem& next) {
        work({.lists = lists_by_query(*a.mask.tiles),
              .item = item,
              .next = next,
              .head_dim = shape.head_dim,
              .repeat = shape.heads / shape.kv_heads,
              .scale = static_cast<float>(shape.scale),
              .q = rows_in(a.q, 0),
              .d_out = rows_in(a.d_out, 0),
              .out = rows_in(a.out, 0),
              .k = rows_in(a.k, 0),
              .v = rows_in(a.v, 0),
              .lse = a.lse.as<float>(),
              .lse_stride = a.q.rows(),
              .dq = out_if(a.dq),
              .dk = out_if(a.dk),
              .dv = out_if(a.dv),
              .scratch = scratch + omp_get_thread_num() * scratch_size});
      });
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
