// (rows, features) or (rows, heads, features) with a row stride, seen as one list of vectors.
#pragma once

#include "core/tensor.h"

namespace mmt::cpu {

template <class T> struct Vectors {
  T* base;
  std::int64_t rows, heads, features, row_stride;

  explicit Vectors(const Tensor& t)
      : base(t.as<std::remove_const_t<T>>()),
        rows(t.dims[0]),
        heads(t.rank == 3 ? t.dims[1] : 1),
        features(t.dims[static_cast<std::size_t>(t.rank - 1)]),
        row_stride(t.row_stride) {}

  std::int64_t count() const { return rows * heads; }
  T* operator[](std::int64_t i) const {
    return heads == 1 ? base + i * row_stride : base + i / heads * row_stride + i % heads * features;
  }
};

}  // namespace mmt::cpu
