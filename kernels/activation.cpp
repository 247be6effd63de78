#include "kernels/activation.h"

#include "kernels/dispatch.h"

namespace mmt::ops {

void activation_forward(const Stream& stream, const Tensor& y, const Tensor& x, Activation activation) {
  check_compute(stream, x, "activation: x");
  check_like(y, x, "activation: y");
  table_for(stream, x.dtype).activation.forward(stream, y, x, activation);
}

void activation_backward(const Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                         Activation activation) {
  check_compute(stream, x, "activation: x");
  check_like(dx, x, "activation: dx");
  check_like(dy, x, "activation: dy");
  table_for(stream, x.dtype).activation.backward(stream, dx, dy, x, activation);
}

void swiglu_forward(const Stream& stream, const Tensor& y, const Tensor& gate, const Tensor& up) {
  check_compute(stream, gate, "swiglu: gate");
  check_like(up, gate, "swiglu: up");
  check_like(y, gate, "swiglu: y");
  table_for(stream, gate.dtype).activation.swiglu_forward(stream, y, gate, up);
}

void swiglu_backward(const Stream& stream, const Tensor& dgate, const Tensor& dup, const Tensor& dy, const Tensor& gate,
                     const Tensor& up) {
  check_compute(stream, gate, "swiglu: gate");
  check_like(up, gate, "swiglu: up");
  check_like(dy, gate, "swiglu: dy");
  check_like(dgate, gate, "swiglu: dgate");
  check_like(dup, gate, "swiglu: dup");
  table_for(stream, gate.dtype).activation.swiglu_backward(stream, dgate, dup, dy, gate, up);
}

}  // namespace mmt::ops
