// Norms, activations, rotary, embedding, moving rows, sums: bytes that must be read and written, against what copying
// (or scaling in place, where the op works in place) moves in memory of that size. "dram": 32,768 rows of 1,024;
// "cache": 256 rows of 768, as in a step of GPT-2 small.
#include "bench/bench.h"

#include "kernels/backend.h"

#include <fmt/core.h>

namespace mmt::bench {
namespace {

constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kPositions = 1024;

struct Place {
  const char* name;
  std::int64_t rows, cols, table_rows;
};
constexpr Place kPlaces[] = {{"dram", 32768, 1024, 32000}, {"cache", 256, 768, 1024}};

/// Operands of one op.
struct Fields {
  Stream stream = cpu_stream();
  std::vector<OwnedTensor> wide;   ///< (rows, cols) each
  OwnedTensor w, b;                ///< (cols), compute dtype
  OwnedTensor mean, rstd;          ///< (rows)
  OwnedTensor dw, db;              ///< (cols), f32
  OwnedTensor cos, sin;            ///< (rows, kHeadDim / 2)
  OwnedTensor table, dtable;       ///< (table rows, cols): compute dtype; f32
  OwnedTensor rounded;             ///< (rows, cols) bf16
  OwnedTensor ids, places, order;  ///< (rows): of the table; below kPositions; a permutation of the rows
  OwnedTensor address;             ///< (rows, 2) of one sample

  const Tensor& at(std::size_t i) const { return wide[i]; }
};

enum Needs : unsigned { plain = 0, table = 1, table_gradient = 2, rounded = 4 };

struct Op {
  const char* name;
  int tensors;           ///< of (rows, cols)
  double moved;          ///< elements of the dtype, read or written, for each of a tensor
  double extra;          ///< further bytes a row
  double extra_element;  ///< further bytes for each element of a tensor
  bool in_place;
  unsigned needs;
  void (*call)(const Fields&);
};

template <Activation kind> void activate(const Fields& f) { ops::activation_forward(f.stream, f.at(1), f.at(0), kind); }
template <Activation kind> void activate_back(const Fields& f) {
  ops::activation_backward(f.stream, f.at(2), f.at(1), f.at(0), kind);
}

constexpr Op kOps[] = {
    {"norm/rms/forward", 2, 2, 4, 0, false, plain,
     [](const Fields& f) { ops::rms_norm_forward(f.stream, f.at(1), f.rstd, f.at(0), f.w, 1e-5); }},
    {"norm/rms/input-gradient", 3, 3, 4, 0, false, plain,
     [](const Fields& f) { ops::rms_norm_backward_input(f.stream, f.at(2), f.at(1), f.at(0), f.rstd, f.w); }},
    {"norm/rms/weight-gradient", 2, 2, 4, 0, false, plain,
     [](const Fields& f) { ops::rms_norm_backward_weight(f.stream, f.dw, f.at(1), f.at(0), f.rstd); }},
    {"norm/layer/forward", 2, 2, 8, 0, false, plain,
     [](const Fields& f) { ops::layer_norm_forward(f.stream, f.at(1), f.mean, f.rstd, f.at(0), f.w, f.b, 1e-5); }},
    {"norm/layer/input-gradient", 3, 3, 8, 0, false, plain,
     [](const Fields& f) { ops::layer_norm_backward_input(f.stream, f.at(2), f.at(1), f.at(0), f.mean, f.rstd, f.w); }},
    {"norm/layer/weight-gradient", 2, 2, 8, 0, false, plain,
     [](const Fields& f) { ops::layer_norm_backward_weight(f.stream, f.dw, f.db, f.at(1), f.at(0), f.mean, f.rstd); }},
    {"activation/gelu-tanh/forward", 2, 2, 0, 0, false, plain, activate<Activation::gelu_tanh>},
    {"activation/gelu-tanh/gradient", 3, 3, 0, 0, false, plain, activate_back<Activation::gelu_tanh>},
    {"activation/gelu-erf/forward", 2, 2, 0, 0, false, plain, activate<Activation::gelu_erf>},
    {"activation/gelu-erf/gradient", 3, 3, 0, 0, false, plain, activate_back<Activation::gelu_erf>},
    {"activation/gelu-quick/forward", 2, 2, 0, 0, false, plain, activate<Activation::gelu_quick>},
    {"activation/gelu-quick/gradient", 3, 3, 0, 0, false, plain, activate_back<Activation::gelu_quick>},
    {"activation/silu/forward", 2, 2, 0, 0, false, plain, activate<Activation::silu>},
    {"activation/silu/gradient", 3, 3, 0, 0, false, plain, activate_back<Activation::silu>},
    {"activation/swiglu/forward", 3, 3, 0, 0, false, plain,
     [](const Fields& f) { ops::swiglu_forward(f.stream, f.at(2), f.at(0), f.at(1)); }},
    {"activation/swiglu/gradient", 5, 5, 0, 0, false, plain,
     [](const Fields& f) { ops::swiglu_backward(f.stream, f.at(3), f.at(4), f.at(2), f.at(0), f.at(1)); }},
    {"rotary/forward", 1, 2, 4.0 * kHeadDim, 0, true, plain,
     [](const Fields& f) {
       ops::rotary_apply(f.stream, ops::split_heads(f.at(0), f.at(0).cols() / kHeadDim), f.cos, f.sin,
                         Direction::forward);
     }},
    {"embedding/forward", 1, 2, 4, 0, false, table,
     [](const Fields& f) { ops::embedding_forward(f.stream, f.at(0), f.table, f.ids); }},
    {"embedding/gradient", 1, 1, 4, 8, true, table_gradient,
     [](const Fields& f) { ops::embedding_backward(f.stream, f.dtable, f.at(0), f.ids, Accumulate::add); }},
    {"embedding/positions", 1, 2, 4, 0, true, table,
     [](const Fields& f) {
       ops::add_table_rows(f.stream, f.at(0), f.at(0), f.table.view().row_range(0, kPositions), f.places);
     }},
    {"elementwise/add", 3, 3, 0, 0, false, plain,
     [](const Fields& f) { ops::add(f.stream, f.at(2), f.at(1), f.at(0)); }},
    {"elementwise/add-in-place", 2, 3, 0, 0, true, plain,
     [](const Fields& f) { ops::add_in_place(f.stream, f.at(1), f.at(0)); }},
    {"elementwise/copy", 2, 2, 0, 0, false, plain, [](const Fields& f) { ops::copy(f.stream, f.at(1), f.at(0)); }},
    {"elementwise/to-bf16", 1, 1, 0, 2, false, rounded,
     [](const Fields& f) { ops::copy(f.stream, f.rounded, f.at(0)); }},
    {"elementwise/bias-gradient", 1, 1, 0, 0, false, plain,
     [](const Fields& f) { ops::linear_backward_bias(f.stream, f.db, f.at(0)); }},
    {"dropout/5%", 2, 2, 16, 0, false, plain,
     [](const Fields& f) {
       ops::dropout(f.stream, f.at(1), f.at(0), f.address, {.probability = 0.05, .features = f.at(0).cols()});
     }},
    {"gather/rows", 2, 2, 4, 0, false, plain,
     [](const Fields& f) { ops::gather_rows(f.stream, f.at(1), f.at(0), f.order); }},
    {"scatter/rows", 2, 2, 4, 0, false, plain,
     [](const Fields& f) { ops::scatter_rows(f.stream, f.at(1), f.at(0), f.order); }},
    {"scatter/add", 2, 3, 4, 0, true, plain,
     [](const Fields& f) { ops::scatter_add_rows(f.stream, f.at(1), f.at(0), f.order); }},
};

OwnedTensor indices(std::int64_t rows, std::int64_t step, std::int64_t below) {
  OwnedTensor t(DType::i32, {rows});
  for (std::int64_t r = 0; r < rows; ++r) t->as<std::int32_t>()[r] = static_cast<std::int32_t>(r * step % below);
  return t;
}

void measure(Bench& bench, const Op& op, const Place& p, DType dtype, const std::string& name) {
  Fields f;
  for (int i = 0; i < op.tensors; ++i) f.wide.push_back(filled(dtype, {p.rows, p.cols}));
  f.w = filled(dtype, {p.cols}), f.b = filled(dtype, {p.cols});
  f.dw = filled(DType::f32, {p.cols}), f.db = filled(DType::f32, {p.cols});
  f.mean = filled(DType::f32, {p.rows}), f.rstd = filled(DType::f32, {p.rows});
  f.cos = OwnedTensor(DType::f32, {p.rows, kHeadDim / 2}), f.sin = OwnedTensor(DType::f32, {p.rows, kHeadDim / 2});
  ops::fill(f.stream, f.cos, 1.0);
  ops::fill(f.stream, f.sin, 0.0);  // any angle costs the same; this one keeps the values
  if (op.needs & table) f.table = filled(dtype, {p.table_rows, p.cols});
  if (op.needs & table_gradient) f.dtable = filled(DType::f32, {p.table_rows, p.cols});
  if (op.needs & rounded) f.rounded = OwnedTensor(DType::bf16, {p.rows, p.cols});
  f.ids = indices(p.rows, 7919, p.table_rows);
  f.places = indices(p.rows, 1, kPositions);
  f.order = indices(p.rows, 37, p.rows);  // 37 has no common divisor with the numbers of rows: a permutation
  f.address = OwnedTensor(DType::i64, {p.rows, 2});
  for (std::int64_t r = 0; r < p.rows; ++r) {
    f.address->row<std::int64_t>(r)[0] = 0;
    f.address->row<std::int64_t>(r)[1] = r;
  }
  const double elements = static_cast<double>(p.rows * p.cols);
  const double bytes = elements * (op.moved * static_cast<double>(size_of(dtype)) + op.extra_element) +
                       op.extra * static_cast<double>(p.rows);
  bench.memory_rate(
      name, bytes, [&] { op.call(f); }, op.in_place ? Traffic::in_place : Traffic::copy);
}

}  // namespace

void add_row_ops(Cases& cases) {
  for (const Place& p : kPlaces) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Op& op : kOps) {
        if ((op.needs & rounded) != 0 && dtype == DType::bf16) continue;
        const std::string name = fmt::format("{}/{}/{}", op.name, p.name, name_of(dtype));
        cases.push_back({{name}, [&op, &p, dtype, name](Bench& bench) { measure(bench, op, p, dtype, name); }});
      }
    }
  }
}

}  // namespace mmt::bench
