// What an op does with the old contents of an output.
#pragma once

#include <cstdint>

namespace mmt {

enum class Accumulate : std::uint8_t {
  overwrite,  ///< old contents are never read (they may be NaN); with zero input rows zeros are written
  add,        ///< the result is added to the old contents in the op's inner precision, rounded once
};

}  // namespace mmt

// Rules of all headers in this folder:
//   * the stream comes first, outputs before inputs; the caller allocates everything, an op keeps nothing.
//   * dtypes: "the compute dtype" is f32, bf16 or f64 (f64 on the CPU, for gradient checks), one for all activations
//     and weights of a call. bf16 is widened, computed in f32 and rounded to nearest even once, at the output.
//     "The master dtype" is f32, or f64 when the compute dtype is f64: parameter gradients and row statistics have it.
//   * zero rows are legal everywhere. Outputs do not overlap inputs unless the header says that they may be the same.
//   * NaN and infinity pass through as the formula has it; nothing is clamped, masked or flushed.
//   * no result of our own kernels depends on the number of threads. Matrix products are the library's (gemm.h).
//   * a shape or dtype that the contract does not allow throws std::logic_error with the values.
