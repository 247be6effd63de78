// JPEG forms that Pillow does not write, made here with the library's encoder.
#include "core/data/media/image.h"
#include "tests/data/media_files.h"

#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

/// `pixels` as the file stores them after the conversion input -> stored.
Bytes encode(int width, int height, int channels, J_COLOR_SPACE input, J_COLOR_SPACE stored, bool adobe,
             const std::vector<std::uint8_t>& pixels) {
  jpeg_compress_struct cinfo{};
  jpeg_error_mgr errors{};
  cinfo.err = jpeg_std_error(&errors);
  jpeg_create_compress(&cinfo);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&cinfo, &memory, &size);
  cinfo.image_width = static_cast<JDIMENSION>(width);
  cinfo.image_height = static_cast<JDIMENSION>(height);
  cinfo.input_components = channels;
  cinfo.in_color_space = input;
  jpeg_set_defaults(&cinfo);
  jpeg_set_colorspace(&cinfo, stored);
  if (stored == JCS_CMYK || stored == JCS_YCCK) cinfo.write_Adobe_marker = adobe ? TRUE : FALSE;
  for (int i = 0; i < cinfo.num_components; ++i)
    cinfo.comp_info[i].h_samp_factor = cinfo.comp_info[i].v_samp_factor = 1;
  jpeg_set_quality(&cinfo, 100, TRUE);
  jpeg_start_compress(&cinfo, TRUE);
  std::vector<std::uint8_t> copy = pixels;
  while (cinfo.next_scanline < cinfo.image_height) {
    JSAMPROW row = copy.data() + std::size_t{cinfo.next_scanline} * static_cast<std::size_t>(width * channels);
    jpeg_write_scanlines(&cinfo, &row, 1);
  }
  jpeg_finish_compress(&cinfo);
  const auto* data = reinterpret_cast<const std::byte*>(memory);
  Bytes bytes(data, data + size);
  jpeg_destroy_compress(&cinfo);
  std::free(memory);
  return bytes;
}

/// One colour per 8x8 block, so that the transform loses nothing but rounding: inks with half of black.
constexpr int kSide = 16;
constexpr std::uint8_t kInks[4][4] = {{255, 0, 0, 0}, {0, 255, 0, 0}, {0, 0, 0, 128}, {30, 60, 90, 20}};

std::vector<std::uint8_t> ink_picture(bool inverted) {
  std::vector<std::uint8_t> pixels;
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      for (const std::uint8_t ink : kInks[2 * (y / 8) + x / 8]) {
        pixels.push_back(inverted ? static_cast<std::uint8_t>(255 - ink) : ink);
      }
    }
  }
  return pixels;
}

/// What the inks look like on paper.
std::vector<std::uint8_t> seen() {
  std::vector<std::uint8_t> rgb;
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const std::uint8_t* ink = kInks[2 * (y / 8) + x / 8];
      for (int c = 0; c < 3; ++c)
        rgb.push_back(static_cast<std::uint8_t>(std::lround((255 - ink[c]) * (255 - ink[3]) / 255.0)));
    }
  }
  return rgb;
}

}  // namespace

TEST_CASE("image: CMYK and YCCK JPEG with and without the Adobe marker") {
  const auto decoded = [](const Bytes& bytes) { return decode_image(bytes, {}, kWhere).rgb; };
  const std::vector<std::uint8_t> expected = seen();
  // Quality 100 and flat blocks: rounding of the transform and of the colour conversion, a step or two each.
  CHECK(max_difference(decoded(encode(kSide, kSide, 4, JCS_CMYK, JCS_CMYK, true, ink_picture(true))), expected) <= 2);
  CHECK(max_difference(decoded(encode(kSide, kSide, 4, JCS_CMYK, JCS_YCCK, true, ink_picture(true))), expected) <= 4);
  CHECK(max_difference(decoded(encode(kSide, kSide, 4, JCS_CMYK, JCS_CMYK, false, ink_picture(false))), expected) <= 2);
  // The wrong polarity is far off, so the checks above see it.
  CHECK(max_difference(decoded(encode(kSide, kSide, 4, JCS_CMYK, JCS_CMYK, true, ink_picture(false))), expected) > 100);
}

TEST_CASE("image: RGB stored without conversion and two channels") {
  const Image picture = noise_image(16, 16);
  const Bytes plain = encode(16, 16, 3, JCS_RGB, JCS_RGB, true, picture.rgb);
  CHECK(max_difference(decode_image(plain, {}, kWhere).rgb, picture.rgb) <= 2);
  const Bytes two = encode(8, 8, 2, JCS_UNKNOWN, JCS_UNKNOWN, false, std::vector<std::uint8_t>(128, 7));
  CHECK(fault_of([&] { decode_image(two, {}, kWhere); }, "2 channels") == DataFault::unsupported_media);
}

TEST_CASE("image: JPEG with 12 bits a channel is refused by name") {
  Bytes bytes = media("j444.jpg");
  for (std::size_t i = 0; i + 4 < bytes.size(); ++i) {
    if (bytes[i] == std::byte{0xff} && bytes[i + 1] == std::byte{0xc0}) bytes[i + 4] = std::byte{12};
  }
  CHECK(fault_of([&] { read_image_info(bytes, {}, kWhere); }, "12 bits") == DataFault::unsupported_media);
  CHECK(fault_of([&] { decode_image(bytes, {}, kWhere); }, "12 bits") == DataFault::unsupported_media);
}
