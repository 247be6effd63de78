// The fast reductions: at most kBlocks partial results, cut by the element count alone, added in order.
#include "kernels/cpu/driver.h"
#include "kernels/cpu/tables.h"

#include <array>
#include <cmath>

namespace mmt::cpu {
namespace {

constexpr std::int64_t kBlocks = 256, kSmallestBlock = 1024;

// Folds the results of f(pointer, count) over the blocks of x.
template <class T, class F, class Combine> double fold(const Tensor& x, F&& f, Combine&& combine) {
  const T* values = x.as<T>();
  const std::int64_t n = x.numel();
  const std::int64_t share = (n + kBlocks - 1) / kBlocks;
  const std::int64_t block = (share + kSmallestBlock - 1) / kSmallestBlock * kSmallestBlock;
  const std::int64_t blocks = n == 0 ? 0 : (n + block - 1) / block;
  std::array<double, kBlocks> partial{};
  parallel_shares(blocks, 1, n, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t b = first; b < first + count; ++b)
      partial[static_cast<std::size_t>(b)] = f(values + b * block, std::min(block, n - b * block));
  });
  double result = 0;
  for (std::int64_t b = 0; b < blocks; ++b) result = combine(result, partial[static_cast<std::size_t>(b)]);
  return result;
}

void write(const Tensor& out, double value, Accumulate accumulate) {
  double& result = *out.as<double>();
  result = accumulate == Accumulate::add ? result + value : value;
}

template <Isa kLevel> struct Reduce {
  static void sum_of_squares(const Stream&, const Tensor& out, const Tensor& x, Accumulate accumulate) {
    visit_fast(x.dtype, [&]<class T>() {
      write(out, fold<T>(x, inner_of<T>(kLevel).sum_of_squares, std::plus<double>{}), accumulate);
    });
  }
  static void sum(const Stream&, const Tensor& out, const Tensor& x, Accumulate accumulate) {
    visit_fast(x.dtype,
               [&]<class T>() { write(out, fold<T>(x, inner_of<T>(kLevel).sum, std::plus<double>{}), accumulate); });
  }
  static void max_abs(const Stream&, const Tensor& out, const Tensor& x) {
    visit_fast(x.dtype, [&]<class T>() {
      const auto larger = [](double a, double b) { return std::isnan(a) || b <= a ? a : b; };
      write(out, fold<T>(x, inner_of<T>(kLevel).max_abs, larger), Accumulate::overwrite);
    });
  }
};

}  // namespace

ReduceTable cpu_reduce(Isa level) {
  return for_level(level, []<Isa kLevel>() {
    using R = Reduce<kLevel>;
    return ReduceTable{.sum_of_squares = R::sum_of_squares, .sum = R::sum, .max_abs = R::max_abs};
  });
}

}  // namespace mmt::cpu
