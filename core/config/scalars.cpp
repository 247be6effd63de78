#include "core/config/scalars.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace mmt::config {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// sign * digits * 10^exponent, digits without zeros at either end ("" is zero).
struct Decimal {
  bool negative = false;
  std::string digits;
  std::int64_t exponent = 0;
};

std::optional<Decimal> parse_decimal(std::string_view s) {
  Decimal d;
  std::size_t i = 0;
  if (i < s.size() && (s[i] == '+' || s[i] == '-')) d.negative = s[i++] == '-';
  bool any = false;
  for (; i < s.size() && is_digit(s[i]); ++i, any = true) d.digits += s[i];
  if (i < s.size() && s[i] == '.') {
    for (++i; i < s.size() && is_digit(s[i]); ++i, any = true) {
      d.digits += s[i];
      --d.exponent;
    }
  }
  if (!any) return std::nullopt;
  if (i < s.size() && (s[i] == 'e' || s[i] == 'E')) {
    ++i;
    bool down = false;
    if (i < s.size() && (s[i] == '+' || s[i] == '-')) down = s[i++] == '-';
    if (i == s.size()) return std::nullopt;
    std::int64_t e = 0;
    // Exponents beyond a million say no more than a million does.
    for (; i < s.size() && is_digit(s[i]); ++i) e = std::min<std::int64_t>(e * 10 + (s[i] - '0'), 1'000'000);
    d.exponent += down ? -e : e;
  }
  if (i != s.size()) return std::nullopt;
  d.digits.erase(0, std::min(d.digits.find_first_not_of('0'), d.digits.size()));
  while (!d.digits.empty() && d.digits.back() == '0') {
    d.digits.pop_back();
    ++d.exponent;
  }
  return d;
}

// digits * 10^exponent * unit, where that is a whole number of 64 bits.
Number<std::uint64_t> magnitude(const Decimal& d, std::uint64_t unit) {
  std::uint64_t value = 0;
  for (const char c : d.digits) {
    if (__builtin_mul_overflow(value, 10u, &value) ||
        __builtin_add_overflow(value, static_cast<unsigned>(c - '0'), &value)) {
      return {d.exponent < 0 ? NumberFault::not_whole : NumberFault::out_of_range};
    }
  }
  if (value == 0) return {};
  if (__builtin_mul_overflow(value, unit, &value)) return {NumberFault::out_of_range};
  for (std::int64_t e = d.exponent; e < 0; ++e) {
    if (value % 10 != 0) return {NumberFault::not_whole};
    value /= 10;
  }
  for (std::int64_t e = d.exponent; e > 0; --e) {
    if (__builtin_mul_overflow(value, 10u, &value)) return {NumberFault::out_of_range};
  }
  return {NumberFault::none, value};
}

Number<std::int64_t> to_signed(const Decimal& d, std::uint64_t unit) {
  const auto m = magnitude(d, unit);
  if (m.fault != NumberFault::none) return {m.fault};
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (m.value > kMax + (d.negative ? 1 : 0)) return {NumberFault::out_of_range};
  return {NumberFault::none, d.negative ? static_cast<std::int64_t>(0 - m.value) : static_cast<std::int64_t>(m.value)};
}

// Optimal string alignment distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

Number<std::int64_t> parse_int(std::string_view text) {
  const auto d = parse_decimal(text);
  return d ? to_signed(*d, 1) : Number<std::int64_t>{NumberFault::not_a_number};
}

Number<std::uint64_t> parse_uint(std::string_view text) {
  const auto d = parse_decimal(text);
  if (!d) return {NumberFault::not_a_number};
  const auto m = magnitude(*d, 1);
  if (m.fault == NumberFault::none && d->negative && m.value != 0) return {NumberFault::out_of_range};
  return m;
}

Number<double> parse_double(std::string_view text) {
  const auto d = parse_decimal(text);
  if (!d) return {NumberFault::not_a_number};
  if (text.front() == '+') text.remove_prefix(1);
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec == std::errc::result_out_of_range || !std::isfinite(value) || (value == 0 && !d->digits.empty())) {
    return {NumberFault::out_of_range};
  }
  if (result.ec != std::errc{} || result.ptr != text.data() + text.size()) return {NumberFault::not_a_number};
  return {NumberFault::none, value};
}

Number<std::int64_t> parse_bytes(std::string_view text) {
  constexpr std::pair<std::string_view, std::uint64_t> kUnits[] = {
      {"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30},   {"TiB", 1ull << 40},      {"kB", 1000ull},
      {"KB", 1000ull},     {"MB", 1000000ull},  {"GB", 1000000000ull}, {"TB", 1000000000000ull}, {"B", 1ull}};
  std::uint64_t unit = 1;
  for (const auto& [name, factor] : kUnits) {
    if (!text.ends_with(name)) continue;
    text.remove_suffix(name.size());
    unit = factor;
    while (text.ends_with(' ')) text.remove_suffix(1);
    break;
  }
  const auto d = parse_decimal(text);
  return d ? to_signed(*d, unit) : Number<std::int64_t>{NumberFault::not_a_number};
}

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  std::string best;
  std::size_t best_distance = word.size() / 3 + 1;
  if (word.size() > 64) return best;
  for (const std::string& name : names) {
    if (name.size() > 64) continue;
    const std::size_t d = distance(word, name);
    // One typing mistake makes of a two-letter word nearly any other.
    if (d < name.size() && d <= best_distance && (best.empty() || d < best_distance)) {
      best = name;
      best_distance = d;
    }
  }
  return best;
}

}  // namespace mmt::config
