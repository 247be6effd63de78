// Cross-entropy over a vocabulary, on logits and fused with the linear head.
#include "bench/bench.h"

#include "kernels/backend.h"

#include <fmt/core.h>

namespace mmt::bench {
namespace {

OwnedTensor labels_below(std::int64_t rows, std::int64_t vocabulary) {
  OwnedTensor labels(DType::i32, {rows});
  for (std::int64_t r = 0; r < rows; ++r)
    labels->as<std::int32_t>()[r] = static_cast<std::int32_t>(r * 7919 % vocabulary);
  return labels;
}

/// Loss and gradient of a chunk of logits as the fused head calls it: f32 in place; bf16 from f32 logits.
void measure_logits(Bench& bench, std::int64_t rows, std::int64_t vocabulary, DType dtype, const std::string& both,
                    const std::string& alone) {
  const Stream stream = cpu_stream();
  const OwnedTensor logits = filled(DType::f32, {rows, vocabulary}), weight = filled(DType::f32, {rows}),
                    loss(DType::f32, {rows}), labels = labels_below(rows, vocabulary);
  const auto elements = static_cast<double>(rows * vocabulary);
  if (dtype == DType::f32) {
    // In place, so that the next call sees gradients: small numbers, and as much work.
    bench.memory_rate(
        alone, 4 * elements, [&] { ops::cross_entropy(stream, loss, {}, logits, labels, weight); }, Traffic::copy);
    bench.memory_rate(
        both, 8 * elements, [&] { ops::cross_entropy(stream, loss, logits, logits, labels, weight); },
        Traffic::in_place);
  } else {
    const OwnedTensor gradient(DType::bf16, {rows, vocabulary});
    bench.memory_rate(
        both, 6 * elements, [&] { ops::cross_entropy(stream, loss, gradient, logits, labels, weight); }, Traffic::copy);
  }
}

void measure_head(Bench& bench, std::int64_t rows, std::int64_t vocabulary, std::int64_t in, DType dtype,
                  const std::string& name) {
  const Stream stream = cpu_stream();
  const OwnedTensor x = filled(dtype, {rows, in}), w = filled(dtype, {vocabulary, in}), dx(dtype, {rows, in}),
                    dw = filled(DType::f32, {vocabulary, in}), weight = filled(DType::f32, {rows}),
                    loss(DType::f32, {rows}), labels = labels_below(rows, vocabulary);
  const LinearCrossEntropy inputs{x, w, labels, weight};
  Arena scratch("scratch", ops::linear_cross_entropy_scratch(dtype, rows, vocabulary, inputs.chunk));
  const Seconds seconds =
      bench.time([&] { ops::linear_cross_entropy(stream, scratch, loss, {}, dx, dw, inputs, Accumulate::add); });
  const bool f32 = dtype == DType::f32;
  bench.rate(name, "GF/s", 6.0 * static_cast<double>(rows * vocabulary * in), seconds,
             f32 ? "f32 FMA peak" : "bf16 peak", f32 ? bench.limits().fma_f32 : bench.limits().dot_bf16);
}

}  // namespace

void add_head(Cases& cases) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t vocabulary : {50304, 32000}) {
      constexpr std::int64_t kRows = 512;
      const std::string both = fmt::format("loss/V{}/logits/{}", vocabulary, name_of(dtype));
      const std::string alone = fmt::format("loss/V{}/logits-without-gradient/{}", vocabulary, name_of(dtype));
      std::vector<std::string> names = {both};
      if (dtype == DType::f32) names.push_back(alone);
      cases.push_back({names, [=](Bench& b) { measure_logits(b, kRows, vocabulary, dtype, both, alone); }});
    }
    for (const ProductShape& s : {ProductShape{256, 50304, 768}, {511, 50304, 768}, {694, 32000, 768}}) {
      const std::string name = fmt::format("loss/V{}/head/M{}/{}", s.out, s.rows, name_of(dtype));
      cases.push_back({{name}, [=](Bench& b) { measure_head(b, s.rows, s.out, s.in, dtype, name); }});
    }
  }
}

}  // namespace mmt::bench
