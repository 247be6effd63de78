#include "kernels/norm.h"

#include "kernels/dispatch.h"

namespace mmt::ops {
namespace {

struct Shape {
  std::int64_t vectors, features;
};

// x as (rows, features) or (rows, heads, features).
Shape check_vectors(const Stream& stream, const Tensor& x, const char* what) {
  check_compute(stream, x, what);
  MMT_CHECK(x.rank == 2 || x.rank == 3, "{} is {}, expected rank 2 or 3", what, x.describe());
  const Shape shape{x.rank == 2 ? x.dims[0] : x.dims[0] * x.dims[1], x.dims[static_cast<std::size_t>(x.rank - 1)]};
  MMT_CHECK(shape.features > 0, "{} is {}: no features", what, x.describe());
  return shape;
}

void check_same(const Tensor& t, const Tensor& x, const char* what) {
  MMT_CHECK(t.dtype == x.dtype && t.device == x.device, "{} is {} beside {}", what, t.describe(), x.describe());
  check_same_shape(t, x, what);
}

}  // namespace

void rms_norm_forward(const Stream& stream, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w,
                      double epsilon) {
  const Shape shape = check_vectors(stream, x, "rms_norm: x");
  check_same(y, x, "rms_norm: y");
  check_vector(stream, w, shape.features, x.dtype, "rms_norm: w");
  if (rstd.defined()) check_vector(stream, rstd, shape.vectors, master_of(x.dtype), "rms_norm: rstd");
  table_for(stream, x.dtype).norm.rms_norm_forward(stream, y, rstd, x, w, epsilon);
}

void rms_norm_backward_input(const Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                             const Tensor& rstd, const Tensor& w, Accumulate accumulate) {
  const Shape shape = check_vectors(stream, x, "rms_norm: x");
  check_same(dx, x, "rms_norm: dx");
  check_same(dy, x, "rms_norm: dy");
  check_vector(stream, rstd, shape.vectors, master_of(x.dtype), "rms_norm: rstd");
  check_vector(stream, w, shape.features, x.dtype, "rms_norm: w");
  table_for(stream, x.dtype).norm.rms_norm_backward_input(stream, dx, dy, x, rstd, w, accumulate);
}

void rms_norm_backward_weight(const Stream& stream, const Tensor& dw, const Tensor& dy, const Tensor& x,
                              const Tensor& rstd, Accumulate accumulate) {
  const Shape shape = check_vectors(stream, x, "rms_norm: x");
  check_same(dy, x, "rms_norm: dy");
  check_vector(stream, dw, shape.features, master_of(x.dtype), "rms_norm: dw");
  check_vector(stream, rstd, shape.vectors, master_of(x.dtype), "rms_norm: rstd");
  table_for(stream, x.dtype).norm.rms_norm_backward_weight(stream, dw, dy, x, rstd, accumulate);
}

void layer_norm_forward(const Stream& stream, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                        const Tensor& w, const Tensor& b, double epsilon) {
  const Shape shape = check_vectors(stream, x, "layer_norm: x");
  check_same(y, x, "layer_norm: y");
  check_vector(stream, w, shape.features, x.dtype, "layer_norm: w");
  if (b.defined()) check_vector(stream, b, shape.features, x.dtype, "layer_norm: b");
  MMT_CHECK(mean.defined() == rstd.defined(), "layer_norm: mean {}, rstd {}: both or none", mean.describe(),
            rstd.describe());
  if (rstd.defined()) {
    check_vector(stream, mean, shape.vectors, master_of(x.dtype), "layer_norm: mean");
    check_vector(stream, rstd, shape.vectors, master_of(x.dtype), "layer_norm: rstd");
  }
  table_for(stream, x.dtype).norm.layer_norm_forward(stream, y, mean, rstd, x, w, b, epsilon);
}

void layer_norm_backward_input(const Stream& stream, const Tensor& dx, const Tensor& dy, const Tensor& x,
                               const Tensor& mean, const Tensor& rstd, const Tensor& w, Accumulate accumulate) {
  const Shape shape = check_vectors(stream, x, "layer_norm: x");
  check_same(dx, x, "layer_norm: dx");
  check_same(dy, x, "layer_norm: dy");
  check_vector(stream, mean, shape.vectors, master_of(x.dtype), "layer_norm: mean");
  check_vector(stream, rstd, shape.vectors, master_of(x.dtype), "layer_norm: rstd");
  check_vector(stream, w, shape.features, x.dtype, "layer_norm: w");
  table_for(stream, x.dtype).norm.layer_norm_backward_input(stream, dx, dy, x, mean, rstd, w, accumulate);
}

void layer_norm_backward_weight(const Stream& stream, const Tensor& dw, const Tensor& db, const Tensor& dy,
                                const Tensor& x, const Tensor& mean, const Tensor& rstd, Accumulate accumulate) {
  const Shape shape = check_vectors(stream, x, "layer_norm: x");
  check_same(dy, x, "layer_norm: dy");
  if (dw.defined()) check_vector(stream, dw, shape.features, master_of(x.dtype), "layer_norm: dw");
  if (db.defined()) check_vector(stream, db, shape.features, master_of(x.dtype), "layer_norm: db");
  check_vector(stream, mean, shape.vectors, master_of(x.dtype), "layer_norm: mean");
  check_vector(stream, rstd, shape.vectors, master_of(x.dtype), "layer_norm: rstd");
  table_for(stream, x.dtype).norm.layer_norm_backward_weight(stream, dw, db, dy, x, mean, rstd, accumulate);
}

}  // namespace mmt::ops
