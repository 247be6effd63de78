// Softmax cross-entropy over a vocabulary, and the linear head fused with it.
//
// S rows, V classes. labels (S) i32: a class, or negative = not supervised (loss 0, gradient 0; weight unread).
// A label at or above the vocabulary throws std::logic_error. lse = log-sum-exp of the row.
#pragma once

#include "kernels/accumulate.h"

#include "core/arena.h"
#include "core/stream.h"

namespace mmt {

/// Stats of the classes [first, first + V) of a row: column 0 the maximum, 1 the sum of exp(logit - maximum), 2 the
/// logit of the label (0 where another shard holds it).
inline constexpr std::int64_t kCrossEntropyStats = 3;

struct CrossEntropyTable {
  void (*cross_entropy)(const Stream&, const Tensor& loss, const Tensor& dlogits, const Tensor& logits,
                        const Tensor& labels, const Tensor& weight) = nullptr;
  void (*stats)(const Stream&, const Tensor& stats, const Tensor& logits, const Tensor& labels,
                std::int32_t first) = nullptr;
  void (*gradient)(const Stream&, const Tensor& dlogits, const Tensor& logits, const Tensor& labels,
                   const Tensor& weight, const Tensor& lse, std::int32_t first) = nullptr;
  void (*combine)(const Stream&, const Tensor& loss, const Tensor& lse, const Tensor& predicted, const Tensor& stats,
                  const Tensor& largest, const Tensor& labels) = nullptr;
  void (*argmax)(const Stream&, const Tensor& index, const Tensor& x, std::int32_t first) = nullptr;
};

/// What a fused head needs besides its tensors.
struct LinearCrossEntropy {
  Tensor x;                  ///< (S, in), the compute dtype
  Tensor w;                  ///< (V, in), the compute dtype
  Tensor labels;             ///< (S) i32
  Tensor weight;             ///< (S), master dtype: weight of the row's loss with the backward's seed (1 / W_k)
  std::int64_t chunk = 512;  ///< rows whose logits exist at a time
  Tensor packed_forward{}, packed_input{};  ///< w packed for x w^T and for dlogits w (gemm.h), or absent
};

namespace ops {

/// loss[r] = lse - logits[r][label], not weighted; dlogits = weight[r] * (softmax(logits[r]) - onehot(label)).
/// loss, weight (S), master dtype. logits (S, V): the compute dtype or f32. dlogits: absent (loss alone; weight
/// unread), the same tensor as logits (overwritten in place), or another (S, V) of that dtype or bf16. Sums in f32.
void cross_entropy(const Stream& stream, const Tensor& loss, const Tensor& dlogits, const Tensor& logits,
                   const Tensor& labels, const Tensor& weight);

/// The same in steps, for a vocabulary cut over ranks: `stats` (S, 3), master dtype, of this shard's classes
/// [first, first + V). Labels outside this shard are legal here.
void cross_entropy_stats(const Stream& stream, const Tensor& stats, const Tensor& logits, const Tensor& labels,
                         std::int32_t first);
/// `stats` (P * S, 3) and `largest` (P * S) i32, one shard after the other. With m_i, s_i of shard i and m = max m_i:
/// lse (S) = m + log(sum_i s_i exp(m_i - m)), loss (S) = lse - sum_i of column 2 (0 where the label is negative),
/// summed in the order of the shards. predicted (S) i32 = `largest` of the first shard that has the maximum, where
/// `largest` is each shard's class of its largest logit; both may be absent.
void cross_entropy_combine(const Stream& stream, const Tensor& loss, const Tensor& lse, const Tensor& predicted,
                           const Tensor& stats, const Tensor& largest, const Tensor& labels);
/// dlogits = weight * (exp(logits - lse) - onehot(label - first)); dlogits as in cross_entropy, lse (S) master dtype.
void cross_entropy_gradient(const Stream& stream, const Tensor& dlogits, const Tensor& logits, const Tensor& labels,
                            const Tensor& weight, const Tensor& lse, std::int32_t first);

/// index[r] (rows) i32 = first + column of the largest value of x (rows, cols), ties to the lower column. NaN is never
/// chosen unless the whole row is NaN: then column 0.
void argmax_rows(const Stream& stream, const Tensor& index, const Tensor& x, std::int32_t first = 0);

/// Linear head and loss in chunks of rows: logits = x w^T, loss, and the gradients, without ever holding (S, V).
///   loss (S)           master dtype, not weighted
///   predicted (S) i32  argmax of each row's logits, or absent
///   dx (S, in)         compute dtype, overwritten; or absent
///   dw (V, in)         master dtype, = or += ; or absent
/// Without dx and dw only the loss is computed. In bf16 the logits of a chunk are f32 and dlogits are rounded to bf16.
/// Scratch: linear_cross_entropy_scratch() bytes of the arena, given back on return.
void linear_cross_entropy(const Stream& stream, Arena& scratch, const Tensor& loss, const Tensor& predicted,
                          const Tensor& dx, const Tensor& dw, const LinearCrossEntropy& in,
                          Accumulate accumulate = Accumulate::overwrite);
std::size_t linear_cross_entropy_scratch(DType compute, std::int64_t rows, std::int64_t vocabulary, std::int64_t chunk);

}  // namespace ops
}  // namespace mmt
