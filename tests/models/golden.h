// What tests/data/models/make_goldens.py wrote, and the values that it gives to weights and inputs.
#pragma once

#include "tests/models/harness.h"
#include "tests/support/named_values.h"

#include <catch2/catch.hpp>

#include <array>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace mmt::test {

struct Golden {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  double objective = 0.0;
  std::map<std::string, std::pair<double, double>> grads;  ///< norm, product with the probe
  std::vector<std::int32_t> positions;                     ///< three a row, where they are
};

inline Golden read_golden(const std::string& name) {
  std::ifstream file(std::string(MMT_TEST_DATA) + "/models/" + name + ".txt");
  REQUIRE(file.good());
  Golden g;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind, parameter;
    words >> kind;
    if (kind == "objective") {
      words >> g.objective;
      continue;
    }
    if (kind == "position") {
      for (std::int32_t n = 0; words >> n;) g.positions.push_back(n);
      continue;
    }
    words >> parameter;
    if (kind == "grad") {
      words >> g.grads[parameter].first >> g.grads[parameter].second;
      continue;
    }
    std::vector<std::int64_t>& shape = g.shapes[parameter];
    for (std::int64_t d = 0; words >> d;) shape.push_back(d);
  }
  return g;
}

// transformers computes norms, softmax and rotary angles in float32 whatever the model's type: relative errors of some
// 1e-7 an op, through two layers and back, on the scale of the gradient. All families stay below 1e-6.
inline constexpr double kGoldenTolerance = 2e-6;

}  // namespace mmt::test
