// The fast dropout: the mask's bits a row at a time.
#include "kernels/cpu/dropout.h"

#include "kernels/cpu/driver.h"
#include "kernels/cpu/tables.h"

namespace mmt::cpu {
namespace {

template <Isa kLevel> struct Dropout {
  static void dropout(const Stream&, const Tensor& y, const Tensor& x, const Tensor& address, const DropoutOptions& o) {
    constexpr std::int64_t kLimit = std::int64_t{1} << 48;
    for (std::int64_t r = 0; r < x.rows(); ++r) {
      const std::int64_t* at = address.row<std::int64_t>(r);
      MMT_CHECK(at[0] < 0 || (at[0] < kLimit && at[1] >= 0 && at[1] < 4 * kLimit / o.features - 1),
                "dropout: row {} of sample {} with {} columns needs more than 48 bits", at[1], at[0], o.features);
    }
    visit_fast(x.dtype, [&]<class T>() {
      const auto py = rows_of<T>(y);
      const auto px = rows_of<const T>(x);
      parallel_shares(x.rows(), 1, 4 * x.numel(), [&](std::int64_t first, std::int64_t count) {
        DropoutRow row;
        row.key = o.key;
        row.step = o.step;
        row.threshold = dropout_threshold(o.probability);
        row.factor = dropout_factor(o.probability);
        row.add = o.accumulate == Accumulate::add;
        for (std::int64_t r = first; r < first + count; ++r) {
          const std::int64_t* at = address.row<std::int64_t>(r);
          row.all = at[0] < 0;
          row.sample = row.all ? 0 : static_cast<std::uint64_t>(at[0]);
          row.element = row.all ? 0 : static_cast<std::uint64_t>(at[1] * o.features + o.first_col);
          inner_of<T>(kLevel).dropout(py.base + r * py.stride, px.base + r * px.stride, row, x.cols());
        }
      });
    });
  }
};

}  // namespace

DropoutTable cpu_dropout(Isa level) {
  return for_level(level, []<Isa kLevel>() { return DropoutTable{.dropout = Dropout<kLevel>::dropout}; });
}

}  // namespace mmt::cpu
