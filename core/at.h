// Signed numbers as places in containers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mmt {

/// The place in a container of a number that is known not to be negative: counts and ids are signed everywhere.
constexpr std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace mmt
