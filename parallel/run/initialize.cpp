#include "core/philox.h"
#include "parallel/run/store.h"

#include <algorithm>
#include <cmath>

namespace mmt::run {
namespace {

/// Whisper's fixed table: row = position, the first half of the columns sines, the second cosines, of wave lengths in a
/// geometric row from 2 pi to 10000 * 2 pi (Radford et al. 2022, `sinusoids`).
double sinusoid(std::int64_t row, std::int64_t col, std::int64_t cols) {
  const std::int64_t half = cols / 2;
  const double step = std::log(10000.0) / static_cast<double>(std::max<std::int64_t>(half - 1, 1));
  const double angle = static_cast<double>(row) * std::exp(-step * static_cast<double>(col % half));
  return col < half ? std::sin(angle) : std::cos(angle);
}

template <class T>
void fill_run(const ParamSpec& spec, std::uint64_t key, std::int64_t first_global, std::span<T> out) {
  const std::int64_t cols = spec.shape.back();
  std::vector<double> values(out.size());
  switch (spec.init.kind) {
    case Init::Kind::zeros: break;
    case Init::Kind::ones: std::ranges::fill(values, 1.0); break;
    case Init::Kind::normal:
      random_normals(key, 0, 0, static_cast<std::uint64_t>(first_global), values);
      for (double& v : values) v *= spec.init.scale;
      break;
    case Init::Kind::uniform:
      random_uniforms(key, 0, 0, static_cast<std::uint64_t>(first_global), values);
      for (double& v : values) v = (2.0 * v - 1.0) * spec.init.scale;
      break;
    case Init::Kind::sinusoid:
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::int64_t at = first_global + static_cast<std::int64_t>(i);
        values[i] = sinusoid(at / cols, at % cols, cols);
      }
      break;
  }
  std::ranges::transform(values, out.begin(), [](double v) {
    // bf16 by way of f32, as the compute copy of a master is made.
    if constexpr (std::is_same_v<T, bf16>)
      return bf16(static_cast<float>(v));
    else
      return static_cast<T>(v);
  });
}

template <class T>
void initialize_typed(const ParamSpec& spec, std::uint64_t key, std::int64_t owned_first, std::span<T> out) {
  // Walk the box in runs that are contiguous in the global tensor: one row of its last dimension each.
  const std::int64_t width = spec.box.shape.back();
  std::int64_t at = owned_first;
  std::size_t done = 0;
  while (done < out.size()) {
    std::int64_t rest = at / width, global = 0, stride = spec.shape.back();
    for (std::size_t d = spec.shape.size() - 1; d-- > 0;) {
      global += (spec.box.offset[d] + rest % spec.box.shape[d]) * stride;
      rest /= spec.box.shape[d];
      stride *= spec.shape[d];
    }
    const std::int64_t col = at % width;
    const std::size_t run = std::min<std::size_t>(out.size() - done, static_cast<std::size_t>(width - col));
    fill_run(spec, key, global + spec.box.offset.back() + col, out.subspan(done, run));
    done += run;
    at += static_cast<std::int64_t>(run);
  }
}
}  // namespace

void initialize(const ParamSpec& spec, std::uint64_t seed, std::int64_t owned_first, const Tensor& master) {
  const std::uint64_t key = random_key(seed, "init", canonical_name(spec));
  if (master.numel() == 0) return;
  // A value depends on its place alone, so the pieces may be made by any thread.
  constexpr std::int64_t kPiece = 64 * 1024;
  const std::int64_t count = master.numel();
#pragma omp parallel for schedule(dynamic, 1) if (count > kPiece)
  for (std::int64_t first = 0; first < count; first += kPiece) {
    const std::int64_t size = std::min(kPiece, count - first);
    const auto piece = [&]<class T>(std::span<T> all) {
      initialize_typed(spec, key, owned_first + first,
                       all.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size)));
    };
    if (master.dtype == DType::f64)
      piece(master.span<double>());
    else if (master.dtype == DType::bf16)
      piece(master.span<bf16>());
    else
      piece(master.span<float>());
  }
}

}  // namespace mmt::run
