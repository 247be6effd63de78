#include "core/data/media/row_counts.h"
#include "core/error.h"
#include "tests/data/media_files.h"

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

TEST_CASE("row counts: divisions floor and ceil for negative numbers too") {
  for (std::int64_t a = -20; a <= 20; ++a) {
    for (std::int64_t b = 1; b <= 7; ++b) {
      const double exact = static_cast<double>(a) / static_cast<double>(b);
      CHECK(floor_div(a, b) == static_cast<std::int64_t>(std::floor(exact)));
      CHECK(ceil_div(a, b) == static_cast<std::int64_t>(std::ceil(exact)));
    }
  }
  CHECK_THROWS_AS(floor_div(1, 0), std::logic_error);
}

TEST_CASE("row counts: pictures") {
  const PatchGrid grid = patch_grid(336, 336, 14);
  CHECK(grid.count() == 576);
  CHECK(vision_encoder_rows(grid, true) == 577);
  CHECK(vision_output_rows(grid, true, VisionSelect::patches) == 576);
  CHECK(vision_output_rows(grid, true, VisionSelect::full) == 577);
  CHECK(vision_output_rows(grid, false, VisionSelect::full) == 576);
  CHECK(patch_grid(384, 384, 14).count() == 27 * 27);
  CHECK(patch_grid(28, 14, 14).rows == 1);
  CHECK(patch_grid(28, 14, 14).cols == 2);
}

TEST_CASE("row counts: pictures of any size") {
  const PixelRule rule{28, 56 * 56, 1003520};
  const auto becomes = [&](int height, int width, int to_height, int to_width, std::int64_t rows) {
    INFO(height << " x " << width);
    const PictureSize size = dynamic_size(rule, width, height, "x");
    CHECK(size == PictureSize{to_width, to_height});
    CHECK(patch_grid(size.width, size.height, 14).count() / 4 == rows);
  };
  // Values of the reference code in Python.
  becomes(1, 1, 56, 56, 4);
  becomes(1, 200, 28, 196, 7);
  becomes(42, 42, 56, 56, 4);
  becomes(70, 70, 56, 56, 4);  // 2.5 goes to the even 2
  becomes(1080, 1920, 728, 1316, 1222);
  becomes(4000, 3000, 1148, 840, 1230);
  for (const auto& [w, h] : {std::pair(1, 201), std::pair(201, 1)}) {
    try {
      dynamic_size(rule, w, h, "set: sample 4");
      FAIL("no fault");
    } catch (const DataError& e) {
      CHECK(e.fault() == DataFault::image_ratio);
      CHECK_THAT(e.what(), Catch::Contains("set: sample 4: ") && Catch::Contains("[image_ratio]"));
    }
  }
}

TEST_CASE("row counts: sound as Whisper counts") {
  AudioRowRule whisper;
  CHECK(audio_rows(whisper, 1) == 1500);
  CHECK(audio_rows(whisper, 480000) == 1500);
  CHECK(audio_rows(whisper, 480001) == 3000);
  CHECK(audio_frames(whisper, 480001) == 6000);
  CHECK(audio_rows(whisper, 0) == 0);
}

TEST_CASE("row counts: sound as Qwen2-Audio counts") {
  AudioRowRule qwen;
  qwen.window = AudioWindow::mask;
  qwen.pool = 2;
  CHECK(audio_rows(qwen, 480000) == 750);
  // Python: ((ceil(n / 160) - 1) // 2 + 1 - 2) // 2 + 1, by hand for 0 to 8 frames.
  const std::int64_t expected[] = {0, 0, 0, 1, 1, 1, 1, 2, 2};
  for (std::int64_t frames = 0; frames <= 8; ++frames) {
    INFO(frames);
    CHECK(audio_rows(qwen, frames * 160) == expected[frames]);
    if (frames > 0) CHECK(audio_rows(qwen, frames * 160 - 159) == expected[frames]);
  }
  const std::vector<AudioChunk> chunks = audio_chunks(qwen, 1000);
  REQUIRE(chunks.size() == 1);
  CHECK(chunks[0].frames == 9);  // row 3 sees conv1's row 7, and that the frames up to 8
  CHECK(chunks[0].valid_frames == 7);
  CHECK(chunks[0].encoder_rows == 4);
  CHECK(chunks[0].rows == 2);
  const AudioChunk whole = audio_chunks(qwen, 480000)[0];
  CHECK(whole.frames == 3000);
  CHECK(whole.encoder_rows == 1500);
  CHECK(whole.rows == 750);
}

TEST_CASE("row counts: a clip on its own") {
  AudioRowRule own;
  own.window = AudioWindow::none;
  CHECK(audio_frames(own, 159) == 0);
  CHECK(audio_rows(own, 159) == 0);
  CHECK(audio_rows(own, 160) == 1);  // 10 ms
  CHECK(audio_rows(own, 16000) == 50);
  CHECK(audio_rows(own, 16000 + 159) == 50);
  CHECK(audio_rows(own, 16160) == 51);
}

TEST_CASE("row counts: clips over the window") {
  AudioRowRule rule;
  rule.window = AudioWindow::none;
  rule.max_frames = 10;  // 1600 samples
  const std::vector<AudioChunk> chunks = audio_chunks(rule, 3400);
  REQUIRE(chunks.size() == 3);
  CHECK(chunks[1].first_sample == 1600);
  CHECK(chunks[2].samples == 200);
  CHECK(chunks[2].rows == 1);
  CHECK(audio_rows(rule, 3400) == 11);
  CHECK(audio_chunks(rule, 3300).size() == 2);  // 100 samples are left, which is no frame
  rule.over_long = OverLong::truncate;
  CHECK(audio_rows(rule, 3400) == 5);
  rule.over_long = OverLong::skip;
  CHECK(audio_rows(rule, 3400) == 0);
  CHECK(audio_rows(rule, 1600) == 5);

  CHECK(fault_of([&] { check_audio_length(rule, 1601, 16000, kWhere); }, "0.10 s") == DataFault::audio_too_long);
  CHECK(fault_of([&] { check_audio_length(rule, 100, 16000, kWhere); }, "6.2 ms") == DataFault::audio_too_short);
  CHECK_FALSE(fault_of([&] { check_audio_length(rule, 160, 16000, kWhere); }));
}
