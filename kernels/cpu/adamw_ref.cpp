#include "kernels/cpu/tables.h"

#include <cmath>

namespace mmt::cpu {
namespace {

template <class M> void update(const AdamwSpan& s, const AdamwStep& step) {
  const auto t = static_cast<double>(step.updates);
  const double c1 = 1 - std::pow(step.beta1, t), c2 = 1 - std::pow(step.beta2, t);
  for (std::int64_t i = 0; i < s.master.rows(); ++i) {
    const double g = step.grad_scale * static_cast<double>(s.grad.as<M>()[i]);
    const double m = step.beta1 * static_cast<double>(s.m.as<M>()[i]) + (1 - step.beta1) * g;
    const double v = step.beta2 * static_cast<double>(s.v.as<M>()[i]) + (1 - step.beta2) * g * g;
    const double w = static_cast<double>(s.master.as<M>()[i]) * (1 - step.lr * step.weight_decay) -
                     step.lr / c1 * m / (std::sqrt(v / c2) + step.epsilon);
    s.m.as<M>()[i] = static_cast<M>(m);
    s.v.as<M>()[i] = static_cast<M>(v);
    s.master.as<M>()[i] = static_cast<M>(w);
    if (step.zero_grad) s.grad.as<M>()[i] = 0;
    if (s.compute.defined())
      visit_float(s.compute.dtype, [&]<class T>() { s.compute.as<T>()[i] = T(static_cast<M>(w)); });
  }
}

}  // namespace

AdamwTable reference_adamw() {
  return {.step = [](const Stream&, std::span<const AdamwSpan> spans, const AdamwStep& step) {
    for (const AdamwSpan& s : spans) s.master.dtype == DType::f64 ? update<double>(s, step) : update<float>(s, step);
  }};
}

}  // namespace mmt::cpu
