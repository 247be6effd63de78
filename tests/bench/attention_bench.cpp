// Speed of attention beside the machine's FMA peak, measured in the same run: `attention_bench [seconds per case [part
// of a name]]`. GF/s count what the mask needs (allowed pairs): 4 D per pair and head forward, 10 D backward. The last
// column is the share of the peak times area / pairs: what the kernel reaches on the tiles that it computes.
#include "kernels/backend.h"

#include <fmt/core.h>
#include <immintrin.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>

using namespace mmt;

extern "C" int omp_get_max_threads();

namespace {

/// Seconds: with one thread its own processor time, so that a busy machine does not disturb; else the wall clock.
double now() {
  timespec t{};
  clock_gettime(omp_get_max_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

volatile float sink;

constexpr int kFmas = 1 << 20;
__attribute__((target("avx512f"))) void fma_avx512() {
  __m512 x[16];
  for (int i = 0; i < 16; ++i) x[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int n = 0; n < kFmas / 16; ++n)
    for (auto& v : x) v = _mm512_fmadd_ps(v, a, b);
  for (int i = 1; i < 16; ++i) x[0] = _mm512_add_ps(x[0], x[i]);
  sink = _mm512_cvtss_f32(x[0]);
}
__attribute__((target("avx2,fma"))) void fma_avx2() {
  __m256 x[12];
  for (int i = 0; i < 12; ++i) x[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int n = 0; n < kFmas / 12; ++n)
    for (auto& v : x) v = _mm256_fmadd_ps(v, a, b);
  for (int i = 1; i < 12; ++i) x[0] = _mm256_add_ps(x[0], x[i]);
  sink = _mm256_cvtss_f32(x[0]);
}

__attribute__((target("avx512f,avx512bf16"))) void dot_avx512bf16() {
  __m512 x[16];
  for (int i = 0; i < 16; ++i) x[i] = _mm512_set1_ps(static_cast<float>(i));
  const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f7f3f7f)), b = a;
  for (int n = 0; n < kFmas / 16; ++n)
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = _mm512_dpbf16_ps(x[i], a, b);
  for (int i = 1; i < 16; ++i) x[0] = _mm512_add_ps(x[0], x[i]);
  sink = _mm512_cvtss_f32(x[0]);
}

/// GF/s of one thread with vdpbf16ps (0 without it): the best of many short loops.
double peak_bf16() {
  if (!cpu_isa().avx512bf16) return 0;
  double best = 0;
  for (const double until = now() + 0.3; now() < until;) {
    const double start = now();
    dot_avx512bf16();
    best = std::max(best, 64.0 * kFmas / (now() - start));
  }
  return best / 1e9;
}

/// The same in f32.
double peak() {
  const bool wide = cpu_isa().level == Isa::avx512;
  double best = 0;
  const double until = now() + 0.3;
  while (now() < until) {
    const double start = now();
    wide ? fma_avx512() : fma_avx2();
    best = std::max(best, 2.0 * (wide ? 16 : 8) * kFmas / (now() - start));
  }
  return best / 1e9;
}

struct Packed {
  std::string name;
  MaskWords words;
};

Packed causal(int rows) {
  Packed p{"causal " + std::to_string(rows), {}};
  for (int i = 0; i < rows; ++i) p.words.push(1, 0, row_class::kText, row_class::kText, i);
  return p;
}
Packed full(int rows) {
  Packed p{"full " + std::to_string(rows), {}};
  for (int i = 0; i < rows; ++i) p.words.push(1, 1, 0, 0, i);
  return p;
}
Packed short_samples(int rows, bool images) {
  Packed p{std::string(images ? "packed, images inside, " : "packed causal, ") + std::to_string(rows), {}};
  std::mt19937 rng(1);
  std::uniform_int_distribution<int> length(20, 100);
  for (int sample = 1; static_cast<int>(p.words.rows()) < rows; ++sample) {
    const int n = std::min(length(rng), rows - static_cast<int>(p.words.rows()));
    for (int i = 0; i < n; ++i) {
      const bool image = images && i >= 2 && i < n / 2;
      p.words.push(sample, image ? 1 : 0, row_class::kAll, image ? row_class::kImage : row_class::kText, i);
    }
  }
  return p;
}

/// Text with images that read themselves both ways and are not read by each other.
Packed interleaved(int rows) {
  Packed p{"images between text " + std::to_string(rows), {}};
  for (int i = 0; i < rows; ++i) {
    const int item = i / 300, place = i % 300;
    const std::uint32_t own = row_class::kFirstItem << (item % row_class::kNumItemBits);
    if (place < 256)
      p.words.push(1, item + 1, own, own, i);
    else
      p.words.push(1, 0, row_class::kAll, row_class::kText, i);
  }
  return p;
}

std::string wanted;
double peak_of_f32 = 0, peak_of_bf16 = 0;

void measure(const Packed& p, int heads, int kv_heads, int dim, DType dtype, double seconds) {
  const double fma = dtype == DType::bf16 && peak_of_bf16 > 0 ? peak_of_bf16 : peak_of_f32;
  const std::string name = fmt::format("{} {} D={} {}/{}", name_of(dtype), p.name, dim, heads, kv_heads);
  if (name.find(wanted) == std::string::npos) return;
  const AttentionShape shape{heads, kv_heads, dim, 1 / std::sqrt(dim), 0};
  const auto rows = static_cast<std::int64_t>(p.words.rows());
  const TilePlan plan = make_tile_plan(query_side(p.words), key_side(p.words), 0);
  const AttentionMask mask = host_mask(query_side(p.words), key_side(p.words), plan);
  const std::int64_t width = (heads + 2 * kv_heads) * dim;
  OwnedTensor qkv(dtype, {rows, width}), d_qkv(dtype, {rows, width}), out(dtype, {rows, heads * dim}),
      d_out(dtype, {rows, heads * dim}), lse(DType::f32, {heads, rows});
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (const Tensor& t : {qkv.view(), d_out.view()})
    for (std::int64_t i = 0; i < t.numel(); ++i) visit_float(dtype, [&]<class T>() { t.as<T>()[i] = T(normal(rng)); });
  const auto part = [&](const OwnedTensor& t, int which) {
    return t.view().col_range(which == 0 ? 0 : (heads + (which - 1) * kv_heads) * dim,
                              (which == 0 ? heads : kv_heads) * dim);
  };
  const Stream stream = cpu_stream();
  Arena scratch("scratch", std::max(ops::attention_forward_scratch(stream, shape, dtype, rows, rows),
                                    ops::attention_backward_scratch(stream, shape, dtype, rows, rows)));
  const auto best_of = [&](auto&& call) {
    double best = 1e9;
    int n = 0;
    for (const double until = now() + seconds; now() < until || n < 3; ++n) {
      const double start = now();
      call();
      best = std::min(best, now() - start);
    }
    return best;
  };
  const double forward = best_of([&] {
    ops::attention_forward(stream, {out, lse, part(qkv, 0), part(qkv, 1), part(qkv, 2), mask, shape}, scratch);
  });
  const double backward = best_of([&] {
    ops::attention_backward(stream,
                            {part(d_qkv, 0), part(d_qkv, 1), part(d_qkv, 2), d_out, out, lse, part(qkv, 0),
                             part(qkv, 1), part(qkv, 2), mask, shape},
                            scratch);
  });
  const double pairs = static_cast<double>(plan.counts.pairs) * heads * dim / 1e9;
  const double area = static_cast<double>(plan.counts.area) / static_cast<double>(plan.counts.pairs);
  const double peak_all = fma * omp_get_max_threads();
  fmt::print(
      "{:52} fwd {:8.3f} ms {:6.1f} GF/s {:3.0f} % ({:3.0f} %)   bwd {:8.3f} ms {:6.1f} GF/s {:3.0f} % "
      "({:3.0f} %)\n",
      name, forward * 1e3, 4 * pairs / forward, 400 * pairs / forward / peak_all,
      400 * pairs * area / forward / peak_all, backward * 1e3, 10 * pairs / backward,
      1000 * pairs / backward / peak_all, 1000 * pairs * area / backward / peak_all);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1.0;
  if (argc > 2) wanted = argv[2];
  peak_of_f32 = peak();
  peak_of_bf16 = peak_bf16();
  fmt::print("{}, {} threads, peak per thread: f32 {:.1f} GF/s, vdpbf16ps {:.1f} GF/s\n", name_of(cpu_isa()),
             omp_get_max_threads(), peak_of_f32, peak_of_bf16);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int rows : {1024, 4096}) {
      measure(full(rows), 4, 4, 64, dtype, seconds);
      measure(causal(rows), 4, 4, 64, dtype, seconds);
    }
    measure(interleaved(4096), 4, 4, 64, dtype, seconds);
    for (const int dim : {72, 128}) {
      measure(full(1024), 4, 4, dim, dtype, seconds);
      measure(causal(1024), 4, 4, dim, dtype, seconds);
    }
    measure(causal(1024), 4, 1, 64, dtype, seconds);
    for (const int dim : {16, 32, 64}) {
      measure(short_samples(4096, false), 4, 4, dim, dtype, seconds);
      measure(short_samples(4096, true), 4, 4, dim, dtype, seconds);
    }
  }
  fmt::print("peak at the end: f32 {:.1f} GF/s\n", peak());
}
