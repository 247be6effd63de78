// Decoded pictures against Pillow, or against the pixels that went in.
#include "core/data/media/image.h"
#include "tests/data/media_files.h"

#include <set>

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

Image decode(const std::string& file, const ImageOptions& options = {}) {
  const Bytes bytes = media(file);
  const ImageInfo info = read_image_info(bytes, options, kWhere);
  Image image = decode_image(bytes, options, kWhere);
  INFO(file);
  CHECK(image.width == info.width);
  CHECK(image.height == info.height);
  CHECK(image.rgb.size() == static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height) * 3);
  return image;
}

int against(const std::string& file, const std::string& golden_name, const ImageOptions& options = {}) {
  return max_difference(decode(file, options).rgb, golden<std::uint8_t>(golden_name + ".rgb"));
}

}  // namespace

TEST_CASE("image: PNG of every colour type equals Pillow") {
  CHECK(against("rgb.png", "rgb") == 0);
  CHECK(against("interlaced.png", "rgb") == 0);
  CHECK(against("grey.png", "grey") == 0);
  CHECK(against("bit.png", "bit") == 0);
  CHECK(against("palette.png", "palette") == 0);
}

TEST_CASE("image: transparency shows the background") {
  CHECK(against("palette_trns.png", "palette_trns") == 0);
  CHECK(against("rgba.png", "rgba") == 0);
  CHECK(against("grey_alpha.png", "grey_alpha") == 0);
  CHECK(against("color_key.png", "color_key") == 0);
  CHECK(against("alpha.webp", "alpha") == 0);
  // Pillow's alpha_composite works with fewer bits; the blend here is the exact one, rounded.
  CHECK(against("rgba.png", "rgba_pillow") <= 1);

  ImageOptions options;
  options.background = {10, 200, 30};
  const Image image = decode("rgba.png", options);  // alpha rises from 0 at the first to 255 at the last pixel
  CHECK(std::vector<std::uint8_t>(image.rgb.begin(), image.rgb.begin() + 3) == std::vector<std::uint8_t>{10, 200, 30});
  const std::vector<std::uint8_t> opaque = golden<std::uint8_t>("rgb.rgb");
  CHECK(std::equal(image.rgb.end() - 3, image.rgb.end(), opaque.end() - 3));
}

TEST_CASE("image: 16 bits are scaled, or treated as Pillow does") {
  CHECK(against("grey16.png", "grey16") == 0);
  CHECK(against("rgb16.png", "rgb16") == 0);
  ImageOptions pillow;
  pillow.scale_16_bit = false;
  CHECK(against("grey16.png", "grey16_pillow", pillow) == 0);
  CHECK(against("rgb16.png", "rgb16_pillow", pillow) == 0);
  CHECK(against("grey16.png", "grey16_pillow") > 100);
}

TEST_CASE("image: JPEG equals Pillow") {
  for (const char* name : {"j420", "j422", "j444", "progressive", "jgrey"}) {
    INFO(name);
    CHECK(against(std::string(name) + ".jpg", name) == 0);
  }
  CHECK(against("cmyk.jpg", "cmyk") == 0);
}

TEST_CASE("image: still WebP equals Pillow") { CHECK(against("lossy.webp", "lossy") == 0); }

TEST_CASE("image: EXIF orientation of all eight values") {
  std::set<std::vector<std::uint8_t>> results;
  for (int value = 1; value <= 8; ++value) {
    const std::string name = "exif" + std::to_string(value);
    INFO(name);
    CHECK(against(name + ".jpg", name) == 0);
    const ImageInfo info = read_image_info(media(name + ".jpg"), {}, kWhere);
    CHECK(info.orientation == value);
    CHECK(info.width == (value >= 5 ? 16 : 24));
    CHECK(info.height == (value >= 5 ? 24 : 16));
    results.insert(decode(name + ".jpg").rgb);
  }
  CHECK(results.size() == 8);
  CHECK(against("exif8.webp", "exif8_webp") == 0);
  CHECK(decode("exif6.png").width == 16);

  ImageOptions raw;
  raw.apply_exif = false;
  CHECK(against("exif6.jpg", "exif1", raw) == 0);
  CHECK(against("exif6.png", "rgb", raw) == 0);
  CHECK(read_image_info(media("exif6.jpg"), raw, kWhere).orientation == 1);
}

TEST_CASE("image: strips of one pixel keep their axes") {
  const Image flat = decode("strip_1x305.png");
  CHECK(flat.width == 305);
  CHECK(flat.height == 1);
  CHECK(max_difference(flat.rgb, golden<std::uint8_t>("strip.rgb")) == 0);
  const Image tall = decode("strip_305x1.png");
  CHECK(tall.width == 1);
  CHECK(tall.height == 305);
}

TEST_CASE("image: the header gives the format") {
  CHECK(read_image_info(media("rgb.png"), {}, kWhere).format == ImageFormat::png);
  CHECK(read_image_info(media("j420.jpg"), {}, kWhere).format == ImageFormat::jpeg);
  CHECK(read_image_info(media("lossy.webp"), {}, kWhere).format == ImageFormat::webp);
}
