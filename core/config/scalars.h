// Numbers as people write them in a config, read exactly and without regard to the locale.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::config {

enum class NumberFault { none, not_a_number, not_whole, out_of_range };

template <class T> struct Number {
  NumberFault fault = NumberFault::none;
  T value{};
};

/// `12`, `-3`, `010` (ten), `1e5`, `1.5e3`: any decimal whose value is a whole number that the type holds.
Number<std::int64_t> parse_int(std::string_view text);
Number<std::uint64_t> parse_uint(std::string_view text);
/// `0.1`, `2e-5`, `.5`, `3`; no hexadecimal, no infinity, no NaN. out_of_range when not finite or when it would
/// underflow to zero.
Number<double> parse_double(std::string_view text);
/// `4096`, `4MiB`, `1.5 GiB`, `2GB`: B, KiB, MiB, GiB, TiB, and kB, KB, MB, GB, TB as powers of 1000.
Number<std::int64_t> parse_bytes(std::string_view text);

/// The name within reach of a typing mistake (insert, delete, replace, swap of neighbours), or "".
std::string nearest(std::string_view word, const std::vector<std::string>& names);

}  // namespace mmt::config
