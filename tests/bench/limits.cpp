// The machine's limits and the matrix library alone. The loops are intrinsics of their own, so that they do not profit
// from what the kernels do, nor suffer from it.
#include "bench/bench.h"

#include "core/error.h"
#include "kernels/backend.h"

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <tuple>

// Exported by oneDNN 2.x: what the backend's products are held against.
extern "C" int dnnl_sgemm(char ta, char tb, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a,
                          std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc);
extern "C" int dnnl_gemm_bf16bf16f32(char ta, char tb, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                                     const std::uint16_t* a, std::int64_t lda, const std::uint16_t* b, std::int64_t ldb,
                                     float beta, float* c, std::int64_t ldc);

namespace mmt::bench {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

volatile float sink;

constexpr int kLoops = 1 << 16;
constexpr int kSums = 16;  // independent chains: more than latency times units of any processor so far

__attribute__((target("avx512f"))) double fma_avx512() {
  __m512 x[kSums];
  for (int i = 0; i < kSums; ++i) x[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int n = 0; n < kLoops; ++n)
    for (auto& v : x) v = _mm512_fmadd_ps(v, a, b);
  for (int i = 1; i < kSums; ++i) x[0] = _mm512_add_ps(x[0], x[i]);
  sink = _mm512_cvtss_f32(x[0]);
  return 2.0 * 16 * kSums * kLoops;
}
__attribute__((target("avx2,fma"))) double fma_avx2() {
  constexpr int kFew = 12;  // of 16 registers
  __m256 x[kFew];
  for (int i = 0; i < kFew; ++i) x[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int n = 0; n < kLoops; ++n)
    for (auto& v : x) v = _mm256_fmadd_ps(v, a, b);
  for (int i = 1; i < kFew; ++i) x[0] = _mm256_add_ps(x[0], x[i]);
  sink = _mm256_cvtss_f32(x[0]);
  return 2.0 * 8 * kFew * kLoops;
}
double fma_portable() {  // x86-64 without FMA: a multiplication and an addition
  constexpr int kFew = 12;
  __m128 x[kFew];
  for (int i = 0; i < kFew; ++i) x[i] = _mm_set1_ps(static_cast<float>(i));
  const __m128 a = _mm_set1_ps(0.999f), b = _mm_set1_ps(0.001f);
  for (int n = 0; n < kLoops; ++n)
    for (auto& v : x) v = _mm_add_ps(_mm_mul_ps(v, a), b);
  for (int i = 1; i < kFew; ++i) x[0] = _mm_add_ps(x[0], x[i]);
  sink = _mm_cvtss_f32(x[0]);
  return 2.0 * 4 * kFew * kLoops;
}
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) double dot_avx512() {
  __m512 x[kSums];
  for (int i = 0; i < kSums; ++i) x[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(-0.5f));
  const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.25f), _mm512_set1_ps(0.75f));
  for (int n = 0; n < kLoops; ++n)
    for (auto& v : x) v = _mm512_dpbf16_ps(v, a, b);
  for (int i = 1; i < kSums; ++i) x[0] = _mm512_add_ps(x[0], x[i]);
  sink = _mm512_cvtss_f32(x[0]);
  return 4.0 * 16 * kSums * kLoops;
}
__attribute__((target("amx-tile,amx-bf16"))) double dot_amx() {
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t bytes_a_row[16] = {};
    std::uint8_t rows[16] = {};
  } shape;
  for (int t = 0; t < 8; ++t) {
    shape.bytes_a_row[t] = 64;
    shape.rows[t] = 16;
  }
  asm volatile("ldtilecfg %0" ::"m"(shape));  // the intrinsic of g++ 12 does not say that it reads the whole shape
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int n = 0; n < kLoops; ++n) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float out[256] = {};
  _tile_stored(0, out, 64);
  asm volatile("" ::: "memory");
  sink = out[0];
  _tile_release();
  return 4.0 * 2 * 16 * 16 * 32 * kLoops;
}

/// Best rate of all threads together over half a second of short loops.
double rate_of(int threads, double (*loop)()) {
  double best = 0.0;
  for (const auto begin = Clock::now(); seconds_since(begin) < 0.3;) {
    double work = 0.0;
    const auto start = Clock::now();
#pragma omp parallel num_threads(threads) reduction(+ : work)
    work += loop();
    best = std::max(best, work / seconds_since(start));
  }
  return best;
}

template <class F> double best_of(int repeats, F&& f) {
  f();
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    f();
    best = std::min(best, seconds_since(start));
  }
  return best;
}

/// Seconds of a call: the best over `least` seconds of timings, each of a millisecond or more.
template <class F> double best_over(double least, F&& f) {
  const int inner = static_cast<int>(std::clamp(1e-3 / best_of(1, f), 1.0, 1e4));
  double best = 1e9;
  for (const auto begin = Clock::now(); seconds_since(begin) < least;) {
    const auto start = Clock::now();
    for (int i = 0; i < inner; ++i) f();
    best = std::min(best, seconds_since(start) / inner);
  }
  return best;
}
/// f(first, count) on disjoint parts of the floats.
template <class F> void each_part(std::int64_t floats, F&& f) {
#pragma omp parallel
  {
    const std::int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
    const std::int64_t first = floats / 16 * me / threads * 16, last = floats / 16 * (me + 1) / threads * 16;
    f(first, last - first);
  }
}

__attribute__((target("avx512f"))) void scale_avx512(float* x, std::int64_t count) {
  const __m512 f = _mm512_set1_ps(0.999f);
  for (std::int64_t i = 0; i < count; i += 16) _mm512_store_ps(x + i, _mm512_mul_ps(_mm512_load_ps(x + i), f));
}
void scale_plain(float* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] *= 0.999f;
}
__attribute__((target("avx512f"))) void copy_avx512(float* to, const float* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16) _mm512_store_ps(to + i, _mm512_load_ps(from + i));
}
void copy_plain(float* to, const float* from, std::int64_t count) { std::copy_n(from, count, to); }

std::map<int, Limits>& known_limits() {
  static std::map<int, Limits> limits;
  return limits;
}

}  // namespace

MemoryPass::MemoryPass(Traffic traffic, std::int64_t touched)
    : floats_(std::max<std::int64_t>(16, touched / (traffic == Traffic::copy ? 8 : 4) / 16 * 16)),
      from_(filled(DType::f32, {floats_})) {
  if (traffic == Traffic::copy) to_ = filled(DType::f32, {floats_});
}

double MemoryPass::moved() const { return 8.0 * static_cast<double>(floats_); }

void MemoryPass::operator()() const {
  const bool wide = cpu_isa().level == Isa::avx512;
  float* const from = from_->as<float>();
  float* const to = to_->defined() ? to_->as<float>() : nullptr;
  each_part(floats_, [&](std::int64_t first, std::int64_t count) {
    if (to == nullptr)
      (wide ? scale_avx512 : scale_plain)(from + first, count);
    else
      (wide ? copy_avx512 : copy_plain)(to + first, from + first, count);
  });
}

Limits measure_limits(int threads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  const CpuIsa& isa = cpu_isa();
  const bool wide = isa.level == Isa::avx512;
  Limits l;
  l.fma_f32 = rate_of(threads, wide ? fma_avx512 : isa.level == Isa::avx2 ? fma_avx2 : fma_portable);
  l.dot_bf16 = isa.amx ? rate_of(threads, dot_amx) : isa.avx512bf16 ? rate_of(threads, dot_avx512) : l.fma_f32;
  constexpr std::int64_t kSquare = 2048;
  const double flops = 2.0 * kSquare * kSquare * kSquare;
  l.gemm_f32 = flops / library_seconds(Layout::forward, DType::f32, kSquare, kSquare, kSquare);
  l.gemm_bf16 = flops / library_seconds(Layout::forward, DType::bf16, kSquare, kSquare, kSquare);
  const MemoryPass copy(Traffic::copy, std::int64_t{512} << 20), in_place(Traffic::in_place, std::int64_t{256} << 20);
  l.copy = copy.moved() / best_over(0.4, copy);
  l.in_place = in_place.moved() / best_over(0.4, in_place);
  omp_set_num_threads(before);
  return l;
}

const Limits& Bench::limits(int threads) const {
  const int count = threads > 0 ? threads : threads_;
  auto& known = known_limits();
  if (!known.contains(count)) known[count] = measure_limits(count);
  return known[count];
}

std::vector<std::string> disturbed_limits() {
  std::vector<std::string> list;
  for (const auto& [threads, before] : known_limits()) {
    const Limits after = measure_limits(threads);
    const auto check = [&](const char* name, double b, double a) {
      if (std::abs(a - b) > 0.1 * std::max(a, b))
        list.push_back(fmt::format("{} on {} {} was {:.1f} G/s at the start and {:.1f} at the end", name, threads,
                                   threads == 1 ? "thread" : "threads", b / 1e9, a / 1e9));
    };
    check("the f32 FMA loop", before.fma_f32, after.fma_f32);
    check("the bf16 loop", before.dot_bf16, after.dot_bf16);
    check("the f32 product", before.gemm_f32, after.gemm_f32);
    check("the bf16 product", before.gemm_bf16, after.gemm_bf16);
    check("the copy", before.copy, after.copy);
    check("in-place scaling", before.in_place, after.in_place);
  }
  return list;
}

double library_seconds(Layout layout, DType dtype, std::int64_t rows, std::int64_t out, std::int64_t in) {
  const OwnedTensor x = filled(dtype, {rows, in}), w = filled(dtype, {out, in}), y = filled(dtype, {rows, out});
  std::int64_t m = rows, n = out, k = in;  // forward
  Tensor a = x, b = w;
  Transpose ta = Transpose::no, tb = Transpose::yes;
  if (layout == Layout::input_gradient) {
    n = in, k = out, a = y, tb = Transpose::no;
  } else if (layout == Layout::weight_gradient) {
    m = out, n = in, k = rows, a = y, b = x, ta = Transpose::yes, tb = Transpose::no;
  }
  const OwnedTensor c(DType::f32, {m, n});
  const bool adds = layout == Layout::weight_gradient;
  const Stream stream = cpu_stream();
  // A short product is timed longer: its best is otherwise that of a lucky few.
  const int repeats = static_cast<int>(std::clamp(4e9 / (2.0 * static_cast<double>(m * n * k)), 5.0, 40.0));
  const OwnedTensor rounded(dtype, {m, n});
  double best = best_of(repeats, [&] {
    ops::gemm(stream, ta, tb, adds ? c.view() : rounded.view(), a, b,
              {.accumulate = adds ? Accumulate::add : Accumulate::overwrite, .bias = {}});
  });
  const char la = ta == Transpose::yes ? 'T' : 'N', lb = tb == Transpose::yes ? 'T' : 'N';
  const float beta = adds ? 1.0f : 0.0f;
  if (dtype == DType::f32)
    best = std::min(best, best_of(repeats, [&] {
                      dnnl_sgemm(la, lb, m, n, k, 1.0f, a.as<float>(), a.cols(), b.as<float>(), b.cols(), beta,
                                 c->as<float>(), n);
                    }));
  else if (cpu_isa().avx512bf16)
    best =
        std::min(best, best_of(repeats, [&] {
                   dnnl_gemm_bf16bf16f32(la, lb, m, n, k, 1.0f, static_cast<const std::uint16_t*>(a.data), a.cols(),
                                         static_cast<const std::uint16_t*>(b.data), b.cols(), beta, c->as<float>(), n);
                 }));
  return best;
}

}  // namespace mmt::bench
