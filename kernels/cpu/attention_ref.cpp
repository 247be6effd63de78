// Attention by the formula: one (head, query, key) at a time, the mask's predicate for every pair, sums in double.
#include "kernels/attention.h"
#include "kernels/cpu/master.h"
#include "kernels/cpu/tables.h"

#include <cmath>
#include <limits>
#include <vector>

namespace mmt::cpu {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

struct Pairs {
  const AttentionMask& mask;
  std::int32_t window;
  bool operator()(std::int64_t i, std::int64_t j) const {
    return allowed(mask.query_words.as<std::uint64_t>()[i], mask.query_order.as<std::int32_t>()[i],
                   mask.key_words.as<std::uint64_t>()[j], mask.key_order.as<std::int32_t>()[j], window);
  }
};

template <class T> double dot(const T* a, const T* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t d = 0; d < n; ++d) sum += static_cast<double>(a[d]) * static_cast<double>(b[d]);
  return sum;
}

template <class T> void forward(const AttentionForwardArgs& a) {
  const AttentionShape& s = a.shape;
  const Pairs allow{a.mask, s.window};
  const std::int64_t dim = s.head_dim, keys = a.k.rows();
  std::vector<double> score(static_cast<std::size_t>(keys)), sum(static_cast<std::size_t>(dim));
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const std::int64_t g = h / (s.heads / s.kv_heads);
    for (std::int64_t i = 0; i < a.q.rows(); ++i) {
      double highest = kNothing;
      for (std::int64_t j = 0; j < keys; ++j) {
        double& x = score[static_cast<std::size_t>(j)];
        x = allow(i, j) ? s.scale * dot(a.q.row<T>(i) + h * dim, a.k.row<T>(j) + g * dim, dim) : kNothing;
        if (allow(i, j) && !(x <= highest)) highest = x;  // NaN is kept
      }
      double weight = 0;
      sum.assign(sum.size(), 0.0);
      for (std::int64_t j = 0; j < keys; ++j) {
        if (!allow(i, j)) continue;
        const double p = std::exp(score[static_cast<std::size_t>(j)] - highest);
        weight += p;
        for (std::int64_t d = 0; d < dim; ++d)
          sum[static_cast<std::size_t>(d)] += p * static_cast<double>(a.v.row<T>(j)[g * dim + d]);
      }
      const bool blind = highest == kNothing && weight == 0;
      for (std::int64_t d = 0; d < dim; ++d)
        a.out.row<T>(i)[h * dim + d] = T(blind ? 0.0 : sum[static_cast<std::size_t>(d)] / weight);
      a.lse.row<Master<T>>(h)[i] = static_cast<Master<T>>(blind ? kNothing : highest + std::log(weight));
    }
  }
}

template <class T> void write(const Tensor& to, std::int64_t column, std::int64_t dim, const std::vector<double>& sum) {
  if (!to.defined()) return;
  for (std::int64_t j = 0; j < to.rows(); ++j)
    for (std::int64_t d = 0; d < dim; ++d) {
      const double x = sum[static_cast<std::size_t>(j * dim + d)];
      if (to.dtype == dtype_of<T>)
        to.row<T>(j)[column + d] = T(x);
      else
        to.row<float>(j)[column + d] = static_cast<float>(x);
    }
}

template <class T> void backward(const AttentionBackwardArgs& a) {
  const AttentionShape& s = a.shape;
  const Pairs allow{a.mask, s.window};
  const std::int64_t dim = s.head_dim, queries = a.q.rows(), keys = a.k.rows(), repeat = s.heads / s.kv_heads;
  std::vector<double> dq, dk, dv;
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const std::int64_t g = h / repeat;
    if (h % repeat == 0) {
      dk.assign(static_cast<std::size_t>(keys * dim), 0.0);
      dv.assign(static_cast<std::size_t>(keys * dim), 0.0);
    }
    dq.assign(static_cast<std::size_t>(queries * dim), 0.0);
    for (std::int64_t i = 0; i < queries; ++i) {
      const T* q = a.q.row<T>(i) + h * dim;
      const T* d_out = a.d_out.row<T>(i) + h * dim;
      const double delta = dot(d_out, a.out.row<T>(i) + h * dim, dim);
      const double lse = static_cast<double>(a.lse.row<Master<T>>(h)[i]);
      for (std::int64_t j = 0; j < keys; ++j) {
        if (!allow(i, j)) continue;
        const T* k = a.k.row<T>(j) + g * dim;
        const double p = std::exp(s.scale * dot(q, k, dim) - lse);
        const double ds = s.scale * p * (dot(d_out, a.v.row<T>(j) + g * dim, dim) - delta);
        for (std::int64_t d = 0; d < dim; ++d) {
          dq[static_cast<std::size_t>(i * dim + d)] += ds * static_cast<double>(k[d]);
          dk[static_cast<std::size_t>(j * dim + d)] += ds * static_cast<double>(q[d]);
          dv[static_cast<std::size_t>(j * dim + d)] += p * static_cast<double>(d_out[d]);
        }
      }
    }
    write<T>(a.dq, h * dim, dim, dq);
    if (h % repeat == repeat - 1) {
      write<T>(a.dk, g * dim, dim, dk);
      write<T>(a.dv, g * dim, dim, dv);
    }
  }
}

}  // namespace

AttentionTable reference_attention() {
  return {.forward = [](const Stream&, const AttentionForwardArgs& a,
                        Arena&) { visit_float(a.q.dtype, [&]<class T>() { forward<T>(a); }); },
          .backward = [](const Stream&, const AttentionBackwardArgs& a,
                         Arena&) { visit_float(a.q.dtype, [&]<class T>() { backward<T>(a); }); },
          .forward_scratch = [](const AttentionShape&, DType, std::int64_t, std::int64_t) { return std::size_t{0}; },
          .backward_scratch = [](const AttentionShape&, DType, std::int64_t, std::int64_t) { return std::size_t{0}; }};
}

}  // namespace mmt::cpu
