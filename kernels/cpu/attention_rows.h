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
      store_part(to + i * stride + d, x, head_dim - d);
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
  for (int64_t i = 0; i < rows; ++i) {
    F16 total = zero();
    for (int d = 0; d < head_dim; d += 16)
      total = fma(load_part(x + i * a.stride + d, head_dim - d), load_part(y + i * b.stride + d, head_dim - d), total);
    delta[i] = sum(total);
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
  } parts[5];
  int used = 0, now = 0;
};
/// `features` columns of the rows [first, last), `head` heads on.
static inline void plan_fetch(Fetch& f, const RowsIn& rows, int64_t first, int64_t last, int64_t head, int features) {
  const int64_t size = rows.bf16 ? 2 : 4;
  f.parts[f.used++] = {static_cast<const char*>(rows.data) + (first * rows.stride + head * features) * size,
                       rows.stride * size, features * size, last - first};
}
static inline void fetch_some(Fetch& f, int64_t rows) {
  while (f.now < f.used && rows > 0) {
    Fetch::Part& p = f.parts[f.now];
    for (; p.rows > 0 && rows > 0; --p.rows, --rows, p.row += p.stride)
      for (int64_t byte = 0; byte < p.bytes; byte += 64) __builtin_prefetch(p.row + byte, 0, 2);
    f.now += p.rows == 0;
  }
}
/// What is left, and none planned.
static inline void fetch_rest(Fetch& f) {
  fetch_some(f, int64_t{1} << 40);
  f.used = f.now = 0;
}
inline constexpr int kFetchRows = 10;  // at a time

static inline void clear(float* to, int64_t floats) {
  for (int64_t i = 0; i < floats; i += 16) store(to + i, zero());
}

/// Work of few rows, head by head over the keys that `one` has packed, asking for the rows of a later head meanwhile.
template <class State, class Work>
static void forward_own_heads(State& st, Work& one, const OwnForward& w, void (*block)(State&, const Work&)) {
  const TileLists& l = w.lists;
  const int key0 = l.key_start[w.first_key], keys = l.key_start[w.last_key];
  const int query0 = l.query_start[w.first_query], queries = l.query_start[w.last_query];
  one.lists = l;
  one.head_dim = w.head_dim;
  one.scale = w.scale;
  one.key_base = key0;
  for (int head = 0; head < w.heads; ++head) {
    one.q = from_head(w.q, head, w.head_dim);
    one.out = from_head(w.out, head, w.head_dim);
    one.lse = w.lse + head * w.lse_stride;
    if (w.ahead > 0) {
      plan_fetch(st.fetch, one.q, query0, queries, int64_t{w.ahead} * w.heads, w.head_dim);
      if (head == 0) plan_fetch(st.fetch, w.k, key0, keys, w.ahead, w.head_dim);
      if (head == 0) plan_fetch(st.fetch, w.v, key0, keys, w.ahead, w.head_dim);
    }
    for (int b = w.first_query; b < w.last_query; ++b) {
      one.item = {b, 0, 0x7fffffff, -1, 0};
      block(st, one);
    }
    fetch_rest(st.fetch);
  }
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
