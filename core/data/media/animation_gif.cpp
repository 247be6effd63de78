// GIF (version 89a) through giflib: records and LZW are the library's, the frames are put together here as Pillow does.
#include "core/data/media/animation_codecs.h"

#include <gif_lib.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

namespace mmt::data {
namespace {

using Color = std::array<std::uint8_t, 3>;

constexpr int kGraphicControl = 0xF9;
constexpr int kToBackground = 2;  // what is done with a frame before the next; from 3 on: what was there comes back

struct Extent {
  int left = 0, top = 0, width = 0, height = 0;
};

/// A frame's palette; none, or a ramp of all levels: its indices are levels of grey.
class GifPalette {
 public:
  GifPalette() = default;
  explicit GifPalette(const ColorMapObject* map) {
    if (map == nullptr) return;
    for (int i = 0; i < map->ColorCount; ++i) {
      const GifColorType& c = map->Colors[i];
      colors_.push_back({c.Red, c.Green, c.Blue});
      grey_ = grey_ && c.Red == i && c.Green == i && c.Blue == i;
    }
  }
  bool grey() const { return grey_; }
  /// Pixels beyond the palette are black.
  Color pixel(int index) const {
    if (grey_) return grey_level(index);
    return static_cast<std::size_t>(index) < colors_.size() ? colors_[static_cast<std::size_t>(index)] : Color{};
  }
  /// For what is filled, an index beyond the palette is its first.
  Color fill(int index) const {
    if (grey_) return grey_level(index);
    return colors_[static_cast<std::size_t>(index) < colors_.size() ? static_cast<std::size_t>(index) : 0];
  }

 private:
  static Color grey_level(int index) {
    const auto level = static_cast<std::uint8_t>(index);
    return {level, level, level};
  }
  std::vector<Color> colors_;
  bool grey_ = true;
};

/// The records of a file: extensions up to a frame, its description, then its pixels or nothing of them.
class GifReader {
 public:
  explicit GifReader(const ImageSource& source) : source_(source) {
    int problem = 0;
    file_.reset(DGifOpen(this, read, &problem));
    if (!file_) fail(problem);
    check_geometry(source_, file_->SWidth, file_->SHeight);
  }

  struct Frame {
    Extent extent;
    bool interlaced = false;
    std::optional<int> transparent;
    std::int32_t milliseconds = 0;
    int disposal = 0;
    GifPalette palette;
  };

  int width() const { return file_->SWidth; }
  int height() const { return file_->SHeight; }
  /// Index of the background; only a file with a palette for all frames names one.
  int background() const { return file_->SColorMap == nullptr ? 0 : file_->SBackGroundColor; }

  /// The next frame up to its pixels; nothing at the end of the file.
  std::optional<Frame> next() {
    Frame frame;
    while (true) {
      GifRecordType type = UNDEFINED_RECORD_TYPE;
      check(DGifGetRecordType(file_.get(), &type));
      if (type == TERMINATE_RECORD_TYPE) return std::nullopt;
      if (type == EXTENSION_RECORD_TYPE) {
        read_extension(frame);
      } else if (type == IMAGE_DESC_RECORD_TYPE) {
        break;
      } else {
        source_.fail(DataFault::corrupt_image, "damaged GIF: an unknown record");
      }
    }
    check(DGifGetImageDesc(file_.get()));
    const GifImageDesc& d = file_->Image;
    frame.extent = {d.Left, d.Top, d.Width, d.Height};
    frame.interlaced = d.Interlace;
    frame.palette = d.ColorMap != nullptr ? GifPalette(d.ColorMap) : global();
    frame.disposal = disposal_;
    if (d.Width <= 0 || d.Height <= 0 || d.Left < 0 || d.Top < 0 || d.Left + d.Width > file_->SWidth ||
        d.Top + d.Height > file_->SHeight) {
      source_.fail(DataFault::frame_size,
                   fmt::format("a frame of {} x {} at {}, {} does not lie within the canvas of {} x {}", d.Width,
                               d.Height, d.Left, d.Top, file_->SWidth, file_->SHeight));
    }
    return frame;
  }

  void skip_pixels() {
    int code_size = 0;
    GifByteType* block = nullptr;
    check(DGifGetCode(file_.get(), &code_size, &block));
    while (block != nullptr) check(DGifGetCodeNext(file_.get(), &block));
  }

  /// Calls `use(row of the frame, its indices)`.
  template <class Use> void pixels(const Frame& frame, Use&& use) {
    line_.resize(static_cast<std::size_t>(frame.extent.width));
    const auto rows = [&](int first, int step) {
      for (int y = first; y < frame.extent.height; y += step) {
        check(DGifGetLine(file_.get(), line_.data(), frame.extent.width));
        use(y, std::span<const GifPixelType>(line_));
      }
    };
    if (!frame.interlaced) return rows(0, 1);
    rows(0, 8);
    rows(4, 8);
    rows(2, 4);
    rows(1, 2);
  }

 private:
  static int read(GifFileType* file, GifByteType* out, int wanted) {
    auto& self = *static_cast<GifReader*>(file->UserData);
    const std::size_t count = std::min(static_cast<std::size_t>(std::max(wanted, 0)), self.source_.size() - self.at_);
    std::memcpy(out, self.source_.data() + self.at_, count);
    self.at_ += count;
    return static_cast<int>(count);
  }
  GifPalette global() const { return GifPalette(file_->SColorMap); }

  [[noreturn]] void fail(int problem) const {
    if (problem == D_GIF_ERR_NOT_ENOUGH_MEM) throw std::bad_alloc();
    const char* text = GifErrorString(problem);
    const bool ends = problem == D_GIF_ERR_READ_FAILED || problem == D_GIF_ERR_EOF_TOO_SOON;
    source_.fail(DataFault::corrupt_image,
                 fmt::format("damaged GIF: {}", ends ? "the file ends early" : (text == nullptr ? "unknown" : text)));
  }
  void check(int status) const {
    if (status != GIF_OK) fail(file_->Error);
  }

  void read_extension(Frame& frame) {
    int code = 0;
    GifByteType* block = nullptr;  // its length, then its bytes
    check(DGifGetExtension(file_.get(), &code, &block));
    if (code == kGraphicControl && block != nullptr) {
      if (block[0] < 4) source_.fail(DataFault::corrupt_image, "damaged GIF: a graphic control of too few bytes");
      const int flags = block[1];
      if ((flags & 1) != 0) frame.transparent = block[4];
      frame.milliseconds = 10 * (block[2] | block[3] << 8);
      const int disposal = flags >> 2 & 7;
      if (disposal != 0) disposal_ = disposal;  // what is not said stays as it was
    }
    while (block != nullptr) check(DGifGetExtensionNext(file_.get(), &block));
  }

  struct Close {
    void operator()(GifFileType* file) const {
      int ignored = 0;
      DGifCloseFile(file, &ignored);
    }
  };
  const ImageSource& source_;
  std::size_t at_ = 0;
  int disposal_ = 0;
  std::vector<GifPixelType> line_;
  std::unique_ptr<GifFileType, Close> file_;
};

/// The picture so far, and what becomes of its last frame before the next is drawn.
class GifCanvas {
 public:
  GifCanvas(int width, int height, int background) : image_{width, height, {}}, background_(background) {
    image_.rgb.resize(std::size_t{3} * static_cast<std::size_t>(width) * static_cast<std::size_t>(height));
  }
  const Image& image() const { return image_; }

  /// What is to be done before the frame's pixels are drawn.
  void begin(const GifReader::Frame& frame) {
    dispose();
    if (first_) {
      fill({0, 0, image_.width, image_.height}, frame.palette.pixel(frame.transparent.value_or(0)));
      if (frame.palette.grey()) grey_transparent_ = frame.transparent;
    }
    extent_ = frame.extent;
    color_.reset();
    saved_.clear();
    if (frame.disposal == kToBackground) {
      // Colour of the transparent index where there is one: that of the first frame if that was grey.
      const std::optional<int> own = first_ || !grey_transparent_ ? frame.transparent : grey_transparent_;
      const int index = own.value_or(background_);
      color_ = first_ ? frame.palette.pixel(index) : frame.palette.fill(index);
    } else if (frame.disposal > kToBackground && first_) {
      if (frame.transparent) color_ = frame.palette.pixel(*frame.transparent);
    } else if (frame.disposal > kToBackground) {
      for (int y = 0; y < extent_.height; ++y) {
        const std::uint8_t* row = at(extent_.left, extent_.top + y);
        saved_.insert(saved_.end(), row, row + std::ptrdiff_t{3} * extent_.width);
      }
    }
  }

  void draw(const GifReader::Frame& frame, int y, std::span<const GifPixelType> indices) {
    std::uint8_t* to = at(frame.extent.left, frame.extent.top + y);
    for (const GifPixelType index : indices) {
      // Of the first frame, what is transparent has the colour of its index, which lies there already.
      if (!frame.transparent || index != *frame.transparent) {
        const Color c = frame.palette.pixel(index);
        std::copy(c.begin(), c.end(), to);
      }
      to += 3;
    }
  }
  void end() { first_ = false; }

 private:
  std::uint8_t* at(int x, int y) {
    return image_.rgb.data() + std::ptrdiff_t{3} * (static_cast<std::ptrdiff_t>(y) * image_.width + x);
  }
  void fill(const Extent& e, const Color& color) {
    for (int y = 0; y < e.height; ++y) {
      std::uint8_t* to = at(e.left, e.top + y);
      for (int x = 0; x < e.width; ++x) to = std::copy(color.begin(), color.end(), to);
    }
  }
  void dispose() {
    if (color_) fill(extent_, *color_);
    const std::size_t row = std::size_t{3} * static_cast<std::size_t>(extent_.width);
    for (std::size_t y = 0; (y + 1) * row <= saved_.size() && row > 0; ++y)
      std::memcpy(at(extent_.left, extent_.top + static_cast<int>(y)), saved_.data() + y * row, row);
  }

  Image image_;
  int background_ = 0;
  bool first_ = true;
  std::optional<int> grey_transparent_;
  Extent extent_;                    // of the last frame
  std::optional<Color> color_;       // that takes its place
  std::vector<std::uint8_t> saved_;  // what was there before it and comes back
};

}  // namespace

AnimationInfo read_gif_info(const ImageSource& source, const AnimationLimits& limits) {
  GifReader reader(source);
  AnimationInfo info{reader.width(), reader.height(), {}};
  while (const auto frame = reader.next()) {
    check_frame_count(source, limits, info.frames() + 1);
    reader.skip_pixels();
    info.milliseconds.push_back(frame->milliseconds);
  }
  return info;
}

void decode_gif(const ImageSource& source, const FrameSink& sink) {
  GifReader reader(source);
  GifCanvas canvas(reader.width(), reader.height(), reader.background());
  for (std::int64_t i = 0;; ++i) {
    const auto frame = reader.next();
    if (!frame) return;
    canvas.begin(*frame);
    reader.pixels(*frame, [&](int y, std::span<const GifPixelType> row) { canvas.draw(*frame, y, row); });
    canvas.end();
    if (!sink(i, canvas.image())) return;
  }
}

}  // namespace mmt::data
