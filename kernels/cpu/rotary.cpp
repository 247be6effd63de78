// The fast rotary embedding.
#include "kernels/cpu/driver.h"
#include "kernels/cpu/tables.h"

namespace mmt::cpu {
namespace {

constexpr std::int64_t kTableWeight = 20;  // sine and cosine beside moving an element

template <Isa kLevel> struct Rotary {
  static void table(const Stream&, const Tensor& cos, const Tensor& sin, const Tensor& positions,
                    std::span<const double> inv_freq, std::span<const std::uint8_t> axis, double scale) {
    float *pc = cos.as<float>(), *ps = sin.as<float>();
    const std::int64_t pairs = cos.cols(), axes = positions.cols();
    MMT_CHECK(positions.contiguous(), "rotary: positions {} are not contiguous", positions.describe());
    const std::int32_t* p = positions.as<std::int32_t>();
    parallel_shares(cos.rows(), 1, kTableWeight * cos.numel(), [&](std::int64_t first, std::int64_t count) {
      inner_kernels(kLevel).common.rotary_table(pc + first * pairs, ps + first * pairs, p + first * axes, axes,
                                                inv_freq.data(), axis.empty() ? nullptr : axis.data(), scale, count,
                                                pairs);
    });
  }

  static void apply(const Stream&, const Tensor& x, const Tensor& cos, const Tensor& sin, Direction direction) {
    visit_fast(x.dtype, [&]<class T>() {
      const VectorShape shape =
          x.rank == 3 ? VectorShape{x.dims[0], x.dims[1], x.dims[2]} : VectorShape{x.dims[0], 1, x.dims[1]};
      const auto px = rows_of<T>(x);
      const float *pc = cos.as<float>(), *ps = sin.as<float>();
      const std::int64_t pairs = cos.cols();
      parallel_shares(shape.rows, 1, x.numel(), [&](std::int64_t first, std::int64_t count) {
        inner_of<T>(kLevel).rotate(advance(px, first, 0), pc + first * pairs, ps + first * pairs, pairs,
                                   direction == Direction::backward, {count, shape.heads, shape.features});
      });
    });
  }
};

}  // namespace

RotaryTable cpu_rotary(Isa level) {
  return for_level(
      level, []<Isa kLevel>() { return RotaryTable{.table = Rotary<kLevel>::table, .apply = Rotary<kLevel>::apply}; });
}

}  // namespace mmt::cpu
