// Pictures that are none, are damaged or are too large: the right error, and nothing allocated for them.
#include "core/data/media/image.h"
#include "tests/data/media_files.h"

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

std::optional<DataFault> image_info_fault(const Bytes& bytes, std::string_view part = "",
                                          const ImageOptions& options = {}) {
  return fault_of([&] { read_image_info(bytes, options, kWhere); }, part);
}
std::optional<DataFault> image_decode_fault(const Bytes& bytes, std::string_view part = "",
                                            const ImageOptions& options = {}) {
  return fault_of([&] { decode_image(bytes, options, kWhere); }, part);
}

std::uint32_t crc32(const std::byte* data, std::size_t size) {
  std::uint32_t crc = 0xffffffffU;
  for (std::size_t i = 0; i < size; ++i) {
    crc ^= std::to_integer<std::uint32_t>(data[i]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320U : 0U);
  }
  return ~crc;
}

void put_big_endian(Bytes& bytes, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<std::byte>((value >> (24 - 8 * i)) & 0xff);
}

/// The same PNG with another size in its header, checksum and all.
Bytes png_with_size(std::uint32_t width, std::uint32_t height) {
  Bytes bytes = media("bit.png");
  put_big_endian(bytes, 16, width);
  put_big_endian(bytes, 20, height);
  put_big_endian(bytes, 29, crc32(bytes.data() + 12, 17));
  return bytes;
}

Bytes cut(Bytes bytes, std::size_t keep) {
  bytes.resize(std::min(keep, bytes.size()));
  return bytes;
}

}  // namespace

TEST_CASE("image: what is no picture is named") {
  CHECK(image_info_fault({}, "an empty file") == DataFault::not_an_image);
  CHECK(image_info_fault(as_bytes("\n <!DOCTYPE html><html>404 not found</html>"), "an HTML page") ==
        DataFault::not_an_image);
  CHECK(image_info_fault(as_bytes("version https://git-lfs.github.com/spec/v1\noid sha256:00"), "Git LFS") ==
        DataFault::not_an_image);
  CHECK(image_info_fault(as_bytes("{\"error\": \"quota\"}"), "JSON") == DataFault::not_an_image);
  CHECK(image_info_fault(as_bytes("see figure 3"), "a text") == DataFault::not_an_image);
  CHECK(image_info_fault(media("mono8.wav"), "a WAV sound") == DataFault::not_an_image);
  CHECK(image_info_fault(as_bytes(std::string("\x01\x02\x00\x03", 4)), "unknown data") == DataFault::not_an_image);
  CHECK(image_info_fault(as_bytes("\x89PN"), "unknown data") == DataFault::not_an_image);
  CHECK(image_info_fault(as_bytes("GIF89a........."), "a GIF picture") == DataFault::unsupported_media);
  CHECK(image_info_fault(as_bytes(std::string("\0\0\0\x18"
                                              "ftypheic",
                                              12)),
                         "HEIF") == DataFault::unsupported_media);
  CHECK(image_info_fault(media("animated.webp"), "animated") == DataFault::unsupported_media);
  CHECK(image_decode_fault(media("animated.webp"), "animated") == DataFault::unsupported_media);
}

TEST_CASE("image: too many pixels are refused from the header") {
  CHECK(image_info_fault(png_with_size(40000, 40000), "40000 x 40000") == DataFault::image_too_large);
  CHECK(image_decode_fault(png_with_size(40000, 40000), "max_decode_pixels") == DataFault::image_too_large);
  CHECK(image_info_fault(png_with_size(0x7fffffff, 0x7fffffff)) == DataFault::image_too_large);
  CHECK(image_info_fault(png_with_size(0x7fffffff, 1)) == DataFault::image_too_large);
  CHECK(image_info_fault(png_with_size(1000001, 1), "a side") == DataFault::image_too_large);
  CHECK(image_decode_fault(png_with_size(1000000, 1)) == DataFault::corrupt_image);  // legal, but the data are missing
  CHECK(image_info_fault(png_with_size(0, 5)) == DataFault::corrupt_image);
  CHECK(image_info_fault(png_with_size(0xffffffff, 5)) == DataFault::corrupt_image);
  ImageOptions options;
  options.max_decode_pixels = 24 * 16 - 1;
  for (const char* file : {"rgb.png", "j420.jpg", "lossy.webp"}) {
    CHECK(image_info_fault(media(file), "24 x 16", options) == DataFault::image_too_large);
  }
  options.max_decode_pixels = 24 * 16;
  for (const char* file : {"rgb.png", "j420.jpg", "lossy.webp"})
    CHECK_FALSE(image_decode_fault(media(file), "", options));
}

TEST_CASE("image: a file cut anywhere is an error and never grey") {
  for (const char* file :
       {"rgb.png", "interlaced.png", "j420.jpg", "progressive.jpg", "cmyk.jpg", "lossy.webp", "alpha.webp"}) {
    const Bytes whole = media(file);
    INFO(file);
    for (std::size_t keep = 0; keep < whole.size(); keep += 1 + keep / 16) {
      INFO(keep << " of " << whole.size() << " bytes");
      const std::optional<DataFault> fault = image_decode_fault(cut(whole, keep));
      REQUIRE(fault);
      if (keep >= 32) CHECK(*fault == DataFault::corrupt_image);
    }
    CHECK(image_decode_fault(cut(whole, whole.size() - 1)).has_value());
  }
  CHECK(image_decode_fault(cut(media("j420.jpg"), media("j420.jpg").size() / 2), "ends early") ==
        DataFault::corrupt_image);
}

TEST_CASE("image: a wrong checksum or damaged data is an error") {
  Bytes png = media("rgb.png");
  png[png.size() - 20] ^= std::byte{0x10};
  CHECK(image_decode_fault(png, "damaged PNG") == DataFault::corrupt_image);
  Bytes broken = media("lossy.webp");
  broken[30] ^= std::byte{0xff};
  CHECK(image_decode_fault(broken).has_value());
}

TEST_CASE("image: EXIF blocks without sense leave the picture as it is") {
  const Bytes original = media("exif6.jpg");
  // The marker's payload starts with "Exif"; its length, offsets and counts are overwritten with extreme values.
  std::size_t tiff = 0;
  for (std::size_t i = 0; i + 6 < original.size() && tiff == 0; ++i) {
    if (std::memcmp(original.data() + i, "Exif\0\0", 6) == 0) tiff = i + 6;
  }
  REQUIRE(tiff > 0);
  for (std::size_t at = 0; at < 40; ++at) {
    for (const int value : {0, 1, 0x7f, 0xff}) {
      Bytes changed = original;
      changed[tiff + at] = static_cast<std::byte>(value);
      const ImageInfo info = read_image_info(changed, {}, kWhere);
      CHECK((info.orientation >= 1 && info.orientation <= 8));
      CHECK(info.width * info.height == 24 * 16);
    }
  }
}
