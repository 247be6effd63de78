// Attention over packed rows. GF/s count the (query, key) pairs that the mask allows: 4 D a pair and head forward, 10 D
// backward; the limit is the processor's peak. A row that ends in "/tiles" counts non-empty tiles instead, and is held
// against the causal mask's rate on its tiles, measured beside it: how far time follows the tiles.
// scripts/reference/bench/attention.py has the same masks and shapes.
#include "bench/bench.h"

#include "kernels/backend.h"

#include <fmt/core.h>

#include <cmath>

namespace mmt::bench {
namespace {

using MakeWords = MaskWords (*)(int rows);

MaskWords full(int rows) {
  MaskWords w;
  for (int i = 0; i < rows; ++i) w.push(1, 1, 0, 0, i);
  return w;
}
MaskWords causal(int rows) {
  MaskWords w;
  for (int i = 0; i < rows; ++i) w.push(1, 0, row_class::kText, row_class::kText, i);
  return w;
}
/// One picture of 576 rows that reads itself both ways, in causal text.
MaskWords image(int rows) {
  MaskWords w;
  for (int i = 0; i < rows; ++i) w.push(1, i >= 100 && i < 676 ? 1 : 0, row_class::kText, row_class::kText, i);
  return w;
}
/// Every 300 rows: a picture of 256 rows that reads nothing but itself, both ways, and 44 rows of text that read all.
MaskWords images(int rows) {
  MaskWords w;
  for (int i = 0; i < rows; ++i) {
    const int item = i / 300;
    const std::uint32_t own = row_class::kFirstItem << (item % row_class::kNumItemBits);
    if (i % 300 < 256)
      w.push(1, item + 1, own, own, i);
    else
      w.push(1, 0, row_class::kAll, row_class::kText, i);
  }
  return w;
}
/// Causal samples of 20 to 100 rows. With pictures: the first half of each, but for two rows, reads itself both ways.
MaskWords short_samples(int rows, bool pictures) {
  MaskWords w;
  for (int sample = 1; static_cast<int>(w.rows()) < rows; ++sample) {
    const int length = std::min(20 + 37 * sample % 81, rows - static_cast<int>(w.rows()));
    for (int i = 0; i < length; ++i) {
      const bool picture = pictures && i >= 2 && i < length / 2;
      w.push(sample, picture ? 1 : 0, row_class::kText, row_class::kText, i);
    }
  }
  return w;
}
MaskWords packed(int rows) { return short_samples(rows, false); }
MaskWords packed_images(int rows) { return short_samples(rows, true); }
/// The eight causal samples of the step llava-151m.
MaskWords llava_samples(int) {
  MaskWords w;
  int sample = 0;
  for (const int rows : {304, 456, 96, 576, 320, 500, 384, 32}) {
    ++sample;
    for (int i = 0; i < rows; ++i) w.push(sample, 0, row_class::kText, row_class::kText, i);
  }
  return w;
}

/// Tiles that "/tiles" counts, whole, from the first row of each sample: one vector of f32, and one tile of AMX, on
/// either side.
constexpr TileShape kCounted{.query_rows = 16, .key_rows = 16};

struct Measured {
  Seconds forward, backward;
  double pairs = 0;  ///< that the mask allows
  double tiled = 0;  ///< of the non-empty tiles
};

Measured measure_mask(const Bench& bench, const MaskWords& words, const AttentionShape& shape, DType dtype) {
  const auto rows = static_cast<std::int64_t>(words.rows());
  const TilePlan plan = make_tile_plan(query_side(words), key_side(words), 0);
  const AttentionMask mask = host_mask(query_side(words), key_side(words), plan);
  const std::int64_t q = std::int64_t{shape.heads} * shape.head_dim, kv = std::int64_t{shape.kv_heads} * shape.head_dim;
  const OwnedTensor qkv = filled(dtype, {rows, q + 2 * kv}), d_out = filled(dtype, {rows, q}),
                    d_qkv(dtype, {rows, q + 2 * kv}), out(dtype, {rows, q}), lse(DType::f32, {shape.heads, rows});
  const auto part = [&](const Tensor& t, int which) {
    return which == 0 ? t.col_range(0, q) : t.col_range(q + (which - 1) * kv, kv);
  };
  const Stream stream = cpu_stream();
  Arena scratch("scratch", std::max(ops::attention_forward_scratch(stream, shape, dtype, rows, rows),
                                    ops::attention_backward_scratch(stream, shape, dtype, rows, rows)));
  Measured m;
  m.pairs = static_cast<double>(plan.counts.pairs);
  m.tiled = static_cast<double>(count_tiles(query_side(words), key_side(words), 0, kCounted).tiles() *
                                kCounted.query_rows * kCounted.key_rows);
  m.forward = bench.time([&] {
    ops::attention_forward(stream, {out, lse, part(qkv, 0), part(qkv, 1), part(qkv, 2), mask, shape}, scratch);
  });
  m.backward = bench.time([&] {
    ops::attention_backward(stream,
                            {part(d_qkv, 0), part(d_qkv, 1), part(d_qkv, 2), d_out, out, lse, part(qkv, 0),
                             part(qkv, 1), part(qkv, 2), mask, shape},
                            scratch);
  });
  return m;
}

struct Spec {
  const char* mask;
  MakeWords make;
  int rows, heads, kv_heads, dim;
  bool tiles = false;       ///< rows that hold it against the causal mask
  bool one_thread = false;  ///< rows of one thread, too
};

constexpr Spec kSpecs[] = {
    {"full", full, 1024, 12, 12, 64, false, true},
    {"causal", causal, 1024, 12, 12, 64, false, true},
    {"image", image, 1024, 12, 12, 64, true},
    {"full", full, 4096, 8, 8, 64, false, true},
    {"causal", causal, 4096, 8, 8, 64, false, true},
    {"image", image, 4096, 8, 8, 64, true, true},
    {"images", images, 4096, 8, 8, 64, true, true},
    {"packed", packed, 4096, 8, 8, 64, true},
    {"packed-images", packed_images, 4096, 8, 8, 64, true},
    {"packed", packed, 4096, 8, 8, 128, true},
    {"packed-images", packed_images, 4096, 8, 8, 128, true},
    {"packed-images", packed_images, 4096, 8, 8, 32},
    {"packed-images", packed_images, 4096, 8, 8, 16},
    {"llava", llava_samples, 2668, 12, 4, 64, true},
    {"full", full, 729, 16, 16, 72},
    {"causal", causal, 2048, 8, 8, 72},
    {"full", full, 4096, 8, 8, 128},
    {"causal", causal, 4096, 8, 8, 128},
    {"image", image, 4096, 8, 8, 128, true},
    {"images", images, 4096, 8, 8, 128, true},
    {"causal", causal, 4096, 8, 2, 64},
    {"causal", causal, 2048, 16, 4, 128},
};

/// The names of a case are those of the forward and backward pass, then of both by tiles.
void measure(Bench& bench, const Spec& s, DType dtype, const std::vector<std::string>& names) {
  const AttentionShape shape{s.heads, s.kv_heads, s.dim, 1 / std::sqrt(s.dim), 0};
  const bool f32 = dtype == DType::f32;
  const double limit = f32 ? bench.limits().fma_f32 : bench.limits().dot_bf16;
  const Measured m = measure_mask(bench, s.make(s.rows), shape, dtype);
  const double width = static_cast<double>(s.heads) * s.dim;
  const char* const peak = f32 ? "f32 FMA peak" : "bf16 peak";
  bench.rate(names[0], "GF/s", 4 * width * m.pairs, m.forward, peak, limit);
  bench.rate(names[1], "GF/s", 10 * width * m.pairs, m.backward, peak, limit);
  if (!s.tiles) return;
  const Measured c = measure_mask(bench, causal(s.rows), shape, dtype);
  const char* const beside = "causal, by tiles";
  bench.rate(names[2], "GF/s", 4 * width * m.tiled, m.forward, beside, 4 * width * c.tiled / c.forward.best);
  bench.rate(names[3], "GF/s", 10 * width * m.tiled, m.backward, beside, 10 * width * c.tiled / c.backward.best);
}

}  // namespace

void add_attention(Cases& cases) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Spec& s : kSpecs) {
      const std::string groups = s.heads == s.kv_heads ? "" : fmt::format("/gqa{}", s.heads / s.kv_heads);
      for (const bool one : {false, true}) {
        if (one && !s.one_thread) continue;
        std::vector<std::string> names;
        for (const char* kind : {"", "/tiles"}) {
          if (*kind != '\0' && !s.tiles) continue;
          for (const char* pass : {"forward", "backward"})
            names.push_back(fmt::format("attention/{}/T{}/D{}{}/{}/{}{}{}", s.mask, s.rows, s.dim, groups,
                                        name_of(dtype), pass, kind, one ? "/1t" : ""));
        }
        cases.push_back({names, [=](Bench& bench) { measure(bench, s, dtype, names); }, one ? 1 : 0});
      }
    }
  }
}

}  // namespace mmt::bench
