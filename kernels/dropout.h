// Dropout: elements are dropped by address, so that a block, its recompute and any layout drop the same ones.
#pragma once

#include "kernels/accumulate.h"

#include "core/stream.h"

namespace mmt {

struct DropoutOptions {
  std::uint64_t key = 0;  ///< random_key(seed, "dropout", the layer)
  std::uint32_t step = 0;
  double probability = 0.0;    ///< of an element to be dropped: in [0, 1)
  std::int64_t features = 0;   ///< columns of the whole tensor, of which x may hold a range
  std::int64_t first_col = 0;  ///< of x in the whole tensor
  Accumulate accumulate = Accumulate::overwrite;
};

struct DropoutTable {
  void (*dropout)(const Stream&, const Tensor& y, const Tensor& x, const Tensor& address,
                  const DropoutOptions& options) = nullptr;
};

namespace ops {

/// y = or += x / (1 - probability) where an element is kept, 0 where it is dropped (whatever it was: NaN, too). x and y
/// (rows, cols) have one dtype; y may be x. The backward is the same op on the gradient.
///
/// address: i64 (rows, 2), contiguous: the sample that a row belongs to and the row's number in it; a negative sample
/// (padding) drops the whole row. With e = row number * features + first_col + column, an element is dropped when
/// random_bits(key, sample, step, e) (core/philox.h) is below probability * 2^32. sample and e / 4 have 48 bits at
/// most. The factor 1 / (1 - probability) is rounded to the inner precision.
void dropout(const Stream& stream, const Tensor& y, const Tensor& x, const Tensor& address,
             const DropoutOptions& options);

}  // namespace ops
}  // namespace mmt
