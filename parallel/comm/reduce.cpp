#include "parallel/comm/reduce.h"

#include <algorithm>
#include <cstring>

namespace mmt::comm {

namespace {

// Elements that one pass keeps in the first-level cache.
constexpr std::int64_t kBlock = 1024;

struct Sum {
  template <class A> A operator()(A a, A b) const {
    if constexpr (std::is_signed_v<A> && std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return static_cast<A>(a + b);
    }
  }
};
struct Max {
  template <class A> A operator()(A a, A b) const { return b > a || b != b ? b : a; }
};
struct Min {
  template <class A> A operator()(A a, A b) const { return b < a || b != b ? b : a; }
};

template <class T, class A, class F>
void reduce_typed(F f, std::span<const void* const> sources, std::span<void* const> destinations, std::int64_t count) {
  A acc[kBlock];
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t n = std::min(kBlock, count - first);
    const T* p = static_cast<const T*>(sources[0]) + first;
    for (std::int64_t i = 0; i < n; ++i) acc[i] = static_cast<A>(p[i]);
    for (std::size_t r = 1; r < sources.size(); ++r) {
      p = static_cast<const T*>(sources[r]) + first;
      for (std::int64_t i = 0; i < n; ++i) acc[i] = f(acc[i], static_cast<A>(p[i]));
    }
    for (void* destination : destinations) {
      T* q = static_cast<T*>(destination) + first;
      if constexpr (std::is_same_v<T, A>) {
        std::memcpy(q, acc, static_cast<std::size_t>(n) * sizeof(T));
      } else {
        for (std::int64_t i = 0; i < n; ++i) q[i] = T(acc[i]);
      }
    }
  }
}

template <class F> void reduce_with(F f, DType dtype, std::span<const void* const> sources,
                                    std::span<void* const> destinations, std::int64_t count) {
  switch (dtype) {
    case DType::f32: return reduce_typed<float, float>(f, sources, destinations, count);
    case DType::f64: return reduce_typed<double, double>(f, sources, destinations, count);
    case DType::bf16: return reduce_typed<bf16, float>(f, sources, destinations, count);
    case DType::i32: return reduce_typed<std::int32_t, std::int32_t>(f, sources, destinations, count);
    case DType::i64: return reduce_typed<std::int64_t, std::int64_t>(f, sources, destinations, count);
    case DType::u64: return reduce_typed<std::uint64_t, std::uint64_t>(f, sources, destinations, count);
    case DType::u8: return reduce_typed<std::uint8_t, std::uint8_t>(f, sources, destinations, count);
  }
}

}  // namespace

void reduce_in_rank_order(ReduceOp op, DType dtype, std::span<const void* const> sources,
                          std::span<void* const> destinations, std::int64_t count) {
  switch (op) {
    case ReduceOp::sum: return reduce_with(Sum{}, dtype, sources, destinations, count);
    case ReduceOp::max: return reduce_with(Max{}, dtype, sources, destinations, count);
    case ReduceOp::min: return reduce_with(Min{}, dtype, sources, destinations, count);
  }
}

}  // namespace mmt::comm
