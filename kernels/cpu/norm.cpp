// The fast norms: rows over the threads; weight gradients by columns, so that every sum runs over all rows in order.
#include "kernels/cpu/driver.h"
#include "kernels/cpu/row_buffer.h"
#include "kernels/cpu/tables.h"

namespace mmt::cpu {
namespace {

VectorShape vector_shape(const Tensor& x) {
  return x.rank == 3 ? VectorShape{x.dims[0], x.dims[1], x.dims[2]} : VectorShape{x.dims[0], 1, x.dims[1]};
}

float* values_or_null(const Tensor& t) { return t.defined() ? t.as<float>() : nullptr; }
float* at(float* p, std::int64_t offset) { return p ? p + offset : nullptr; }

// f(first row, the shape of this share's rows, its first vector)
template <class F> void each_share(const Tensor& x, F&& f) {
  const VectorShape shape = vector_shape(x);
  parallel_shares(shape.rows, 1, x.numel(), [&](std::int64_t first, std::int64_t count) {
    f(first, VectorShape{count, shape.heads, shape.features}, first * shape.heads);
  });
}

/// Weight and bias in f32, once for all rows: in place, or widened into the calling thread's buffer. Null when absent.
struct Affine {
  const float *w, *b;
};
template <Isa kLevel, class T> Affine affine_of(const Tensor& w, const Tensor& b) {
  if constexpr (std::is_same_v<T, float>) return {w.as<float>(), values_or_null(b)};
  const std::int64_t n = w.numel();
  float* const wide = row_buffer(2 * n);
  inner_of<T>(kLevel).to_f32({wide, n}, {w.as<T>(), n}, 1, n);
  if (b.defined()) inner_of<T>(kLevel).to_f32({wide + n, n}, {b.as<T>(), n}, 1, n);
  return {wide, b.defined() ? wide + n : nullptr};
}

template <Isa kLevel> struct Norm {
  static void forward(bool rms, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                      const Tensor& w, const Tensor& b, double epsilon) {
    visit_fast(x.dtype, [&]<class T>() {
      const auto py = rows_of<T>(y);
      const auto px = rows_of<const T>(x);
      const Affine affine = affine_of<kLevel, T>(w, b);
      float *pm = values_or_null(mean), *pr = values_or_null(rstd);
      each_share(x, [&](std::int64_t first, VectorShape shape, std::int64_t vector) {
        inner_of<T>(kLevel).norm(rms, advance(py, first, 0), at(pm, vector), at(pr, vector), advance(px, first, 0),
                                 affine.w, affine.b, static_cast<float>(epsilon), shape);
      });
    });
  }

  static void backward_input(const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& mean,
                             const Tensor& rstd, const Tensor& w, Accumulate accumulate) {
    visit_fast(x.dtype, [&]<class T>() {
      const auto pdx = rows_of<T>(dx);
      const auto pdy = rows_of<const T>(dy), px = rows_of<const T>(x);
      const Affine affine = affine_of<kLevel, T>(w, {});
      float *pm = values_or_null(mean), *pr = rstd.as<float>();
      each_share(x, [&](std::int64_t first, VectorShape shape, std::int64_t vector) {
        inner_of<T>(kLevel).norm_backward_input(advance(pdx, first, 0), advance(pdy, first, 0), advance(px, first, 0),
                                                at(pm, vector), at(pr, vector), affine.w, accumulate == Accumulate::add,
                                                shape);
      });
    });
  }

  static void backward_weight(const Tensor& dw, const Tensor& db, const Tensor& dy, const Tensor& x, const Tensor& mean,
                              const Tensor& rstd, Accumulate accumulate) {
    visit_fast(x.dtype, [&]<class T>() {
      const VectorShape shape = vector_shape(x);
      const auto pdy = rows_of<const T>(dy), px = rows_of<const T>(x);
      float *pdw = values_or_null(dw), *pdb = values_or_null(db), *pm = values_or_null(mean), *pr = rstd.as<float>();
      parallel_shares(shape.features, 32, x.numel(), [&](std::int64_t first, std::int64_t count) {
        inner_of<T>(kLevel).norm_backward_weight(pdw, pdb, pdy, px, pm, pr, accumulate == Accumulate::add, shape, first,
                                                 count);
      });
    });
  }
};

}  // namespace

NormTable cpu_norm(Isa level) {
  return for_level(level, []<Isa kLevel>() {
    using N = Norm<kLevel>;
    return NormTable{
        .rms_norm_forward = [](const Stream&, const Tensor& y, const Tensor& rstd, const Tensor& x, const Tensor& w,
                               double epsilon) { N::forward(true, y, {}, rstd, x, w, {}, epsilon); },
        .rms_norm_backward_input = [](const Stream&, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                      const Tensor& rstd, const Tensor& w,
                                      Accumulate a) { N::backward_input(dx, dy, x, {}, rstd, w, a); },
        .rms_norm_backward_weight = [](const Stream&, const Tensor& dw, const Tensor& dy, const Tensor& x,
                                       const Tensor& rstd,
                                       Accumulate a) { N::backward_weight(dw, {}, dy, x, {}, rstd, a); },
        .layer_norm_forward = [](const Stream&, const Tensor& y, const Tensor& mean, const Tensor& rstd,
                                 const Tensor& x, const Tensor& w, const Tensor& b,
                                 double epsilon) { N::forward(false, y, mean, rstd, x, w, b, epsilon); },
        .layer_norm_backward_input = [](const Stream&, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                        const Tensor& mean, const Tensor& rstd, const Tensor& w,
                                        Accumulate a) { N::backward_input(dx, dy, x, mean, rstd, w, a); },
        .layer_norm_backward_weight = [](const Stream&, const Tensor& dw, const Tensor& db, const Tensor& dy,
                                         const Tensor& x, const Tensor& mean, const Tensor& rstd,
                                         Accumulate a) { N::backward_weight(dw, db, dy, x, mean, rstd, a); },
    };
  });
}

}  // namespace mmt::cpu
