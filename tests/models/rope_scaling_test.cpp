// Stretched rotary frequencies against transformers' functions (goldens made by scripts/reference/rope_cases.py).
#include "models/rope_scaling.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/spec.h"

using namespace mmt;
using namespace mmt::models;

TEST_CASE("stretched rotary frequencies are transformers'") {
  std::ifstream in(std::string(MMT_TEST_DATA) + "/rope.json");
  const nlohmann::json cases = nlohmann::json::parse(in);
  REQUIRE(cases.size() == 33);
  int stretched = 0;
  for (const auto& c : cases) {
    const std::string type = c["rope_type"];
    RopeScaling scaling;
    scaling.kind = type == "linear"    ? RopeKind::linear
                   : type == "dynamic" ? RopeKind::dynamic
                   : type == "yarn"    ? RopeKind::yarn
                                       : RopeKind::llama3;
    scaling.factor = c["factor"];
    scaling.low_freq_factor = c.value("low_freq_factor", scaling.low_freq_factor);
    scaling.high_freq_factor = c.value("high_freq_factor", scaling.high_freq_factor);
    scaling.original_max_position = c.value("original_max_position_embeddings", std::int64_t{32768});
    scaling.beta_fast = c.value("beta_fast", scaling.beta_fast);
    scaling.beta_slow = c.value("beta_slow", scaling.beta_slow);
    scaling.truncate = c.value("truncate", true);
    scaling.attention_factor = c.value("attention_factor", 0.0);
    scaling.mscale = c.value("mscale", 0.0);
    scaling.mscale_all_dim = c.value("mscale_all_dim", 0.0);
    const auto expected = c["frequencies"].get<std::vector<double>>();
    LlmSpec spec = llm_preset("llama");
    spec.head_dim = static_cast<int>(2 * expected.size());
    spec.rope_theta = c["rope_theta"];
    const auto plain = rotary_of(spec);
    spec.rope_scaling = scaling;
    const auto found = rotary_of(spec);
    INFO(c.dump().substr(0, 200));
    REQUIRE(found.has_value());
    REQUIRE(found->inv_freq.size() == expected.size());
    CHECK(std::abs(found->scale - c["scale"].get<double>()) < 1e-12);
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(std::abs(found->inv_freq[i] / expected[i] - 1) < 1e-12);
    stretched += found->inv_freq != plain->inv_freq;
  }
  CHECK(stretched >= 27);  // all but `dynamic` and a factor of 1
}
