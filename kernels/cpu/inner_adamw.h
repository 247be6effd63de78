#pragma once

#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec.h"

namespace mmt::cpu::MMT_VEC_NS {

template <class T>
void adamw(float* master, float* m, float* v, float* grad, T* compute, const AdamwScalars& s, std::int64_t count) {
  each_vector(count, [&](std::int64_t j, int n) {
    const F g = load_at(grad + j, n) * s.grad_scale;
    const F first = s.beta1 * load_at(m + j, n) + s.one_minus_beta1 * g;
    const F second = s.beta2 * load_at(v + j, n) + s.one_minus_beta2 * (g * g);
    // One subtraction: a factor 1 - lr * decay, rounded to f32, would be wrong by percents of the decay at small lr.
    const F before = load_at(master + j, n);
    const F w =
        before - (s.decay_rate * before + s.step_size * first / (sqrt(second) * s.inv_sqrt_correction2 + s.epsilon));
    store_at(m + j, first, n);
    store_at(v + j, second, n);
    store_at(master + j, w, n);
    if (compute) store_exactly(compute + j, w, n);
    if (s.zero_grad) store_at(grad + j, F{}, n);
  });
}

}  // namespace mmt::cpu::MMT_VEC_NS
