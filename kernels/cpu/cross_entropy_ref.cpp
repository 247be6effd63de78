#include "kernels/cpu/index_check.h"
#include "kernels/cpu/master.h"
#include "kernels/cpu/tables.h"

#include <cmath>
#include <limits>

namespace mmt::cpu {
namespace {

constexpr std::int64_t kAnyNegative = std::numeric_limits<std::int32_t>::min();

struct RowStats {
  double maximum, sum;
};

template <class T> RowStats row_stats(const T* x, std::int64_t n) {
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::int64_t j = 0; j < n; ++j) maximum = std::max(maximum, static_cast<double>(x[j]));
  for (std::int64_t j = 0; j < n; ++j) sum += std::exp(static_cast<double>(x[j]) - maximum);
  return {maximum, sum};
}

// d may be x itself: one element is read before it is written.
template <class T, class D>
void row_gradient(D* d, const T* x, std::int64_t n, std::int64_t label, double weight, double lse) {
  for (std::int64_t j = 0; j < n; ++j) {
    const double p = std::exp(static_cast<double>(x[j]) - lse);
    d[j] = D(weight * (p - (j == label ? 1.0 : 0.0)));
  }
}

template <class D> void zero_row(D* d, std::int64_t n) {
  for (std::int64_t j = 0; j < n; ++j) d[j] = D(0.0);
}

void cross_entropy(const Stream&, const Tensor& loss, const Tensor& dlogits, const Tensor& logits, const Tensor& labels,
                   const Tensor& weight) {
  const std::int64_t n = logits.cols();
  check_indices(labels, kAnyNegative, n, "cross_entropy: labels");
  visit_float(logits.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < logits.rows(); ++i) {
      const std::int64_t label = labels.as<std::int32_t>()[i];
      const T* x = logits.row<T>(i);
      const RowStats stats = label < 0 ? RowStats{} : row_stats(x, n);
      const double lse = stats.maximum + std::log(stats.sum);
      loss.as<Master<T>>()[i] = label < 0 ? Master<T>(0) : static_cast<Master<T>>(lse - static_cast<double>(x[label]));
      if (!dlogits.defined()) continue;
      visit_float(dlogits.dtype, [&]<class D>() {
        if (label < 0)
          zero_row(dlogits.row<D>(i), n);
        else
          row_gradient(dlogits.row<D>(i), x, n, label, static_cast<double>(weight.as<Master<T>>()[i]), lse);
      });
    }
  });
}

void stats(const Stream&, const Tensor& out, const Tensor& logits, const Tensor& labels, std::int32_t first) {
  visit_float(logits.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < logits.rows(); ++i) {
      const std::int64_t label = std::int64_t{labels.as<std::int32_t>()[i]} - first;
      const T* x = logits.row<T>(i);
      const RowStats s = row_stats(x, logits.cols());
      auto* o = out.row<Master<T>>(i);
      o[0] = static_cast<Master<T>>(s.maximum);
      o[1] = static_cast<Master<T>>(s.sum);
      o[2] = label >= 0 && label < logits.cols() ? static_cast<Master<T>>(x[label]) : Master<T>(0);
    }
  });
}

void combine(const Stream&, const Tensor& loss, const Tensor& lse, const Tensor& predicted, const Tensor& stats,
             const Tensor& largest, const Tensor& labels) {
  const std::int64_t rows = labels.rows(), parts = rows == 0 ? 0 : stats.rows() / rows;
  visit_float(stats.dtype, [&]<class T>() {
    for (std::int64_t r = 0; r < rows; ++r) {
      double maximum = -std::numeric_limits<double>::infinity(), sum = 0, logit = 0;
      std::int64_t best = 0;
      for (std::int64_t p = 0; p < parts; ++p) {
        const double m = static_cast<double>(stats.row<T>(p * rows + r)[0]);
        if (m > static_cast<double>(stats.row<T>(best * rows + r)[0])) best = p;
        maximum = std::max(maximum, m);
      }
      for (std::int64_t p = 0; p < parts; ++p) {
        const T* s = stats.row<T>(p * rows + r);
        // A shard without a possible class has no sum.
        if (static_cast<double>(s[0]) != -std::numeric_limits<double>::infinity())
          sum += static_cast<double>(s[1]) * std::exp(static_cast<double>(s[0]) - maximum);
        logit += static_cast<double>(s[2]);
      }
      const bool supervised = labels.as<std::int32_t>()[r] >= 0;
      loss.as<T>()[r] = supervised ? static_cast<T>((maximum - logit) + std::log(sum)) : T(0.0);
      lse.as<T>()[r] = static_cast<T>(maximum + std::log(sum));
      if (predicted.defined()) predicted.as<std::int32_t>()[r] = largest.as<std::int32_t>()[best * rows + r];
    }
  });
}

void gradient(const Stream&, const Tensor& dlogits, const Tensor& logits, const Tensor& labels, const Tensor& weight,
              const Tensor& lse, std::int32_t first) {
  visit_float(logits.dtype, [&]<class T>() {
    visit_float(dlogits.dtype, [&]<class D>() {
      for (std::int64_t i = 0; i < logits.rows(); ++i) {
        const std::int64_t label = labels.as<std::int32_t>()[i];
        if (label < 0)
          zero_row(dlogits.row<D>(i), logits.cols());
        else
          row_gradient(dlogits.row<D>(i), logits.row<T>(i), logits.cols(), label - first,
                       static_cast<double>(weight.as<Master<T>>()[i]), static_cast<double>(lse.as<Master<T>>()[i]));
      }
    });
  });
}

void argmax(const Stream&, const Tensor& index, const Tensor& x, std::int32_t first) {
  visit_float(x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < x.rows(); ++i) {
      const T* row = x.row<T>(i);
      std::int64_t best = 0;
      for (std::int64_t j = 1; j < x.cols(); ++j)
        if (row[j] > row[best] ||
            (std::isnan(static_cast<double>(row[best])) && !std::isnan(static_cast<double>(row[j]))))
          best = j;
      index.as<std::int32_t>()[i] =
          first + (std::isnan(static_cast<double>(row[best])) ? 0 : static_cast<std::int32_t>(best));
    }
  });
}

}  // namespace

CrossEntropyTable reference_cross_entropy() {
  return {.cross_entropy = cross_entropy, .stats = stats, .gradient = gradient, .combine = combine, .argmax = argmax};
}

}  // namespace mmt::cpu
