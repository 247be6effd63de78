#include "kernels/cpu/index_check.h"
#include "kernels/cpu/master.h"
#include "kernels/cpu/tables.h"

namespace mmt::cpu {
namespace {

std::int64_t vocabulary(const Tensor& table, VocabularyShard shard) {
  return shard.total == 0 ? table.rows() : shard.total;
}

void forward(const Stream&, const Tensor& y, const Tensor& table, const Tensor& ids, VocabularyShard shard) {
  check_indices(ids, -1, vocabulary(table, shard), "embedding: ids");
  visit_float(y.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < y.rows(); ++i) {
      const std::int64_t row = ids.as<std::int32_t>()[i] - shard.first;
      const bool here = row >= 0 && row < table.rows();
      for (std::int64_t j = 0; j < y.cols(); ++j) y.row<T>(i)[j] = here ? table.row<T>(row)[j] : T(0.0);
    }
  });
}

void backward(const Stream&, const Tensor& dtable, const Tensor& dy, const Tensor& ids, Accumulate accumulate,
              VocabularyShard shard) {
  check_indices(ids, -1, vocabulary(dtable, shard), "embedding: ids");
  visit_float(dy.dtype, [&]<class T>() {
    if (accumulate == Accumulate::overwrite)
      for (std::int64_t r = 0; r < dtable.rows(); ++r)
        for (std::int64_t j = 0; j < dtable.cols(); ++j) dtable.row<Master<T>>(r)[j] = 0;
    for (std::int64_t i = 0; i < dy.rows(); ++i) {
      const std::int64_t row = ids.as<std::int32_t>()[i] - shard.first;
      if (row < 0 || row >= dtable.rows()) continue;
      for (std::int64_t j = 0; j < dy.cols(); ++j)
        dtable.row<Master<T>>(row)[j] += static_cast<Master<T>>(dy.row<T>(i)[j]);
    }
  });
}

void add_table_rows(const Stream&, const Tensor& y, const Tensor& x, const Tensor& table, const Tensor& index) {
  check_indices(index, 0, table.rows(), "add_table_rows: index");
  visit_float(x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < x.rows(); ++i)
      for (std::int64_t j = 0; j < x.cols(); ++j)
        y.row<T>(i)[j] =
            T(static_cast<double>(x.row<T>(i)[j]) + static_cast<double>(table.row<T>(index.as<std::int32_t>()[i])[j]));
  });
}

}  // namespace

EmbeddingTable reference_embedding() {
  return {.forward = forward, .backward = backward, .add_table_rows = add_table_rows};
}

}  // namespace mmt::cpu
