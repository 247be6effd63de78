// Layout equivalence of the whole program, from files to gradients (DESIGN section 10), seen through `mmtrain dump`.
#include "tests/apps/dump_file.h"
#include "tests/apps/fixture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <set>

using namespace mmt::app_test;

namespace {

/// `nodes` > 1: so many groups of ranks share no memory.
DumpFile dump(const TinyRun& tiny, const Set& set, int ranks, const std::vector<std::string>& more = {},
              int nodes = 1) {
  static int number = 0;
  const auto file = tiny.folder() / fmt::format("dump_{}.h5", number++);
  std::vector<std::string> arguments = {"--out", file.string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  Launch launch = {.ranks = ranks};
  if (nodes > 1) launch.environment.emplace_back("MMTRAIN_NODES", std::to_string(nodes));
  const Outcome o = tiny.run("dump", set, launch, arguments);
  INFO(o.text());
  REQUIRE(o.code == 0);
  CHECK(o.err.find("warning") == std::string::npos);
  return read_dump(file);
}

/// Equal but for rounding, and nothing but key biases needed the second term of the bound.
void check_equal(const DumpFile& reference, const DumpFile& other) {
  std::vector<std::string> small;
  const std::vector<std::string> list = differences(reference, other, &small);
  INFO(fmt::format("{}", fmt::join(list, "\n")));
  CHECK(list.empty());
  for (const std::string& name : small) CHECK_THAT(name, Catch::EndsWith("k_proj.bias"));
}

std::vector<std::string> modules_of(const DumpFile& d) {
  std::set<std::string> names;
  for (const auto& [name, g] : d.grads) names.insert(name.substr(0, name.find('/')));
  return {names.begin(), names.end()};
}

const std::vector<std::string> kModules = {"ears", "ears.projector", "eyes", "eyes.projector", "llm"};

}  // namespace

TEST_CASE("dump of 1 2 and 4 ranks agree in loss and every gradient") {
  const TinyRun tiny;
  const DumpFile one = dump(tiny, {}, 0, {"--logits"});
  REQUIRE(modules_of(one) == kModules);
  REQUIRE(one.samples.size() == 16);
  CHECK(one.samples.begin()->first == 0);
  CHECK(one.samples.rbegin()->first == 15);
  check_equal(one, dump(tiny, {}, 2, {"--logits"}));
  const DumpFile four = dump(tiny, {}, 4, {"--logits"});
  check_equal(one, four);

  // What the file says of itself.
  double loss = 0.0, weight = 0.0, squares = 0.0;
  for (const auto& [place, s] : one.samples) {
    loss += s.loss;
    weight += s.weight;
    REQUIRE(s.ids.size() == s.labels.size());
    const auto supervised = std::ranges::count_if(s.labels, [](std::int32_t l) { return l != -100; });
    CHECK(s.weight == static_cast<double>(supervised));
    for (std::size_t t = 0; t < s.ids.size(); ++t) CHECK((s.labels[t] == -100 || s.labels[t] == s.ids[t]));
  }
  for (const auto& [name, g] : one.grads) {
    squares += norm(g.values) * norm(g.values);
    CHECK(norm(g.values) > 0.0);
  }
  CHECK(one.weight == weight);
  CHECK(one.loss == Approx(loss / weight).epsilon(1e-6));
  CHECK(one.grad_norm == Approx(std::sqrt(squares)).epsilon(1e-9));

  // Logits t belong to label t + 1: the losses follow from them.
  for (const auto& [place, s] : one.samples) {
    const auto vocabulary = static_cast<std::size_t>(s.logits.shape.at(1));
    REQUIRE(static_cast<std::size_t>(s.logits.shape.at(0)) == s.ids.size());
    double sum = 0.0;
    for (std::size_t t = 0; t + 1 < s.ids.size(); ++t) {
      if (s.labels[t + 1] == -100) continue;
      const float* row = s.logits.values.data() + t * vocabulary;
      const double largest = *std::max_element(row, row + vocabulary);
      double total = 0.0;
      for (std::size_t v = 0; v < vocabulary; ++v) total += std::exp(static_cast<double>(row[v]) - largest);
      sum += largest + std::log(total) - static_cast<double>(row[s.labels[t + 1]]);
    }
    CHECK(s.loss == Approx(sum).epsilon(1e-5));
  }

  // The comparison must see what is wrong.
  for (const std::string& module : kModules) {
    DumpFile wrong = four;
    for (auto& [name, g] : wrong.grads) {
      if (!name.starts_with(module + "/")) continue;
      for (float& v : g.values) v *= 2.0F;
    }
    const std::vector<std::string> list = differences(one, wrong);
    CHECK(std::ranges::any_of(list, [&](const std::string& s) { return s.starts_with(module + "/"); }));
  }
  DumpFile wrong = four;
  wrong.samples.at(3).labels.back() = 0;
  CHECK(differences(one, wrong).size() == 1);
}

namespace {

/// Every layout of the list on MPI ranks against one rank.
void check_layouts(const Set& frozen) {
  const TinyRun tiny;
  const std::string grid = "parallel.layout.all.";
  struct Layout {
    int ranks;
    Set set;
    int nodes = 1;
  };
  const std::vector<Layout> layouts = {
      {2, {grid + "pp=2"}},
      {2, {grid + "pp=2", "parallel.schedule.policy=zero-bubble"}},
      {2, {grid + "pp=2", "parallel.schedule.policy=gpipe"}},
      {2, {grid + "tp=2"}},
      {2, {grid + "tp=2", grid + "sequence_parallel=true"}},
      {2, {grid + "tp=2", "parallel.replicate_tp.ears=true", grid + "sequence_parallel=true"}},
      {4, {grid + "pp=2", "parallel.zero.llm=1", "parallel.zero.eyes=1"}},
      {4, {grid + "pp=2", grid + "tp=2"}},
      {3, {"parallel.layout.eyes.ranks=0", "parallel.layout.ears.ranks=1", "parallel.layout.llm.ranks=2"}},
      {4,
       {"parallel.layout.eyes.ranks=2", "parallel.layout.ears.ranks=0", "parallel.layout.llm.ranks=\"1,3\"",
        "parallel.layout.llm.tp=2"}},
      {3, {grid + "pp=3", "parallel.schedule.policy=list", "train.recompute=full"}},
      {2, {grid + "pp=2", "parallel.schedule.policy=interleaved"}},
      {2, {grid + "dp=2", "parallel.zero.llm=1"}, 2},
      {4, {grid + "pp=2", grid + "tp=2", "train.recompute={llm: selective}"}, 2},
      {4,
       {"parallel.layout.eyes.ranks=2", "parallel.layout.ears.ranks=0", "parallel.layout.llm.ranks=\"1,3\"",
        "parallel.layout.llm.tp=2", "parallel.schedule.policy=zero-bubble"},
       2},
  };
  const DumpFile one = dump(tiny, frozen, 0, {"--logits"});
  for (const Layout& layout : layouts) {
    Set set = layout.set;
    set.insert(set.end(), frozen.begin(), frozen.end());
    INFO(fmt::format("{} on {} ranks of {} nodes", fmt::join(layout.set, " "), layout.ranks, layout.nodes));
    check_equal(one, dump(tiny, set, layout.ranks, {"--logits"}, layout.nodes));
  }
}

}  // namespace

TEST_CASE("dump of layouts over real ranks agrees with one rank") { check_layouts({}); }

TEST_CASE("dump of layouts over real ranks agrees with one rank, a frozen tower", "[slow]") {
  check_layouts({"modules.eyes.trainable=false", "modules.eyes.projector.trainable=false"});
}

TEST_CASE("dump of another seed and of another step differs") {
  const TinyRun tiny;
  const DumpFile one = dump(tiny, {}, 0);
  CHECK(differences(one, dump(tiny, {"run.seed=2"}, 0)).size() > one.grads.size() / 2);
  const DumpFile third = dump(tiny, {}, 0, {"--step", "3"});
  CHECK(third.samples.begin()->first == 32);  // the step's own places in the data order
  CHECK(differences(one, third).size() > one.grads.size() / 2);
  // Two updates lie before step 3; the layouts' rounding has gone through them.
  const DumpFile ranks = dump(tiny, {}, 3, {"--step", "3"});
  REQUIRE(ranks.samples.size() == third.samples.size());
  for (const auto& [place, s] : third.samples) {
    CHECK(ranks.samples.at(place).ids == s.ids);
    CHECK(ranks.samples.at(place).loss == Approx(s.loss).epsilon(1e-3));
  }
  CHECK(ranks.loss == Approx(third.loss).epsilon(1e-4));
}

TEST_CASE("dump with frozen modules agrees between layouts and leaves out what is frozen") {
  const TinyRun tiny;
  const DumpFile all = dump(tiny, {}, 0);
  struct Case {
    Set set;
    std::vector<std::string> modules;
  };
  const std::vector<Case> cases = {
      {{"modules.eyes.trainable=false"}, {"ears", "ears.projector", "eyes.projector", "llm"}},
      {{"modules.eyes.trainable=false", "modules.ears.trainable=false", "modules.llm.trainable=false"},
       {"ears.projector", "eyes.projector"}},
      {{"modules.eyes.trainable=false", "modules.ears.trainable=false", "modules.eyes.projector.trainable=false",
        "modules.ears.projector.trainable=false"},
       {"llm"}},
      {{"modules.llm.trainable=false", "modules.eyes.projector.trainable=false"}, {"ears", "ears.projector", "eyes"}},
  };
  for (const Case& c : cases) {
    INFO(fmt::format("{}", fmt::join(c.set, " ")));
    const DumpFile one = dump(tiny, c.set, 0);
    CHECK(modules_of(one) == c.modules);
    // Freezing one parameter does not change the gradient of another.
    CHECK(one.loss == all.loss);
    for (const auto& [name, g] : one.grads)
      CHECK(distance(g.values, all.grads.at(name).values) <= 1e-6 * norm(g.values) + 1e-9);
    check_equal(one, dump(tiny, c.set, 2));
  }
  const Set patterns = {R"(modules.llm.trainable=["layers\\.1\\..*_proj"])",
                        R"(modules.eyes.frozen=["layer_norm", "embed"])"};
  const DumpFile some = dump(tiny, patterns, 0);
  for (const auto& [name, g] : some.grads) {
    if (name.starts_with("llm/")) CHECK_THAT(name, Catch::Contains("layers.1.") && Catch::EndsWith("_proj.weight"));
    if (name.starts_with("eyes/")) CHECK_THAT(name, !Catch::Contains("layer_norm") && !Catch::Contains("embed"));
  }
  CHECK(some.grads.contains("llm/model.layers.1.self_attn.q_proj.weight"));
  CHECK(some.grads.contains("ears.projector/linear.weight"));
  check_equal(some, dump(tiny, patterns, 2));
}

TEST_CASE("dump is the same for any number of microbatches and any cap") {
  const TinyRun tiny;
  const DumpFile one = dump(tiny, {}, 0);
  check_equal(one, dump(tiny, {"train.microbatches=3"}, 0));
  check_equal(one, dump(tiny, {"train.microbatches=3"}, 2));
  check_equal(one, dump(tiny, {"train.tokens_per_microbatch=256"}, 0));
  check_equal(one, dump(tiny, {"train.tokens_per_microbatch=8192"}, 0));
  check_equal(one, dump(tiny, {"train.tokens_per_microbatch=256"}, 3));
}

TEST_CASE("dump with recompute has the same bits") {
  const TinyRun tiny;
  for (const Set& extra : {Set{}, Set{"modules.eyes.trainable=false"}, Set{"train.precision=bf16"}}) {
    const DumpFile kept = dump(tiny, extra, 0);
    for (const char* how : {"train.recompute=full", "train.recompute={eyes: full, llm: selective}"}) {
      Set set = extra;
      set.emplace_back(how);
      const DumpFile again = dump(tiny, set, 0);
      CHECK(again.loss == kept.loss);
      REQUIRE(again.grads.size() == kept.grads.size());
      for (const auto& [name, g] : kept.grads) {
        INFO(how << ": " << name);
        CHECK(again.grads.at(name).values == g.values);
      }
    }
  }
}

TEST_CASE("dump with fewer samples than ranks and with text beside media") {
  const TinyRun tiny;
  // Two samples on four ranks: two ranks have nothing at all.
  const Set few = {"train.global_batch_size=2"};
  check_equal(dump(tiny, few, 0), dump(tiny, few, 4));
  const Set single = {"train.global_batch_size=1"};
  check_equal(dump(tiny, single, 0), dump(tiny, single, 2));
  // In order of the file, pictures first: with one picture and texts on other ranks, lanes without a picture take part
  // with zero rows.
  const TinyRun mixed;
  write_text(
      mixed.folder() / "mix.jsonl",
      R"({"messages":[{"role":"user","content":"<image>\nwhere?"},{"role":"assistant","content":"left"}],"images":["media/p0.png"]})"
      "\n"
      R"({"messages":[{"role":"user","content":"what is the colour of the sky?"},{"role":"assistant","content":"blue"}]})"
      "\n"
      R"({"messages":[{"role":"user","content":"and of the grass in the garden?"},{"role":"assistant","content":"green"}]})"
      "\n");
  mixed.edit_config(
      "    - path: pictures.json\n      format: llava\n    - path: sounds.jsonl\n      format: messages\n"
      "    - path: both.jsonl\n      format: messages\n    - path: text.json\n      format: llava\n",
      "    - path: mix.jsonl\n      format: messages\n");
  const Set three = {"train.global_batch_size=3", "data.shuffle=false"};
  const DumpFile one = dump(mixed, three, 0);
  const DumpFile spread = dump(mixed, three, 3);
  check_equal(one, spread);
  // No sound in the whole batch: the encoder's gradients are zero, in every layout.
  for (const auto& [name, g] : one.grads) {
    if (name.starts_with("ears")) CHECK(norm(g.values) == 0.0);
  }
  // Text alone.
  const Set text = {"train.global_batch_size=2", "data.shuffle=false"};
  write_text(
      mixed.folder() / "mix.jsonl",
      R"({"messages":[{"role":"user","content":"what is the colour of the sky?"},{"role":"assistant","content":"blue"}]})"
      "\n"
      R"({"messages":[{"role":"user","content":"and of the grass?"},{"role":"assistant","content":"green"}]})"
      "\n");
  check_equal(dump(mixed, text, 0), dump(mixed, text, 2));
}

TEST_CASE("dump with loss per sample weighs every sample alike") {
  const TinyRun tiny;
  const Set set = {"train.loss=sample"};
  const DumpFile one = dump(tiny, set, 0);
  CHECK(one.weight == Approx(16.0));
  for (const auto& [place, s] : one.samples) CHECK(s.weight == Approx(1.0).epsilon(1e-6));
  check_equal(one, dump(tiny, set, 3));
  const DumpFile token = dump(tiny, {}, 0);
  for (const auto& [place, s] : one.samples) {
    CHECK(s.loss == Approx(token.samples.at(place).loss / token.samples.at(place).weight).epsilon(1e-5));
  }
  CHECK(gradient_differences(token, one).size() > one.grads.size() / 2);
}

TEST_CASE("dump in bf16 errs no more on many ranks than on one") {
  const TinyRun tiny;
  const DumpFile exact = dump(tiny, {}, 0);
  const Set set = {"train.precision=bf16"};
  const DumpFile one = dump(tiny, set, 0);
  CHECK(one.loss == Approx(exact.loss).epsilon(0.02));
  for (const int ranks : {2, 4}) {
    const DumpFile many = dump(tiny, set, ranks);
    CHECK(std::abs(many.loss - exact.loss) <= 2.0 * std::abs(one.loss - exact.loss) + 1e-5 * exact.loss);
    double error_one = 0.0, error_many = 0.0;
    for (const auto& [name, g] : exact.grads) {
      const double a = distance(g.values, one.grads.at(name).values);
      const double b = distance(g.values, many.grads.at(name).values);
      INFO(fmt::format("{} on {} ranks: {} and {}", name, ranks, a, b));
      CHECK(a > 0.0);
      CHECK(b <= 2.0 * a);
      error_one += a * a;
      error_many += b * b;
    }
    CHECK(error_many <= 2.0 * error_one);
  }
}

TEST_CASE("pictures of any size cost their own rows, and ranks agree about them") {
  const TinyRun tiny;
  tiny.use_pictures_of_any_size();
  const Set all = {"train.global_batch_size=48"};  // every sample
  const DumpFile one = dump(tiny, all, 0);
  REQUIRE(modules_of(one) == kModules);
  // Rows of the placeholder by sample: squares of 14 pixels in 28 x 28, 42 x 28, 28 x 56, and in 28 x 42 that 9 x 14
  // becomes for 784 pixels at least.
  std::set<std::ptrdiff_t> counts;
  for (const auto& [place, s] : one.samples) counts.insert(std::ranges::count(s.ids, 261));
  CHECK(counts == std::set<std::ptrdiff_t>{0, 4, 6, 8});
  check_equal(one, dump(tiny, with(all, {"parallel.layout.all.pp=2"}), 2));
  check_equal(one,
              dump(tiny, with(all, {"parallel.layout.all.tp=2", "parallel.layout.all.sequence_parallel=true"}), 2));
}
