// Fills the table of one instruction set. Included by cpu/inner_<isa>.cpp alone.
#pragma once

#include "kernels/cpu/inner_activation.h"
#include "kernels/cpu/inner_adamw.h"
#include "kernels/cpu/inner_conv.h"
#include "kernels/cpu/inner_cross_entropy.h"
#include "kernels/cpu/inner_dropout.h"
#include "kernels/cpu/inner_elementwise.h"
#include "kernels/cpu/inner_norm.h"
#include "kernels/cpu/inner_reduce.h"
#include "kernels/cpu/inner_rotary.h"

namespace mmt::cpu::MMT_VEC_NS {

template <class T> inline constexpr Inner<T> kInner = {
    .add = add<T, T, T>,
    .scale = scale<T>,
    .add_bias = add_bias<T>,
    .to_f32 = convert<float, T>,
    .from_f32 = convert<T, float>,
    .add_to_f32 = add<float, float, T>,
    .store_product = store_product<T>,
    .column_sums = column_sums<T>,
    .activate = activate<T>,
    .activate_backward = activate_backward<T>,
    .swiglu = swiglu<T>,
    .swiglu_backward = swiglu_backward<T>,
    .norm = norm<T>,
    .norm_backward_input = norm_backward_input<T>,
    .norm_backward_weight = norm_backward_weight<T>,
    .rotate = rotate<T>,
    .softmax_stats = softmax_stats<T>,
    .softmax_terms = softmax_terms<T>,
    .scale_terms = scale_terms<T>,
    .softmax_gradient_f32 = softmax_gradient<float, T>,
    .softmax_gradient_bf16 = softmax_gradient<bf16, T>,
    .argmax = argmax<T>,
    .interleave_taps = interleave_taps<T>,
    .sum_taps = sum_taps<T>,
    .dropout = dropout<T>,
    .adamw = adamw<T>,
    .sum = sum<T>,
    .sum_of_squares = sum_of_squares<T>,
    .max_abs = max_abs<T>,
};

inline constexpr InnerKernels kKernels = {
    .f32 = kInner<float>, .bf = kInner<bf16>, .common = {.rotary_table = rotary_table}};

}  // namespace mmt::cpu::MMT_VEC_NS
