// The fast cross-entropy: one row at a time per thread, so that its passes run out of the cache.
#include "kernels/cpu/driver.h"
#include "kernels/cpu/index_check.h"
#include "kernels/cpu/row_buffer.h"
#include "kernels/cpu/tables.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace mmt::cpu {
namespace {

constexpr std::int64_t kAnyNegative = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kWeight = 10;  // exp beside moving an element

void write_label(const Tensor& dlogits, std::int64_t r, std::int64_t label, float value) {
  if (label < 0 || label >= dlogits.cols()) return;
  if (dlogits.dtype == DType::f32)
    dlogits.row<float>(r)[label] = value;
  else
    dlogits.row<bf16>(r)[label] = bf16(value);
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
    const std::int64_t n = logits.cols();
    visit_fast(logits.dtype, [&]<class T>() {
      const Inner<T>& inner = inner_of<T>(kLevel);
      parallel_shares(logits.rows(), 1, kWeight * logits.numel(), [&](std::int64_t first, std::int64_t count) {
        const bool keeps_f32 = dlogits.defined() && dlogits.dtype == DType::f32;
        float* const buffer = weights && !keeps_f32 ? row_buffer(n) : nullptr;
        for (std::int64_t r = first; r < first + count; ++r) {
          const std::int32_t label = label_of[r];
          if (label < 0) {
            out[r] = 0;
            if (weights) zero_row(dlogits, r);
            continue;
          }
          const T *x = logits.row<T>(r), *next = r + 1 < first + count ? logits.row<T>(r + 1) : nullptr;
          const float logit = x[label];
          float* const terms = keeps_f32 ? dlogits.row<float>(r) : buffer;
          const RowStats stats = weights ? inner.softmax_terms(terms, x, next, n) : inner.softmax_stats(x, next, n);
          // Small losses come from two large numbers: subtract the maximum before the logarithm is added.
          out[r] = (stats.maximum - logit) + std::log(stats.sum);
          if (!weights) continue;
          const float factor = weights[r] / stats.sum;
          if (keeps_f32)
            inner_of<float>(kLevel).scale_terms(terms, terms, factor, n);
          else
            inner_of<bf16>(kLevel).scale_terms(dlogits.row<bf16>(r), terms, factor, n);
          const float lse = stats.maximum + std::log(stats.sum);
          write_label(dlogits, r, label, weights[r] * (std::exp(logit - lse) - 1.0f));
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
          const T* next = r + 1 < first + count ? logits.row<T>(r + 1) : nullptr;
          const RowStats stats = inner_of<T>(kLevel).softmax_stats(x, next, logits.cols());
          float* o = out.row<float>(r);
          o[0] = stats.maximum;
          o[1] = stats.sum;
          o[2] = label >= 0 && label < logits.cols() ? static_cast<float>(x[label]) : 0.0f;
        }
      });
    });
  }

  static void combine(const Stream&, const Tensor& loss, const Tensor& lse, const Tensor& predicted,
                      const Tensor& stats, const Tensor& largest, const Tensor& labels) {
    const std::int64_t rows = labels.rows(), parts = rows == 0 ? 0 : stats.rows() / rows;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto part = [&](std::int64_t p) { return stats.row<float>(p * rows + r); };
      std::int64_t best = 0;
      for (std::int64_t p = 1; p < parts; ++p)
        if (part(p)[0] > part(best)[0]) best = p;
      const float maximum = part(best)[0];
      float sum = 0, logit = 0;
      for (std::int64_t p = 0; p < parts; ++p) {
        // A shard without a possible class has no sum.
        if (part(p)[0] != -std::numeric_limits<float>::infinity()) sum += part(p)[1] * std::exp(part(p)[0] - maximum);
        logit += part(p)[2];
      }
      loss.as<float>()[r] = labels.as<std::int32_t>()[r] >= 0 ? (maximum - logit) + std::log(sum) : 0.0F;
      lse.as<float>()[r] = maximum + std::log(sum);
      if (predicted.defined()) predicted.as<std::int32_t>()[r] = largest.as<std::int32_t>()[best * rows + r];
    }
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
          if (dlogits.dtype == DType::f32)
            inner_of<T>(kLevel).softmax_gradient_f32(dlogits.row<float>(r), x, weights[r], sums[r], logits.cols());
          else
            inner_of<T>(kLevel).softmax_gradient_bf16(dlogits.row<bf16>(r), x, weights[r], sums[r], logits.cols());
          write_label(dlogits, r, label, weights[r] * (std::exp(logit - sums[r]) - 1.0f));
        }
      });
    });
  }

  static void argmax(const Stream&, const Tensor& index, const Tensor& x, std::int32_t first_id) {
    auto* out = index.as<std::int32_t>();
    visit_fast(x.dtype, [&]<class T>() {
      parallel_shares(x.rows(), 1, x.numel(), [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t r = first; r < first + count; ++r)
          out[r] = first_id + static_cast<std::int32_t>(inner_of<T>(kLevel).argmax(x.row<T>(r), x.cols()));
      });
    });
  }
};

}  // namespace

CrossEntropyTable cpu_cross_entropy(Isa level) {
  return for_level(level, []<Isa kLevel>() {
    using C = CrossEntropy<kLevel>;
    return CrossEntropyTable{.cross_entropy = C::cross_entropy,
                             .stats = C::stats,
                             .gradient = C::gradient,
                             .combine = C::combine,
                             .argmax = C::argmax};
  });
}

}  // namespace mmt::cpu
