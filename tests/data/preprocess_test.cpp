// CLIP and SigLIP preprocessing against transformers' Pillow processors.
#include "core/data/media/preprocess.h"
#include "tests/data/media_files.h"

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

ImageProcessing clip_28() {
  ImageProcessing o;
  o.height = o.width = 28;
  o.patch = 7;
  return o;
}

std::vector<float> patches_of(ImageProcessor& processor, const Image& image) {
  const ImageProcessing& o = processor.options();
  std::vector<float> out(static_cast<std::size_t>(o.grid().count() * o.cols()), std::nanf(""));
  processor.patches(image, out, kWhere);
  return out;
}

}  // namespace

// transformers multiplies and divides in float32 in the same order; at most an ulp of values up to 2.7 may differ.
constexpr double kTolerance = 5e-7;

TEST_CASE("preprocess: CLIP patches equal transformers") {
  ImageProcessor processor(clip_28());
  CHECK(max_difference(patches_of(processor, noise_image(61, 40)), golden<float>("clip.f32")) <= kTolerance);
  // Other sizes in between do not disturb the kept tables, and a copy does the same.
  for (int i = 1; i < 40; ++i) patches_of(processor, noise_image(i, 41 - i));
  ImageProcessor copy = processor;
  CHECK(max_difference(patches_of(processor, noise_image(61, 40)), golden<float>("clip.f32")) <= kTolerance);
  CHECK(max_difference(patches_of(copy, noise_image(61, 40)), golden<float>("clip.f32")) <= kTolerance);
  // A wrong filter is seen.
  ImageProcessing other = clip_28();
  other.resample = Resample::bilinear;
  ImageProcessor wrong(other);
  CHECK(max_difference(patches_of(wrong, noise_image(61, 40)), golden<float>("clip.f32")) > 0.1);
}

TEST_CASE("preprocess: SigLIP stretches both sides") {
  ImageProcessing o = clip_28();
  o.fit = ImageFit::stretch;
  o.height = 21;
  o.mean = o.std = {0.5, 0.5, 0.5};
  ImageProcessor processor(o);
  CHECK(o.grid().rows == 3);
  CHECK(o.grid().cols == 4);
  CHECK(max_difference(patches_of(processor, noise_image(61, 40)), golden<float>("siglip.f32")) <= kTolerance);
}

TEST_CASE("preprocess: a picture smaller than the crop lies on black") {
  ImageProcessing o = clip_28();
  o.resize = 13;
  ImageProcessor processor(o);
  CHECK(max_difference(processor.pixels(noise_image(61, 40), kWhere).rgb, golden<std::uint8_t>("small_crop.rgb")) == 0);
}

TEST_CASE("preprocess: pad puts the picture on a square of the mean colour") {
  ImageProcessing o = clip_28();
  o.pad_to_square = true;
  ImageProcessor processor(o);
  CHECK(max_difference(processor.pixels(noise_image(61, 40), kWhere).rgb, golden<std::uint8_t>("padded.rgb")) == 0);
  Image strip{30000, 1, std::vector<std::uint8_t>(90000, 200)};
  CHECK(fault_of([&] { processor.pixels(strip, kWhere); }, "square") == DataFault::image_too_large);
}

TEST_CASE("preprocess: a picture that fits is only cut into patches") {
  ImageProcessing o = clip_28();
  o.mean = {0, 0, 0};
  o.std = {1, 1, 1};
  ImageProcessor processor(o);
  const Image image = noise_image(28, 28);
  const std::vector<float> out = patches_of(processor, image);
  for (int row = 0; row < 16; ++row) {
    for (int c = 0; c < 3; ++c) {
      for (int y = 0; y < 7; ++y) {
        for (int x = 0; x < 7; ++x) {
          const int pixel = (row / 4 * 7 + y) * 28 + row % 4 * 7 + x;
          const float expected = static_cast<float>(image.rgb[static_cast<std::size_t>(3 * pixel + c)]) / 255.0F;
          REQUIRE(out[static_cast<std::size_t>(row * 147 + c * 49 + y * 7 + x)] == Approx(expected).epsilon(1e-6));
        }
      }
    }
  }
}

TEST_CASE("preprocess: strips of any ratio cost no more than their crop") {
  ImageProcessor processor(clip_28());
  for (const auto& [w, h] : {std::pair{1, 30000}, {30000, 1}, {1, 1}, {2276, 10}}) {
    const Image out =
        processor.pixels(Image{w, h, std::vector<std::uint8_t>(static_cast<std::size_t>(3 * w * h), 77)}, kWhere);
    CHECK(std::all_of(out.rgb.begin(), out.rgb.end(), [](std::uint8_t v) { return v == 77; }));
  }
}

TEST_CASE("preprocess: pixels that fill no whole patch are left out") {
  ImageProcessing o = clip_28();
  o.height = o.width = 30;
  o.mean = {0, 0, 0};
  o.std = {1, 1, 1};
  ImageProcessor processor(o);
  CHECK(o.grid().count() == 16);
  const Image image = noise_image(30, 30);
  const std::vector<float> out = patches_of(processor, image);
  CHECK(out.back() == Approx(image.rgb[3 * (27 * 30 + 27) + 2] / 255.0).epsilon(1e-6));
}

TEST_CASE("preprocess: impossible options and wrong memory are bugs") {
  ImageProcessing o = clip_28();
  o.patch = 29;
  CHECK_THROWS_AS(ImageProcessor(o), std::logic_error);
  ImageProcessor processor(clip_28());
  std::vector<float> small(5);
  CHECK_THROWS_AS(processor.patches(noise_image(28, 28), small, kWhere), std::logic_error);
  CHECK_THROWS_AS(processor.pixels(Image{2, 2, {1, 2, 3}}, kWhere), std::logic_error);
}
