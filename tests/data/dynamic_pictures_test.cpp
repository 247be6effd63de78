// Pictures of any size become rows as transformers' Qwen2-VL processor makes them from real files.
#include "core/data/media/encoder_input.h"
#include "core/data/sample.h"
#include "tests/data/media_files.h"
#include "tests/data/prepared_pictures.h"
#include "tests/data/text_support.h"

#include <sstream>

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

const std::filesystem::path kFiles = std::string(MMT_TEST_DATA) + "/media";

ImageProcessing any_size(int patch, std::int64_t min_pixels, std::int64_t max_pixels) {
  ImageProcessing o;
  o.fit = ImageFit::dynamic;
  o.patch = patch;
  o.merge = o.frames = 2;
  o.pixels = {2 * patch, min_pixels, max_pixels};
  return o;
}

}  // namespace

TEST_CASE("pictures of any size become the rows of transformers' processor") {
  std::ifstream file(kFiles / "qwen2_vl.txt");
  REQUIRE(file.good());
  std::string name;
  int patch = 0, cases = 0;
  std::int64_t low = 0, high = 0;
  std::int32_t rows = 0, cols = 0;
  std::uint64_t hash = 0;
  double sum = 0.0, squares = 0.0;
  while (file >> name >> patch >> low >> high >> rows >> cols >> std::hex >> hash >> std::dec >> sum >> squares) {
    INFO(name << ", patch " << patch << ", " << low << " to " << high);
    ++cases;
    const ImageProcessing o = any_size(patch, low, high);
    const EncoderInput eyes = image_input("eyes", {}, o, false, VisionSelect::patches, 0);
    const auto shapes = eyes.measure(kFiles / name, "s");
    REQUIRE(shapes.size() == 1);
    const std::int32_t patches = rows * cols;
    CHECK(shapes[0] == ItemShape{patches / 4, patches, patches, static_cast<std::int32_t>(o.cols()), {1, rows, cols}});
    std::vector<float> out(static_cast<std::size_t>(patches * o.cols()), std::nanf(""));
    eyes.load(kFiles / name, "s", shapes[0], 0, out);
    CHECK(hash_of_levels(out, o) == hash);
    check_sums(out, sum, squares);
    // Patches row by row of the picture instead of square by square are other rows.
    ImageProcessing plain = o;
    plain.merge = 1;
    ImageProcessor(plain).patches(decode_image(media(name), {}, "s"), out, "s");
    if (rows > 2 && cols > 2) CHECK(hash_of_levels(out, o) != hash);
  }
  CHECK(cases >= 20);
}

TEST_CASE("a picture whose size is not the planned one is a bad sample and not a crash") {
  const EncoderInput eyes = image_input("eyes", {}, any_size(4, 64, 1024), false, VisionSelect::patches, 0);
  const ItemShape planned = eyes.measure(kFiles / "rgb.png", "s").front();
  std::vector<float> out(static_cast<std::size_t>(planned.input_rows * planned.input_cols));
  CHECK_THROWS_WITH(eyes.load(kFiles / "garment.png", "s", planned, 0, out),
                    Catch::Contains("another size than the index says") && Catch::Contains("[corrupt_image]"));
  // The header alone refuses a picture that no ratio fits.
  CHECK_THROWS_WITH(eyes.measure(kFiles / "strip_1x305.png", "s"), Catch::Contains("[image_ratio]"));
}
