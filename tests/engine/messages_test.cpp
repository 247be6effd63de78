// What moves between ranks and what they hold: nothing where no gradient flows.
#include "apps/mmtrain/layout.h"
#include "apps/mmtrain/shared_loading.h"
#include "tests/engine/layout_table.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::test;

namespace {

constexpr std::int64_t kWidth = 64 * 4;                  // bytes of a row between modules and layers
constexpr std::int64_t kPictureRows = 4, kClipRows = 6;  // rows of a medium that leave its encoder
constexpr const char* kFourPlaces = "eyes 0-1 | eyes 2-3 | ears 0-1, llm 0 | llm 1-3";

struct Sent {
  int messages = 0;
  std::int64_t bytes = 0;
};
/// By edge; gradients as "back: eyes 0 > llm 0". Of all ranks and steps.
std::map<std::string, Sent> sent(const Outcome& o) {
  std::map<std::string, Sent> list;
  for (const RankReport& rank : o.ranks) {
    for (const comm::CommEvent& e : rank.trace.events) {
      if (e.op != "send") continue;
      REQUIRE(e.comm.starts_with("edge "));
      const bool back = e.comm[5] == '-';
      const std::string name = o.edges.at(static_cast<std::size_t>(std::stoi(e.comm.substr(back ? 6 : 5))));
      Sent& s = list[(back ? "back: " : "") + name];
      ++s.messages;
      s.bytes += e.bytes;
    }
  }
  return list;
}

/// Rows of all samples: pictures', clips', all.
struct BatchRows {
  std::int64_t pictures = 0, clips = 0, all = 0;
};
BatchRows rows_of(const MadeBatch& batch) {
  BatchRows r;
  for (const plan::SampleMeta& m : batch.metas) {
    r.all += m.rows;
    for (const plan::ItemMeta& item : m.items) (item.encoder == 0 ? r.pictures : r.clips) += item.rows;
  }
  return r;
}

/// Whether a parameter trains under a pattern, said once more by its name.
bool trains(const std::string& pattern_name, const std::string& name) {
  if (name == "ears/embed_positions.weight") return false;  // Whisper's sinusoids
  const bool tower = name.starts_with("eyes/") || name.starts_with("ears/");
  const bool llm = name.starts_with("llm/");
  if (pattern_name == "adapters") return name.find(".lora_") != std::string::npos;
  if (pattern_name == "frozen encoders") return !tower;
  if (pattern_name == "projectors only") return !tower && !llm;
  if (pattern_name == "frozen llm") return !llm;
  if (pattern_name == "upper llm") {
    return llm && name.find("embed_tokens") == std::string::npos && name.find("layers.0.") == std::string::npos &&
           name.find("layers.1.") == std::string::npos;
  }
  return true;
}

}  // namespace

TEST_CASE("rows and gradients cross an edge only where they are read") {
  struct Case {
    const char* pattern;
    std::vector<std::string> back;  // edges of the four places that return gradients
  };
  const std::vector<Case> cases = {
      {"all", {"eyes 0 > eyes 1", "eyes 1 > llm 0", "llm 0 > llm 1"}},
      {"frozen encoders", {"eyes 1 > llm 0", "llm 0 > llm 1"}},
      {"projectors only", {"eyes 1 > llm 0", "llm 0 > llm 1"}},
      {"frozen llm", {"eyes 0 > eyes 1", "eyes 1 > llm 0", "llm 0 > llm 1"}},
      {"upper llm", {}},
      {"adapters", {"eyes 0 > eyes 1", "eyes 1 > llm 0", "llm 0 > llm 1"}},
  };
  for (const Case& c : cases) {
    INFO(c.pattern);
    TableModel model = table_model("both");
    pattern(c.pattern).apply(model.config);
    const BatchRows rows = rows_of(model.batch);
    REQUIRE(rows.pictures == 3 * kPictureRows);
    REQUIRE(rows.clips == 4 * kClipRows);
    const Outcome o = train(model, {"pp 4", {mesh(1, 1, 4, 0, kFourPlaces)}});
    auto moved = sent(o);
    // Inside the tower a picture has one row more. Ears and the first layers of the LLM are one place: no message.
    const std::map<std::string, std::int64_t> forward = {
        {"eyes 0 > eyes 1", rows.pictures + 3}, {"eyes 1 > llm 0", rows.pictures}, {"llm 0 > llm 1", rows.all}};
    CHECK(moved.size() == forward.size() + c.back.size());
    for (const auto& [edge, count] : forward) {
      INFO(edge);
      CHECK(moved[edge].bytes == model.options.steps * count * kWidth);
      if (std::ranges::find(c.back, edge) == c.back.end()) continue;
      CHECK(moved["back: " + edge].bytes == moved[edge].bytes);
      CHECK(moved["back: " + edge].messages == moved[edge].messages);
    }
  }
}

TEST_CASE("blocks without media send none") {
  TableModel model = table_model("alternating 1");  // blocks: clip, nothing, picture, clip, nothing, picture
  const auto moved = sent(train(model, {"own ranks", {mesh(1, 1, 1), mesh(1, 1, 1, 1), mesh(1, 1, 1, 2)}}));
  CHECK(moved.size() == 4);
  for (const auto& [edge, s] : moved) {
    INFO(edge);
    CHECK(s.messages == 2 * model.options.steps);
    CHECK(s.bytes ==
          2 * model.options.steps * (edge.find("eyes") != std::string::npos ? kPictureRows : kClipRows) * kWidth);
  }
}

TEST_CASE("gradients and moments exist for what trains, and what is frozen keeps its bits") {
  for (const Pattern& p : patterns()) {
    INFO(p.name);
    TableModel model = table_model("both");
    p.apply(model.config);
    model.options.steps = 0;
    const Outcome start = train(model, one_rank());
    model.options.steps = 3;
    const Outcome end = train(model, {"pp 4", {mesh(1, 1, 4, 0, kFourPlaces)}});
    REQUIRE(end.weights.size() == start.weights.size());
    std::int64_t trainable = 0;
    for (const auto& [name, before] : start.weights) {
      INFO(name);
      CHECK((end.weights.at(name) != before) == trains(p.name, name));
      CHECK(end.grads.contains(name) == trains(p.name, name));
      if (trains(p.name, name)) trainable += std::ssize(before);
    }
    std::int64_t grads = 0, moments = 0;
    for (const RankReport& rank : end.ranks) {
      grads += rank.grad_bytes;
      moments += rank.moment_bytes;
    }
    CHECK(grads == 4 * trainable);
    CHECK(moments == 8 * trainable);
  }
}

TEST_CASE("encoders without rows in the whole batch keep their weights in every layout") {
  TableModel model = table_model("text");
  model.options.steps = 0;
  const Outcome start = train(model, one_rank());
  model.options.steps = 3;
  for (const Grid& grid : {one_rank(), Grid{"dp 2", {mesh(1, 2, 1)}}, Grid{"pp 4", {mesh(1, 1, 4, 0, kFourPlaces)}}}) {
    INFO(grid.name);
    const Outcome end = train(model, grid);
    for (const auto& [name, before] : start.weights) {
      INFO(name);
      CHECK((end.weights.at(name) != before) == name.starts_with("llm/"));
    }
  }
}

TEST_CASE("ZeRO-1 scatters gradients, gathers weights and keeps half of the moments on each of two lanes") {
  TableModel model = table_model("both");
  for (const bool zero : {false, true}) {
    INFO("zero " << zero);
    const Outcome o = train(model, {"dp 2", {mesh(1, 2, 1)}, "1f1b", 1, zero});
    std::int64_t trainable = 0;
    for (const auto& [name, grad] : o.grads) trainable += std::ssize(grad);
    // All sizes are multiples of 16 values and every module's sum one of 32: no gap in the buckets.
    const std::int64_t bytes = model.options.steps * 4 * trainable;
    std::int64_t moments = 0;
    for (const RankReport& rank : o.ranks) {
      CHECK(rank.trace.bytes("all_reduce", "all.dp") == (zero ? 0 : bytes));
      CHECK(rank.trace.bytes("reduce_scatter", "all.dp") == (zero ? bytes : 0));
      CHECK(rank.trace.bytes("all_gather", "all.dp") == (zero ? bytes : 0));
      moments += rank.moment_bytes;
    }
    CHECK(moments == (zero ? 1 : 2) * 8 * trainable);
  }
}

TEST_CASE("the first rank of a tensor-parallel group hands its samples to the others") {
  TableModel model = table_model("both");
  const Outcome o = train(model, {"tp 2", {mesh(2, 1, 1)}});
  std::int64_t bytes = 0;
  for (const data::LoadedSample& s : model.batch.loaded) {
    bytes += 4 * (std::ssize(s.input_ids) + std::ssize(s.labels) + std::ssize(s.weights));
    for (const data::LoadedItem& item : s.items) bytes += 4 * std::ssize(item.values);
  }
  for (const RankReport& rank : o.ranks) CHECK(rank.trace.bytes("broadcast", "all.tp") == model.options.steps * bytes);
  for (const int rank : {0, 1}) {  // what their loaders are asked for
    const app::Model part =
        app::build_model(model.config, app::make_layout(model.config, model.options.sizes).layout, rank);
    const auto step = app::plan_step({&model.config, &part, nullptr, true}, model.batch.metas, 0, model.batch.samples);
    CHECK(step->wanted.size() == model.batch.samples.size());
    CHECK(wanted_here(part, *step).size() == (rank == 0 ? model.batch.samples.size() : 0));
  }
}
