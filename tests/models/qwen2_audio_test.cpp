// Qwen2-Audio's tower on the frames that a clip's rows depend on, against all frames of the window with the padding
// masked: what transformers computes.
#include "tests/models/tiny.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::test;

namespace {

constexpr std::int64_t kWindow = 24, kMels = 5;

/// How a clip is laid out in its block.
struct Layout {
  std::int64_t frames = 0;     ///< that are given, of kWindow
  std::int64_t rows = 0;       ///< inside the tower
  std::int64_t keys = 0;       ///< of these, that may be attended to
  std::int64_t first_out = 0;  ///< where the first mean begins
};

Layout whole_window(std::int64_t valid_frames) { return {kWindow, kWindow / 2, (valid_frames - 1) / 2 + 1}; }
Layout needed(std::int64_t valid_frames) {
  const std::int64_t rows = (valid_frames - 1) / 2 + 1;
  return {std::min(2 * rows + 1, kWindow), rows, rows};
}

/// Clips of the same values in every layout; padding is not zero, as it is not in a log-mel spectrogram.
BlockData block(const std::vector<Layout>& clips) {
  BlockData b;
  b.source_cols = kMels;
  plan::RowsPlan& p = b.plan;
  MaskWords& words = p.masks.emplace_back();
  std::int64_t id = 0;
  for (const Layout& clip : clips) {
    const Values frames = random_values(kWindow * kMels, 70 + static_cast<unsigned>(id));
    b.source.insert(b.source.end(), frames.begin(), frames.begin() + clip.frames * kMels);
    plan::ItemPlan item{id, 0, {p.size.source, clip.frames}, {p.size.rows, clip.rows}, {p.size.out, clip.keys / 2}};
    ++id;
    for (std::int64_t r = 0; r < clip.rows; ++r) {
      if (r < clip.keys)
        words.push(id, id, 0, 0, static_cast<std::int32_t>(r));
      else
        words.push_padding(1);
      p.positions.push_back(static_cast<std::int32_t>(r));
    }
    for (std::int64_t r = 0; r < item.out.count; ++r)
      p.out_rows.push_back(static_cast<std::int32_t>(item.rows.first + clip.first_out + 2 * r));
    p.size.source += clip.frames;
    p.size.rows += clip.rows;
    p.size.out += item.out.count;
    p.items.push_back(item);
  }
  p.tiles.push_back(make_tile_plan(query_side(p.masks[0]), key_side(p.masks[0]), 0));
  p.size.tiles = p.tiles[0].counts.tiles();
  return b;
}

/// The largest difference of features and gradients.
double difference(const run::Stage& stage, const BlockData& a, const BlockData& b) {
  NamedValues values;
  add_random_values(values, stage);
  const Values d_out = random_values(a.plan.size.out * 32, 80);
  const Pass x = run_pass(stage, values, a, reference_options(), {}, d_out),
             y = run_pass(stage, values, b, reference_options(), {}, d_out);
  double largest = max_difference(x.out, y.out);
  for (const auto& [name, g] : x.grads) largest = std::max(largest, max_difference(g, y.grads.at(name)));
  return largest;
}

}  // namespace

TEST_CASE("rows of padding that nobody sees need not be computed") {
  EncoderSpec s = tiny_encoder("qwen2_audio");
  s.projector.kind = "none";
  const run::Stage stage = models::build_encoder(s, 32, setting(DType::f64));
  // Even and odd frames, even and odd rows, one row that leaves, the whole window.
  const std::vector<std::int64_t> lengths = {24, 23, 22, 21, 20, 19, 9, 4, 3};
  std::vector<Layout> whole, own;
  for (const std::int64_t frames : lengths) {
    whole.push_back(whole_window(frames));
    own.push_back(needed(frames));
  }
  // Sums of the same numbers in f64; everything is of size one.
  constexpr double kRounding = 1e-10, kWrong = 1e-4;
  CHECK(difference(stage, block(whole), block(own)) < kRounding);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    INFO(lengths[i] << " frames");
    CHECK(difference(stage, block({whole[i]}), block({own[i]})) < kRounding);
  }

  // What must be noticed: a key too many or too few, means that begin a row late, and a last row that does not see the
  // frame behind the clip.
  Layout wrong = whole_window(7);
  ++wrong.keys;
  CHECK(difference(stage, block({wrong}), block({needed(7)})) > kWrong);
  const Layout right = needed(9);
  wrong = whole_window(9);
  --wrong.keys;
  CHECK(difference(stage, block({wrong}), block({right})) > kWrong);
  wrong = right;
  wrong.first_out = 1;
  CHECK(difference(stage, block({wrong}), block({right})) > kWrong);
  wrong = right;
  --wrong.frames;
  CHECK(difference(stage, block({wrong}), block({right})) > kWrong);
}

TEST_CASE("a stem refuses rows that its frames do not make") {
  const EncoderSpec s = tiny_encoder("qwen2_audio");
  const run::Stage stage = models::build_encoder(s, 32, setting(DType::f64), {0, 1});
  NamedValues values;
  add_random_values(values, stage);
  Layout wrong = needed(9);
  wrong.frames += 1;
  const BlockData data = block({wrong});
  CHECK_THROWS_AS(run_pass(stage, values, data, reference_options(), {}, {}, false), std::logic_error);
}
