// 1-D convolution with kernel 3 and zero padding 1 (Whisper's stem) as im2col, a matrix product, and col2im.
// Clips are packed: rows of all clips follow one another in time order, channels are the columns.
// (A patch stem is a plain linear layer: the loader delivers patch rows.)
#pragma once

#include "kernels/accumulate.h"

#include "core/stream.h"

namespace mmt {

inline constexpr int kConvTaps = 3;

struct ConvTable {
  void (*im2col)(const Stream&, const Tensor& columns, const Tensor& x, const Tensor& clips, int stride) = nullptr;
  void (*col2im)(const Stream&, const Tensor& dx, const Tensor& dcolumns, const Tensor& clips, int stride,
                 Accumulate) = nullptr;
};

namespace ops {

/// Rows that a clip of `rows` rows has after the convolution.
constexpr std::int64_t conv_output_rows(std::int64_t rows, int stride) {
  return rows == 0 ? 0 : (rows - 1) / stride + 1;
}

/// columns (sum of the clips' output rows, 3 c_in), column c * 3 + k = x[first + t * stride + k - 1][c], zero outside
/// the clip; so that a weight (out, in, 3), flattened to (out, in * 3), is the matrix of linear_forward. x (rows,
/// c_in), the compute dtype, row stride allowed. clips (num, 2) i32: (first row, row count) each, inside x, ascending
/// and not overlapping. Output rows follow one another in clip order. stride 1 or 2.
void im2col(const Stream& stream, const Tensor& columns, const Tensor& x, const Tensor& clips, int stride);

/// The transpose: dx[row][c] = or += the sum of the entries of dcolumns that im2col filled from it, in the order of k.
/// Rows of dx that belong to no clip become zero (overwrite) or stay (add).
void col2im(const Stream& stream, const Tensor& dx, const Tensor& dcolumns, const Tensor& clips, int stride,
            Accumulate accumulate = Accumulate::overwrite);

}  // namespace ops
}  // namespace mmt
