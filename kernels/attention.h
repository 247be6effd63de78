// Attention over packed rows (FlashAttention-2: Dao 2023, tiles and online softmax; the T x T matrix never exists).
//
//   out[i, h] = sum_j p_ij v[j, h / (heads / kv_heads)],   p_ij = exp(scale q_ih . k_jg - lse_hi) over the keys j that
//   the mask allows for i;   lse_hi = log sum_j exp(scale q_ih . k_jg).   Natural logarithms.
//
// q, out, d_out, dq: (query rows, heads * head_dim). k, v, dk, dv: (key rows, kv_heads * head_dim). Each may have a row
// stride (column ranges of a fused q/k/v matrix) and starts at its first head. Query rows and key rows are separate
// lists, equal in self attention. Compute dtype T: f32, bf16 or f64 (reference only), the same for all but:
// lse: (heads, query rows) contiguous, master dtype. dk and dv may be f32 when T is bf16 (sums over ranks come first).
//
// head_dim: 16 .. 128, a multiple of 8. kv_heads divides heads; keys and values are not expanded.
// A row that sees nothing: out 0, lse -inf, zero gradients. NaN or inf in a row that is seen reaches those who see it.
// Rounding with bf16: products, softmax, lse and every sum in f32; out, dq, dk, dv are rounded once, at the end. Units
// with bf16 products (vdpbf16ps, AMX, a GPU's matrix units) round p and the gradient of a score once to bf16, as operands
// of the second products: each within 2^-8 of its value. Units without them widen and keep both in f32.
// Determinism: the order of all sums is given by the mask alone, so bits do not depend on the number of threads, nor
// on what else is packed beside a sample. They may depend on the instruction set.
// Outputs are overwritten and alias nothing. The only thing to save between the passes, beside q, k, v and out, is lse.
#pragma once

#include "core/arena.h"
#include "core/mask/tiles.h"
#include "core/stream.h"

namespace mmt {

struct AttentionShape {
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  double scale = 1;
  std::int32_t window = 0;  ///< words.h; must be the plan's
};

/// The mask of a block in one layer kind. Words and places lie on the device, the plan in host memory.
struct AttentionMask {
  Tensor query_words;  ///< (query rows) u64
  Tensor query_order;  ///< (query rows) i32
  Tensor key_words;    ///< (key rows) u64
  Tensor key_order;    ///< (key rows) i32
  const TilePlan* tiles = nullptr;
};
/// Views of host words; `queries`, `keys` and `tiles` must outlive the mask.
AttentionMask host_mask(const MaskSide& queries, const MaskSide& keys, const TilePlan& tiles);

struct AttentionForwardArgs {
  Tensor out, lse;
  Tensor q, k, v;
  AttentionMask mask;
  AttentionShape shape;
};

struct AttentionBackwardArgs {
  Tensor dq, dk, dv;  ///< each may be absent: a gradient that nobody needs is not computed
  Tensor d_out, out, lse;
  Tensor q, k, v;
  AttentionMask mask;
  AttentionShape shape;
};

struct AttentionTable {
  void (*forward)(const Stream&, const AttentionForwardArgs&, Arena& scratch) = nullptr;
  void (*backward)(const Stream&, const AttentionBackwardArgs&, Arena& scratch) = nullptr;
  std::size_t (*forward_scratch)(const AttentionShape&, DType, std::int64_t query_rows,
                                 std::int64_t key_rows) = nullptr;
  std::size_t (*backward_scratch)(const AttentionShape&, DType, std::int64_t query_rows,
                                  std::int64_t key_rows) = nullptr;
};

namespace ops {

/// Tensor memory comes from `scratch` and is given back before the return (on a device stream: the arena's owner orders
/// reuse after this stream).
void attention_forward(const Stream& stream, const AttentionForwardArgs& args, Arena& scratch);
void attention_backward(const Stream& stream, const AttentionBackwardArgs& args, Arena& scratch);

/// Arena bytes that suffice for every mask of at most these rows; known before the run. On the CPU the backward's share
/// per thread counts omp_get_max_threads() at the call.
std::size_t attention_forward_scratch(const Stream& stream, const AttentionShape& shape, DType dtype,
                                      std::int64_t query_rows, std::int64_t key_rows);
std::size_t attention_backward_scratch(const Stream& stream, const AttentionShape& shape, DType dtype,
                                       std::int64_t query_rows, std::int64_t key_rows);

}  // namespace ops
}  // namespace mmt
