#include "apps/mmtrain/cost_file.h"

#include "core/data/json_guard.h"
#include "core/error.h"
#include "core/files.h"

#include <nlohmann/json.hpp>

#include <map>
#include <set>
#include <tuple>

namespace mmt::app {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "mmtrain costs 1";
constexpr std::uint64_t kMaxFileBytes = 64 << 20;
constexpr int kMaxDepth = 8;
constexpr std::size_t kMaxText = 256;
constexpr std::size_t kMaxLayers = 100'000;
constexpr std::int64_t kMaxFlops = 1'000'000'000'000'000'000;
constexpr std::int64_t kMaxNs = 1'000'000'000'000'000;  // eleven days: products with FLOPs are made in 128 bits
constexpr std::int64_t kMaxBandwidth = 1'000'000'000;   // bytes a microsecond
constexpr std::int64_t kMaxThreads = 4096;

/// An object of the file: every key is asked for once, and nothing else may be there.
class Object {
 public:
  Object(const std::string& file, std::string path, const Json& value)
      : file_(file), path_(std::move(path)), value_(value) {
    if (!value.is_object()) refuse("", fmt::format("is {}, not an object", value.type_name()));
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& what) const {
    const std::string at = full(key);
    throw ConfigError(fmt::format("{}: {}{}{}", file_, at, at.empty() ? "" : ": ", what));
  }

  const Json& at(const char* key) {
    const auto found = value_.find(key);
    if (found == value_.end()) refuse(key, "is missing; write the file anew with `mmtrain profile`");
    known_.insert(key);
    return *found;
  }
  Object object(const char* key) { return Object(file_, full(key), at(key)); }

  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) {
    const Json& v = at(key);
    // An unsigned number above the limit of int64 is an integer for the library, too.
    const bool fits =
        v.is_number_unsigned() ? v.get<std::uint64_t>() <= static_cast<std::uint64_t>(most) : v.is_number_integer();
    if (!fits || v.get<std::int64_t>() < least || v.get<std::int64_t>() > most)
      refuse(key, fmt::format("{} is no integer from {} to {}", shown(v), least, most));
    return v.get<std::int64_t>();
  }

  std::string text(const char* key) {
    const Json& v = at(key);
    if (!v.is_string() || v.get_ref<const std::string&>().size() > kMaxText)
      refuse(key, fmt::format("{} is no text of at most {} bytes", shown(v), kMaxText));
    return v.get<std::string>();
  }

  bool boolean(const char* key) {
    const Json& v = at(key);
    if (!v.is_boolean()) refuse(key, fmt::format("{} is neither true nor false", shown(v)));
    return v.get<bool>();
  }

  void done() const {
    std::string names;
    for (const std::string& k : known_) names += (names.empty() ? "" : ", ") + k;
    for (const auto& [key, unused] : value_.items()) {
      if (!known_.contains(key)) refuse(key.substr(0, 80), fmt::format("is unknown here; known: {}", names));
    }
  }

 private:
  std::string full(const std::string& key) const { return path_ + (path_.empty() || key.empty() ? "" : ".") + key; }
  static std::string shown(const Json& v) {
    std::string text = v.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() > 80 ? text.substr(0, 80) + "..." : text;
  }

  const std::string& file_;
  std::string path_;
  const Json& value_;
  std::set<std::string> known_;
};

Json parse(const std::string& path) {
  std::string text;
  try {
    text = files::read(path, kMaxFileBytes);
  } catch (const Error& e) {
    throw ConfigError(fmt::format("cost file: {}", e.what()));
  }
  std::string error;
  if (data::parse_json(text, kMaxDepth, error).is_discarded()) throw ConfigError(fmt::format("{}:{}", path, error));
  // The library keeps the last of several equal keys: they are found on the way.
  std::vector<std::set<std::string>> open;
  const auto walk = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second)
      throw ConfigError(
          fmt::format("{}: the key \"{}\" stands twice in one object", path, value.get<std::string>().substr(0, 80)));
    return true;
  };
  return Json::parse(text, walk);
}

plan::Link read_link(Object link) {
  plan::Link out;
  out.overlapped = link.boolean("overlapped");
  out.latency = link.integer("latency_ns", 0, kMaxNs);
  out.bytes_per_us = link.integer("bytes_per_us", 0, kMaxBandwidth);
  link.done();
  return out;
}

plan::MeasuredLayer read_layer(Object layer) {
  plan::MeasuredLayer out;
  out.kind = layer.text("kind");
  if (out.kind.empty()) layer.refuse("kind", "is empty");
  Object flops = layer.object("flops");
  Object time = layer.object("ns");
  const auto pair = [&](const char* key, std::int64_t& f, plan::Ns& t) {
    f = flops.integer(key, 0, kMaxFlops);
    t = time.integer(key, 0, kMaxNs);
    if (f == 0 && t > 0) time.refuse(key, fmt::format("{} ns for 0 FLOPs: planning goes by FLOPs", t));
  };
  pair("forward", out.flops.forward, out.time.forward);
  pair("backward_input", out.flops.backward_input, out.time.backward_input);
  pair("backward_weight", out.flops.backward_weight, out.time.backward_weight);
  out.time.recompute = time.integer("recompute", 0, kMaxNs);
  flops.done();
  time.done();
  layer.done();
  return out;
}

}  // namespace

CostFile read_cost_file(const std::string& path) {
  const Json json = parse(path);
  Object file(path, "", json);
  const Json& format = file.at("format");
  if (format != kFormat)
    file.refuse("format",
                fmt::format("this program reads \"{}\"; write the file anew with `mmtrain profile`", kFormat));
  CostFile costs;
  costs.machine = file.text("machine");
  costs.isa = file.text("isa");
  costs.dtype = file.text("dtype");
  costs.threads = static_cast<int>(file.integer("threads", 1, kMaxThreads));
  Object rates = file.object("ns_per_gflop");
  costs.rates.forward = rates.integer("forward", 1, kMaxNs);
  costs.rates.backward_input = rates.integer("backward_input", 1, kMaxNs);
  costs.rates.backward_weight = rates.integer("backward_weight", 1, kMaxNs);
  rates.done();
  Object links = file.object("links");
  costs.local = read_link(links.object("local"));
  costs.intra = read_link(links.object("intra"));
  links.done();
  const Json& layers = file.at("layers");
  if (!layers.is_array() || layers.size() > kMaxLayers)
    file.refuse("layers", fmt::format("is no list of at most {} measurements", kMaxLayers));
  std::map<std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t>, std::size_t> seen;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string at = fmt::format("layers[{}]", i);
    plan::MeasuredLayer layer = read_layer(Object(path, at, layers[i]));
    const auto [before, fresh] = seen.emplace(
        std::tuple(layer.kind, layer.flops.forward, layer.flops.backward_input, layer.flops.backward_weight), i);
    if (!fresh) file.refuse(at, fmt::format("measures the same as layers[{}]", before->second));
    costs.layers.push_back(std::move(layer));
  }
  file.done();
  return costs;
}

void write_cost_file(const std::string& path, const CostFile& costs) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["machine"] = costs.machine;
  json["isa"] = costs.isa;
  json["dtype"] = costs.dtype;
  json["threads"] = costs.threads;
  json["ns_per_gflop"] = {{"forward", costs.rates.forward},
                          {"backward_input", costs.rates.backward_input},
                          {"backward_weight", costs.rates.backward_weight}};
  const auto link = [](const plan::Link& l) {
    return nlohmann::ordered_json(
        {{"overlapped", l.overlapped}, {"latency_ns", l.latency}, {"bytes_per_us", l.bytes_per_us}});
  };
  json["links"] = {{"local", link(costs.local)}, {"intra", link(costs.intra)}};
  json["layers"] = nlohmann::ordered_json::array();
  for (const plan::MeasuredLayer& m : costs.layers) {
    json["layers"].push_back({{"kind", m.kind},
                              {"flops",
                               {{"forward", m.flops.forward},
                                {"backward_input", m.flops.backward_input},
                                {"backward_weight", m.flops.backward_weight}}},
                              {"ns",
                               {{"forward", m.time.forward},
                                {"backward_input", m.time.backward_input},
                                {"backward_weight", m.time.backward_weight},
                                {"recompute", m.time.recompute}}}});
  }
  files::write_atomic(path, json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace mmt::app
