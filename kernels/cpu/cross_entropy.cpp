// The fast cross-entropy: one row at a time per thread, so that its passes run out of the cache.
#include "kernels/cpu/driver.h"
#include "kernels/cpu/index_check.h"
#include "kernels/cpu/tables.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace mmt::cpu {
namespace {

constexpr std::int64_t kAnyNegative = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kWeight = 10;  // exp beside moving an element

// One row of dlogits: weight * (exp(x - lse) - onehot). In place, the label's logit must be read by the caller before.
template <Isa kLevel, class T> void gradient_row(const Tensor& dlogits, std::int64_t r, const T* x, std::int64_t label,
                                                 float label_logit, float weight, float lse) {
  const std::int64_t n = dlogits.cols();
  const Inner<T>& inner = inner_of<T>(kLevel);
  const float at_label = weight * (std::exp(label_logit - lse) - 1.0f);
  const bool here = label >= 0 && label < n;
  if (dlogits.dtype == DType::f32) {
    float* d = dlogits.row<float>(r);
    inner.softmax_gradient_f32(d, x, weight, lse, n);
    if (here) d[label] = at_label;
  } else {
    bf16* d = dlogits.row<bf16>(r);
    inner.softmax_gradient_bf16(d, x, weight, lse, n);
    if (here) d[label] = bf16(at_label);
  }
}

void zero_row(const Tensor& t, std::int64_t r) {
  std::memset(static_cast<char*>(t.data) + r * t.row_stride * size_of(t.dtype), 0,
              static_cast<std::size_t>(t.cols() * size_of(t.dtype)));
}

template <Isa kLevel> struct CrossEntropy {
  static void cross_entropy(const Stream&, const Tensor& loss, const Tensor& dlogits, const Tensor& logits,
                            const Tensor& labels, const Tensor& weight) {
    check_indices(labels, kAnyNegative, logits.cols(), "cross_entropy: labels");
    const auto* label_of = labels.as<std::int32_t>();
    float* out = loss.as<float>();
    const float* weights = dlogits.defined() ? weight.as<float>() : nullptr;
    visit_fast(logits.dtype, [&]<class T>() {
      parallel_shares(logits.rows(), 1, kWeight * logits.numel(), [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t r = first; r < first + count; ++r) {
          const std::int32_t label = label_of[r];
          if (label < 0) {
            out[r] = 0;
            if (weights) zero_row(dlogits, r);
            continue;
          }
          const T* x = logits.row<T>(r);
          const RowStats stats = inner_of<T>(kLevel).softmax_stats(x, logits.cols());
          const float lse = stats.maximum + std::log(stats.sum), logit = x[label];
          // Small losses come from two large numbers: subtract the maximum before the logarithm is added.
          out[r] = (stats.maximum - logit) + std::log(stats.sum);
          if (weights) gradient_row<kLevel>(dlogits, r, x, label, logit, weights[r], lse);
        }
      });
    });
  }

  static void stats(const Stream&, const Tensor& out, const Tensor& logits, const Tensor& labels,
                    std::int32_t first_id) {
    const auto* label_of = labels.as<std::int32_t>();
    visit_fast(logits.dtype, [&]<class T>() {
      parallel_shares(logits.rows(), 1, kWeight * logits.numel(), [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t r = first; r < first + count; ++r) {
          const std::int64_t label = std::int64_t{label_of[r]} - first_id;
          const T* x = logits.row<T>(r);
          const RowStats stats = inner_of<T>(kLevel).softmax_stats(x, logits.cols());
          float* o = out.row<float>(r);
          o[0] = stats.maximum;
          o[1] = stats.sum;
          o[2] = label >= 0 && label < logits.cols() ? static_cast<float>(x[label]) : 0.0f;
        }
      });
    });
  }

  static void gradient(const Stream&, const Tensor& dlogits, const Tensor& logits, const Tensor& labels,
                       const Tensor& weight, const Tensor& lse, std::int32_t first_id) {
    const auto* label_of = labels.as<std::int32_t>();
    const float *weights = weight.as<float>(), *sums = lse.as<float>();
    visit_fast(logits.dtype, [&]<class T>() {
      parallel_shares(logits.rows(), 1, kWeight * logits.numel(), [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t r = first; r < first + count; ++r) {
          if (label_of[r] < 0) {
            zero_row(dlogits, r);
            continue;
          }
          const std::int64_t label = std::int64_t{label_of[r]} - first_id;
          const T* x = logits.row<T>(r);
          const float logit = label >= 0 && label < logits.cols() ? static_cast<float>(x[label]) : 0.0f;
          gradient_row<kLevel>(dlogits, r, x, label, logit, weights[r], sums[r]);
        }
      });
    });
  }

  static void argmax(const Stream&, const Tensor& index, const Tensor& x) {
    auto* out = index.as<std::int32_t>();
    visit_fast(x.dtype, [&]<class T>() {
      parallel_shares(x.rows(), 1, x.numel(), [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t r = first; r < first + count; ++r)
          out[r] = static_cast<std::int32_t>(inner_of<T>(kLevel).argmax(x.row<T>(r), x.cols()));
      });
    });
  }
};

}  // namespace

CrossEntropyTable cpu_cross_entropy(Isa level) {
  return for_level(level, []<Isa kLevel>() {
    using C = CrossEntropy<kLevel>;
    return CrossEntropyTable{
        .cross_entropy = C::cross_entropy, .stats = C::stats, .gradient = C::gradient, .argmax = C::argmax};
  });
}

}  // namespace mmt::cpu
