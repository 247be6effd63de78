// Runs in a copy of tests/data/pretrained, and what they must compute: the numbers that scripts/reference wrote.
#pragma once

#include "tests/apps/dump_file.h"
#include "tests/apps/fixture.h"
#include "tests/support/named_values.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>

namespace mmt::app_test {

inline double probed(const std::string& name, const std::vector<float>& values) {
  const std::vector<double> probe = mmt::test::named_values("probe " + name, static_cast<std::int64_t>(values.size()));
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += probe[i] * static_cast<double>(values[i]);
  return sum;
}

/// A copy of tests/data/pretrained that vanishes, where runs may write.
class PretrainedRun {
 public:
  PretrainedRun() {
    std::filesystem::copy(std::filesystem::path(MMT_TEST_DATA) / "pretrained", folder(),
                          std::filesystem::copy_options::recursive);
  }
  const std::filesystem::path& folder() const { return folder_.path(); }
  Outcome run(const std::string& command, const std::string& config, const Set& set = {}, const Launch& launch = {},
              const std::vector<std::string>& more = {}) const {
    std::vector<std::string> list = {command, (folder() / config).string()};
    for (const std::string& s : set) {
      list.emplace_back("--set");
      list.push_back(s);
    }
    list.insert(list.end(), more.begin(), more.end());
    return run_binary(folder(), list, launch);
  }
  DumpFile dump(const std::string& config, const Set& set = {}, int ranks = 0) const {
    const std::filesystem::path file = folder() / "dump.h5";
    require_done(run("dump", config, set, {.ranks = ranks}, {"--out", file.string(), "--logits"}));
    return read_dump(file);
  }
  nlohmann::json expected(const std::string& name) const {
    return nlohmann::json::parse(read_text(folder() / (name + ".json")));
  }

 private:
  TempFolder folder_;
};

/// What errors of a gradient are measured by: its norm; for a bias whose true gradient may be zero (a key's without
/// rotary positions) the rounding of the sums it consists of, too, which the gradient of its weight bounds
/// (dump_file.h).
inline double scale_of(const nlohmann::json& grads, const DumpFile& dump, const std::string& name) {
  const double own = grads.at(name)[0];
  if (!name.ends_with(".bias")) return own;
  const std::string weight = name.substr(0, name.size() - 4) + "weight";
  if (!grads.contains(weight) || dump.grads.at(weight).shape.size() != 2) return own;
  return std::max(own, 1e-2 * 2 * grads.at(weight)[0].get<double>() /
                           std::sqrt(static_cast<double>(dump.grads.at(weight).shape[1])));
}

/// f32 sums in other orders through two layers and back: all cases stay below 1e-5 of a tensor's norm. 1e-4 is what is
/// asked for; a wrong weight, mask or position is at least 1e-2.
inline constexpr double kTolerance = 1e-4;

inline std::vector<std::string> wrong_numbers(const DumpFile& dump, const nlohmann::json& expected) {
  std::vector<std::string> wrong;
  const auto check = [&](const std::string& what, double value, double wanted, double scale) {
    if (!(std::abs(value - wanted) <= kTolerance * scale))
      wrong.push_back(fmt::format("{}: {} instead of {}", what, value, wanted));
  };
  check("loss", dump.loss, expected["loss"], expected["loss"]);
  check("weight", dump.weight, expected["weight"], 1e-9);
  for (const auto& [place, numbers] : expected["samples"].items()) {
    const DumpFile::Sample& s = dump.samples.at(std::stoll(place));
    if (nlohmann::json(s.ids) != numbers["ids"]) wrong.push_back("ids of sample " + place);
    const double size = numbers["logits"][0];
    check("loss of sample " + place, s.loss, numbers["loss"], numbers["loss"]);
    check("logits of sample " + place, norm(s.logits.values), size, size);
    check("logits of sample " + place + " on a probe", probed("logits " + place, s.logits.values), numbers["logits"][1],
          size);
  }
  const nlohmann::json& grads = expected["grads"];
  if (grads.size() != dump.grads.size())
    wrong.push_back(fmt::format("{} gradients instead of {}", dump.grads.size(), grads.size()));
  for (const auto& [name, numbers] : grads.items()) {
    const auto found = dump.grads.find(name);
    if (found == dump.grads.end()) {
      wrong.push_back(name + " is missing");
      continue;
    }
    const double scale = scale_of(grads, dump, name);
    check(name, norm(found->second.values), numbers[0], scale);
    check(name + " on a probe", probed(name, found->second.values), numbers[1], scale);
  }
  return wrong;
}

inline std::string joined(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& s : list) text += s + "\n";
  return text;
}

/// Rewrites config.json of a folder.
inline void change_config(const std::filesystem::path& folder, const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json j = nlohmann::json::parse(read_text(folder / "config.json"));
  change(j);
  write_text(folder / "config.json", j.dump(2));
}

inline void require_refused(const Outcome& o, const std::vector<std::string>& words) {
  require_code(o, kUsage);
  for (const std::string& word : words) REQUIRE_THAT(o.err + o.out, Catch::Contains(word));
}

}  // namespace mmt::app_test
