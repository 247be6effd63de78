#include "core/metrics/metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace mmt {

void Metrics::set(std::string_view name, double value) {
  const auto found = std::ranges::find(values, name, &std::pair<std::string, double>::first);
  if (found == values.end()) {
    values.emplace_back(name, value);
  } else {
    found->second = value;
  }
}

std::optional<double> Metrics::find(std::string_view name) const {
  const auto found = std::ranges::find(values, name, &std::pair<std::string, double>::first);
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

std::string format_value(double value, Unit unit) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double size = std::abs(value);
  switch (unit) {
    case Unit::percent: return fmt::format("{:.1f}%", 100 * value);
    case Unit::seconds:
      if (size < 1e-3) return fmt::format("{:.0f}us", value * 1e6);
      if (size < 1) return fmt::format("{:.1f}ms", value * 1e3);
      return size < 60 ? fmt::format("{:.2f}s", value) : format_duration(value);
    case Unit::count: {
      constexpr std::pair<double, char> kSteps[] = {{1e12, 'T'}, {1e9, 'G'}, {1e6, 'M'}, {1e3, 'k'}};
      for (const auto& [factor, letter] : kSteps) {
        if (size >= factor) return fmt::format("{:.3g}{}", value / factor, letter);
      }
      return fmt::format("{:.4g}", value);
    }
    case Unit::bytes: {
      constexpr std::pair<double, const char*> kSteps[] = {
          {0x1p40, "TiB"}, {0x1p30, "GiB"}, {0x1p20, "MiB"}, {0x1p10, "KiB"}};
      for (const auto& [factor, name] : kSteps) {
        if (size >= factor) return fmt::format("{:.1f}{}", value / factor, name);
      }
      return fmt::format("{:.0f}B", value);
    }
    case Unit::number: break;
  }
  return fmt::format("{:.4g}", value);
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e9)) return "?";
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}d{:02}h", s / 86400, s / 3600 % 24);
}

}  // namespace mmt
