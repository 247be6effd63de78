#include "kernels/attention.h"

#include "kernels/dispatch.h"

namespace mmt {

AttentionMask host_mask(const MaskSide& queries, const MaskSide& keys, const TilePlan& tiles) {
  const auto vector = [](auto values, DType dtype) {
    // Tensors do not tell read-only memory apart; the kernels write their outputs only.
    using T = std::remove_const_t<typename decltype(values)::value_type>;
    return Tensor(const_cast<T*>(values.data()), dtype, {static_cast<std::int64_t>(values.size())});
  };
  return {.query_words = vector(queries.words, DType::u64),
          .query_order = vector(queries.order, DType::i32),
          .key_words = vector(keys.words, DType::u64),
          .key_order = vector(keys.order, DType::i32),
          .tiles = &tiles};
}

namespace ops {
namespace {

void check_heads(const AttentionShape& s, DType dtype) {
  MMT_CHECK(s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0, "attention: {} heads, {} kv heads", s.heads,
            s.kv_heads);
  MMT_CHECK(s.head_dim >= 16 && s.head_dim <= 128 && s.head_dim % 8 == 0,
            "attention: head_dim {}, expected a multiple of 8 from 16 to 128", s.head_dim);
  MMT_CHECK(is_float(dtype), "attention: {}", name_of(dtype));
}

/// (rows, features), or (rows, heads, head_dim).
void check_rows(const Stream& stream, const Tensor& t, std::int64_t rows, std::int64_t cols, DType dtype,
                const char* what) {
  check_compute(stream, t, what);
  MMT_CHECK(t.dtype == dtype && t.rows() == rows && t.cols() == cols, "attention: {} is {}, expected {}[{},{}]", what,
            t.describe(), name_of(dtype), rows, cols);
}

void check_list(const Stream& stream, const Tensor& t, std::int64_t rows, DType dtype, const char* what) {
  MMT_CHECK(t.rank == 1 && t.dtype == dtype && t.dims[0] == rows && t.contiguous() && t.device == stream.device,
            "attention: {} is {}, expected {}[{}]", what, t.describe(), name_of(dtype), rows);
}

struct Checked {
  std::int64_t query_rows, key_rows;
  DType dtype;
};

Checked check_inputs(const Stream& stream, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse,
                     const AttentionMask& mask, const AttentionShape& s) {
  MMT_CHECK(q.defined() && k.defined() && v.defined(), "attention: q {}, k {}, v {}", q.describe(), k.describe(),
            v.describe());
  check_heads(s, q.dtype);
  const Checked c{q.rows(), k.rows(), q.dtype};
  check_rows(stream, q, c.query_rows, std::int64_t{s.heads} * s.head_dim, c.dtype, "q");
  check_rows(stream, k, c.key_rows, std::int64_t{s.kv_heads} * s.head_dim, c.dtype, "k");
  check_rows(stream, v, c.key_rows, std::int64_t{s.kv_heads} * s.head_dim, c.dtype, "v");
  MMT_CHECK(lse.rank == 2 && lse.dims[0] == s.heads && lse.dims[1] == c.query_rows && lse.contiguous() &&
                lse.dtype == master_of(c.dtype) && lse.device == stream.device,
            "attention: lse is {}, expected {}[{},{}]", lse.describe(), name_of(master_of(c.dtype)), s.heads,
            c.query_rows);
  check_list(stream, mask.query_words, c.query_rows, DType::u64, "query words");
  check_list(stream, mask.query_order, c.query_rows, DType::i32, "query places");
  check_list(stream, mask.key_words, c.key_rows, DType::u64, "key words");
  check_list(stream, mask.key_order, c.key_rows, DType::i32, "key places");
  MMT_CHECK(mask.tiles != nullptr, "attention: a mask without a tile plan");
  const TilePlan& plan = *mask.tiles;
  MMT_CHECK(plan.query_rows == c.query_rows && plan.key_rows == c.key_rows && plan.window == s.window,
            "attention: a tile plan for {} x {} rows, window {}, with {} x {} rows, window {}", plan.query_rows,
            plan.key_rows, plan.window, c.query_rows, c.key_rows, s.window);
  MMT_CHECK(plan.shape == TileShape{}, "attention: a tile plan of {} x {} rows, cut at samples: {}",
            plan.shape.query_rows, plan.shape.key_rows, plan.shape.cut_at_samples);
  return c;
}

const AttentionTable& table(const Stream& stream, DType dtype) { return table_for(stream, dtype).attention; }

}  // namespace

void attention_forward(const Stream& stream, const AttentionForwardArgs& args, Arena& scratch) {
  const Checked c = check_inputs(stream, args.q, args.k, args.v, args.lse, args.mask, args.shape);
  check_rows(stream, args.out, c.query_rows, args.q.cols(), c.dtype, "out");
  table(stream, c.dtype).forward(stream, args, scratch);
}

void attention_backward(const Stream& stream, const AttentionBackwardArgs& args, Arena& scratch) {
  const Checked c = check_inputs(stream, args.q, args.k, args.v, args.lse, args.mask, args.shape);
  check_rows(stream, args.out, c.query_rows, args.q.cols(), c.dtype, "out");
  check_rows(stream, args.d_out, c.query_rows, args.q.cols(), c.dtype, "d_out");
  if (args.dq.defined()) check_rows(stream, args.dq, c.query_rows, args.q.cols(), c.dtype, "dq");
  const auto check_sum = [&](const Tensor& t, const char* what) {
    if (!t.defined()) return;
    const bool wide = c.dtype == DType::bf16 && t.dtype == DType::f32;
    check_rows(stream, t, c.key_rows, args.k.cols(), wide ? DType::f32 : c.dtype, what);
  };
  check_sum(args.dk, "dk");
  check_sum(args.dv, "dv");
  table(stream, c.dtype).backward(stream, args, scratch);
}

std::size_t attention_forward_scratch(const Stream& stream, const AttentionShape& shape, DType dtype,
                                      std::int64_t query_rows, std::int64_t key_rows) {
  check_heads(shape, dtype);
  return table(stream, dtype).forward_scratch(shape, dtype, query_rows, key_rows);
}

std::size_t attention_backward_scratch(const Stream& stream, const AttentionShape& shape, DType dtype,
                                       std::int64_t query_rows, std::int64_t key_rows) {
  check_heads(shape, dtype);
  return table(stream, dtype).backward_scratch(shape, dtype, query_rows, key_rows);
}

}  // namespace ops
}  // namespace mmt
