// Which frames are taken: as transformers' Qwen2VLVideoProcessor takes them (frame_samples.txt, scripts/reference).
#include "core/data/media/frame_sampling.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <fstream>
#include <string>

using namespace mmt::data;

TEST_CASE("frames are sampled as transformers does") {
  std::ifstream file(std::string(MMT_TEST_DATA) + "/media/frame_samples.txt");
  REQUIRE(file.good());
  std::int64_t total = 0, low = 0, high = 0;
  std::size_t count = 0;
  double rate = 0.0, fps = 0.0;
  int step = 0, cases = 0;
  std::uint64_t hash = 0;
  while (file >> total >> rate >> fps >> low >> high >> step >> count >> std::hex >> hash >> std::dec) {
    INFO(total << " frames at " << rate << ", " << fps << " fps, " << low << " to " << high << " in steps of " << step);
    const auto indices = sample_frames({.fps = fps, .min_frames = low, .max_frames = high}, total, rate, step);
    REQUIRE(indices.size() == count);
    std::uint64_t own = 0xcbf29ce484222325U;
    for (const std::int32_t i : indices) own = (own ^ static_cast<std::uint64_t>(i)) * 0x100000001b3U;
    CHECK(own == hash);
    CHECK(std::ranges::is_sorted(indices));
    CHECK(indices.back() < total);
    ++cases;
  }
  CHECK(cases >= 300);
}

TEST_CASE("frames without times are all taken or spread evenly") {
  const FrameSampling usual;
  CHECK(sample_frames(usual, 3, 0, 2) == std::vector<std::int32_t>{0, 1, 2});
  CHECK(sample_frames({.max_frames = 4}, 8, 0, 2) == std::vector<std::int32_t>{0, 2, 4, 6});
  CHECK(sample_frames({.max_frames = 5}, 8, 0, 2) == std::vector<std::int32_t>{0, 2, 4, 6});
  CHECK(sample_frames({.fps = 0, .max_frames = 100}, 7, 25, 2).size() == 7);
  // A video shorter than a patch keeps its frame; transformers would fail.
  CHECK(sample_frames(usual, 1, 25, 2) == std::vector<std::int32_t>{0});
  CHECK(sample_frames({.min_frames = 1, .max_frames = 1}, 50, 25, 2) == std::vector<std::int32_t>{0, 25});
}

TEST_CASE("the rate of frames follows from how long they stand") {
  CHECK(frame_rate({40, 40, 40, 40}) == Approx(25));
  CHECK(frame_rate({500, 1500}) == Approx(1));
  CHECK(frame_rate({0, 10, 100}) == Approx(10));  // what browsers show for no time
}
