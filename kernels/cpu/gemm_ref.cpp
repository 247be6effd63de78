#include "kernels/cpu/master.h"
#include "kernels/cpu/tables.h"

namespace mmt::cpu {
namespace {

template <class T, class C>
void gemm_rows(bool ta, bool tb, const Tensor& c, const Tensor& a, const Tensor& b, const GemmOptions& options) {
  const std::int64_t k = a.dims[ta ? 0 : 1];
  const std::int64_t a_row = ta ? 1 : a.row_stride, a_col = ta ? a.row_stride : 1;
  const std::int64_t b_row = tb ? 1 : b.row_stride, b_col = tb ? b.row_stride : 1;
  const T *pa = a.as<T>(), *pb = b.as<T>();
  for (std::int64_t i = 0; i < c.rows(); ++i) {
    C* out = c.row<C>(i);
    for (std::int64_t j = 0; j < c.cols(); ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        const double x = pa[i * a_row + l * a_col], y = pb[l * b_row + j * b_col];
        sum += x * y;
      }
      if (options.bias.defined()) sum += static_cast<double>(options.bias.as<T>()[j]);
      if (options.accumulate == Accumulate::add) sum += static_cast<double>(out[j]);
      out[j] = C(sum);
    }
  }
}

void gemm(const Stream&, Transpose ta, Transpose tb, const Tensor& c, const Tensor& a, const Tensor& b,
          const GemmOptions& options) {
  visit_float(a.dtype, [&]<class T>() {
    const bool t = ta == Transpose::yes, u = tb == Transpose::yes;
    if (c.dtype == a.dtype)
      gemm_rows<T, T>(t, u, c, a, b, options);
    else
      gemm_rows<T, float>(t, u, c, a, b, options);
  });
}

void backward_bias(const Stream&, const Tensor& db, const Tensor& dy, Accumulate accumulate) {
  visit_float(dy.dtype, [&]<class T>() {
    auto* out = db.as<Master<T>>();
    for (std::int64_t j = 0; j < dy.cols(); ++j) {
      double sum = accumulate == Accumulate::add ? static_cast<double>(out[j]) : 0.0;
      for (std::int64_t i = 0; i < dy.rows(); ++i) sum += static_cast<double>(dy.row<T>(i)[j]);
      out[j] = static_cast<Master<T>>(sum);
    }
  });
}

}  // namespace

GemmTable reference_gemm() { return {.gemm = gemm}; }
LinearTable reference_linear() { return {.backward_bias = backward_bias}; }

}  // namespace mmt::cpu
