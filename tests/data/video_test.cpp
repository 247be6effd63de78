// Videos become rows frame by frame: animations, folders and lists of pictures, and what is wrong with them.
#include "core/data/media/video_input.h"
#include "core/data/records/record.h"
#include "tests/data/media_files.h"
#include "tests/data/text_support.h"

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

const std::filesystem::path kFilms = std::string(MMT_TEST_DATA) + "/media/animations";
const std::filesystem::path kPictures = std::string(MMT_TEST_DATA) + "/media";

ImageProcessing frames_of_two() {
  ImageProcessing o;
  o.fit = ImageFit::dynamic;
  o.patch = 4;
  o.merge = o.frames = 2;
  o.pixels = {8, 64, 1024};
  return o;
}

EncoderInput film_input(const VideoProcessing& video, const AnimationLimits& limits = {}) {
  EncoderInput input = image_input("eyes", {}, frames_of_two(), false, VisionSelect::patches, 0);
  take_videos(input, {}, limits, frames_of_two(), video);
  return input;
}

MediaFile film(const MediaSource& source) { return {Modality::video, "", source}; }

std::vector<float> rows_of(const EncoderInput& input, const MediaFile& file) {
  const ItemShape shape = input.shapes_of(file, "s").at(0);
  std::vector<float> out(static_cast<std::size_t>(shape.input_rows * shape.input_cols), std::nanf(""));
  input.load_item(file, "s", shape, 0, out);
  return out;
}

/// Rows of a video put together from those of its frames as still pictures, which are both frames of their patches.
std::vector<float> from_stills(const std::vector<Image>& frames, const PixelRule& pixels) {
  ImageProcessing o = frames_of_two();
  o.pixels = pixels;
  ImageProcessor still(o);
  std::vector<std::vector<float>> rows;
  for (const Image& frame : frames) {
    const PictureSize size = o.size_of(frame.width, frame.height, "s");
    rows.emplace_back(static_cast<std::size_t>(o.grid(size).count() * o.cols()));
    still.patches(frame, rows.back(), "s");
  }
  if (rows.size() % 2 != 0) rows.push_back(rows.back());
  std::vector<float> out;
  for (std::size_t t = 0; t < rows.size(); t += 2) {
    for (std::size_t i = 0; i < rows[t].size(); ++i) out.push_back(rows[i / 16 % 2 == 0 ? t : t + 1][i]);
  }
  return out;
}

std::vector<Image> all_frames(const std::string& name, const std::vector<std::int32_t>& wanted) {
  std::vector<Image> frames;
  decode_animation(
      media("animations/" + name), {}, {}, wanted, [&](const Image& f) { frames.push_back(f); }, "s");
  return frames;
}

template <class Body> void fails(const Body& body, DataFault fault, const std::string& part = "") {
  try {
    body();
    FAIL("no fault: " << part);
  } catch (const DataError& e) {
    INFO(e.what());
    CHECK(e.fault() == fault);
    CHECK_THAT(e.what(), Catch::Contains(part) && Catch::StartsWith("s: "));
  }
}

}  // namespace

TEST_CASE("a video is a row of patches for two frames after two frames") {
  const PixelRule pixels{8, 64, 600};
  const EncoderInput eyes = film_input({.sampling = {.fps = 0}, .pixels = pixels});
  CHECK(eyes.takes(Modality::video));
  CHECK_FALSE(eyes.takes(Modality::audio));
  // 40 x 28 with at most 600 pixels: 24 x 16. Of 7 frames the last fills up.
  const MediaFile scene = film(kFilms / "scene.gif");
  CHECK(eyes.shapes_of(scene, "s").at(0) == ItemShape{4 * 6, 4 * 24, 4 * 24, 96, {4, 4, 6}});
  CHECK(rows_of(eyes, scene) == from_stills(all_frames("scene.gif", {0, 1, 2, 3, 4, 5, 6}), pixels));
  const MediaFile webp = film(kFilms / "lossless.webp");
  CHECK(rows_of(eyes, webp) == from_stills(all_frames("lossless.webp", {0, 1, 2, 3, 4}), pixels));
  // By their rate: 7 frames in 1.39 s, 4 a second: 5, of these 4 for whole patches.
  const EncoderInput sampled = film_input({.sampling = {.fps = 4, .min_frames = 2}, .pixels = pixels});
  CHECK(rows_of(sampled, scene) == from_stills(all_frames("scene.gif", {0, 1, 3, 5}), pixels));
  CHECK(sampled.key != eyes.key);
  CHECK_FALSE(rows_of(sampled, scene) == from_stills(all_frames("scene.gif", {0, 1, 2, 3}), pixels));
  // A still picture is a film of one frame.
  const Image still = decode_image(media("rgb.png"), {}, "s");
  CHECK(rows_of(eyes, film(kPictures / "rgb.png")) == from_stills({still}, pixels));
}

TEST_CASE("folders and lists of pictures are videos") {
  const TempFolder folder;
  const PixelRule pixels{8, 64, 1024};
  const EncoderInput eyes = film_input({.sampling = {}, .pixels = pixels});
  const auto copy = [&](const std::string& from, const std::string& to) {
    std::filesystem::create_directories((folder.path() / to).parent_path());
    std::filesystem::copy_file(kPictures / from, folder.path() / to);
  };
  // All of 24 x 16 pixels, whatever their formats; numbers count by value.
  copy("rgb.png", "film/img2.png");
  copy("lossy.webp", "film/img10.WEBP");
  copy("j444.jpg", "film/img1.jpg");
  folder.write("film/.hidden.png", "not a picture");
  folder.write("film/notes.txt", "three frames");
  std::vector<Image> frames;
  for (const char* name : {"j444.jpg", "rgb.png", "lossy.webp"}) frames.push_back(decode_image(media(name), {}, "s"));
  const std::vector<float> expected = from_stills(frames, pixels);
  CHECK(rows_of(eyes, film(folder.path() / "film")) == expected);
  Record record;
  record.media.push_back({Modality::video, "", {}, {"film/img1.jpg", "film/img2.png", "film/img10.WEBP"}});
  find_media(record, folder.path(), "s");
  CHECK(rows_of(eyes, record.media[0]) == expected);
  record.media[0].frames[1] = "../img2.png";
  fails([&] { find_media(record, folder.path(), "s"); }, DataFault::unsafe_path);
  // With their rate they are sampled.
  const EncoderInput sampled = film_input({.sampling = {.fps = 1, .min_frames = 1, .list_fps = 1.5}, .pixels = pixels});
  CHECK(rows_of(sampled, film(folder.path() / "film")) == from_stills({frames[0], frames[1]}, pixels));

  copy("garment.png", "film/img11.png");
  fails([&] { rows_of(eyes, film(folder.path() / "film")); }, DataFault::frame_size, "img11.png: a frame of 28 x 28");
  std::filesystem::remove(folder.path() / "film/img11.png");
  folder.write("film/img3.png", "\x89PNG\r\n\x1a\n");
  fails([&] { rows_of(eyes, film(folder.path() / "film")); }, DataFault::corrupt_image, "img3.png");
  std::filesystem::remove(folder.path() / "film/img3.png");
  folder.write("film/img4.bmp", "BM");
  fails([&] { rows_of(eyes, film(folder.path() / "film")); }, DataFault::unsupported_media, "img4.bmp");
  std::filesystem::create_directories(folder.path() / "empty");
  fails([&] { rows_of(eyes, film(folder.path() / "empty")); }, DataFault::empty_video);
  fails([&] { rows_of(eyes, film(folder.path() / "none")); }, DataFault::missing_file);
  // A GIF in a list is no frame.
  record.media[0] = {Modality::video, "", {}, {"film/img1.jpg", "a.gif"}};
  std::filesystem::copy_file(kFilms / "one.gif", folder.path() / "a.gif");
  find_media(record, folder.path(), "s");
  fails([&] { rows_of(eyes, record.media[0]); }, DataFault::unsupported_media, "a.gif");
}

TEST_CASE("what is no video or too much of one says so") {
  const TempFolder folder;
  const VideoProcessing video{.sampling = {}, .pixels = {8, 64, 1024}};
  const EncoderInput eyes = film_input(video);
  const auto measured = [&](const EncoderInput& input, const std::filesystem::path& path) {
    input.shapes_of(film(path), "s");
  };
  fails(
      [&] {
        measured(eyes, folder.write("a.mp4", std::string("\0\0\0\x18"
                                                         "ftypmp42",
                                                         12)));
      },
      DataFault::unsupported_media, "ffmpeg");
  fails([&] { measured(eyes, folder.write("a.gif", "<html>")); }, DataFault::not_a_video, "HTML");
  fails([&] { measured(eyes, folder.write("b.gif", "")); }, DataFault::not_a_video, "an empty file");
  fails([&] { measured(film_input(video, {.max_frames = 6}), kFilms / "scene.gif"); }, DataFault::too_many_frames);
  fails([&] { measured(film_input(video, {.max_frames = 1}), kFilms); }, DataFault::unsupported_media, ".gif");
  // The file changes after it was measured.
  const MediaFile file = film(folder.write("c.gif", read_whole(kFilms / "scene.gif")));
  const ItemShape shape = eyes.shapes_of(file, "s").at(0);
  folder.write("c.gif", read_whole(kFilms / "grey.gif").substr(0, 3000));
  std::vector<float> out(static_cast<std::size_t>(shape.input_rows * shape.input_cols));
  fails([&] { eyes.load_item(file, "s", shape, 0, out); }, DataFault::corrupt_image, "c.gif");
  folder.write("c.gif", read_whole(kFilms / "one.gif"));
  fails([&] { eyes.load_item(file, "s", shape, 0, out); }, DataFault::frame_size, "has it changed?");
}

TEST_CASE("a limit for all frames gives each its share") {
  const VideoProcessing video{.sampling = {}, .pixels = {28, 100352, 602112}, .total_pixels = 90316800};
  // transformers' cap_pixels_per_frame with 128,000 tokens of 28 x 28.
  CHECK(frame_pixels(video, 4, 2).max_pixels == 602112);
  CHECK(frame_pixels(video, 768, 2).max_pixels == 235200);
  CHECK(frame_pixels(video, 4000, 2).max_pixels == 105369);
  CHECK(frame_pixels({.sampling = {}, .pixels = {28, 100352, 602112}}, 768, 2).max_pixels == 602112);
}
