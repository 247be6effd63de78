// The fast row movers: gather, scatter and the embedding. Sums go by rows of the result over the threads, in order.
#include "kernels/cpu/driver.h"
#include "kernels/cpu/index_check.h"
#include "kernels/cpu/tables.h"

#include <emmintrin.h>

#include <cstring>

namespace mmt::cpu {
namespace {

char* row_of(const Tensor& t, std::int64_t r) {
  return static_cast<char*>(t.data) + r * t.row_stride * size_of(t.dtype);
}

// Rows found by index are asked for this many rows ahead: the processor cannot guess where they lie.
constexpr std::int64_t kRowsAhead = 4;

template <bool kWrite> void ask_for(const char* row, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, kWrite ? 1 : 0, 2);
}

// Results beyond the size of the caches are written past them: a line that is replaced whole need not be read first.
constexpr std::int64_t kStreamedBytes = 32 << 20, kStreamedRow = 256;

/// Whether rows of `bytes` are worth it.
bool streams(std::int64_t rows, std::size_t bytes) {
  const auto each = static_cast<std::int64_t>(bytes);
  return each >= kStreamedRow && rows * each > kStreamedBytes;
}

/// Rows ahead so that about a page is under way.
std::int64_t rows_under_way(std::size_t bytes) { return 1 + 4096 / static_cast<std::int64_t>(bytes); }

/// Copies a row past the caches, asking for the lines of `next` (or null) meanwhile. _mm_sfence() must follow the last.
void stream_row(char* to, const char* from, std::size_t bytes, const char* next) {
  const std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % 64;
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + 64 <= bytes; at += 64) {
    if (next) __builtin_prefetch(next + at, 0, 2);
    for (std::size_t part = at; part < at + 64; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
  }
  std::memcpy(to + at, from + at, bytes - at);
}

// dst[i] = src[index[i] - first], zeros where that row is not in src.
void copy_rows(const Tensor& dst, const Tensor& src, const Tensor& index, std::int64_t first_row) {
  const auto bytes = static_cast<std::size_t>(dst.cols() * size_of(dst.dtype));
  const auto* from = index.as<std::int32_t>();
  const auto source = [&](std::int64_t i) -> const char* {
    const std::int64_t row = from[i] - first_row;
    return row < 0 || row >= src.rows() ? nullptr : row_of(src, row);
  };
  const bool stream = streams(dst.rows(), bytes);
  const std::int64_t ahead = stream ? rows_under_way(bytes) : kRowsAhead;
  parallel_shares(dst.rows(), 1, dst.numel(), [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = first; i < first + count; ++i) {
      const char* const later = i + ahead < first + count ? source(i + ahead) : nullptr;
      const char* const row = source(i);
      if (later && !(stream && row)) ask_for<false>(later, bytes);
      if (!row)
        std::memset(row_of(dst, i), 0, bytes);
      else if (stream)
        stream_row(row_of(dst, i), row, bytes, later);
      else
        std::memcpy(row_of(dst, i), row, bytes);
    }
    if (stream) _mm_sfence();
  });
}

void gather_rows(const Stream&, const Tensor& dst, const Tensor& src, const Tensor& index) {
  check_indices(index, -1, src.rows(), "gather_rows: index");
  copy_rows(dst, src, index, 0);
}

void scatter_rows(const Stream&, const Tensor& dst, const Tensor& src, const Tensor& index) {
  check_indices(index, -1, dst.rows(), "scatter_rows: index");
  const auto bytes = static_cast<std::size_t>(dst.cols() * size_of(dst.dtype));
  const auto* to = index.as<std::int32_t>();
  if (streams(src.rows(), bytes)) {
    parallel_shares(src.rows(), 1, src.numel(), [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t i = first; i < first + count; ++i)
        if (to[i] >= 0) stream_row(row_of(dst, to[i]), row_of(src, i), bytes, nullptr);
      _mm_sfence();
    });
    return;
  }
  parallel_shares(src.rows(), 1, src.numel(), [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = first; i < first + count; ++i) {
      if (i + kRowsAhead < first + count && to[i + kRowsAhead] >= 0)
        ask_for<true>(row_of(dst, to[i + kRowsAhead]), bytes);
      if (to[i] >= 0) std::memcpy(row_of(dst, to[i]), row_of(src, i), bytes);
    }
  });
}

// Rows of dst are dealt to this many groups, the groups to the threads: every sum has one owner, which adds in order.
constexpr std::int64_t kGroups = 64;

std::int64_t group_of(std::int64_t row) {
  return static_cast<std::int64_t>(static_cast<std::uint32_t>(row) * 2654435769u >> 26);  // the upper six bits
}

// dst[index[i] - first] += src[i] where that row is in dst.
template <Isa kLevel> void add_rows(const Tensor& dst, const Tensor& src, const Tensor& index, std::int64_t first_row) {
  const auto* to = index.as<std::int32_t>();
  const auto bytes = static_cast<std::size_t>(dst.cols() * size_of(dst.dtype));
  visit_fast(src.dtype, [&]<class T>() {
    const Inner<T>& inner = inner_of<T>(kLevel);
    const auto ps = rows_of<const T>(src);
    parallel_shares(kGroups, 1, src.numel(), [&](std::int64_t first, std::int64_t count) {
      const auto mine = [&](std::int64_t row) {
        return row >= 0 && row < dst.rows() && group_of(row) >= first && group_of(row) < first + count;
      };
      for (std::int64_t i = 0; i < src.rows(); ++i) {
        if (i + 2 * kRowsAhead < src.rows()) {
          const std::int64_t later = to[i + 2 * kRowsAhead] - first_row;
          if (mine(later)) {
            ask_for<true>(row_of(dst, later), bytes);
            ask_for<false>(row_of(src, i + 2 * kRowsAhead), static_cast<std::size_t>(src.cols() * size_of(src.dtype)));
          }
        }
        const std::int64_t row = to[i] - first_row;
        if (!mine(row)) continue;
        if (dst.dtype == src.dtype) {
          const auto d = advance(rows_of<T>(dst), row, 0);
          inner.add(d, {d.base, d.stride}, advance(ps, i, 0), 1, src.cols());
        } else {
          const auto d = advance(rows_of<float>(dst), row, 0);
          inner.add_to_f32(d, {d.base, d.stride}, advance(ps, i, 0), 1, src.cols());
        }
      }
    });
  });
}

template <Isa kLevel> void scatter_add_rows(const Stream&, const Tensor& dst, const Tensor& src, const Tensor& index) {
  check_indices(index, -1, dst.rows(), "scatter_add_rows: index");
  add_rows<kLevel>(dst, src, index, 0);
}

std::int64_t vocabulary(const Tensor& table, VocabularyShard shard) {
  return shard.total == 0 ? table.rows() : shard.total;
}

void embedding_forward(const Stream&, const Tensor& y, const Tensor& table, const Tensor& ids, VocabularyShard shard) {
  check_indices(ids, -1, vocabulary(table, shard), "embedding: ids");
  copy_rows(y, table, ids, shard.first);
}

template <Isa kLevel> void embedding_backward(const Stream& stream, const Tensor& dtable, const Tensor& dy,
                                              const Tensor& ids, Accumulate accumulate, VocabularyShard shard) {
  check_indices(ids, -1, vocabulary(dtable, shard), "embedding: ids");
  if (accumulate == Accumulate::overwrite) cpu_elementwise(kLevel).fill(stream, dtable, 0.0);
  add_rows<kLevel>(dtable, dy, ids, shard.first);
}

template <Isa kLevel>
void add_table_rows(const Stream&, const Tensor& y, const Tensor& x, const Tensor& table, const Tensor& index) {
  check_indices(index, 0, table.rows(), "add_table_rows: index");
  const auto* from = index.as<std::int32_t>();
  visit_fast(x.dtype, [&]<class T>() {
    const auto py = rows_of<T>(y);
    const auto px = rows_of<const T>(x), pt = rows_of<const T>(table);
    parallel_shares(x.rows(), 1, x.numel(), [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t i = first; i < first + count; ++i) {
        if (i + kRowsAhead < first + count)
          ask_for<false>(row_of(table, from[i + kRowsAhead]), static_cast<std::size_t>(x.cols()) * sizeof(T));
        inner_of<T>(kLevel).add(advance(py, i, 0), advance(px, i, 0), advance(pt, from[i], 0), 1, x.cols());
      }
    });
  });
}

}  // namespace

GatherTable cpu_gather(Isa level) {
  return for_level(level, []<Isa kLevel>() {
    return GatherTable{
        .gather_rows = gather_rows, .scatter_rows = scatter_rows, .scatter_add_rows = scatter_add_rows<kLevel>};
  });
}

EmbeddingTable cpu_embedding(Isa level) {
  return for_level(level, []<Isa kLevel>() {
    return EmbeddingTable{
        .forward = embedding_forward, .backward = embedding_backward<kLevel>, .add_table_rows = add_table_rows<kLevel>};
  });
}

}  // namespace mmt::cpu
