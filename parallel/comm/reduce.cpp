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

template <class T, class A, class F> void reduce_typed(F f, const void* carry, std::span<const void* const> sources,
                                                       std::span<void* const> destinations, void* onward,
                                                       std::int64_t count) {
  A acc[kBlock];
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t n = std::min(kBlock, count - first);
    std::size_t r = 0;
    if (carry != nullptr) {
      std::memcpy(acc, static_cast<const A*>(carry) + first, static_cast<std::size_t>(n) * sizeof(A));
    } else {
      const T* p = static_cast<const T*>(sources[r++]) + first;
      for (std::int64_t i = 0; i < n; ++i) acc[i] = static_cast<A>(p[i]);
    }
    for (; r < sources.size(); ++r) {
      const T* p = static_cast<const T*>(sources[r]) + first;
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
    if (onward != nullptr) std::memcpy(static_cast<A*>(onward) + first, acc, static_cast<std::size_t>(n) * sizeof(A));
  }
}

template <class F> void reduce_with(F f, DType dtype, const void* carry, std::span<const void* const> sources,
                                    std::span<void* const> destinations, void* onward, std::int64_t count) {
  const auto run = [&]<class T, class A>() { reduce_typed<T, A>(f, carry, sources, destinations, onward, count); };
  switch (dtype) {
    case DType::f32: return run.template operator()<float, float>();
    case DType::f64: return run.template operator()<double, double>();
    case DType::bf16: return run.template operator()<bf16, float>();
    case DType::i32: return run.template operator()<std::int32_t, std::int32_t>();
    case DType::i64: return run.template operator()<std::int64_t, std::int64_t>();
    case DType::u64: return run.template operator()<std::uint64_t, std::uint64_t>();
    case DType::u8: return run.template operator()<std::uint8_t, std::uint8_t>();
  }
}

void reduce_any(ReduceOp op, DType dtype, const void* carry, std::span<const void* const> sources,
                std::span<void* const> destinations, void* onward, std::int64_t count) {
  switch (op) {
    case ReduceOp::sum: return reduce_with(Sum{}, dtype, carry, sources, destinations, onward, count);
    case ReduceOp::max: return reduce_with(Max{}, dtype, carry, sources, destinations, onward, count);
    case ReduceOp::min: return reduce_with(Min{}, dtype, carry, sources, destinations, onward, count);
  }
}

}  // namespace

void reduce_in_rank_order(ReduceOp op, DType dtype, std::span<const void* const> sources,
                          std::span<void* const> destinations, std::int64_t count) {
  reduce_any(op, dtype, nullptr, sources, destinations, nullptr, count);
}

DType accumulator_of(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }

void reduce_onward(ReduceOp op, DType dtype, const void* carry, std::span<const void* const> sources, void* acc,
                   std::int64_t count) {
  reduce_any(op, dtype, carry, sources, {}, acc, count);
}

void round_accumulators(DType dtype, const void* acc, void* out, std::int64_t count) {
  void* const to[] = {out};
  reduce_any(ReduceOp::sum, dtype, acc, {}, to, nullptr, count);
}

}  // namespace mmt::comm
