// The fast AdamW: one pass over all spans.
#include "kernels/cpu/driver.h"
#include "kernels/cpu/tables.h"

#include <cmath>

namespace mmt::cpu {
namespace {

AdamwScalars scalars_of(const AdamwStep& step) {
  const auto t = static_cast<double>(step.updates);
  const auto f = [](double v) { return static_cast<float>(v); };
  return {.beta1 = f(step.beta1),
          .one_minus_beta1 = f(1 - step.beta1),
          .beta2 = f(step.beta2),
          .one_minus_beta2 = f(1 - step.beta2),
          .decay_rate = f(step.lr * step.weight_decay),
          .step_size = f(step.lr / (1 - std::pow(step.beta1, t))),
          .inv_sqrt_correction2 = f(1 / std::sqrt(1 - std::pow(step.beta2, t))),
          .epsilon = f(step.epsilon),
          .grad_scale = f(step.grad_scale),
          .zero_grad = step.zero_grad};
}

// The part [first, first + count) of one span.
template <Isa kLevel>
void update(const AdamwSpan& s, const AdamwScalars& scalars, std::int64_t first, std::int64_t count) {
  float *w = s.master.as<float>() + first, *m = s.m.as<float>() + first, *v = s.v.as<float>() + first;
  float* g = s.grad.as<float>() + first;
  if (s.compute.defined() && s.compute.dtype == DType::bf16)
    inner_of<bf16>(kLevel).adamw(w, m, v, g, s.compute.as<bf16>() + first, scalars, count);
  else
    inner_of<float>(kLevel).adamw(w, m, v, g, s.compute.defined() ? s.compute.as<float>() + first : nullptr, scalars,
                                  count);
}

template <Isa kLevel> void step(const Stream&, std::span<const AdamwSpan> spans, const AdamwStep& options) {
  const AdamwScalars scalars = scalars_of(options);
  std::int64_t total = 0;
  for (const AdamwSpan& s : spans) total += s.master.rows();
  // All spans seen as one line of `total` elements; a thread's share may begin and end inside a span.
  parallel_shares(total, 64, total, [&](std::int64_t first, std::int64_t count) {
    std::int64_t begin = 0;
    for (const AdamwSpan& s : spans) {
      const std::int64_t size = s.master.rows();
      const std::int64_t from = std::max(first, begin), to = std::min(first + count, begin + size);
      if (from < to) update<kLevel>(s, scalars, from - begin, to - from);
      begin += size;
    }
  });
}

}  // namespace

AdamwTable cpu_adamw(Isa level) {
  return for_level(level, []<Isa kLevel>() { return AdamwTable{.step = step<kLevel>}; });
}

}  // namespace mmt::cpu
