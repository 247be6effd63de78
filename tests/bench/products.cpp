// Matrix products of linear layers through the backend, as the models call them, against the processor's peak. Operands
// stay in the caches where they fit; the steps (step.cpp) stream all their weights.
#include "bench/bench.h"

#include "kernels/backend.h"

#include <fmt/core.h>

#include <algorithm>

namespace mmt::bench {
namespace {

/// GPT-2 small at 256 and 512 rows with its head, and squarer shapes of larger models.
constexpr ProductShape kShapes[] = {
    {256, 768, 768},    {512, 768, 768},    {512, 2304, 768},   {512, 3072, 768},   {256, 768, 3072},
    {512, 768, 3072},   {256, 50304, 768},  {512, 50304, 768},  {2048, 3072, 768},  {2048, 1024, 1024},
    {2048, 4096, 1024}, {2048, 1024, 4096}, {4096, 2048, 2048}, {4096, 4096, 4096},
};

void measure(Bench& bench, const ProductShape& s, DType dtype, const std::vector<std::string>& names) {
  const Stream stream = cpu_stream();
  const OwnedTensor x = filled(dtype, {s.rows, s.in}), w = filled(dtype, {s.out, s.in}),
                    y = filled(dtype, {s.rows, s.out}), dw = filled(DType::f32, {s.out, s.in});
  const double flops = 2.0 * static_cast<double>(s.rows * s.out * s.in);
  const bool f32 = dtype == DType::f32;
  const double limit = f32 ? bench.limits().fma_f32 : bench.limits().dot_bf16;
  const auto row = [&](std::size_t i, const std::function<void()>& call) {
    bench.rate(names[i], "GF/s", flops, bench.time(call), f32 ? "f32 FMA peak" : "bf16 peak", limit);
  };
  row(0, [&] { ops::linear_forward(stream, y, x, w); });
  row(1, [&] { ops::linear_backward_input(stream, x, y, w); });
  row(2, [&] { ops::linear_backward_weight(stream, dw, y, x, Accumulate::add); });
}

/// The first layer of an MLP: bias and activation belong to it.
void measure_activation(Bench& bench, const ProductShape& s, DType dtype, const std::string& name) {
  const Stream stream = cpu_stream();
  const OwnedTensor x = filled(dtype, {s.rows, s.in}), w = filled(dtype, {s.out, s.in}), b = filled(dtype, {s.out}),
                    pre = filled(dtype, {s.rows, s.out}), y = filled(dtype, {s.rows, s.out});
  const bool f32 = dtype == DType::f32;
  const Seconds seconds =
      bench.time([&] { ops::linear_activation_forward(stream, y, pre, x, w, b, Activation::gelu_tanh); });
  bench.rate(name, "GF/s", 2.0 * static_cast<double>(s.rows * s.out * s.in), seconds,
             f32 ? "f32 FMA peak" : "bf16 peak", f32 ? bench.limits().fma_f32 : bench.limits().dot_bf16);
}

}  // namespace

void add_products(Cases& cases) {
  std::vector<ProductShape> shapes(std::begin(kShapes), std::end(kShapes));
  for (const ProductShape& s : step_products()) {
    if (std::ranges::find(shapes, s) == shapes.end()) shapes.push_back(s);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto name = [&](const ProductShape& s, const char* part) {
      return fmt::format("product/{}x{}/M{}/{}/{}", s.out, s.in, s.rows, part, name_of(dtype));
    };
    for (const ProductShape& s : shapes) {
      const std::vector<std::string> names = {name(s, "forward"), name(s, "input-gradient"),
                                              name(s, "weight-gradient")};
      cases.push_back({names, [=](Bench& bench) { measure(bench, s, dtype, names); }});
    }
    for (const ProductShape& s : {ProductShape{256, 3072, 768}, {512, 3072, 768}}) {
      const std::string gelu = name(s, "forward-bias-gelu");
      cases.push_back({{gelu}, [=](Bench& bench) { measure_activation(bench, s, dtype, gelu); }});
    }
  }
}

}  // namespace mmt::bench
