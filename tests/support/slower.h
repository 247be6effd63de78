// How much longer a test that limits a time may take in this build.
#pragma once

namespace mmt::test {

// Sanitizers slow code down; their builds prove other things than times.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSlower = 20;
#else
inline constexpr int kSlower = 1;
#endif

}  // namespace mmt::test
