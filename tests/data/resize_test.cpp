// The resize against hashes of Pillow's results.
#include "core/data/media/resize.h"
#include "tests/data/media_files.h"

#include <sstream>

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

std::uint64_t fnv(std::span<const std::uint8_t> bytes) {
  std::uint64_t h = 0xcbf29ce484222325U;
  for (const std::uint8_t b : bytes) h = (h ^ b) * 0x100000001b3U;
  return h;
}

std::vector<std::uint8_t> resized(const Image& image, Resample kind, int width, int height,
                                  PassOrder order = PassOrder::pillow_13) {
  std::vector<std::uint8_t> scratch;
  std::vector<std::uint8_t> out(static_cast<std::size_t>(3) * static_cast<std::size_t>(width) *
                                static_cast<std::size_t>(height));
  resize_window(image, resize_taps(kind, image.width, width, 0, width),
                resize_taps(kind, image.height, height, 0, height), order, scratch, out);
  return out;
}

/// Number of cases of a golden file that differ from what `order` gives; `num_cases` counts all.
int num_different(const std::string& file, PassOrder order, int& num_cases) {
  const Bytes bytes = media(file);
  std::istringstream lines(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  int w = 0, h = 0, out_w = 0, out_h = 0, filter = 0, different = 0;
  std::string hash;
  num_cases = 0;
  while (lines >> w >> h >> out_w >> out_h >> filter >> hash) {
    const std::uint64_t got = fnv(resized(noise_image(w, h), static_cast<Resample>(filter), out_w, out_h, order));
    if (got != std::stoull(hash, nullptr, 16)) {
      ++different;
      UNSCOPED_INFO(w << "x" << h << " to " << out_w << "x" << out_h << " filter " << filter);
    }
    ++num_cases;
  }
  return different;
}

}  // namespace

TEST_CASE("resize: equals Pillow bit for bit") {
  int num_cases = 0;
  CHECK(num_different("resize_pillow13.txt", PassOrder::pillow_13, num_cases) == 0);
  CHECK(num_cases > 100);
  CHECK(num_different("resize_pillow12.txt", PassOrder::pillow_12, num_cases) == 0);
  CHECK(num_cases > 100);
  // The releases differ in the order of the passes, and the hashes see it.
  CHECK(num_different("resize_pillow13.txt", PassOrder::pillow_12, num_cases) > 20);
}

TEST_CASE("resize: a window is the same part of the whole") {
  const Image image = noise_image(53, 41);
  const int width = 31, height = 67;
  for (const Resample kind : {Resample::bilinear, Resample::bicubic}) {
    const std::vector<std::uint8_t> whole = resized(image, kind, width, height);
    for (const auto& [x, y, w, h] :
         std::vector<std::array<int, 4>>{{0, 0, 1, 1}, {30, 66, 1, 1}, {4, 9, 20, 30}, {0, 5, 31, 62}}) {
      std::vector<std::uint8_t> scratch;
      std::vector<std::uint8_t> part(static_cast<std::size_t>(3 * w * h));
      resize_window(image, resize_taps(kind, 53, width, x, w), resize_taps(kind, 41, height, y, h),
                    PassOrder::pillow_13, scratch, part);
      for (int row = 0; row < h; ++row) {
        const std::uint8_t* expected = whole.data() + 3 * ((y + row) * width + x);
        CHECK(std::equal(expected, expected + 3 * w, part.data() + 3 * row * w));
      }
    }
  }
}

TEST_CASE("resize: a constant picture stays constant in every size") {
  for (const int value : {0, 1, 127, 254, 255}) {
    Image image{37, 23, std::vector<std::uint8_t>(37 * 23 * 3, static_cast<std::uint8_t>(value))};
    for (const int side : {1, 3, 23, 37, 100}) {
      const std::vector<std::uint8_t> out = resized(image, Resample::bicubic, side, side);
      CHECK(std::all_of(out.begin(), out.end(), [&](std::uint8_t v) { return v == value; }));
    }
  }
}

TEST_CASE("resize: sizes that do not fit are bugs") {
  CHECK_THROWS_AS(resize_taps(Resample::bicubic, 0, 5, 0, 5), std::logic_error);
  CHECK_THROWS_AS(resize_taps(Resample::bicubic, 5, 5, 1, 5), std::logic_error);
  std::vector<std::uint8_t> scratch;
  std::vector<std::uint8_t> out(10);
  CHECK_THROWS_AS(resize_window(noise_image(4, 4), resize_taps(Resample::bicubic, 4, 2, 0, 2),
                                resize_taps(Resample::bicubic, 4, 2, 0, 2), PassOrder::pillow_13, scratch, out),
                  std::logic_error);
}
