// Pointwise activations and the gated one of Llama-like MLPs.
#pragma once

#include "core/stream.h"

namespace mmt {

enum class Activation : std::uint8_t {
  gelu_erf,    ///< x Phi(x), Phi the normal distribution function (Hugging Face "gelu")
  gelu_tanh,   ///< 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) ("gelu_pytorch_tanh", "gelu_new")
  gelu_quick,  ///< x sigmoid(1.702 x) (CLIP's "quick_gelu")
  silu,        ///< x sigmoid(x)
};

struct ActivationTable {
  void (*forward)(const Stream&, const Tensor& y, const Tensor& x, Activation) = nullptr;
  void (*backward)(const Stream&, const Tensor& dx, const Tensor& dy, const Tensor& x, Activation) = nullptr;
  void (*swiglu_forward)(const Stream&, const Tensor& y, const Tensor& gate, const Tensor& up) = nullptr;
  void (*swiglu_backward)(const Stream&, const Tensor& dgate, const Tensor& dup, const Tensor& dy, const Tensor& gate,
                          const Tensor& up) = nullptr;
};

namespace ops {

/// y = act(x), elementwise over (rows, cols), row strides allowed. y may be x. Large finite |x| gives x or -0; -inf
/// gives NaN (-inf * 0), as the formulas do.
void activation_forward(const Stream& stream, const Tensor& y, const Tensor& x, Activation activation);
/// dx = dy * act'(x). dx may be dy or x.
void activation_backward(const Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                         Activation activation);

/// y = silu(gate) * up (Shazeer 2020). gate and up are (rows, cols) each: two tensors, or two column ranges of one.
/// y may be gate or up.
void swiglu_forward(const Stream& stream, const Tensor& y, const Tensor& gate, const Tensor& up);
/// dgate = dy * up * silu'(gate), dup = dy * silu(gate). dgate and dup may be dy, gate or up (not each other).
void swiglu_backward(const Stream& stream, const Tensor& dgate, const Tensor& dup, const Tensor& dy, const Tensor& gate,
                     const Tensor& up);

}  // namespace ops
}  // namespace mmt
