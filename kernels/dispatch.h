// What the op functions share: finding the table that runs a call, and checks that name the tensor. Internal.
#pragma once

#include "kernels/backend.h"

#include "core/error.h"

namespace mmt::ops {

/// The table of the stream; f64 exists in the reference alone.
inline const KernelTable& table_for(const Stream& stream, DType compute) {
  MMT_CHECK(stream.kernels != nullptr, "a stream without a kernel table");
  return compute == DType::f64 ? reference_kernels() : *stream.kernels;
}

/// A float tensor of this rank and dtype on the stream's device.
inline void check_tensor(const Stream& stream, const Tensor& t, int rank, DType dtype, const char* what) {
  MMT_CHECK(t.rank == rank && t.dtype == dtype, "{} is {}, expected rank {} of {}", what, t.describe(), rank,
            name_of(dtype));
  MMT_CHECK(t.device == stream.device, "{} lies on another device than the stream", what);
}

inline void check_compute(const Stream& stream, const Tensor& t, const char* what) {
  MMT_CHECK(t.defined() && is_float(t.dtype), "{} is {}, expected a float tensor", what, t.describe());
  MMT_CHECK(t.device == stream.device, "{} lies on another device than the stream", what);
}

/// A contiguous vector of `count` elements.
inline void check_vector(const Stream& stream, const Tensor& t, std::int64_t count, DType dtype, const char* what) {
  check_tensor(stream, t, 1, dtype, what);
  MMT_CHECK(t.dims[0] == count && t.contiguous(), "{} is {}, expected {} contiguous elements", what, t.describe(),
            count);
}

/// Same rows, columns and dtype as `like`.
inline void check_like(const Tensor& t, const Tensor& like, const char* what) {
  MMT_CHECK(t.dtype == like.dtype && t.rows() == like.rows() && t.cols() == like.cols(), "{} is {}, expected {}", what,
            t.describe(), like.describe());
}

}  // namespace mmt::ops
