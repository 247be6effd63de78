// Pictures in tiles: sizes, what is padding, and pixels as transformers' LLaVA-NeXT has them, from real files.
#include "core/data/media/tiles.h"
#include "core/data/media/encoder_input.h"
#include "tests/data/media_files.h"
#include "tests/data/prepared_pictures.h"

#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <fstream>
#include <sstream>

using namespace mmt;
using namespace mmt::data;
using namespace mmt::data::test;

namespace {

const std::filesystem::path kMedia = std::string(MMT_TEST_DATA) + "/media";

/// Of make_media.py.
std::vector<PictureSize> pinpoints_of(int side) {
  std::vector<std::array<int, 2>> tiles = {{1, 2}, {2, 1}, {2, 2}, {3, 1}, {1, 3}};
  if (side == 28) tiles = {{1, 1}, {2, 3}, {3, 1}};
  if (side == 384) tiles = {{1, 1}, {1, 2}, {1, 3}, {2, 1}, {2, 2}, {2, 3}, {3, 1}, {3, 2}, {3, 3}};
  std::vector<PictureSize> sizes;
  for (const auto& [rows, cols] : tiles) sizes.push_back({.width = cols * side, .height = rows * side});
  return sizes;
}

ImageProcessing tiled(int side, int patch) {
  ImageProcessing o;
  o.fit = ImageFit::tiles;
  o.height = o.width = side;
  o.patch = patch;
  o.pinpoints = pinpoints_of(side);
  return o;
}

}  // namespace

TEST_CASE("pictures are fitted into sizes and lose their padding as in LLaVA-NeXT") {
  std::ifstream file(kMedia / "anyres.txt");
  REQUIRE(file.good());
  int side = 0, patch = 0, width = 0, height = 0, to_height = 0, to_width = 0, row = 0, col = 0, lines = 0, cols = 0;
  std::int64_t rows = 0;
  for (std::string kind; file >> kind && kind == "size"; ++lines) {
    file >> side >> patch >> width >> height >> to_height >> to_width >> row >> col >> rows;
    INFO(width << " x " << height << " in tiles of " << side);
    const std::vector<PictureSize> sizes = pinpoints_of(side);
    CHECK(best_tiled_size(sizes, width, height) == PictureSize{to_width, to_height});
    const std::int64_t patches = side / patch;
    const Tiling t = tiling_of(sizes, side, patches, width, height);
    CHECK(t == Tiling{to_height / side, to_width / side, row, col});
    CHECK(tiled_rows(t, patches) == rows);
    cols += col > 0 ? 1 : 0;
    // A line more or less is another number of rows.
    for (const int more : {-1, 1})
      CHECK(tiled_rows({t.rows, t.cols, t.trim_rows + more, t.trim_cols}, patches) != rows);
  }
  CHECK(lines >= 100);
  CHECK(cols >= 10);
}

TEST_CASE("a value that is whole but for rounding is that whole number of rows") {
  // 47 of 48 columns are the picture's own; 46, to which a cut goes that was not rounded, would trim one at either end.
  for (int n = 1; n < 400; ++n) {
    CHECK(tiling_of({{.width = 96, .height = 48}}, 48, 24, 47 * n, 24 * n) == Tiling{1, 2, 0, 0});
    CHECK(tiling_of({{.width = 48, .height = 96}}, 48, 24, 24 * n, 47 * n) == Tiling{2, 1, 0, 0});
  }
}

TEST_CASE("pictures in tiles become the rows of transformers' processor") {
  std::ifstream file(kMedia / "anyres.txt");
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string kind, name;
    int side = 0, patch = 0, tiles = 0;
    std::uint64_t hash = 0;
    double sum = 0.0, squares = 0.0;
    if (!(in >> kind) || kind != "picture") continue;
    REQUIRE((in >> name >> side >> patch >> tiles >> std::hex >> hash >> std::dec >> sum >> squares));
    INFO(line);
    ++cases;
    const ImageProcessing o = tiled(side, patch);
    const EncoderInput eyes = image_input("eyes", {}, o, true, VisionSelect::patches, 0);
    CHECK(eyes.tiles);
    const auto shapes = eyes.measure(kMedia / name, "s");
    REQUIRE(shapes.size() == 1);
    const ItemShape& shape = shapes.front();
    const std::int32_t of_tile = (side / patch) * (side / patch);
    CHECK(shape.input_rows == tiles * of_tile);
    CHECK(shape.inner_rows == tiles * (of_tile + 1));
    CHECK(1 + shape.grid[0] * shape.grid[1] == tiles);
    std::vector<float> out(static_cast<std::size_t>(shape.input_rows * shape.input_cols), std::nanf(""));
    eyes.load(kMedia / name, "s", shape, 0, out);
    CHECK(hash_of_levels(out, o) == hash);
    check_sums(out, sum, squares);
  }
  CHECK(cases >= 20);
}

TEST_CASE("a picture in tiles that is not the planned one is a bad sample") {
  const EncoderInput eyes = image_input("eyes", {}, tiled(28, 7), false, VisionSelect::full, 0);
  const ItemShape planned = eyes.measure(kMedia / "rgb.png", "s").front();
  std::vector<float> out(static_cast<std::size_t>(planned.input_rows * planned.input_cols));
  CHECK_THROWS_WITH(eyes.load(kMedia / "strip_305x1.png", "s", planned, 0, out),
                    Catch::Contains("another size than the index says") && Catch::Contains("[corrupt_image]"));
  // Other sizes on offer are other rows: the index must notice.
  ImageProcessing more = tiled(28, 7);
  more.pinpoints.push_back({.width = 56, .height = 56});
  CHECK(image_input("eyes", {}, more, false, VisionSelect::full, 0).key != eyes.key);
}
