// Signed numbers as the unsigned ones that containers and copies want. Counts and ids are signed everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mmt {

/// A place in a container; must not be negative.
constexpr std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
/// A number of bytes or elements; must not be negative.
constexpr std::size_t usize(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace mmt
