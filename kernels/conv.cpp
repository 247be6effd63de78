#include "kernels/conv.h"

#include "kernels/dispatch.h"

namespace mmt::ops {
namespace {

void check_conv(const Stream& stream, const Tensor& columns, const Tensor& x, const Tensor& clips, int stride,
                const char* what) {
  check_compute(stream, x, what);
  check_tensor(stream, x, 2, x.dtype, what);
  check_tensor(stream, columns, 2, x.dtype, what);
  check_tensor(stream, clips, 2, DType::i32, what);
  MMT_CHECK(stride == 1 || stride == 2, "{}: stride {}", what, stride);
  MMT_CHECK(columns.cols() == kConvTaps * x.cols() && clips.cols() == 2 && clips.contiguous(),
            "{}: columns {}, x {}, clips {}", what, columns.describe(), x.describe(), clips.describe());
}

}  // namespace

void im2col(const Stream& stream, const Tensor& columns, const Tensor& x, const Tensor& clips, int stride) {
  check_conv(stream, columns, x, clips, stride, "im2col");
  table_for(stream, x.dtype).conv.im2col(stream, columns, x, clips, stride);
}

void col2im(const Stream& stream, const Tensor& dx, const Tensor& dcolumns, const Tensor& clips, int stride,
            Accumulate accumulate) {
  check_conv(stream, dcolumns, dx, clips, stride, "col2im");
  table_for(stream, dx.dtype).conv.col2im(stream, dx, dcolumns, clips, stride, accumulate);
}

}  // namespace mmt::ops
