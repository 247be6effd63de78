// One test body for every backend: the scalar reference and the fast CPU kernels at each level that this process runs.
#pragma once

#include "kernels/backend.h"

#include "core/arena.h"

#include <functional>
#include <string>
#include <vector>

namespace mmt::test {

struct Backend {
  std::string name;
  Stream stream;
};

std::vector<Backend> backends();       ///< reference first
std::vector<Backend> fast_backends();  ///< without it

inline constexpr DType kFastDTypes[] = {DType::f32, DType::bf16};

/// A tensor with memory of its own: contiguous, or rows `pad` elements apart (the gap and the rest stay poisoned).
struct Matrix {
  OwnedTensor memory;
  Tensor view;
  operator const Tensor&() const { return view; }
  const Tensor* operator->() const { return &view; }
};

Matrix empty(DType dtype, std::vector<std::int64_t> shape, std::int64_t pad = 0);
/// Normal values times `scale` from a fixed stream of `seed`, rounded to the dtype.
Matrix random(DType dtype, std::vector<std::int64_t> shape, int seed, double scale = 1.0, std::int64_t pad = 0);
Matrix of(DType dtype, std::vector<std::int64_t> shape, const std::vector<double>& values);
Matrix integers(const std::vector<int>& values);

std::vector<double> values(const Tensor& t);  ///< row by row, without the gaps
void assign(const Tensor& t, const std::vector<double>& values);
Matrix copy_of(const Tensor& t);  ///< same values, same padding not kept

/// Unit round-off of a dtype: half a unit in the last place.
double unit(DType dtype);

/// |actual - expected| <= unit(dtype) * |expected| + bound[i] for every element (a bound of one element serves all):
/// the one rounding at the output, and what the op's f32 arithmetic may lose. Reports the worst element.
void require_close(const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& bound,
                   const std::string& what);
/// Whether require_close would hold.
bool is_close(const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& bound);
/// All values finite and unequal to poison: every element was written.
void require_bitwise(const Tensor& a, const Tensor& b, const std::string& what);

/// Central differences of `loss` in every element of the f64 tensor `x` against `gradient`. Step h = 1e-5 leaves
/// h^2 f''' / 6 and eps |loss| / h: with values of order 1 and sums of some hundred terms both stay below 1e-8.
void require_gradient(const std::function<double()>& loss, const Tensor& x, const Tensor& gradient,
                      const std::string& what);

/// Runs `f` with 1 and with several threads and wants the same bits in `out`.
void require_thread_independent(const std::function<void()>& f, const std::vector<Tensor>& out,
                                const std::string& what);

/// sum of r * y: a scalar loss whose gradient in y is r.
double dot(const Tensor& r, const Tensor& y);

}  // namespace mmt::test
