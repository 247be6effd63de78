#include "kernels/dropout.h"

#include "kernels/dispatch.h"

namespace mmt::ops {

void dropout(const Stream& stream, const Tensor& y, const Tensor& x, const Tensor& address,
             const DropoutOptions& options) {
  check_compute(stream, x, "dropout: x");
  check_like(y, x, "dropout: y");
  check_tensor(stream, address, 2, DType::i64, "dropout: address");
  MMT_CHECK(address.rows() == x.rows() && address.cols() == 2 && address.contiguous(), "dropout: {} for {}",
            address.describe(), x.describe());
  MMT_CHECK(options.probability >= 0.0 && options.probability < 1.0, "dropout: probability {}", options.probability);
  MMT_CHECK(options.first_col >= 0 && options.first_col + x.cols() <= options.features,
            "dropout: columns [{}, +{}) of {}", options.first_col, x.cols(), options.features);
  table_for(stream, x.dtype).dropout.dropout(stream, y, x, address, options);
}

}  // namespace mmt::ops
