#include "parallel/run/checkpoint_files.h"

#include "core/files.h"
#include "core/log.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

namespace mmt::run {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kMetric = "metric.";

bool ends_with(const std::string& name, std::string_view end) { return std::string_view(name).ends_with(end); }

}  // namespace

std::string step_name(std::int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::optional<std::int64_t> parse_step(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0 || name.size() < 8) return std::nullopt;
  return step;
}

h5::File open_index(const std::string& path) {
  const std::string index = path + "/index.h5";
  if (!fs::exists(index)) throw Error(fmt::format("{}: no index.h5: not a complete checkpoint", path));
  h5::File file = h5::File::open(index);
  const auto version = file.attribute("/", "format_version");
  if (!version || !std::holds_alternative<std::int64_t>(*version))
    throw Error(fmt::format("{}: no checkpoint of this program", index));
  const std::int64_t v = std::get<std::int64_t>(*version);
  if (v > kCheckpointVersion) {
    throw ConfigError(
        fmt::format("{}: written in checkpoint format {}, this program reads up to {}: use a newer version of it", path,
                    v, kCheckpointVersion));
  }
  for (const auto& [key, value] : file.attributes("/")) {
    if (!key.starts_with("file.")) continue;
    const std::string name = key.substr(5);
    std::error_code error;
    const auto size = fs::file_size(files::join_inside(path, name), error);
    if (error) throw Error(fmt::format("{}/{}: {}", path, name, error.message()));
    const auto* expected = std::get_if<std::int64_t>(&value);
    if (expected == nullptr || size != static_cast<std::uintmax_t>(*expected)) {
      throw Error(fmt::format("{}/{}: has {} bytes, not the {} that were written", path, name, size,
                              expected == nullptr ? 0 : *expected));
    }
  }
  return file;
}

Complete describe_checkpoint(const std::string& path) {
  const h5::File file = open_index(path);
  Complete c;
  c.name = fs::path(path).filename();
  c.step = file.int_attribute("/", "step");
  c.commit = file.int_attribute("/", "commit");
  for (const auto& [key, value] : file.attributes("/")) {
    if (key.starts_with(kMetric)) c.metrics[key.substr(kMetric.size())] = std::get<double>(value);
  }
  return c;
}

Scan scan_checkpoints(const std::string& folder) {
  Scan scan;
  std::error_code error;
  std::string named;
  if (fs::exists(folder + "/latest")) {
    named = files::read(folder + "/latest", 4096);
    while (!named.empty() && (named.back() == '\n' || named.back() == '\r')) named.pop_back();
    if (!parse_step(named)) {
      scan.problems.push_back(fmt::format("{}/latest does not name a checkpoint", folder));
      named.clear();
    }
  }
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (parse_step(name)) names.push_back(name);
    if (std::string_view(name).starts_with(kPrefix) && ends_with(name, ".tmp")) {
      scan.problems.push_back(fmt::format("{}/{} is half written", folder, name));
    }
  }
  std::ranges::sort(names);
  for (const std::string& name : names) {
    try {
      scan.complete.push_back(describe_checkpoint(folder + "/" + name));
    } catch (const ConfigError& e) {
      if (name == named) throw;
      scan.problems.push_back(e.what());
    } catch (const Error& e) {
      scan.problems.push_back(e.what());
    }
  }
  std::ranges::sort(scan.complete, {}, [](const Complete& c) { return std::pair(c.commit, c.step); });
  for (const Complete& c : scan.complete) {
    if (c.name == named) scan.latest = named;
  }
  if (scan.latest.empty() && !scan.complete.empty()) {
    scan.latest = scan.complete.back().name;
    if (!named.empty()) scan.problems.push_back(fmt::format("{}/latest names {}, which cannot be used", folder, named));
  }
  return scan;
}

std::vector<std::string> to_delete(const std::vector<Complete>& complete, const Retention& retention,
                                   const std::string& newest) {
  if (retention.keep_last <= 0) return {};
  std::set<std::string> keep = {newest};
  for (std::size_t i = 0; i < complete.size(); ++i) {
    if (complete.size() - i <= static_cast<std::size_t>(retention.keep_last)) keep.insert(complete[i].name);
    if (retention.keep_every > 0 && complete[i].step % retention.keep_every == 0) keep.insert(complete[i].name);
  }
  if (!retention.keep_best.empty()) {
    const Complete* best = nullptr;
    double best_value = 0;
    for (const Complete& c : complete) {  // of equal ones the later stays
      const auto found = c.metrics.find(retention.keep_best);
      if (found == c.metrics.end() || std::isnan(found->second)) continue;
      const bool better = retention.best_is_highest ? found->second >= best_value : found->second <= best_value;
      if (best == nullptr || better) {
        best = &c;
        best_value = found->second;
      }
    }
    if (best != nullptr) keep.insert(best->name);
  }
  std::vector<std::string> names;
  for (const Complete& c : complete) {
    if (!keep.contains(c.name)) names.push_back(c.name);
  }
  return names;
}

void remove_folder(const std::string& path) {
  if (!fs::exists(path)) return;
  std::string going = path;
  if (!ends_with(path, ".tmp") && !ends_with(path, ".deleting")) {
    going = path + ".deleting";
    fs::remove_all(going);
    fs::rename(path, going);
  }
  fs::remove_all(going);
}

void remove_leftovers(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (std::string_view(name).starts_with(kPrefix) && (ends_with(name, ".tmp") || ends_with(name, ".deleting")))
      found.push_back(it->path());
  }
  for (const std::string& path : found) fs::remove_all(path);
}

void replace_folder(const std::string& from, const std::string& to) {
  if (!fs::exists(to)) return fs::rename(from, to);
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(from);
    return;
  }
  // A file system that cannot exchange: for a moment neither is there, and `latest` or an older one serves.
  remove_folder(to);
  fs::rename(from, to);
}

}  // namespace mmt::run
