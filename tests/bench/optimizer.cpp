// AdamW on the parameters of GPT-2 small, against in-place scaling: it reads weights, both moments and the gradient and
// writes the first three back (28 bytes a parameter), with bf16 weights their copy too (30), with zeroed gradients
// those too (4 more).
#include "bench/bench.h"

#include "kernels/backend.h"

#include <fmt/core.h>

namespace mmt::bench {
namespace {

constexpr std::int64_t kParameters = 124'475'904;

void measure(Bench& bench, bool copy, bool zero, const std::string& name) {
  const Stream stream = cpu_stream();
  const OwnedTensor w = filled(DType::f32, {kParameters}), m = filled(DType::f32, {kParameters}),
                    v(DType::f32, {kParameters}), g = filled(DType::f32, {kParameters});
  OwnedTensor compute;
  if (copy) compute = OwnedTensor(DType::bf16, {kParameters});
  ops::fill(stream, v, 1.0);
  const AdamwSpan span{w, m, v, g, compute};
  const double bytes = 28.0 + (copy ? 2.0 : 0.0) + (zero ? 4.0 : 0.0);
  const AdamwStep options{.lr = 1e-4, .weight_decay = 0.1, .updates = 10, .zero_grad = zero};
  bench.memory_rate(
      name, bytes * static_cast<double>(kParameters),
      [&] {
        ops::adamw_step(stream, {&span, 1}, options);
      },
      Traffic::in_place);
}

void measure_norm(Bench& bench, const std::string& name) {
  const OwnedTensor g = filled(DType::f32, {kParameters});
  double sum = 0.0;
  bench.memory_rate(
      name, 4.0 * static_cast<double>(kParameters),
      [&] { ops::sum_of_squares(cpu_stream(), Tensor(&sum, DType::f64, {1}), g); }, Traffic::copy);
}

}  // namespace

void add_optimizer(Cases& cases) {
  for (const bool copy : {false, true}) {
    for (const bool zero : {false, true}) {
      const std::string name = fmt::format("adamw/124M{}/{}", zero ? "/zero-gradients" : "", copy ? "bf16" : "f32");
      cases.push_back({{name}, [=](Bench& bench) { measure(bench, copy, zero, name); }});
    }
  }
  const std::string norm = "adamw/124M/gradient-norm/f32";
  cases.push_back({{norm}, [=](Bench& bench) { measure_norm(bench, norm); }});
}

}  // namespace mmt::bench
