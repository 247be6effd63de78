// Speed of the ops at the shapes of a small multimodal model and at DRAM size, beside what the same run measures as the
// machine's limits (an f32 product of 1024^3, a copy, an in-place scaling). Best of several repetitions.
//   ops_bench [threads]
#include "core/arena.h"
#include "kernels/backend.h"

#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>

using namespace mmt;

namespace {

/// One thread: its own processor time, so that a busy machine does not disturb; else the wall clock.
double now() {
  timespec t{};
  clock_gettime(omp_get_max_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double best_seconds(const std::function<void()>& f) {
  double best = 1e9;
  for (int i = 0; i < 15; ++i) {
    const double start = now();
    f();
    best = std::min(best, now() - start);
  }
  return best;
}

OwnedTensor tensor(const Stream& stream, DType dtype, std::initializer_list<std::int64_t> shape) {
  OwnedTensor t(dtype, shape), wide(DType::f32, shape);
  float* p = wide->as<float>();
  for (std::int64_t i = 0; i < wide->numel(); ++i) p[i] = static_cast<float>(i * 7919 % 2001) / 1000.0f - 1.0f;
  ops::copy(stream, t, wide);
  return t;
}

void line(const char* what, double seconds, double amount, const char* unit, double limit) {
  fmt::print("  {:<24}{:>10.1f} us {:>9.2f} {}  {:>4.0f} %\n", what, seconds * 1e6, amount / seconds * 1e-9, unit,
             100 * amount / seconds / limit);
}

void products(const Stream& s, DType dtype, double peak) {
  const std::int64_t shapes[][3] = {{100, 64, 64}, {500, 64, 64}, {2000, 384, 128}, {2000, 128, 512}, {8000, 256, 256}};
  for (const auto& q : shapes) {
    const OwnedTensor x = tensor(s, dtype, {q[0], q[2]}), w = tensor(s, dtype, {q[1], q[2]}),
                      b = tensor(s, dtype, {q[1]}), y = tensor(s, dtype, {q[0], q[1]}),
                      dw = tensor(s, DType::f32, {q[1], q[2]});
    const double flops = 2.0 * static_cast<double>(q[0] * q[1] * q[2]);
    fmt::print(" {} product, rows {} out {} in {} (share of f32 1024^3)\n", name_of(dtype), q[0], q[1], q[2]);
    line("forward", best_seconds([&] { ops::linear_forward(s, y, x, w); }), flops, "GF/s", peak);
    line("forward with bias", best_seconds([&] { ops::linear_forward(s, y, x, w, b); }), flops, "GF/s", peak);
    line("input gradient", best_seconds([&] { ops::linear_backward_input(s, x, y, w); }), flops, "GF/s", peak);
    line("weight gradient, added", best_seconds([&] { ops::linear_backward_weight(s, dw, y, x, Accumulate::add); }),
         flops, "GF/s", peak);
  }
}

void rows(const Stream& s, DType dtype, std::int64_t n, std::int64_t c) {
  const OwnedTensor x = tensor(s, dtype, {n, c}), y = tensor(s, dtype, {n, c}), z = tensor(s, dtype, {n, c}),
                    w = tensor(s, dtype, {c}), mean = tensor(s, DType::f32, {n}), rstd = tensor(s, DType::f32, {n}),
                    dw = tensor(s, DType::f32, {c}), db = tensor(s, DType::f32, {c});
  const auto elements = static_cast<double>(n * c);
  const double copy = elements / best_seconds([&] { ops::copy(s, y, x); });
  fmt::print(" {} ({}, {}): elements a second and share of a copy's {:.2f} G/s\n", name_of(dtype), n, c, copy * 1e-9);
  const auto time = [&](const char* what, const std::function<void()>& f) {
    line(what, best_seconds(f), elements, "G/s", copy);
  };
  time("add", [&] { ops::add(s, z, y, x); });
  time("rms norm", [&] { ops::rms_norm_forward(s, y, rstd, x, w, 1e-5); });
  time("  input gradient", [&] { ops::rms_norm_backward_input(s, z, y, x, rstd, w); });
  time("  weight gradient", [&] { ops::rms_norm_backward_weight(s, dw, y, x, rstd); });
  time("layer norm", [&] { ops::layer_norm_forward(s, y, mean, rstd, x, w, w, 1e-5); });
  time("  input gradient", [&] { ops::layer_norm_backward_input(s, z, y, x, mean, rstd, w); });
  time("  weight gradient", [&] { ops::layer_norm_backward_weight(s, dw, db, y, x, mean, rstd); });
  time("gelu erf", [&] { ops::activation_forward(s, y, x, Activation::gelu_erf); });
  time("gelu tanh", [&] { ops::activation_forward(s, y, x, Activation::gelu_tanh); });
  time("  gradient", [&] { ops::activation_backward(s, z, y, x, Activation::gelu_tanh); });
  time("swiglu", [&] { ops::swiglu_forward(s, y, x, z); });
  time("  gradient", [&] { ops::swiglu_backward(s, z, y, y, x, z); });
  time("bias gradient", [&] { ops::linear_backward_bias(s, db, x); });
}

void head(const Stream& s, DType dtype, std::int64_t n, std::int64_t vocabulary, std::int64_t in, double peak) {
  const OwnedTensor x = tensor(s, dtype, {n, in}), w = tensor(s, dtype, {vocabulary, in}),
                    dx = tensor(s, dtype, {n, in}), dw = tensor(s, DType::f32, {vocabulary, in}),
                    loss = tensor(s, DType::f32, {n}), weight = tensor(s, DType::f32, {n}), labels(DType::i32, {n});
  ops::fill(s, labels, 3);
  Arena scratch("scratch", ops::linear_cross_entropy_scratch(dtype, n, vocabulary, 512));
  const LinearCrossEntropy inputs{x, w, labels, weight, 512};
  const double seconds =
      best_seconds([&] { ops::linear_cross_entropy(s, scratch, loss, {}, dx, dw, inputs, Accumulate::add); });
  fmt::print(" {} head and loss, rows {} classes {} in {}\n", name_of(dtype), n, vocabulary, in);
  line("forward and backward", seconds, 6.0 * static_cast<double>(n * vocabulary * in), "GF/s", peak);
}

void optimizer(const Stream& s, std::int64_t n) {
  const OwnedTensor w = tensor(s, DType::f32, {n}), m = tensor(s, DType::f32, {n}), v = tensor(s, DType::f32, {n}),
                    g = tensor(s, DType::f32, {n}), compute = tensor(s, DType::bf16, {n});
  ops::fill(s, v, 1.0);
  const AdamwSpan span{w, m, v, g, compute};
  const auto count = static_cast<double>(n);
  const double limit = 8 * count / best_seconds([&] { ops::scale(s, w, w, 0.999); });
  fmt::print(" optimizer, {} parameters (share of in-place scaling)\n", n);
  // Reads master, m, v, grad; writes master, m, v and the bf16 copy: 30 bytes.
  line("adamw", best_seconds([&] {
         ops::adamw_step(s, {&span, 1}, {.lr = 1e-3, .updates = 10});
       }),
       30 * count, "GB/s", limit);
  double out = 0;
  line("sum of squares", best_seconds([&] { ops::sum_of_squares(s, Tensor(&out, DType::f64, {1}), g); }), 4 * count,
       "GB/s", limit);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) omp_set_num_threads(std::max(1, std::atoi(argv[1])));
  const Stream s = cpu_stream();
  fmt::print("{} on {} threads\n", name_of(cpu_isa()), omp_get_max_threads());
  const OwnedTensor a = tensor(s, DType::f32, {1024, 1024}), b = tensor(s, DType::f32, {1024, 1024}),
                    c = tensor(s, DType::f32, {1024, 1024});
  const double peak =
      2.0 * 1024 * 1024 * 1024 / best_seconds([&] { ops::gemm(s, Transpose::no, Transpose::no, c, a, b); });
  fmt::print(" f32 product 1024^3: {:.0f} GF/s\n", peak * 1e-9);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    products(s, dtype, peak);
    rows(s, dtype, 2000, 128);
    rows(s, dtype, 16000, 1024);
    head(s, dtype, 2000, 608, 128, peak);
    head(s, dtype, 1024, 32000, 256, peak);
  }
  optimizer(s, 400'000);
  optimizer(s, 30'000'000);
}
