// Embedding: rows of a table by token id, and a learned position table added to rows.
#pragma once

#include "kernels/accumulate.h"

#include "core/stream.h"

namespace mmt {

/// The ids [first, first + table rows) of a vocabulary of `total` that a table holds: all by default, or one rank's
/// share under vocabulary parallelism. total 0: the table is whole.
struct VocabularyShard {
  std::int32_t first = 0;
  std::int32_t total = 0;
};

struct EmbeddingTable {
  void (*forward)(const Stream&, const Tensor& y, const Tensor& table, const Tensor& ids, VocabularyShard) = nullptr;
  void (*backward)(const Stream&, const Tensor& dtable, const Tensor& dy, const Tensor& ids, Accumulate,
                   VocabularyShard) = nullptr;
  void (*add_table_rows)(const Stream&, const Tensor& y, const Tensor& x, const Tensor& table,
                         const Tensor& index) = nullptr;
};

namespace ops {

/// y (rows, cols) = table[ids[r]], the compute dtype; ids (rows) i32. -1 (no token: a media or padding
/// row) and an id that another shard holds give a zero row (a sum over the shards is the whole); any other id outside
/// the vocabulary throws std::logic_error.
void embedding_forward(const Stream& stream, const Tensor& y, const Tensor& table, const Tensor& ids,
                       VocabularyShard shard = {});
/// dtable (vocabulary, cols), master dtype: overwritten (whole, zeros where no id points) or added to. Rows of dy are
/// added in row order; those of id -1 are left out.
void embedding_backward(const Stream& stream, const Tensor& dtable, const Tensor& dy, const Tensor& ids,
                        Accumulate accumulate = Accumulate::overwrite, VocabularyShard shard = {});

/// y[r] = x[r] + table[index[r]] (learned positions). y may be x. index (rows) i32 inside the table, else
/// std::logic_error. Backward: dx = dy, dtable by embedding_backward.
void add_table_rows(const Stream& stream, const Tensor& y, const Tensor& x, const Tensor& table, const Tensor& index);

}  // namespace ops
}  // namespace mmt
