// Where media enter a tower: Whisper small's two convolutions on 30 seconds of sound, and CLIP's patch embedding of the
// five pictures of the step llava-151m.
#include "bench/bench.h"

#include "kernels/backend.h"

#include <fmt/core.h>

namespace mmt::bench {
namespace {

struct Conv {
  const char* name;
  std::int64_t rows, in, out;
  int stride;
};
constexpr Conv kConvs[] = {{"conv1", 3000, 80, 768, 1}, {"conv2", 3000, 768, 768, 2}};

/// Columns and product, as the stem does it; the first convolution needs no input gradient.
void measure_conv(Bench& bench, const Conv& c, DType dtype, const std::vector<std::string>& names) {
  const Stream stream = cpu_stream();
  const std::int64_t rows = ops::conv_output_rows(c.rows, c.stride), width = c.in * kConvTaps;
  OwnedTensor clips(DType::i32, {1, 2});
  clips->as<std::int32_t>()[0] = 0;
  clips->as<std::int32_t>()[1] = static_cast<std::int32_t>(c.rows);
  const OwnedTensor x = filled(dtype, {c.rows, c.in}), columns(dtype, {rows, width}), w = filled(dtype, {c.out, width}),
                    b = filled(dtype, {c.out}), y = filled(dtype, {rows, c.out}), dx(dtype, {c.rows, c.in}),
                    dw = filled(DType::f32, {c.out, width}), db = filled(DType::f32, {c.out});
  const double flops = 2.0 * static_cast<double>(rows * width * c.out);
  const bool f32 = dtype == DType::f32, first = c.stride == 1;
  const double limit = f32 ? bench.limits().fma_f32 : bench.limits().dot_bf16;
  const char* const peak = f32 ? "f32 FMA peak" : "bf16 peak";
  const Seconds forward = bench.time([&] {
    ops::im2col(stream, columns, x, clips, c.stride);
    ops::linear_forward(stream, y, columns, w, b);
  });
  bench.rate(names[0], "GF/s", flops, forward, peak, limit);
  const Seconds backward = bench.time([&] {
    ops::im2col(stream, columns, x, clips, c.stride);
    ops::linear_backward_weight(stream, dw, y, columns, Accumulate::add);
    ops::linear_backward_bias(stream, db, y, Accumulate::add);
    if (first) return;
    ops::linear_backward_input(stream, columns, y, w);
    ops::col2im(stream, dx, columns, clips, c.stride);
  });
  bench.rate(names[1], "GF/s", first ? flops : 2 * flops, backward, peak, limit);
  const auto size = static_cast<double>(size_of(dtype));
  const double bytes = size * static_cast<double>(c.rows * c.in + rows * width);
  bench.memory_rate(
      names[2], bytes, [&] { ops::im2col(stream, columns, x, clips, c.stride); }, Traffic::copy);
  bench.memory_rate(
      names[3], bytes, [&] { ops::col2im(stream, dx, columns, clips, c.stride); }, Traffic::copy);
}

void measure_patches(Bench& bench, DType dtype, const std::vector<std::string>& names) {
  constexpr std::int64_t kRows = 5 * 256, kIn = 3 * 14 * 14, kOut = 512;
  const Stream stream = cpu_stream();
  const OwnedTensor x = filled(dtype, {kRows, kIn}), w = filled(dtype, {kOut, kIn}), y = filled(dtype, {kRows, kOut}),
                    dw = filled(DType::f32, {kOut, kIn});
  const double flops = 2.0 * static_cast<double>(kRows * kIn * kOut);
  const bool f32 = dtype == DType::f32;
  const double limit = f32 ? bench.limits().fma_f32 : bench.limits().dot_bf16;
  const char* const peak = f32 ? "f32 FMA peak" : "bf16 peak";
  bench.rate(names[0], "GF/s", flops, bench.time([&] { ops::linear_forward(stream, y, x, w); }), peak, limit);
  bench.rate(names[1], "GF/s", flops,
             bench.time([&] { ops::linear_backward_weight(stream, dw, y, x, Accumulate::add); }), peak, limit);
}

}  // namespace

void add_stems(Cases& cases) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Conv& c : kConvs) {
      std::vector<std::string> names;
      for (const char* part : {"forward", "backward", "im2col", "col2im"})
        names.push_back(fmt::format("conv/whisper/{}/{}/{}", c.name, part, name_of(dtype)));
      cases.push_back({names, [&c, dtype, names](Bench& bench) { measure_conv(bench, c, dtype, names); }});
    }
    std::vector<std::string> names;
    for (const char* part : {"forward", "weight-gradient"})
      names.push_back(fmt::format("conv/clip/patch14/{}/{}", part, name_of(dtype)));
    cases.push_back({names, [dtype, names](Bench& bench) { measure_patches(bench, dtype, names); }});
  }
}

}  // namespace mmt::bench
