// The memory that a run takes beside the estimate that it prints.
#include "tests/apps/fixture.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <sstream>

// A sanitizer's shadow of the memory is resident, too: nothing to measure there.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

using namespace mmt::app_test;

namespace {

struct Memory {
  double estimate = 0.0;   ///< MiB
  double deviation = 0.0;  ///< of the measured peak, in percent
};

/// Of a model of ten million parameters.
Memory measure(const TinyRun& tiny, std::vector<std::string> set, int ranks) {
  for (const char* s : {"modules.llm.hidden=256", "modules.llm.layers=8", "modules.llm.heads=4",
                        "modules.eyes.hidden=256", "modules.eyes.layers=3", "modules.eyes.heads=4",
                        "modules.ears.hidden=128", "train.steps=4", "optimizer.lr=1e-4"})
    set.emplace_back(s);
  static int number = 0;
  set.push_back("run.output_dir=run" + std::to_string(number++));
  // Poisoned memory is touched memory: the peak would be what was reserved.
  const Outcome o = tiny.run("train", set, {.ranks = ranks, .environment = {{"MMTRAIN_POISON", "0"}}});
  INFO(o.text());
  REQUIRE(o.code == 0);
  Memory m;
  const std::string text = o.out + o.err, key = "estimate ";
  const std::size_t at = text.find(key, text.find("memory of this rank"));
  REQUIRE(at != std::string::npos);
  std::istringstream in(text.substr(at + key.size()));
  std::string estimate, deviation;
  in >> estimate >> deviation;
  m.estimate = std::stod(estimate) * (estimate.find("GiB") != std::string::npos ? 1024.0 : 1.0);
  m.deviation = std::stod(deviation.substr(1));
  return m;
}

}  // namespace

TEST_CASE("a step's peak memory is within 15 percent of its estimate") {
  const TinyRun tiny;
  const Memory kept = measure(tiny, {}, 0);
  INFO(kept.estimate << " MiB and " << kept.deviation << "%");
  CHECK(std::abs(kept.deviation) <= 15.0);
  CHECK(kept.estimate > 16.0 * 9.5);  // weights, gradients and moments of 9.6 M parameters are the least
  const Memory again = measure(tiny, {"train.recompute=full"}, 0);
  INFO(again.estimate << " MiB and " << again.deviation << "% with recompute");
  CHECK(std::abs(again.deviation) <= 15.0);
  CHECK(again.estimate < 0.8 * kept.estimate);
}

TEST_CASE("peak memory in other layouts is within 15 percent of its estimate", "[slow]") {
  const TinyRun tiny;
  struct Case {
    std::vector<std::string> set;
    int ranks;
  };
  for (const Case& c : {Case{{}, 2}, Case{{"train.precision=bf16"}, 0},
                        Case{{"modules.eyes.trainable=false", "modules.llm.trainable=false"}, 0},
                        Case{{"train.tokens_per_microbatch=4096", "train.global_batch_size=48"}, 0}}) {
    const Memory m = measure(tiny, c.set, c.ranks);
    INFO((c.set.empty() ? "two ranks" : c.set[0]) << ": " << m.estimate << " MiB and " << m.deviation << "%");
    CHECK(std::abs(m.deviation) <= 15.0);
  }
}

#endif
