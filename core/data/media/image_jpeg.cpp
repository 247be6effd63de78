// JPEG through libjpeg. Its errors leave by longjmp: between `guarded` and the library there are only frames without
// destructors, and all memory is held outside. The library only warns of missing and damaged data and fills up with
// grey: here those warnings are errors.
#include "core/data/media/image_codecs.h"

#include <cstdio>

#include <jerror.h>
#include <jpeglib.h>

#include <csetjmp>
#include <cstring>

namespace mmt::data {
namespace {

// More scans than any encoder writes; a small file with thousands of them would take hours.
constexpr int kMaxScans = 100;

struct JpegReader {
  jpeg_decompress_struct cinfo{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf jump{};
  int code = 0;
  char message[JMSG_LENGTH_MAX] = "";

  explicit JpegReader(const ImageSource& source) {
    cinfo.err = jpeg_std_error(&errors);
    errors.error_exit = &JpegReader::on_error;
    errors.emit_message = &JpegReader::on_message;
    errors.output_message = [](j_common_ptr) {};
    cinfo.client_data = this;
    if (setjmp(jump) != 0) throw std::bad_alloc();  // the one thing that can fail here
    jpeg_create_decompress(&cinfo);
    progress.progress_monitor = &JpegReader::on_progress;
    cinfo.progress = &progress;
    jpeg_mem_src(&cinfo, source.data(), source.size());
  }
  ~JpegReader() { jpeg_destroy_decompress(&cinfo); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  [[noreturn]] static void on_error(j_common_ptr common) {
    auto* self = static_cast<JpegReader*>(common->client_data);
    self->code = common->err->msg_code;
    (*common->err->format_message)(common, self->message);
    std::longjmp(self->jump, 1);
  }
  static void on_message(j_common_ptr common, int level) {
    if (level >= 0) return;
    switch (common->err->msg_code) {
      case JWRN_EXTRANEOUS_DATA:  // bytes between markers
      case JWRN_ADOBE_XFORM:      // unknown colour transform: taken as none
      case JWRN_JFIF_MAJOR: return;
      default: on_error(common);
    }
  }
  static void on_progress(j_common_ptr common) {
    if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number > kMaxScans) {
      auto* self = static_cast<JpegReader*>(common->client_data);
      std::strncpy(self->message, "more than 100 scans", sizeof(self->message) - 1);
      std::longjmp(self->jump, 1);
    }
  }
};

template <class Body> bool guarded(JpegReader& reader, const Body& body) {
  if (setjmp(reader.jump) != 0) return false;
  body();
  return true;
}

[[noreturn]] void fail_with(const ImageSource& source, const JpegReader& reader) {
  switch (reader.code) {
    case JERR_BAD_PRECISION:
      source.fail(DataFault::unsupported_media,
                  fmt::format("a JPEG with {} bits a channel; only 8 are read", reader.cinfo.data_precision));
    case JERR_SOF_UNSUPPORTED:
    case JERR_ARITH_NOTIMPL:
    case JERR_CONVERSION_NOTIMPL:
      source.fail(DataFault::unsupported_media, fmt::format("a kind of JPEG that is not read: {}", reader.message));
    case JWRN_JPEG_EOF:
    case JERR_INPUT_EOF:
    case JWRN_HIT_MARKER:
      source.fail(DataFault::corrupt_image, "damaged JPEG: the file ends early or data are missing");
    default: source.fail(DataFault::corrupt_image, fmt::format("damaged JPEG: {}", reader.message));
  }
}

ImageHeader read_checked_header(const ImageSource& source, JpegReader& reader) {
  jpeg_decompress_struct* cinfo = &reader.cinfo;
  const bool ok = guarded(reader, [&] {
    jpeg_save_markers(cinfo, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(cinfo, TRUE);
  });
  if (!ok) fail_with(source, reader);
  check_geometry(source, cinfo->image_width, cinfo->image_height);
  ImageHeader header{static_cast<int>(cinfo->image_width), static_cast<int>(cinfo->image_height), 1};
  for (jpeg_saved_marker_ptr m = cinfo->marker_list; m != nullptr; m = m->next) {
    if (m->marker == JPEG_APP0 + 1 && m->data_length >= 6 && std::memcmp(m->data, "Exif\0\0", 6) == 0) {
      header.orientation = exif_orientation({m->data, m->data_length});
      break;
    }
  }
  return header;
}

void read_rows(jpeg_decompress_struct* cinfo, std::uint8_t* rows, std::size_t row_bytes) {
  while (cinfo->output_scanline < cinfo->output_height) {
    JSAMPROW row = rows + cinfo->output_scanline * row_bytes;
    jpeg_read_scanlines(cinfo, &row, 1);
  }
  jpeg_finish_decompress(cinfo);
}

/// CMYK as light (Adobe stores inks inverted, 255 = no ink) to RGB; the rounding is Pillow's.
void cmyk_to_rgb(std::span<const std::uint8_t> cmyk, bool inverted, std::span<std::uint8_t> rgb) {
  for (std::size_t i = 0; i < rgb.size() / 3; ++i) {
    const std::uint32_t flip = inverted ? 255 : 0;
    const std::uint32_t light = 255 - (cmyk[4 * i + 3] ^ flip);
    for (std::size_t c = 0; c < 3; ++c) {
      const std::uint32_t product = (cmyk[4 * i + c] ^ flip) * light + 128;
      rgb[3 * i + c] = static_cast<std::uint8_t>(light - ((product + (product >> 8)) >> 8));
    }
  }
}

}  // namespace

ImageHeader read_jpeg_header(const ImageSource& source) {
  JpegReader reader(source);
  return read_checked_header(source, reader);
}

Image decode_jpeg(const ImageSource& source) {
  JpegReader reader(source);
  const ImageHeader header = read_checked_header(source, reader);
  jpeg_decompress_struct* cinfo = &reader.cinfo;
  const bool inks = cinfo->jpeg_color_space == JCS_CMYK || cinfo->jpeg_color_space == JCS_YCCK;
  if (cinfo->jpeg_color_space == JCS_UNKNOWN) {
    source.fail(DataFault::unsupported_media, fmt::format("a JPEG with {} channels", cinfo->num_components));
  }
  const std::size_t num_pixels = static_cast<std::size_t>(header.width) * static_cast<std::size_t>(header.height);
  Image image{header.width, header.height, {}};
  image.rgb.resize(3 * num_pixels);
  std::vector<std::uint8_t> cmyk(inks ? 4 * num_pixels : 0);
  const bool ok = guarded(reader, [&] {
    cinfo->out_color_space = inks ? JCS_CMYK : JCS_RGB;
    cinfo->dct_method = JDCT_ISLOW;
    cinfo->do_fancy_upsampling = TRUE;
    jpeg_start_decompress(cinfo);
    read_rows(cinfo, inks ? cmyk.data() : image.rgb.data(), static_cast<std::size_t>(header.width) * (inks ? 4 : 3));
  });
  if (!ok) fail_with(source, reader);
  if (inks) cmyk_to_rgb(cmyk, cinfo->saw_Adobe_marker != 0, image.rgb);
  return image;
}

}  // namespace mmt::data
