// Files to rows of the encoders: shapes from headers equal what loading makes; faults name the sample and the file.
#include "core/data/media/encoder_input.h"

#include <catch2/catch.hpp>
#include <thread>

#include "core/data/sample.h"
#include "tests/data/text_support.h"

using namespace mmt;
using namespace mmt::data;

namespace {

const std::filesystem::path kMedia = std::string(MMT_TEST_DATA) + "/media";

/// A mono 16-bit WAV of a ramp.
std::string wav(int rate, int samples) {
  const auto le = [](std::uint32_t v, int n) {
    std::string s;
    for (int i = 0; i < n; ++i) s.push_back(static_cast<char>((v >> (8 * i)) & 255U));
    return s;
  };
  const auto bytes = static_cast<std::uint32_t>(samples * 2), r = static_cast<std::uint32_t>(rate);
  std::string out = "RIFF" + le(36 + bytes, 4) + "WAVEfmt " + le(16, 4) + le(1, 2) + le(1, 2) + le(r, 4) +
                    le(2 * r, 4) + le(2, 2) + le(16, 2) + "data" + le(bytes, 4);
  for (int i = 0; i < samples; ++i) out += le(static_cast<std::uint32_t>((i * 37) % 2000), 2);
  return out;
}

ImageProcessing small_pictures() {
  ImageProcessing p;
  p.height = p.width = 28;
  p.patch = 7;
  return p;
}

AudioProcessing small_sound(AudioWindow window, OverLong over_long) {
  AudioProcessing p;
  p.rows.window = window;
  p.rows.over_long = over_long;
  p.rows.max_frames = 100;  // 1 s
  p.num_mel_bins = 8;
  return p;
}

}  // namespace

TEST_CASE("pictures become patch rows of the planned shape") {
  const ImageProcessing processing = small_pictures();
  const EncoderInput eyes = image_input("eyes", {}, processing, true, VisionSelect::patches, 0);
  const auto shapes = eyes.measure(kMedia / "garment.png", "s");
  REQUIRE(shapes.size() == 1);
  CHECK(shapes[0] == ItemShape{16, 17, 16, 147, {1, 4, 4}});
  std::vector<float> out(16 * 147, -7.0F), direct(out.size());
  eyes.load(kMedia / "garment.png", "s", shapes[0], 0, out);
  const std::string bytes = read_whole(kMedia / "garment.png");
  ImageProcessor processor(processing);
  processor.patches(decode_image(std::as_bytes(std::span(bytes)), {}, "x"), direct, "x");
  CHECK(out == direct);
  CHECK(image_input("eyes", {}, processing, true, VisionSelect::full, 0).measure(kMedia / "exif6.jpg", "s")[0].rows ==
        17);
}

TEST_CASE("a long clip becomes an item per window and each is its own part of the sound") {
  const TempFolder folder;
  const auto path = folder.write("a.wav", wav(8000, 18000));  // 2.25 s: 36000 samples at 16 kHz
  const auto processing = small_sound(AudioWindow::none, OverLong::chunk);
  const EncoderInput ears = audio_input("ears", {}, processing, 0);
  const auto shapes = ears.measure(path, "s");
  REQUIRE(shapes.size() == 3);
  CHECK(shapes[0].input_rows == 100);
  CHECK(shapes[2].input_rows == 25);
  CHECK(shapes[2].rows == 13);
  std::vector<float> whole;
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<float> part(static_cast<std::size_t>(shapes[i].input_rows * shapes[i].input_cols));
    ears.load(path, "s", shapes[i], static_cast<int>(i), part);
    whole.insert(whole.end(), part.begin(), part.end());
  }
  const std::string bytes = read_whole(path);
  AudioProcessor processor(processing);
  std::vector<float> direct(whole.size());
  processor.log_mel(decode_audio(std::as_bytes(std::span(bytes)), {}, "x").samples, direct, "x");
  CHECK(whole == direct);
  CHECK(audio_input("e", {}, small_sound(AudioWindow::none, OverLong::truncate), 0).measure(path, "s").size() == 1);
  CHECK_THROWS_WITH(audio_input("e", {}, small_sound(AudioWindow::none, OverLong::skip), 0).measure(path, "s"),
                    Catch::Contains("audio_too_long"));
  CHECK(audio_input("e", {}, small_sound(AudioWindow::full, OverLong::chunk), 0).measure(path, "s")[2].rows == 50);
}

TEST_CASE("media faults name the sample and the file") {
  const TempFolder folder;
  const EncoderInput eyes = image_input("eyes", {}, small_pictures(), false, VisionSelect::patches, 0);
  const EncoderInput ears = audio_input("ears", {}, small_sound(AudioWindow::none, OverLong::chunk), 0);
  const auto fails = [&](const EncoderInput& input, const std::filesystem::path& path, DataFault fault) {
    try {
      input.measure(path, "set.json:3: sample 2");
      FAIL("no fault: " << path);
    } catch (const DataError& e) {
      CHECK(e.fault() == fault);
      CHECK_THAT(e.what(), Catch::Contains("set.json:3: sample 2: ") && Catch::Contains(path.filename().string()));
    }
  };
  using enum DataFault;
  fails(eyes, folder.path() / "none.png", missing_file);
  fails(eyes, folder.path(), missing_file);
  fails(eyes, folder.write("page.jpg", "<html><body>404</body></html>"), not_an_image);
  fails(eyes, folder.write("empty.png", ""), not_an_image);
  fails(eyes, folder.write("big.jpg", std::string("\xff\xd8\xff\xfe\xff\xff") + std::string(300000, 'x')),
        corrupt_image);
  fails(ears, folder.write("page.wav", "<html>"), not_audio);
  fails(ears, folder.write("short.wav", wav(16000, 100)), audio_too_short);
  fails(ears, folder.write("low.wav", wav(1, 100)), audio_rate);
  // The file changes after it was measured.
  const auto path = folder.write("c.wav", wav(16000, 16000));
  const auto shape = ears.measure(path, "s")[0];
  folder.write("c.wav", wav(16000, 8000));
  std::vector<float> out(static_cast<std::size_t>(shape.input_rows * shape.input_cols));
  CHECK_THROWS_WITH(ears.load(path, "s", shape, 0, out), Catch::Contains("another length"));
}

TEST_CASE("a picture with more header than usual is read whole") {
  // A JPEG with a comment of 300 kB in front of its frame header.
  const TempFolder folder;
  const std::string jpeg = read_whole(kMedia / "exif1.jpg");
  std::string padded = jpeg.substr(0, 2);
  for (int i = 0; i < 5; ++i) padded += std::string("\xff\xfe\xff\xff", 4) + std::string(65533, 'c');
  padded += jpeg.substr(2);
  const EncoderInput eyes = image_input("eyes", {}, small_pictures(), false, VisionSelect::patches, 0);
  CHECK(eyes.measure(folder.write("p.jpg", padded), "s")[0].rows == 16);
}

TEST_CASE("many threads load through one encoder input") {
  const EncoderInput eyes = image_input("eyes", {}, small_pictures(), false, VisionSelect::patches, 0);
  const auto shape = eyes.measure(kMedia / "garment.png", "s")[0];
  std::vector<float> expected(16 * 147);
  eyes.load(kMedia / "garment.png", "s", shape, 0, expected);
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        std::vector<float> out(expected.size());
        eyes.load(kMedia / "garment.png", "s", shape, 0, out);
        wrong += out != expected;
      }
    });
  }
  threads.clear();
  CHECK(wrong == 0);
}

TEST_CASE("keys of encoder inputs change with what changes rows") {
  ImageProcessing p = small_pictures();
  const auto key = image_input("a", {}, p, false, VisionSelect::patches, 0).key;
  CHECK(image_input("a", {}, p, false, VisionSelect::patches, 0).key == key);
  CHECK(image_input("a", {}, p, true, VisionSelect::patches, 0).key != key);
  p.patch = 14;
  CHECK(image_input("a", {}, p, false, VisionSelect::patches, 0).key != key);
  const auto sound = audio_input("a", {}, small_sound(AudioWindow::none, OverLong::chunk), 0).key;
  CHECK(audio_input("a", {}, small_sound(AudioWindow::full, OverLong::chunk), 0).key != sound);
}
