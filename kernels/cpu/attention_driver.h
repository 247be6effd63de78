// What the drivers of attention share: addresses of tensors, passes over heads, the merge of partial results. Internal.
#pragma once

#include "kernels/attention.h"
#include "kernels/cpu/attention_tiles.h"

#include <algorithm>

namespace mmt::cpu {

// A pass takes as many kv heads as fit into this much scratch, at least one. Heads do not know each other, so the split
// changes no result.
inline constexpr std::int64_t kPassBytes = std::int64_t{64} << 20;
inline constexpr std::int64_t kFloat = sizeof(float);
/// Keys are packed first where more tiles than this read each block of them. The sums are the same either way.
inline constexpr std::int64_t kTilesPerPack = 3;

inline std::int64_t heads_of_pass(std::int64_t floats_per_head, std::int64_t kv_heads) {
  return std::clamp(kPassBytes / std::max<std::int64_t>(1, floats_per_head * kFloat), std::int64_t{1}, kv_heads);
}
/// The most that any rows up to the bound take: all heads, or a full pass, or one head.
inline std::size_t pass_bytes(std::int64_t floats_per_head, std::int64_t kv_heads) {
  const std::int64_t one = floats_per_head * kFloat;
  return static_cast<std::size_t>(std::min(one * kv_heads, std::max(one, kPassBytes)));
}
inline constexpr std::size_t kTensorsOfPass = 12;  // separate tensors, for what alignment and guards add
inline std::size_t with_overhead(std::size_t bytes) { return bytes + kTensorsOfPass * Arena::footprint(64); }

inline float* take(Arena& arena, std::int64_t floats) { return arena.take(DType::f32, {floats}).as<float>(); }

inline RowsIn rows_in(const Tensor& t, std::int64_t column, std::int64_t row = 0) {
  return {.data = static_cast<const char*>(t.data) + (row * t.row_stride + column) * size_of(t.dtype),
          .stride = t.row_stride,
          .bf16 = t.dtype == DType::bf16};
}
inline RowsOut rows_out(const Tensor& t, std::int64_t column, std::int64_t row = 0) {
  return {.data = static_cast<char*>(t.data) + (row * t.row_stride + column) * size_of(t.dtype),
          .stride = t.row_stride,
          .bf16 = t.dtype == DType::bf16};
}

inline TileLists lists_by_query(const TilePlan& p) {
  return {p.query_start.data(), p.key_start.data(),      p.query_first_run.data(),
          p.query_runs.data(),  p.query_patterns.data(), p.bits.data()};
}
inline TileLists lists_by_key(const TilePlan& p) {
  return {p.query_start.data(), p.key_start.data(),    p.key_first_run.data(),
          p.key_runs.data(),    p.key_patterns.data(), p.bits.data()};
}

template <class T> const T& at(const std::vector<T>& list, std::int64_t i) { return list[static_cast<std::size_t>(i)]; }

struct Block {
  std::int64_t row, rows;
};
inline Block block_of(const std::vector<std::int32_t>& start, std::int64_t b) {
  return {at(start, b), at(start, b + 1) - at(start, b)};
}

/// Work of few rows that one thread does forward, too, with its keys in its cache.
inline bool own_forward(const BackwardItem& item) {
  return item.own && item.first_query < item.last_query && item.last - item.first <= kOwnBlocks;
}
/// The own items of a plan, shared out over the threads of a parallel region: an item with as many of its heads as
/// leave work for everybody. `wanted` says which items; `work` gets one, and the one that the thread will probably get
/// then (or none). Nobody waits at the end.
template <class Wanted, class Work>
void for_own_items(const TilePlan& plan, int kv_heads, int threads, const Wanted& wanted, const Work& work) {
  constexpr std::int64_t kTasksPerThread = 16;  // so that the last ones leave nobody idle
  const auto count = static_cast<std::int64_t>(plan.backward.size());
  const std::int64_t parts =
      std::clamp<std::int64_t>((kTasksPerThread * threads + count - 1) / std::max<std::int64_t>(1, count), 1, kv_heads);
  const std::int64_t heads = (kv_heads + parts - 1) / parts, tasks = count * parts;
  const auto task = [&](std::int64_t x) {
    if (x >= tasks) return OwnItem{};
    const BackwardItem& item = at(plan.backward, x / parts);
    const std::int64_t first = x % parts * heads;
    if (!wanted(item) || first >= kv_heads) return OwnItem{};
    const std::int32_t first_key = at(plan.backward_keys, item.first);
    return OwnItem{.first_query = item.first_query,
                   .last_query = item.last_query,
                   .first_key = first_key,
                   .last_key = first_key + item.last - item.first,
                   .first_head = static_cast<int>(first),
                   .last_head = static_cast<int>(std::min<std::int64_t>(first + heads, kv_heads))};
  };
#pragma omp for schedule(dynamic, 1) nowait
  for (std::int64_t x = 0; x < tasks; ++x) {
    const OwnItem item = task(x);
    if (item.first_head < item.last_head) work(item, task(x + threads));
  }
}
/// Marks the query blocks of such work, one byte each; returns the number of all other tiles.
std::int64_t mark_own(const TilePlan& plan, std::uint8_t* own);

// Shares of a forward pass, called by every thread of a parallel region.

/// The work of few rows, all heads.
void forward_own_items(void (*work)(const OwnForward&), const AttentionForwardArgs& args);
/// The same; `scratch` has `scratch_size` floats for each thread.
void backward_own_items(void (*work)(const OwnBackward&), const AttentionBackwardArgs& args, float* scratch,
                        std::int64_t scratch_size);
/// Sums the partial results of query blocks by log-sum-exp, in the order of the items. `partials`: of these heads.
void merge_partials(const AttentionTiles& tiles, const AttentionForwardArgs& args, const float* partials,
                    std::int64_t first_head, std::int64_t heads);

}  // namespace mmt::cpu
