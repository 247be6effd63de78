// Rows of attention's matrices: addresses, to and from packed f32, sums over a row. Internal; for the units of one
// instruction set (see simd.h).
#pragma once

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/simd.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

using namespace mmt::simd::MMT_SIMD_NAMESPACE;
using std::int64_t;

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2 = 0.693147181f;
inline constexpr int kLanes = kTileQueries;  // the row stride of everything with queries as lanes

/// As store_part. But whole vectors are stored as such: what a masked store wrote cannot be read back at once.
template <class T> MMT_SIMD_INLINE void store_up_to(T* p, F16 x, int n) {
  if (n >= 16)
    store(p, x);
  else
    store_part(p, x, n);
}

template <class T> static inline void pack_rows(const T* from, int64_t stride, int64_t rows, int head_dim, float* to) {
  const int64_t dp = padded(head_dim);
  for (int64_t i = 0; i < rows; ++i)
    for (int d = 0; d < head_dim; d += 16) store(to + i * dp + d, load_part(from + i * stride + d, head_dim - d));
}
static inline void pack(const RowsIn& from, int64_t rows, int head_dim, float* to) {
  if (from.bf16)
    pack_rows(static_cast<const std::uint16_t*>(from.data), from.stride, rows, head_dim, to);
  else
    pack_rows(static_cast<const float*>(from.data), from.stride, rows, head_dim, to);
}

template <class T> static inline void unpack_rows(const float* from, int count, int64_t step, int64_t rows,
                                                  int head_dim, T* to, int64_t stride) {
  const int64_t dp = padded(head_dim);
  for (int64_t i = 0; i < rows; ++i)
    for (int d = 0; d < head_dim; d += 16) {
      F16 x = count > 0 ? load(from + i * dp + d) : zero();
      for (int s = 1; s < count; ++s) x = add(x, load(from + s * step + i * dp + d));
      store_up_to(to + i * stride + d, x, head_dim - d);
    }
}
static inline void unpack(const float* from, int count, int64_t step, int64_t rows, int head_dim, const RowsOut& to) {
  if (to.bf16)
    unpack_rows(from, count, step, rows, head_dim, static_cast<std::uint16_t*>(to.data), to.stride);
  else
    unpack_rows(from, count, step, rows, head_dim, static_cast<float*>(to.data), to.stride);
}

template <class T> static inline void dots(const RowsIn& a, const RowsIn& b, int64_t rows, int head_dim, float* delta) {
  const T* x = static_cast<const T*>(a.data);
  const T* y = static_cast<const T*>(b.data);
  alignas(64) float lanes[16 * 16];
  for (int64_t i0 = 0; i0 < rows; i0 += 16) {
    F16 total[16];
    const int count = rows - i0 < 16 ? static_cast<int>(rows - i0) : 16;
    for (int i = 0; i < 16; ++i) {
      total[i] = zero();
      if (i >= count) continue;
      const T *xi = x + (i0 + i) * a.stride, *yi = y + (i0 + i) * b.stride;
      for (int d = 0; d < head_dim; d += 16)
        total[i] = fma(load_part(xi + d, head_dim - d), load_part(yi + d, head_dim - d), total[i]);
    }
    transpose(total, lanes, 16, 16);
    for (int step = 8; step > 0; step /= 2)  // sum()'s order, of 16 rows at a time
      for (int i = 0; i < step; ++i) store(lanes + 16 * i, add(load(lanes + 16 * i), load(lanes + 16 * (i + step))));
    store_up_to(delta + i0, load(lanes), count);
  }
}
static inline void row_dots(const RowsIn& a, const RowsIn& b, int64_t rows, int head_dim, float* delta) {
  if (a.bf16)
    dots<std::uint16_t>(a, b, rows, head_dim, delta);
  else
    dots<float>(a, b, rows, head_dim, delta);
}

static inline void convert_lse(const float* natural, int64_t rows, float* to) {
  for (int64_t i = 0; i < rows; ++i) to[i] = natural[i] == -__builtin_inff() ? 0.0f : natural[i] * kLog2E;
}

static inline RowsIn from_row(const RowsIn& rows, int64_t row) {
  const int64_t bytes = row * rows.stride * (rows.bf16 ? 2 : 4);
  return {static_cast<const char*>(rows.data) + bytes, rows.stride, rows.bf16};
}
static inline RowsOut from_row(const RowsOut& rows, int64_t row) {
  const int64_t bytes = row * rows.stride * (rows.bf16 ? 2 : 4);
  return {static_cast<char*>(rows.data) + bytes, rows.stride, rows.bf16};
}
/// The columns of the next heads.
static inline RowsIn from_head(const RowsIn& rows, int64_t head, int head_dim) {
  const int64_t bytes = head * head_dim * (rows.bf16 ? 2 : 4);
  return {static_cast<const char*>(rows.data) + bytes, rows.stride, rows.bf16};
}
static inline RowsOut from_head(const RowsOut& rows, int64_t head, int head_dim) {
  const int64_t bytes = head * head_dim * (rows.bf16 ? 2 : 4);
  return {static_cast<char*>(rows.data) + bytes, rows.stride, rows.bf16};
}

/// Rows that will be wanted soon, to be asked for in small steps between products. They lie far apart, where the
/// processor does not guess them, and more than it can wait for at a time.
struct Fetch {
  struct Part {
    const char* row;
    int64_t stride, bytes, rows;
    bool write;
  } parts[8];
  int used = 0, now = 0;
  int64_t rows = 0;  // of all parts
};
/// `features` columns of the rows [first, last), `head` heads on.
static inline void plan_fetch(Fetch& f, const RowsIn& rows, int64_t first, int64_t last, int64_t head, int features,
                              bool write = false) {
  const int64_t size = rows.bf16 ? 2 : 4;
  f.parts[f.used++] = {static_cast<const char*>(rows.data) + (first * rows.stride + head * features) * size,
                       rows.stride * size, features * size, last - first, write};
  f.rows += last - first;
}
static inline void plan_fetch(Fetch& f, const RowsOut& rows, int64_t first, int64_t last, int64_t head, int features) {
  if (rows.data) plan_fetch(f, RowsIn{rows.data, rows.stride, rows.bf16}, first, last, head, features, true);
}
static inline void fetch_line(const char* at, bool write) {
#if defined(__AVX2__)  // or the line would be fetched twice: to read, then to own
  if (write) {
    asm volatile("prefetchw %0" : : "m"(*at));
    return;
  }
#endif
  if (write)
    __builtin_prefetch(at, 1, 2);
  else
    __builtin_prefetch(at, 0, 2);
}
static inline void fetch_some(Fetch& f, int64_t rows) {
  while (f.now < f.used && rows > 0) {
    Fetch::Part& p = f.parts[f.now];
    for (; p.rows > 0 && rows > 0; --p.rows, --rows, p.row += p.stride)
      for (int64_t byte = 0; byte < p.bytes; byte += 64) fetch_line(p.row + byte, p.write);
    f.now += p.rows == 0;
  }
}
/// What is left, and none planned.
static inline void fetch_rest(Fetch& f) {
  fetch_some(f, int64_t{1} << 40);
  f.used = f.now = 0;
  f.rows = 0;
}
inline constexpr int kFetchRows = 10;  // at a time

static inline void clear(float* to, int64_t floats) {
  for (int64_t i = 0; i < floats; i += 16) store(to + i, zero());
}

// Where sums of products go, by row and stripe.

/// To the caller's rows, each times a factor of its own.
template <class T> struct ToScaledRows {
  T* to;
  int64_t stride;
  const float* factor;
  int features;
  inline __attribute__((always_inline)) void operator()(int r, int v, F16 x) const {
    store_up_to(to + r * stride + 16 * v, mul(x, set1(factor[r])), features - 16 * v);
  }
};
/// To the caller's rows, in the precision that they have.
struct ToCaller {
  RowsOut rows;
  int features;
  inline __attribute__((always_inline)) void operator()(int r, int v, F16 x) const {
    const int64_t at = r * rows.stride + 16 * v;
    if (rows.bf16)
      store_up_to(static_cast<std::uint16_t*>(rows.data) + at, x, features - 16 * v);
    else
      store_up_to(static_cast<float*>(rows.data) + at, x, features - 16 * v);
  }
};

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
