#include "tests/kernels/support.h"

#include <omp.h>
#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <random>

namespace mmt::test {
namespace {

Tensor strided(const Tensor& memory, std::vector<std::int64_t> shape) {
  Tensor t(memory.data, memory.dtype, shape);
  t.row_stride = memory.dims[1];
  return t;
}

template <class F> void each_element(const Tensor& t, F&& f) {
  std::size_t i = 0;
  for (std::int64_t r = 0; r < t.rows(); ++r)
    for (std::int64_t c = 0; c < t.cols(); ++c) f(r, c, i++);
}

double element(const Tensor& t, std::int64_t r, std::int64_t c) {
  if (t.dtype == DType::i32) return t.row<std::int32_t>(r)[c];
  return visit_float(t.dtype, [&]<class T>() { return static_cast<double>(t.row<T>(r)[c]); });
}

void set_element(const Tensor& t, std::int64_t r, std::int64_t c, double value) {
  if (t.dtype == DType::i32)
    t.row<std::int32_t>(r)[c] = static_cast<std::int32_t>(value);
  else
    visit_float(t.dtype, [&]<class T>() { t.row<T>(r)[c] = T(value); });
}

// Largest violation of the bound, as |error| / allowed; NaN on one side only counts as infinite.
double worst(const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& bound,
             std::size_t* where) {
  const double factor = unit(actual.dtype);
  double result = 0;
  each_element(actual, [&](std::int64_t r, std::int64_t c, std::size_t i) {
    const double a = element(actual, r, c), e = expected[i];
    if ((std::isnan(a) && std::isnan(e)) || a == e) return;
    const double allowed = factor * std::abs(e) + (bound.size() == 1 ? bound[0] : bound[i]);
    double ratio = std::abs(a - e) / allowed;
    if (std::isnan(ratio)) ratio = INFINITY;
    if (ratio > result) {
      result = ratio;
      *where = i;
    }
  });
  return result;
}

}  // namespace

std::vector<Backend> fast_backends() {
  std::vector<Backend> list;
  for (const Isa level : kIsas)
    if (isa_available(level)) list.push_back({std::string(name_of(level)), {{}, &cpu_kernels(level), nullptr}});
  return list;
}

std::vector<Backend> backends() {
  std::vector<Backend> list = fast_backends();
  list.insert(list.begin(), {"reference", reference_stream()});
  return list;
}

Matrix empty(DType dtype, std::vector<std::int64_t> shape, std::int64_t pad) {
  Matrix m;
  std::int64_t cols = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) cols *= shape[i];
  m.memory = OwnedTensor(dtype, {shape[0], cols + pad});
  m.view = strided(m.memory, shape);
  return m;
}

Matrix random(DType dtype, std::vector<std::int64_t> shape, int seed, double scale, std::int64_t pad) {
  Matrix m = empty(dtype, shape, pad);
  std::mt19937 engine(static_cast<unsigned>(seed));
  std::normal_distribution<double> normal;
  each_element(m.view,
               [&](std::int64_t r, std::int64_t c, std::size_t) { set_element(m.view, r, c, scale * normal(engine)); });
  return m;
}

Matrix of(DType dtype, std::vector<std::int64_t> shape, const std::vector<double>& list) {
  Matrix m = empty(dtype, shape);
  REQUIRE(static_cast<std::size_t>(m.view.numel()) == list.size());
  assign(m.view, list);
  return m;
}

Matrix integers(const std::vector<int>& list) {
  Matrix m = empty(DType::i32, {static_cast<std::int64_t>(list.size())});
  each_element(m.view, [&](std::int64_t r, std::int64_t, std::size_t i) { m.view.row<std::int32_t>(r)[0] = list[i]; });
  return m;
}

std::vector<double> values(const Tensor& t) {
  std::vector<double> list(static_cast<std::size_t>(t.numel()));
  each_element(t, [&](std::int64_t r, std::int64_t c, std::size_t i) { list[i] = element(t, r, c); });
  return list;
}

void assign(const Tensor& t, const std::vector<double>& list) {
  each_element(t, [&](std::int64_t r, std::int64_t c, std::size_t i) { set_element(t, r, c, list[i]); });
}

Matrix copy_of(const Tensor& t) {
  Matrix m = empty(t.dtype, std::vector<std::int64_t>(t.shape().begin(), t.shape().end()));
  for (std::int64_t r = 0; r < t.rows(); ++r)
    std::memcpy(static_cast<char*>(m.view.data) + r * m.view.row_stride * size_of(t.dtype),
                static_cast<const char*>(t.data) + r * t.row_stride * size_of(t.dtype),
                static_cast<std::size_t>(t.cols() * size_of(t.dtype)));
  return m;
}

double unit(DType dtype) { return std::ldexp(1.0, dtype == DType::bf16 ? -8 : dtype == DType::f64 ? -53 : -24); }

bool is_close(const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& bound) {
  std::size_t where = 0;
  return worst(actual, expected, bound, &where) <= 1;
}

void require_close(const Tensor& actual, const std::vector<double>& expected, const std::vector<double>& bound,
                   const std::string& what) {
  REQUIRE(static_cast<std::size_t>(actual.numel()) == expected.size());
  std::size_t where = 0;
  const double ratio = worst(actual, expected, bound, &where);
  if (ratio <= 1) {
    // The bound must be able to fail: the same values wrong by a few bf16 or f32 units do not pass.
    std::vector<double> wrong = expected;
    double largest = 0;
    for (double& v : wrong) {
      if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
      v *= actual.dtype == DType::bf16 ? 1 + std::ldexp(1.0, -5) : 1 + std::ldexp(1.0, -10);
    }
    INFO(what << ": a bound that nothing violates");
    REQUIRE((largest < 1e-3 || expected.size() < 16 || worst(actual, wrong, bound, &where) > 1));
    return;
  }
  FAIL(what << ": element " << where << " of " << actual.describe() << " is " << values(actual)[where] << ", expected "
            << expected[where] << ", " << ratio << " times the bound");
}

void require_bitwise(const Tensor& a, const Tensor& b, const std::string& what) {
  const Matrix x = copy_of(a), y = copy_of(b);
  REQUIRE(x->bytes() == y->bytes());
  INFO(what);
  REQUIRE((x->bytes() == 0 || std::memcmp(x->data, y->data, static_cast<std::size_t>(x->bytes())) == 0));
}

void require_gradient(const std::function<double()>& loss, const Tensor& x, const Tensor& gradient,
                      const std::string& what) {
  constexpr double h = 1e-5;
  const std::vector<double> g = values(gradient);
  double norm = 0;
  for (const double v : g) norm = std::max(norm, std::abs(v));
  double worst = 0;  // as a share of the bound
  each_element(x, [&](std::int64_t r, std::int64_t c, std::size_t i) {
    double& element = x.row<double>(r)[c];
    const double before = element;
    element = before + h;
    const double above = loss();
    element = before - h;
    const double below = loss();
    element = before;
    const double difference = (above - below) / (2 * h);
    const double share = std::abs(difference - g[i]) / (1e-7 * (1 + norm));
    if (!(share <= 1))
      FAIL(what << ": element " << i << " of " << x.describe() << ": gradient " << g[i] << ", differences "
                << difference);
    worst = std::max(worst, share);
  });
  REQUIRE(worst <= 1);
}

void require_thread_independent(const std::function<void()>& f, const std::vector<Tensor>& out,
                                const std::string& what) {
  const int before = omp_get_max_threads();
  std::vector<Matrix> first;
  for (const int threads : {1, 2, 3, 5}) {
    omp_set_num_threads(threads);
    f();
    if (threads == 1)
      for (const Tensor& t : out) first.push_back(copy_of(t));
    else
      for (std::size_t i = 0; i < out.size(); ++i)
        require_bitwise(out[i], first[i], what + " with " + std::to_string(threads) + " threads");
  }
  omp_set_num_threads(before);
}

double dot(const Tensor& r, const Tensor& y) {
  const std::vector<double> a = values(r), b = values(y);
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace mmt::test
