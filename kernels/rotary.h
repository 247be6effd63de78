// Rotary position embedding (Su et al. 2021), in the half-split layout of Hugging Face: element j of a head is rotated
// with element j + pairs, j < pairs. One table per block serves q and k of all layers.
// Several positions a row (M-RoPE of Qwen2-VL; row and column in its vision tower): every frequency names the position
// it multiplies.
#pragma once

#include "core/stream.h"

#include <span>

namespace mmt {

enum class Direction : bool { forward, backward };

struct RotaryTable {
  void (*table)(const Stream&, const Tensor& cos, const Tensor& sin, const Tensor& positions,
                std::span<const double> inv_freq, std::span<const std::uint8_t> axis, double scale) = nullptr;
  void (*apply)(const Stream&, const Tensor& x, const Tensor& cos, const Tensor& sin, Direction) = nullptr;
};

namespace ops {

/// inv_freq[j] = theta^(-2 j / (2 pairs)), j < inv_freq.size() = pairs: the unscaled frequencies.
void rotary_inverse_frequencies(std::span<double> inv_freq, double theta);
/// axis[j] = the section that j falls into: M-RoPE's `mrope_section`, whose sizes must add up to axis.size().
void rotary_section_axes(std::span<std::uint8_t> axis, std::span<const int> sections);

/// cos, sin (rows, pairs) contiguous, master dtype: cos and sin of positions[r][axis[j]] * inv_freq[j], times `scale`.
/// positions (rows, n) i32, n = 1..4; `axis` may be empty when n == 1. Angles and their sine are computed in double.
void rotary_table(const Stream& stream, const Tensor& cos, const Tensor& sin, const Tensor& positions,
                  std::span<const double> inv_freq, std::span<const std::uint8_t> axis = {}, double scale = 1.0);

/// In place on every head of x (rows, heads, head_dim), row stride allowed; (rows, head_dim) is one head. pairs = the
/// tables' columns, 2 pairs <= head_dim; elements beyond are left alone (partial rotary). Forward:
///   x[j] <- x[j] cos - x[j + pairs] sin,  x[j + pairs] <- x[j + pairs] cos + x[j] sin
/// backward is the transpose (sin negated): it turns gradients back.
void rotary_apply(const Stream& stream, const Tensor& x, const Tensor& cos, const Tensor& sin, Direction direction);

/// (rows, heads * head_dim) seen as (rows, heads, head_dim), row stride kept: for rotary and per-head norms.
Tensor split_heads(const Tensor& x, std::int64_t heads);

}  // namespace ops
}  // namespace mmt
