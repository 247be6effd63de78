#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "core/metrics/append_file.h"
#include "core/metrics/metrics.h"

#include <charconv>
#include <cmath>
#include <filesystem>

namespace mmt {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFile = std::uint64_t{8} << 30;
constexpr std::string_view kStart = "{\"step\":";

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::optional<std::int64_t> step_of(std::string_view line) {
  if (!line.starts_with(kStart) || !line.ends_with('}')) return std::nullopt;
  std::int64_t step = 0;
  const auto result = std::from_chars(line.data() + kStart.size(), line.data() + line.size(), step);
  if (result.ec != std::errc{} || (*result.ptr != ',' && *result.ptr != '}')) return std::nullopt;
  return step;
}

void keep_until(const std::string& path, std::int64_t last_step) {
  const std::string old = files::read(path, kMaxFile);
  std::string kept;
  std::size_t torn = 0;
  std::size_t later = 0;
  for (std::size_t at = 0; at < old.size();) {
    const std::size_t end = old.find('\n', at);
    const std::string_view line = std::string_view(old).substr(at, end - at);
    const auto step = end == std::string::npos ? std::nullopt : step_of(line);
    if (!step) {
      ++torn;
    } else if (*step > last_step) {
      ++later;
    } else {
      kept.append(line).append(1, '\n');
    }
    at = end == std::string::npos ? old.size() : end + 1;
  }
  if (torn > 0) log::warning("{}: {} torn lines were removed", path, torn);
  if (later > 0) log::info("{}: {} lines of steps after {} were removed", path, later, last_step);
  if (kept.size() != old.size()) files::write_atomic(path, kept);
}

void set_aside(const std::string& path) {
  for (int i = 1;; ++i) {
    const std::string other = fmt::format("{}.{}", path, i);
    if (fs::exists(other)) continue;
    fs::rename(path, other);
    log::info("{}: of an earlier run, kept as {}", path, other);
    return;
  }
}

class JsonLinesSink final : public Sink {
 public:
  explicit JsonLinesSink(const std::string& path) : file_(path) {}

  void write(const Metrics& metrics) override {
    std::string line = fmt::format("{}{}", kStart, metrics.step);
    for (const auto& [name, value] : metrics.values) {
      if (name == "step") continue;
      line += fmt::format(",{}:{}", json_text(name), std::isfinite(value) ? fmt::format("{}", value) : "null");
    }
    file_.append(line + "}\n");
  }

 private:
  AppendFile file_;
};

}  // namespace

std::unique_ptr<Sink> json_lines_sink(const std::string& path, std::optional<std::int64_t> resumed_step) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    if (resumed_step) {
      keep_until(path, *resumed_step);
    } else if (fs::file_size(path, ignored) > 0 && !ignored) {
      set_aside(path);
    }
  }
  return std::make_unique<JsonLinesSink>(path);
}

}  // namespace mmt
