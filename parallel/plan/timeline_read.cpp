// Reads recorded traces.
#include "core/error.h"
#include "parallel/plan/simulate.h"
#include "parallel/plan/timeline_files.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>

namespace mmt::plan {
namespace {

using Json = nlohmann::json;

/// Microseconds to nanoseconds.
Ns nanoseconds(double us) {
  if (!(us >= 0.0 && us < 9e15 / 1e3)) throw std::invalid_argument(fmt::format("{} us is no length of time", us));
  return std::llround(us * 1e3);
}

std::int64_t integer(const Json& value) {
  if (!value.is_number_integer()) throw std::invalid_argument(fmt::format("{} is no integer", value.dump()));
  return value.get<std::int64_t>();
}

/// Process of the timeline called `name`.
std::int64_t process_of(const Json& events, std::string_view name) {
  std::string others;
  for (const Json& e : events) {
    if (e.value("ph", "") != "M" || e.value("name", "") != "process_name") continue;
    const std::string own = e.at("args").at("name").get<std::string>();
    if (own == name) return integer(e.at("pid"));
    others += (others.empty() ? "" : ", ") + own;
  }
  throw std::invalid_argument(fmt::format("it has no timeline \"{}\"; it has: {}", name, others));
}

}  // namespace

RecordedTrace read_chrome_trace(std::string_view text, std::string_view timeline, const std::string& file) {
  std::map<int, std::pair<Program, std::vector<Ns>>> ranks;
  std::size_t index = 0;
  const auto refuse = [&](const std::string& what) { throw ConfigError(fmt::format("{}: {}", file, what)); };
  Json trace;
  try {
    trace = Json::parse(text);
    const Json& events = trace.is_array() ? trace : trace.at("traceEvents");
    const std::int64_t process = process_of(events, timeline);
    for (const Json& e : events) {
      ++index;
      if (e.value("ph", "") != "X" || integer(e.at("pid")) != process) continue;
      const auto rank = integer(e.at("tid"));
      if (rank < 0 || rank > 1'000'000) throw std::invalid_argument(fmt::format("{} is no rank", rank));
      auto& [program, times] = ranks[static_cast<int>(rank)];
      program.rank = static_cast<int>(rank);
      const Action action = parse_action(e.at("name").get<std::string>());
      program.actions.push_back(action);
      const bool moves = action.kind == Kind::send || action.kind == Kind::recv;
      const Json args = e.value("args", Json::object());
      const double us = args.contains("cpu_us") ? args.at("cpu_us").get<double>() : e.at("dur").get<double>();
      const Ns time = nanoseconds(us);
      times.push_back(moves ? kModelled : time);
    }
  } catch (const Json::exception& e) {
    refuse(fmt::format("is no trace of ours{}: {}", index > 0 ? fmt::format(" at event {}", index) : "", e.what()));
  } catch (const std::invalid_argument& e) {
    refuse(index > 0 ? fmt::format("event {}: {}", index, e.what()) : e.what());
  }
  RecordedTrace recorded;
  for (auto& [rank, own] : ranks) {
    recorded.programs.push_back(std::move(own.first));
    recorded.times.push_back(std::move(own.second));
  }
  return recorded;
}

}  // namespace mmt::plan
