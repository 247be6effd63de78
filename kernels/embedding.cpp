#include "kernels/embedding.h"

#include "kernels/dispatch.h"

namespace mmt::ops {
namespace {

void check_shard(const Tensor& table, VocabularyShard shard) {
  const std::int64_t total = shard.total == 0 ? table.rows() : shard.total;
  MMT_CHECK(shard.first >= 0 && shard.first + table.rows() <= total, "embedding: rows [{}, {}) of a vocabulary of {}",
            shard.first, shard.first + table.rows(), total);
}

}  // namespace

void embedding_forward(const Stream& stream, const Tensor& y, const Tensor& table, const Tensor& ids,
                       VocabularyShard shard) {
  check_compute(stream, y, "embedding: y");
  check_tensor(stream, table, 2, y.dtype, "embedding: table");
  check_shape(y, {ids.rows(), table.cols()}, "embedding: y");
  check_vector(stream, ids, y.rows(), DType::i32, "embedding: ids");
  check_shard(table, shard);
  table_for(stream, y.dtype).embedding.forward(stream, y, table, ids, shard);
}

void embedding_backward(const Stream& stream, const Tensor& dtable, const Tensor& dy, const Tensor& ids,
                        Accumulate accumulate, VocabularyShard shard) {
  check_compute(stream, dy, "embedding: dy");
  check_tensor(stream, dtable, 2, master_of(dy.dtype), "embedding: dtable");
  check_shape(dy, {ids.rows(), dtable.cols()}, "embedding: dy");
  check_vector(stream, ids, dy.rows(), DType::i32, "embedding: ids");
  check_shard(dtable, shard);
  table_for(stream, dy.dtype).embedding.backward(stream, dtable, dy, ids, accumulate, shard);
}

void add_table_rows(const Stream& stream, const Tensor& y, const Tensor& x, const Tensor& table, const Tensor& index) {
  check_compute(stream, x, "add_table_rows: x");
  check_like(y, x, "add_table_rows: y");
  check_tensor(stream, table, 2, x.dtype, "add_table_rows: table");
  MMT_CHECK(table.cols() == x.cols(), "add_table_rows: table {} for x {}", table.describe(), x.describe());
  check_vector(stream, index, x.rows(), DType::i32, "add_table_rows: index");
  table_for(stream, x.dtype).embedding.add_table_rows(stream, y, x, table, index);
}

}  // namespace mmt::ops
