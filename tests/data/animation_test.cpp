// Frames of GIF and WebP animations equal Pillow's bit for bit (animations/frames.txt); what is damaged is refused.
#include "core/data/media/animation.h"
#include "tests/data/media_files.h"

#include <numeric>
#include <sstream>

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

Bytes animation(const std::string& name) { return media("animations/" + name); }

std::uint64_t fnv_of(const Image& image) {
  std::uint64_t h = 0xcbf29ce484222325U;
  for (const std::uint8_t byte : image.rgb) h = (h ^ byte) * 0x100000001b3U;
  return h;
}

std::vector<Image> frames_of(const Bytes& bytes, std::vector<std::int32_t> wanted = {},
                             const AnimationLimits& limits = {}, const ImageOptions& options = {}) {
  if (wanted.empty()) {
    wanted.resize(static_cast<std::size_t>(read_animation_info(bytes, options, limits, kWhere).frames()));
    std::iota(wanted.begin(), wanted.end(), 0);
  }
  std::vector<Image> frames;
  decode_animation(
      bytes, options, limits, wanted, [&](const Image& frame) { frames.push_back(frame); }, kWhere);
  REQUIRE(frames.size() == wanted.size());
  return frames;
}

/// A GIF of one colour a frame, in code: one pixel, palette of two colours.
struct SmallGif {
  std::string bytes;
  SmallGif(int width, int height, const std::string& palette) {
    bytes = std::string("GIF89a") + static_cast<char>(width) + '\0' + static_cast<char>(height) + '\0' + '\x80' +
            std::string(2, '\0') + palette;
  }
  void frame(int x, int y, int index, const std::string& local = "") {
    bytes += std::string(",") + static_cast<char>(x) + '\0' + static_cast<char>(y) + std::string("\0\1\0\1\0", 5);
    bytes += static_cast<char>(local.empty() ? 0 : 0x80);
    bytes += local + "\x02\x02";
    // Codes of three bits: clear (4), the pixel, end (5).
    const int codes = 4 | index << 3 | 5 << 6;
    bytes += static_cast<char>(codes & 0xFF);
    bytes += static_cast<char>(codes >> 8);
    bytes += '\0';
  }
  Bytes whole() const { return as_bytes(bytes + ";"); }
};

const std::string kRedBlue("\xff\0\0\0\0\xff", 6), kRamp("\0\0\0\1\1\1", 6);

}  // namespace

TEST_CASE("frames of animations equal Pillow's bit for bit") {
  std::ifstream file(std::string(MMT_TEST_DATA) + "/media/animations/frames.txt");
  REQUIRE(file.good());
  std::string line, name;
  int files = 0;
  while (std::getline(file, line)) {
    std::istringstream in(line);
    int width = 0, height = 0, count = 0;
    in >> name >> width >> height >> count;
    INFO(name);
    const Bytes bytes = animation(name);
    REQUIRE(is_animation(bytes));
    const AnimationInfo info = read_animation_info(bytes, {}, {}, kWhere);
    CHECK(info.width == width);
    CHECK(info.height == height);
    REQUIRE(info.frames() == count);
    const std::vector<Image> frames = frames_of(bytes);
    for (std::size_t i = 0; i < frames.size(); ++i) {
      std::int32_t milliseconds = -1;
      std::uint64_t hash = 0;
      in >> std::dec >> milliseconds >> std::hex >> hash;
      INFO("frame " << i);
      CHECK(info.milliseconds[i] == milliseconds);
      CHECK(fnv_of(frames[i]) == hash);
    }
    // Wanted alone, a frame is the same; every other one is, too.
    std::vector<std::int32_t> odd;
    for (std::int32_t i = 1; i < count; i += 2) odd.push_back(i);
    if (odd.empty()) odd = {0};
    const std::vector<Image> some = frames_of(bytes, odd);
    for (std::size_t i = 0; i < some.size(); ++i) CHECK(some[i].rgb == frames[static_cast<std::size_t>(odd[i])].rgb);
    ++files;
  }
  CHECK(files >= 18);
}

TEST_CASE("a grey first frame does not take the colours of later ones") {
  SmallGif gif(2, 1, kRamp);
  gif.frame(0, 0, 1);
  gif.frame(1, 0, 0, kRedBlue);
  gif.frame(0, 0, 1, kRedBlue);
  const std::vector<Image> frames = frames_of(gif.whole());
  CHECK(frames[0].rgb == std::vector<std::uint8_t>{1, 1, 1, 0, 0, 0});
  CHECK(frames[1].rgb == std::vector<std::uint8_t>{1, 1, 1, 255, 0, 0});
  CHECK(frames[2].rgb == std::vector<std::uint8_t>{0, 0, 255, 255, 0, 0});
}

TEST_CASE("an animation that ends early is refused wherever it is cut") {
  for (const std::string name : {"disposals.gif", "scene.gif", "alpha.webp", "lossy.webp"}) {
    const Bytes whole = animation(name);
    for (std::size_t size = 31; size<whole.size(); size += whole.size()> 2000 ? 97 : 1) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      INFO(name << " of " << size << " bytes");
      if (!is_animation(cut)) continue;
      CHECK(fault_of([&] { frames_of(cut); }) == DataFault::corrupt_image);
    }
  }
}

TEST_CASE("animations are refused before they cost time or memory") {
  const Bytes scene = animation("scene.gif"), webp = animation("lossless.webp");
  for (const Bytes& bytes : {scene, webp}) {
    CHECK(fault_of([&] { frames_of(bytes, {}, {.max_frames = 4}); }, "4 that are accepted") ==
          DataFault::too_many_frames);
    CHECK(fault_of([&] { frames_of(bytes, {}, {.max_pixels = 40 * 28 * 5 - 1}); }) == DataFault::too_many_frames);
    // Frames behind the last wanted one are not decoded.
    CHECK(frames_of(bytes, {0, 3}, {.max_pixels = 40 * 28 * 5 - 1}).size() == 2);
    ImageOptions small;
    small.max_decode_pixels = 40 * 28 - 1;
    CHECK(fault_of([&] { frames_of(bytes, {0}, {}, small); }, "max_decode_pixels") == DataFault::image_too_large);
  }
}

TEST_CASE("GIFs that make no sense are refused") {
  SmallGif none(2, 2, kRedBlue);
  CHECK(fault_of([&] { frames_of(none.whole()); }) == DataFault::empty_video);
  SmallGif outside(2, 2, kRedBlue);
  outside.frame(0, 0, 1);
  outside.frame(2, 1, 1);
  CHECK(fault_of([&] { frames_of(outside.whole()); }, "within the canvas") == DataFault::frame_size);
  SmallGif zero(0, 2, kRedBlue);
  zero.frame(0, 0, 1);
  CHECK(fault_of([&] { frames_of(zero.whole()); }) == DataFault::corrupt_image);
  SmallGif stray(2, 2, kRedBlue);
  stray.frame(0, 0, 1);
  stray.bytes += "x";
  CHECK(fault_of([&] { frames_of(stray.whole()); }) == DataFault::corrupt_image);
  SmallGif control(2, 2, kRedBlue);
  control.bytes += std::string("!\xf9\2\1\1\0", 6);
  control.frame(0, 0, 1);
  CHECK(fault_of([&] { frames_of(control.whole()); }, "graphic control") == DataFault::corrupt_image);
  // As a picture a GIF stays refused, with what to do.
  CHECK(fault_of([&] { decode_image(animation("plain.gif"), {}, kWhere); }, "video") == DataFault::unsupported_media);
}
