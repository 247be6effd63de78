// PNG through libpng. Its errors leave by longjmp: between `guarded` and the library there are only frames without
// destructors, and all memory is held outside.
#include "core/data/media/image_codecs.h"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>

namespace mmt::data {
namespace {

struct PngReader {
  const std::uint8_t* data;
  std::size_t size;
  std::size_t at = 0;
  png_structp png = nullptr;
  png_infop info = nullptr;
  char message[160] = "";

  explicit PngReader(const ImageSource& source) : data(source.data()), size(source.size()) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &PngReader::on_error, &PngReader::on_warning);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) {
      png_destroy_read_struct(&png, nullptr, nullptr);
      throw std::bad_alloc();
    }
  }
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  [[noreturn]] static void on_error(png_structp png, png_const_charp text) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::strncpy(self->message, text, sizeof(self->message) - 1);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}
  static void on_read(png_structp png, png_bytep to, std::size_t count) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self->size - self->at) png_error(png, "the file ends early");
    std::memcpy(to, self->data + self->at, count);
    self->at += count;
  }
};

/// Runs `body`; false when libpng reported an error, whose text is then in `reader.message`.
template <class Body> bool guarded(PngReader& reader, const Body& body) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  body();
  return true;
}

struct PngHeader {
  png_uint_32 width = 0;
  png_uint_32 height = 0;
  int depth = 0;
  int color = 0;
  bool transparent = false;  // has an alpha channel or a tRNS chunk
};

void read_info(PngReader& r, PngHeader& h) {
  png_set_read_fn(r.png, &r, &PngReader::on_read);
  // Texts, profiles and times are not needed; skipping them also leaves no room for chunks that unpack to gigabytes.
  png_set_keep_unknown_chunks(r.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_set_crc_action(r.png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
  // The product is checked by check_geometry; a side alone may be long.
  png_set_user_limits(r.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_read_info(r.png, r.info);
  png_get_IHDR(r.png, r.info, &h.width, &h.height, &h.depth, &h.color, nullptr, nullptr, nullptr);
  h.transparent = (h.color & PNG_COLOR_MASK_ALPHA) != 0 || png_get_valid(r.png, r.info, PNG_INFO_tRNS) != 0;
}

PngHeader read_checked_info(const ImageSource& source, PngReader& reader) {
  PngHeader header;
  if (!guarded(reader, [&] { read_info(reader, header); })) {
    source.fail(DataFault::corrupt_image, fmt::format("damaged PNG: {}", reader.message));
  }
  check_geometry(source, header.width, header.height);
  return header;
}

std::uint32_t big_endian(const std::uint8_t* p) {
  return (std::uint32_t{p[0]} << 24) | (std::uint32_t{p[1]} << 16) | (std::uint32_t{p[2]} << 8) | p[3];
}

/// The eXIf chunk may follow the pixels, so the chunks are walked without libpng.
int png_orientation(std::span<const std::uint8_t> file) {
  std::size_t at = 8;
  while (file.size() - at >= 12) {
    const std::size_t length = big_endian(file.data() + at);
    const std::uint8_t* type = file.data() + at + 4;
    if (length > file.size() - at - 12) return 1;
    if (std::memcmp(type, "eXIf", 4) == 0) return exif_orientation(file.subspan(at + 8, length));
    if (std::memcmp(type, "IEND", 4) == 0) return 1;
    at += 12 + length;
  }
  return 1;
}

/// Reads all rows, `row_bytes` apart, and the chunks behind them.
void read_rows(PngReader& r, int num_passes, int height, std::uint8_t* rows, std::size_t row_bytes) {
  for (int pass = 0; pass < num_passes; ++pass) {
    for (int y = 0; y < height; ++y) png_read_row(r.png, rows + static_cast<std::size_t>(y) * row_bytes, nullptr);
  }
  png_read_end(r.png, nullptr);
}

}  // namespace

ImageHeader read_png_header(const ImageSource& source) {
  PngReader reader(source);
  const PngHeader header = read_checked_info(source, reader);
  return {static_cast<int>(header.width), static_cast<int>(header.height),
          png_orientation({source.data(), source.size()})};
}

Image decode_png(const ImageSource& source) {
  PngReader reader(source);
  const PngHeader header = read_checked_info(source, reader);
  const bool clip_grey =
      header.depth == 16 && header.color == PNG_COLOR_TYPE_GRAY && !header.transparent && !source.options.scale_16_bit;
  const std::size_t pixel_bytes = clip_grey ? 2 : (header.transparent ? 4 : 3);
  const std::size_t num_pixels = std::size_t{header.width} * header.height;
  const std::size_t row_bytes = pixel_bytes * header.width;

  Image image{static_cast<int>(header.width), static_cast<int>(header.height), {}};
  image.rgb.resize(3 * num_pixels);
  std::vector<std::uint8_t> other(pixel_bytes == 3 ? 0 : pixel_bytes * num_pixels);
  std::uint8_t* rows = pixel_bytes == 3 ? image.rgb.data() : other.data();
  std::size_t got_row_bytes = 0;
  const bool ok = guarded(reader, [&] {
    if (!clip_grey) {
      if (header.depth == 16) {
        if (source.options.scale_16_bit)
          png_set_scale_16(reader.png);
        else
          png_set_strip_16(reader.png);
      }
      png_set_expand(reader.png);
      if ((header.color & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(reader.png);
    }
    const int num_passes = png_set_interlace_handling(reader.png);
    png_read_update_info(reader.png, reader.info);
    got_row_bytes = png_get_rowbytes(reader.png, reader.info);
    if (got_row_bytes == row_bytes) read_rows(reader, num_passes, image.height, rows, row_bytes);
  });
  if (!ok) source.fail(DataFault::corrupt_image, fmt::format("damaged PNG: {}", reader.message));
  MMT_CHECK(got_row_bytes == row_bytes, "{} bytes a row, expected {}", got_row_bytes, row_bytes);

  if (clip_grey) {
    for (std::size_t i = 0; i < num_pixels; ++i) {
      const std::uint8_t v = other[2 * i] != 0 ? 255 : other[2 * i + 1];
      image.rgb[3 * i] = image.rgb[3 * i + 1] = image.rgb[3 * i + 2] = v;
    }
  } else if (header.transparent) {
    blend_over(other, source.options.background, image.rgb);
  }
  return image;
}

}  // namespace mmt::data
