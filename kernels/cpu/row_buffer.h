// Memory of the calling thread for a row or two of f32. It only grows, so that a steady step allocates nothing.
#pragma once

#include "core/arena.h"

namespace mmt::cpu {

/// `n` floats, the same memory at every call of this thread.
inline float* row_buffer(std::int64_t n) {
  thread_local Buffer buffer;
  const auto bytes = static_cast<std::size_t>(n) * sizeof(float);
  if (buffer.bytes() < bytes) buffer = Buffer(bytes);
  return static_cast<float*>(buffer.data());
}

}  // namespace mmt::cpu
