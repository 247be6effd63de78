// A whole attention problem on the host for the attention tests: inputs, outputs, and a dense double-precision oracle
// with the sums of absolute contributions from which tolerances are derived.
#pragma once

#include "core/error.h"
#include "kernels/backend.h"
#include "tests/support/random_masks.h"

#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

extern "C" void omp_set_num_threads(int);
extern "C" int omp_get_max_threads();

namespace mmt::test {

class Threads {
 public:
  explicit Threads(int n) : before_(omp_get_max_threads()) { omp_set_num_threads(n); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

/// A matrix that is a column range of a wider one: `pad` columns of NaN on each side.
class Padded {
 public:
  Padded() = default;
  Padded(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t pad)
      : owner_(dtype, {rows, cols + 2 * pad}), view_(owner_.view().col_range(pad, cols)) {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols + 2 * pad; ++j)
        put(owner_.view(), i, j, std::numeric_limits<double>::quiet_NaN());
  }
  static void put(const Tensor& t, std::int64_t i, std::int64_t j, double x) {
    visit_float(t.dtype, [&]<class T>() { t.row<T>(i)[j] = T(x); });
  }
  static double get(const Tensor& t, std::int64_t i, std::int64_t j) {
    return visit_float(t.dtype, [&]<class T>() { return static_cast<double>(t.row<T>(i)[j]); });
  }
  void set(std::int64_t i, std::int64_t j, double x) { put(view_, i, j, x); }
  double at(std::int64_t i, std::int64_t j) const { return get(view_, i, j); }
  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }
  /// The columns around the view still hold what the constructor wrote.
  bool margins_untouched() const {
    const Tensor& whole = owner_.view();
    const std::int64_t pad = (whole.cols() - view_.cols()) / 2;
    for (std::int64_t i = 0; i < whole.rows(); ++i)
      for (std::int64_t j = 0; j < pad; ++j)
        if (!std::isnan(get(whole, i, j)) || !std::isnan(get(whole, i, whole.cols() - 1 - j))) return false;
    return true;
  }

 private:
  OwnedTensor owner_;
  Tensor view_;
};

struct Outputs {
  Padded out, lse, dq, dk, dv;
};

struct AttentionCase {
  RandomMask mask;
  TilePlan plan;
  AttentionShape shape;
  DType dtype = DType::f32;
  Padded q, k, v, d_out;

  std::int64_t query_rows() const { return static_cast<std::int64_t>(mask.queries.rows()); }
  std::int64_t key_rows() const { return static_cast<std::int64_t>(mask.keys.rows()); }
  AttentionMask view() const { return host_mask(query_side(mask.queries), key_side(mask.keys), plan); }
};

/// Random inputs; `spread` scales q and k (scores grow with its square), `pad` is the margin of every matrix.
inline AttentionCase make_case(RandomMask mask, AttentionShape shape, DType dtype, unsigned seed, double spread = 1,
                               std::int64_t pad = 8) {
  AttentionCase c;
  c.mask = std::move(mask);
  shape.window = c.mask.window;
  c.shape = shape;
  c.dtype = dtype;
  c.plan = make_tile_plan(query_side(c.mask.queries), key_side(c.mask.keys), shape.window);
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal;
  const auto fill = [&](std::int64_t rows, std::int64_t cols, double factor) {
    Padded m(dtype, rows, cols, pad);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) m.set(i, j, factor * normal(rng));
    return m;
  };
  const std::int64_t dim = shape.head_dim;
  c.q = fill(c.query_rows(), shape.heads * dim, spread);
  c.k = fill(c.key_rows(), shape.kv_heads * dim, spread);
  c.v = fill(c.key_rows(), shape.kv_heads * dim, 1);
  c.d_out = fill(c.query_rows(), shape.heads * dim, 1);
  return c;
}

inline Outputs empty_outputs(const AttentionCase& c, std::int64_t pad = 8) {
  const AttentionShape& s = c.shape;
  const std::int64_t dim = s.head_dim;
  return {Padded(c.dtype, c.query_rows(), s.heads * dim, pad), Padded(master_of(c.dtype), s.heads, c.query_rows(), 0),
          Padded(c.dtype, c.query_rows(), s.heads * dim, pad), Padded(c.dtype, c.key_rows(), s.kv_heads * dim, pad),
          Padded(c.dtype, c.key_rows(), s.kv_heads * dim, pad)};
}

inline void run_forward(const AttentionCase& c, const Stream& stream, Outputs& o) {
  Arena arena("scratch", ops::attention_forward_scratch(stream, c.shape, c.dtype, c.query_rows(), c.key_rows()) + 64);
  ops::attention_forward(stream, {o.out, o.lse, c.q, c.k, c.v, c.view(), c.shape}, arena);
}
/// With the `out` and `lse` of `saved`.
inline void run_backward(const AttentionCase& c, const Stream& stream, const Outputs& saved, Outputs& o) {
  Arena arena("scratch", ops::attention_backward_scratch(stream, c.shape, c.dtype, c.query_rows(), c.key_rows()) + 64);
  ops::attention_backward(stream, {o.dq, o.dk, o.dv, c.d_out, saved.out, saved.lse, c.q, c.k, c.v, c.view(), c.shape},
                          arena);
}
inline Outputs run(const AttentionCase& c, const Stream& stream) {
  Outputs o = empty_outputs(c);
  run_forward(c, stream, o);
  run_backward(c, stream, o, o);
  return o;
}
inline Stream stream_of(Isa level) { return {.device = {}, .kernels = &cpu_kernels(level), .handle = nullptr}; }

/// Values, and for each the sum of the absolute values of what was added up.
struct Oracle {
  using Grid = std::vector<std::vector<double>>;
  Grid out, lse, dq, dk, dv;
  Grid out_abs, dq_abs, dk_abs, dv_abs;
  double score_bound = 0;  ///< largest |scale| |q| |k| of an allowed pair
  std::int64_t most_terms = 0;

  explicit Oracle(const AttentionCase& c) {
    const AttentionShape& s = c.shape;
    const auto queries = c.query_rows(), keys = c.key_rows();
    const std::int64_t dim = s.head_dim;
    const auto grid = [](std::int64_t rows, std::int64_t cols) {
      return Grid(static_cast<std::size_t>(rows), std::vector<double>(static_cast<std::size_t>(cols), 0.0));
    };
    out = out_abs = dq = dq_abs = grid(queries, s.heads * dim);
    dk = dk_abs = dv = dv_abs = grid(keys, s.kv_heads * dim);
    lse = grid(s.heads, queries);
    const auto u = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    const auto values = [](const Padded& m) {
      Grid g(static_cast<std::size_t>(m.view().rows()));
      for (std::size_t i = 0; i < g.size(); ++i)
        for (std::int64_t j = 0; j < m.view().cols(); ++j) g[i].push_back(m.at(static_cast<std::int64_t>(i), j));
      return g;
    };
    const Grid cq = values(c.q), ck = values(c.k), cv = values(c.v), cg = values(c.d_out);
    std::vector<std::int64_t> readers(u(keys), 0);
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t qc = h * dim, kc = h / (s.heads / s.kv_heads) * dim;
      for (std::int64_t i = 0; i < queries; ++i) {
        std::vector<std::int64_t> seen;
        for (std::int64_t j = 0; j < keys; ++j)
          if (allowed(c.mask.queries.query[u(i)], c.mask.queries.order[u(i)], c.mask.keys.key[u(j)],
                      c.mask.keys.order[u(j)], s.window))
            seen.push_back(j);
        most_terms = std::max(most_terms, static_cast<std::int64_t>(seen.size()));
        std::vector<double> score, p;
        double top = -std::numeric_limits<double>::infinity(), total = 0;
        for (const auto j : seen) {
          double x = 0, qq = 0, kk = 0;
          for (std::int64_t d = 0; d < dim; ++d) {
            x += cq[u(i)][u(qc + d)] * ck[u(j)][u(kc + d)];
            qq += cq[u(i)][u(qc + d)] * cq[u(i)][u(qc + d)];
            kk += ck[u(j)][u(kc + d)] * ck[u(j)][u(kc + d)];
          }
          score_bound = std::max(score_bound, std::abs(s.scale) * std::sqrt(qq * kk));
          score.push_back(s.scale * x);
          top = std::max(top, score.back());
        }
        for (const double x : score) p.push_back(std::exp(x - top));
        for (const double x : p) total += x;
        lse[u(h)][u(i)] = seen.empty() ? top : top + std::log(total);
        for (std::size_t n = 0; n < seen.size(); ++n)
          for (std::int64_t d = 0; d < dim; ++d) {
            const double v = cv[u(seen[n])][u(kc + d)];
            out[u(i)][u(qc + d)] += p[n] / total * v;
            out_abs[u(i)][u(qc + d)] += p[n] / total * std::abs(v);
          }
        for (std::size_t n = 0; n < seen.size(); ++n) {
          const std::int64_t j = seen[n];
          const double w = p[n] / total;
          double dp = 0, dp_abs = 0;
          for (std::int64_t d = 0; d < dim; ++d) {
            const double g = cg[u(i)][u(qc + d)], v = cv[u(j)][u(kc + d)];
            dp += g * (v - out[u(i)][u(qc + d)]);
            dp_abs += std::abs(g) * (std::abs(v) + out_abs[u(i)][u(qc + d)]);
          }
          for (std::int64_t d = 0; d < dim; ++d) {
            const double g = cg[u(i)][u(qc + d)], q = cq[u(i)][u(qc + d)], k = ck[u(j)][u(kc + d)];
            dv[u(j)][u(kc + d)] += w * g;
            dv_abs[u(j)][u(kc + d)] += w * std::abs(g);
            dq[u(i)][u(qc + d)] += s.scale * w * dp * k;
            dq_abs[u(i)][u(qc + d)] += std::abs(s.scale) * w * dp_abs * std::abs(k);
            dk[u(j)][u(kc + d)] += s.scale * w * dp * q;
            dk_abs[u(j)][u(kc + d)] += std::abs(s.scale) * w * dp_abs * std::abs(q);
          }
          most_terms = std::max(most_terms, ++readers[u(j)]);
        }
      }
    }
  }

  /// Largest error in units of its bound; at most 1 passes. The bound of one value is
  ///   (C eps) * (sum of absolute contributions) + r * |value|,
  /// eps the unit of the inner precision and r the rounding of the stored dtype. C counts what one term suffers:
  /// a score is off by (D + 8) eps * score_bound (product of D terms, the scale, the change of base), which enters p,
  /// and through the log-sum-exp once more; the gradient of a score has two sums of D terms; a sum of n terms adds n;
  /// exp and the division add a few. `operand`: the relative error of p and of the gradient of a score where a kernel
  /// rounds them as operands (2^-8 in bf16: half a unit of its 7 bits).
  double error(const AttentionCase& c, const Outputs& o, bool backward = true, double operand = 0) const {
    const double eps = c.dtype == DType::f64 ? std::pow(2, -53) : std::pow(2, -24);
    const double stored = c.dtype == DType::bf16 ? std::pow(2, -8) : eps;
    const auto dim = static_cast<double>(c.shape.head_dim), terms = static_cast<double>(most_terms);
    const double score = (dim + 8) * score_bound;
    const double factor = eps * (2 * score + 2 * dim + terms + 32) + operand;
    double worst = 0;
    const auto compare = [&](const Grid& expected, const Grid* absolute, const Padded& got, double per_value,
                             double floor) {
      for (std::size_t i = 0; i < expected.size(); ++i)
        for (std::size_t j = 0; j < expected[i].size(); ++j) {
          const double want = expected[i][j], have = got.at(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j));
          if (want == have) continue;
          const double bound = (absolute ? factor * (*absolute)[i][j] : floor) + per_value * std::abs(want) +
                               std::numeric_limits<float>::min() * 1e4 * terms;
          const double units = std::abs(want - have) / bound;
          worst = units <= worst ? worst : units;  // NaN is kept
          if (std::isnan(units)) return;
        }
    };
    compare(out, &out_abs, o.out, stored, 0);
    compare(lse, nullptr, o.lse, 4 * eps, eps * (score + terms + 32));
    if (!backward || std::isnan(worst)) return worst;
    compare(dq, &dq_abs, o.dq, stored, 0);
    compare(dk, &dk_abs, o.dk, stored, 0);
    compare(dv, &dv_abs, o.dv, stored, 0);
    return worst;
  }
};

/// True when two matrices hold the same bits (NaN equals NaN of the same bits).
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols() || a.dtype != b.dtype) return false;
  const auto row = static_cast<std::size_t>(a.cols() * size_of(a.dtype));
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    const auto* x = static_cast<const char*>(a.data) + i * a.row_stride * size_of(a.dtype);
    const auto* y = static_cast<const char*>(b.data) + i * b.row_stride * size_of(b.dtype);
    if (!std::equal(x, x + row, y)) return false;
  }
  return true;
}
inline bool same_bits(const Outputs& a, const Outputs& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse) && same_bits(a.dq, b.dq) && same_bits(a.dk, b.dk) &&
         same_bits(a.dv, b.dv);
}

inline RandomMask causal_mask(int rows, std::int32_t window = 0) {
  RandomMask m;
  m.kind = "causal " + std::to_string(rows);
  for (int i = 0; i < rows; ++i) m.queries.push(1, 0, row_class::kText, row_class::kText, i);
  m.keys = m.queries;
  m.window = window;
  return m;
}

/// One query block over many keys: cut into items whose partial results are merged.
inline RandomMask merged_mask() {
  RandomMask mask = causal_mask(9000);
  MaskWords last;
  for (int i = 0; i < 20; ++i) last.push(1, 0, 1, 1, 9000 + i);
  mask.queries = last;
  return mask;
}

/// Two samples alone and packed into one block with others.
struct PackedCases {
  AttentionCase first, second, packed;
};
/// `singles`: further samples of one row.
inline PackedCases make_packed(MaskMaker& maker, int longest_first, int window, int singles, DType dtype) {
  const AttentionShape shape{2, 1, 24, 0.2, 0};
  RandomMask a, b, both;
  maker.add_sample(a.queries, 1, maker.pick(1, longest_first), maker.pick(0, 6));
  maker.add_sample(b.queries, 1, maker.pick(1, 130), maker.pick(0, 6));
  a.window = b.window = both.window = window;
  const auto append = [&](const MaskWords& w, int sample) {
    for (std::size_t i = 0; i < w.rows(); ++i)
      both.queries.push(sample, group_of(w.query[i]), classes_of(w.query[i]), classes_of(w.key[i]), w.order[i]);
  };
  append(a.queries, 7);
  append(b.queries, 3);
  for (int i = 0; i < singles; ++i) both.queries.push(10 + i, 0, 1, 1, 0);
  both.queries.push_padding(9);
  a.keys = a.queries;
  b.keys = b.queries;
  both.keys = both.queries;
  PackedCases c{make_case(a, shape, dtype, 1), make_case(b, shape, dtype, 2), make_case(both, shape, dtype, 3)};
  const std::int64_t rows = c.first.query_rows();
  for (const auto input : {&AttentionCase::q, &AttentionCase::k, &AttentionCase::v, &AttentionCase::d_out})
    for (std::int64_t i = 0; i < rows + c.second.query_rows(); ++i)
      for (std::int64_t j = 0; j < (c.packed.*input).view().cols(); ++j)
        (c.packed.*input).set(i, j, i < rows ? (c.first.*input).at(i, j) : (c.second.*input).at(i - rows, j));
  return c;
}
/// Whether the samples have the bits packed that they have alone.
inline bool packing_keeps_bits(const PackedCases& c, const Stream& stream) {
  const Outputs x = run(c.first, stream), y = run(c.second, stream), z = run(c.packed, stream);
  const std::int64_t rows = c.first.query_rows(), more = c.second.query_rows();
  bool same = true;
  for (const auto output : {&Outputs::out, &Outputs::dq, &Outputs::dk, &Outputs::dv}) {
    same = same && same_bits((x.*output).view(), (z.*output).view().row_range(0, rows));
    same = same && same_bits((y.*output).view(), (z.*output).view().row_range(rows, more));
  }
  for (std::int64_t h = 0; h < c.packed.shape.heads; ++h)
    for (std::int64_t i = 0; i < rows + more; ++i)
      same = same && z.lse.at(h, i) == (i < rows ? x.lse.at(h, i) : y.lse.at(h, i - rows));
  return same;
}

/// Whether every subset of the gradients has the bits that all together have.
inline bool absent_gradients_change_no_other(const AttentionCase& c, const Stream& stream) {
  const Outputs all = run(c, stream);
  bool same = true;
  for (int absent = 0; absent < 8; ++absent) {
    Outputs o = empty_outputs(c);
    AttentionBackwardArgs args{o.dq, o.dk, o.dv, c.d_out, all.out, all.lse, c.q, c.k, c.v, c.view(), c.shape};
    if (absent & 1) args.dq = {};
    if (absent & 2) args.dk = {};
    if (absent & 4) args.dv = {};
    Arena arena("scratch", ops::attention_backward_scratch(stream, c.shape, c.dtype, 200, 200) + 64);
    ops::attention_backward(stream, args, arena);
    same = same && ((absent & 1) != 0 || same_bits(o.dq, all.dq));
    same = same && ((absent & 2) != 0 || same_bits(o.dk, all.dk));
    same = same && ((absent & 4) != 0 || same_bits(o.dv, all.dv));
  }
  return same;
}

}  // namespace mmt::test
