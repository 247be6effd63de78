#include "parallel/plan/partition.h"
#include "core/error.h"
#include "parallel/plan/partition_modules.h"
#include "parallel/plan/passes.h"
#include "parallel/plan/verify.h"

#include <catch2/catch.hpp>

#include <map>
#include <random>
#include <tuple>

using namespace mmt;
using namespace mmt::plan;
using Catch::Matchers::Contains;

namespace {

PlannedLayer layer(const std::string& module, LayerTime time, bool backward = true) {
  PlannedLayer l;
  l.module = module;
  l.time = time;
  l.backward = backward;
  l.trains = time.backward_weight > 0;
  return l;
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int operator()(int low, int high) {
    return low + static_cast<int>(engine_() % static_cast<unsigned>(high - low + 1));
  }

 private:
  std::mt19937 engine_;
};

Chain random_chain(Random& number, int layers, int modules, bool joins) {
  Chain chain;
  for (int i = 0; i < layers; ++i) {
    PlannedLayer l = layer("m" + std::to_string(i * modules / layers), {number(1, 9), number(0, 9), number(0, 5), 0},
                           number(0, 3) > 0);
    l.parameters = number(1, 50);
    l.step = number(0, 20);
    l.fixed_bytes = number(0, 40);
    l.kept = l.backward ? number(0, 20) : 0;
    l.held = l.backward ? number(0, 20) : 0;
    l.work = number(0, 10);
    l.out_bytes = number(1, 12);
    l.grad_bytes = number(0, 1) * l.out_bytes;
    chain.layers.push_back(l);
  }
  if (!joins) return chain;
  for (int i = 0; i + 1 < layers; ++i) {
    const auto& a = chain.layers[static_cast<std::size_t>(i)];
    if (a.module != chain.layers[static_cast<std::size_t>(i) + 1].module)
      chain.joins.push_back({i, layers - 1, a.out_bytes, a.grad_bytes, a.backward});
  }
  chain.joins.push_back({-1, number(0, layers - 1), 9, 0, false});
  return chain;
}

/// All cuts of n layers into k places.
void all_cuts(int n, int k, std::vector<int> first, std::vector<std::vector<int>>& out) {
  if (static_cast<int>(first.size()) == k) {
    out.push_back(std::move(first));
    return;
  }
  for (int j = first.back() + 1; j < n; ++j) {
    auto longer = first;
    longer.push_back(j);
    all_cuts(n, k, std::move(longer), out);
  }
}

std::int64_t fullest(const Cut& cut) {
  std::int64_t most = 0;
  for (const PlaceCost& p : cut.places) most = std::max(most, p.memory);
  return most;
}

}  // namespace

TEST_CASE("cuts equal the best of all cuts: bottleneck then activations then bytes then short first places") {
  Random number(11);
  int refused = 0, found = 0;
  for (int round = 0; round < 300; ++round) {
    const int n = number(1, 9), k = number(1, std::min(n, 5));
    Chain chain = random_chain(number, n, number(1, 3), round % 2 == 0);
    for (std::size_t l = 1; round % 5 == 0 && l < chain.layers.size(); ++l)
      chain.layers[l].with_previous = number(0, 3) == 0;
    CutOptions options;
    options.places_behind = number(0, 2);
    options.in_flight.num_blocks = number(1, 6);
    if (round % 3 == 0) options.memory = number(100, 600);
    if (round % 4 == 0) options.links = {{false, 2, 1000}, {round % 8 == 0, 5, 2000}};
    std::vector<std::vector<int>> cuts;
    all_cuts(n, k, {0}, cuts);
    std::erase_if(cuts, [&](const std::vector<int>& first) {
      return std::ranges::any_of(
          first, [&](int layer) { return chain.layers[static_cast<std::size_t>(layer)].with_previous; });
    });
    if (cuts.empty()) {
      REQUIRE_THROWS_WITH(cut_chain(chain, k, options), Contains("cannot be cut into"));
      continue;
    }
    std::optional<std::tuple<Ns, std::int64_t, std::int64_t, std::vector<int>>> best;
    for (const auto& first : cuts) {
      const Cut cut = cost_of_cut(chain, first, options);
      if (options.memory > 0 && fullest(cut) > options.memory) continue;
      const std::tuple key(cut.bottleneck, cut.activation_peak, cut.cut_bytes, first);
      if (!best || key < *best) best = key;
    }
    INFO("round " << round << ", " << n << " layers, " << k << " places");
    if (!best) {
      ++refused;
      REQUIRE_THROWS_WITH(cut_chain(chain, k, options), Contains("no cut of") && Contains("a rank"));
      continue;
    }
    ++found;
    const Cut cut = cut_chain(chain, k, options);
    std::vector<int> first;
    for (const PlaceCost& p : cut.places) first.push_back(p.first);
    REQUIRE(std::tuple(cut.bottleneck, cut.activation_peak, cut.cut_bytes, first) == *best);
    const auto betas = Partition(chain, options).bottlenecks(k, options.places_behind);
    REQUIRE(betas.back() == cut.bottleneck);
  }
  REQUIRE((refused > 10 && found > 200));
}

TEST_CASE("a place pays for its layers, its transfers and its blocks in flight") {
  Chain chain;
  for (int i = 0; i < 3; ++i) {
    PlannedLayer l = layer("llm", {10, 20, 30, 5});
    l.fixed_bytes = 1000;
    l.kept = 7;
    l.held = 3;
    l.stash = 2;
    l.work = 50;
    l.out_bytes = 100;
    l.grad_bytes = i == 0 ? 0 : 100;
    chain.layers.push_back(l);
  }
  CutOptions options;
  options.links = {{.overlapped = false, .latency = 1, .bytes_per_us = 1000}};
  Cut cut = cost_of_cut(chain, std::vector<int>{0, 1, 2}, options);
  REQUIRE(cut.bottleneck == 65 + 3 * 101);
  REQUIRE((cut.places[0].compute == 65 && cut.places[0].transfer == 101));
  REQUIRE((cut.places[1].transfer == 303 && cut.places[2].transfer == 202));
  REQUIRE((cut.places[0].in_flight == 3 && cut.places[0].activations == 30));
  REQUIRE(cut.places[0].memory == 1000 + 52 + 30 + 3 * 100);
  REQUIRE(cut.places[2].memory == 1000 + 52 + 10 + 2 * 200);
  REQUIRE((cut.activation_peak == 30 && cut.cut_bytes == 300));
  options.links[0].overlapped = true;
  cut = cost_of_cut(chain, std::vector<int>{0, 1, 2}, options);
  REQUIRE((cut.places[0].time == 101 && cut.places[1].time == 303 && cut.places[2].time == 202));
  options.in_flight = {.per_place = 0, .extra = 8, .num_blocks = 8};
  REQUIRE(cost_of_cut(chain, std::vector<int>{0, 1, 2}, options).places[2].in_flight == 8);
}

TEST_CASE("what runs once a step counts for each of its blocks") {
  Chain chain;
  for (int i = 0; i < 3; ++i) chain.layers.push_back(layer("llm", {10, 0, 5, 0}));
  chain.layers[2].step = 40;
  CutOptions options;
  options.in_flight.num_blocks = 2;
  Cut cut = cut_chain(chain, 2, options);
  REQUIRE((cut.places[0].count == 2 && cut.places[1].step == 40 && cut.places[1].time == 35 && cut.bottleneck == 35));
  // Simulated: two forwards of the first place, then block 1 and what runs once at the last one.
  const PlannedPipeline p = pipeline_of(chain, cut, 2);
  const ScheduleProblem problem = problem_of(p);
  const auto programs = programs_of(problem, {});
  REQUIRE(simulate(problem, programs).makespan == 2 * 20 + 15 + 40);
}

TEST_CASE("memory moves the cut away from the fastest one") {
  Chain chain;
  for (int i = 0; i < 4; ++i) {
    PlannedLayer l = layer("llm", {i < 2 ? 10 : 20, 0, 0, 0});
    l.kept = 100;
    chain.layers.push_back(l);
  }
  REQUIRE(cut_chain(chain, 2).places[0].count == 2);  // 2 x 200 bytes in flight at the first place
  const Cut cut = cut_chain(chain, 2, {.memory = 300});
  REQUIRE((cut.places[0].count == 1 && cut.bottleneck == 50));
  REQUIRE(fullest(cut) == 300);
  REQUIRE_THROWS_AS(cut_chain(chain, 2, {.memory = 299}), ConfigError);
  REQUIRE_THROWS_WITH(cut_chain(chain, 5), Contains("4 layers cannot be cut into 5 stages"));
}

namespace {

/// Encoder and LLM layers of equal forward time, nothing trains but something before the LLM: Bd = F, recompute F.
Chain two_parts(int encoder, int llm, bool recompute) {
  Chain chain;
  for (int i = 0; i < encoder; ++i) {
    chain.layers.push_back(layer("eyes", {.forward = 1}, false));
    chain.layers.back().parameters = 1;
  }
  for (int i = 0; i < llm; ++i) {
    chain.layers.push_back(layer("llm", {1, 1, 0, recompute ? 1 : 0}));
    chain.layers.back().parameters = 1;
    chain.layers.back().kept = 1;
  }
  chain.joins.push_back({encoder - 1, encoder, 0, 0, false});
  return chain;
}

}  // namespace

TEST_CASE("324 encoder and 40 LLM layers on 16 places: knowing what is frozen shortens the bottleneck 2.46 times") {
  const Chain chain = two_parts(324, 40, true);
  const Ns aware = cut_chain(chain, 16).bottleneck;
  REQUIRE(aware == 28);
  for (const CutBy by : {CutBy::forward, CutBy::parameters}) {
    const Ns unaware = cut_chain(chain, 16, {.by = by}).bottleneck;
    REQUIRE(static_cast<double>(unaware) / static_cast<double>(aware) == Approx(2.46).margin(0.01));
  }
}

TEST_CASE("on two places with equal parts the gain is 2c / (1 + c)") {
  for (const bool recompute : {false, true}) {
    const Chain chain = two_parts(120, 120, recompute);
    const auto aware = static_cast<double>(cut_chain(chain, 2).bottleneck);
    const auto unaware = static_cast<double>(cut_chain(chain, 2, {.by = CutBy::forward}).bottleneck);
    REQUIRE(unaware / aware == Approx(recompute ? 1.5 : 4.0 / 3.0).margin(0.01));
  }
}

namespace {

/// The three modules of the golden table, in units of 0.1; only the projectors train. Unaware of what is frozen, every
/// layer costs F + Bd + Bw.
std::vector<ModuleLayers> three_module_layers(bool aware, bool recompute) {
  const auto frozen = [&](const std::string& module, Ns f, bool behind) {
    if (!aware) return layer(module, {f, f, f, recompute ? f : 0});
    return layer(module, {f, behind ? f : 0, 0, behind && recompute ? f : 0}, behind);
  };
  const auto projector = [&] { return layer("", {1, aware ? 0 : 1, 1, recompute ? 1 : 0}); };
  std::vector<ModuleLayers> modules(3);
  modules[0] = {.name = "eyes", .layers = {24, frozen("eyes", 10, false)}, .projector = {projector()}};
  modules[1] = {.name = "ears", .layers = {32, frozen("ears", 5, false)}, .projector = {projector()}};
  modules[2] = {.name = "llm", .layers = {32, frozen("llm", 20, true)}};
  return modules;
}

std::vector<int> places(const ModuleCuts& cuts) {
  std::vector<int> own;
  for (const Cut& c : cuts.cuts) own.push_back(static_cast<int>(c.places.size()));
  return own;
}

Ns planned_makespan(const PlannedPipeline& p, const ScheduleOptions& options = {}) {
  PassOptions pass;
  pass.boundary = boundary_of(options.policy);
  const auto programs = make_programs(p.graph, generate(shape_of(p.graph, p.places), options), pass);
  verify(p.graph, programs);
  return simulate(p.graph, programs, p.cost(programs), p.simulate).makespan;
}

}  // namespace

TEST_CASE("golden divisions of 6 and 8 places among three modules and their bottlenecks and step times") {
  struct Case {
    int ranks;
    bool recompute;
    std::vector<int> aware, unaware;
    Ns bottleneck, unaware_bottleneck, time, unaware_time;
  };
  const Case cases[] = {{6, false, {1, 1, 4}, {2, 1, 3}, 320, 440, 8882, 11642},
                        {6, true, {1, 1, 4}, {2, 1, 3}, 480, 660, 13203, 17343},
                        {8, false, {1, 1, 6}, {2, 2, 4}, 242, 320, 7082, 8882},
                        {8, true, {1, 1, 6}, {2, 2, 4}, 360, 480, 10443, 13203}};
  for (const Case& c : cases) {
    INFO(c.ranks << " ranks, recompute " << c.recompute);
    const auto modules = three_module_layers(true, c.recompute);
    const ModuleCuts cuts = partition_modules(modules, c.ranks, {}).front();
    REQUIRE(places(cuts) == c.aware);
    REQUIRE(cuts.bottleneck == c.bottleneck);
    REQUIRE(planned_makespan(pipeline_of(modules, cuts, 24)) == c.time);
    const ModuleCuts other = partition_modules(three_module_layers(false, c.recompute), c.ranks, {}).front();
    REQUIRE(places(other) == c.unaware);
    // The unaware division at its true costs.
    ModuleCuts truth{{false, false}, {}, 0, c.ranks};
    const auto chains = separate_chains(modules, {false, false});
    for (std::size_t m = 0; m < 3; ++m) {
      std::vector<int> first;
      for (const PlaceCost& p : other.cuts[m].places) first.push_back(p.first);
      truth.cuts.push_back(cost_of_cut(chains[m], first));
      truth.bottleneck = std::max(truth.bottleneck, truth.cuts.back().bottleneck);
    }
    REQUIRE(truth.bottleneck == c.unaware_bottleneck);
    REQUIRE(planned_makespan(pipeline_of(modules, truth, 24)) == c.unaware_time);
  }
}

TEST_CASE("divisions of ranks among modules equal the best of all divisions") {
  Random number(23);
  int found = 0, refused = 0;
  for (int round = 0; round < 120; ++round) {
    std::vector<ModuleLayers> modules(static_cast<std::size_t>(number(1, 3)));
    for (std::size_t m = 0; m < modules.size(); ++m) {
      modules[m].name = "m" + std::to_string(m);
      modules[m].layers = random_chain(number, number(1, 5), 1, false).layers;
      modules[m].ranks_per_place = number(1, 2);
      if (m + 1 < modules.size() && number(0, 2) > 0) {
        modules[m].projector = random_chain(number, 1, 1, false).layers;
        modules[m].side = ProjectorSide::either;
      }
    }
    CutOptions options;
    if (round % 3 == 0) options.memory = number(100, 500);
    if (round % 4 == 0) options.links = {{false, 2, 1000}};
    const int ranks = number(3, 9);
    Ns best = kNoCut;
    const auto choices = [&] {
      std::vector<std::vector<bool>> all{{}};
      for (std::size_t m = 0; m + 1 < modules.size(); ++m) {
        std::vector<std::vector<bool>> longer;
        for (auto c : all) {
          for (const bool reader : {false, true}) {
            if (reader && modules[m].projector.empty()) continue;
            longer.push_back(c);
            longer.back().push_back(reader);
          }
        }
        all = longer;
      }
      return all;
    }();
    for (const auto& choice : choices) {
      const auto chains = separate_chains(modules, choice);
      std::vector<int> counts(modules.size(), 1);
      // Every tuple of numbers of places.
      for (;;) {
        int used = 0;
        bool possible = true;
        for (std::size_t m = 0; m < modules.size(); ++m) {
          used += counts[m] * modules[m].ranks_per_place;
          possible = possible && counts[m] <= static_cast<int>(chains[m].layers.size());
        }
        if (possible && used <= ranks) {
          Ns slowest = 0;
          for (std::size_t m = 0; m < modules.size() && slowest != kNoCut; ++m) {
            CutOptions own = options;
            own.places_behind = m + 1 == modules.size() ? 0 : counts.back();
            const Ns beta = Partition(chains[m], own).bottlenecks(counts[m], own.places_behind).back();
            slowest = std::max(slowest, beta);
          }
          best = std::min(best, slowest);
        }
        std::size_t m = 0;
        while (m < counts.size() && ++counts[m] > 7) counts[m++] = 1;
        if (m == counts.size()) break;
      }
    }
    INFO("round " << round);
    if (best == kNoCut) {
      ++refused;
      REQUIRE_THROWS_AS(partition_modules(modules, ranks, options), ConfigError);
    } else {
      ++found;
      const ModuleCuts cuts = partition_modules(modules, ranks, options).front();
      REQUIRE(cuts.bottleneck == best);
      REQUIRE(cuts.ranks <= ranks);
    }
  }
  REQUIRE((found > 50 && refused > 5));
}

TEST_CASE("the projector goes to the side where the slowest place is faster and stays where the config puts it") {
  std::vector<ModuleLayers> modules(2);
  modules[0] = {.name = "eyes",
                .layers = {2, layer("", {.forward = 50}, false)},
                .projector = {layer("", {20, 0, 20, 0})},
                .side = ProjectorSide::either};
  modules[1] = {.name = "llm", .layers = {2, layer("", {10, 20, 0, 0})}};
  ModuleCuts cuts = partition_modules(modules, 2, {}).front();
  REQUIRE(cuts.projector_at_reader == std::vector<bool>{true});
  REQUIRE(cuts.bottleneck == 100);
  REQUIRE(cuts.text(modules) == "eyes 1, llm 1 places, projector of eyes at llm");
  // A frozen encoder without a projector returns nothing: its place is forward only.
  const PlannedPipeline p = pipeline_of(modules, cuts, 3);
  REQUIRE_FALSE(p.graph.stages[0].needs_backward);
  REQUIRE_FALSE(p.graph.edges.back().needs_grad);
  modules[0].side = ProjectorSide::encoder;
  cuts = partition_modules(modules, 2, {}).front();
  REQUIRE((cuts.projector_at_reader == std::vector<bool>{false} && cuts.bottleneck == 140));
}

TEST_CASE("budgets that no division meets are refused with the numbers") {
  std::vector<ModuleLayers> modules(2);
  modules[0] = {.name = "eyes", .layers = {2, layer("", {.forward = 50}, false)}, .ranks_per_place = 2};
  modules[1] = {.name = "llm", .layers = {2, layer("", {10, 20, 0, 0})}, .ranks_per_place = 4};
  REQUIRE_THROWS_WITH(partition_modules(modules, 5, {}), Contains("at least 6 (eyes 1 x 2, llm 1 x 4)"));
  modules[1].min_places = 3;
  REQUIRE_THROWS_WITH(partition_modules(modules, 50, {}), Contains("llm has 2 layers: 1 to 2 stages"));
  modules[1].min_places = 1;
  modules[1].layers[0].fixed_bytes = 5 << 20;
  REQUIRE_THROWS_WITH(partition_modules(modules, 50, {.memory = 1 << 20}),
                      Contains("llm: no cut of 2 layers") && Contains("5.0 MiB"));
}

TEST_CASE("a place may hold the end of an encoder and the start of the LLM") {
  std::vector<ModuleLayers> modules(3);
  modules[0] = {
      .name = "eyes", .layers = {3, layer("", {.forward = 10}, false)}, .projector = {layer("", {1, 0, 1, 0})}};
  modules[1] = {.name = "ears", .layers = {2, layer("", {.forward = 10}, false)}};
  modules[2] = {.name = "llm", .layers = {4, layer("", {10, 10, 0, 0})}};
  for (auto* layers : {&modules[0].layers, &modules[0].projector, &modules[1].layers, &modules[2].layers}) {
    for (PlannedLayer& l : *layers) l.out_bytes = 8;
  }
  modules[0].projector[0].grad_bytes = 8;
  for (PlannedLayer& l : modules[2].layers) l.grad_bytes = 8;
  modules[0].side = ProjectorSide::either;
  const Chain chain = joined_chain(modules);
  REQUIRE(chain.layers.size() == 10);
  REQUIRE(chain.joins.size() == 2);
  // Cut behind the first layer of ears, and in the middle of the LLM.
  const Cut cut = cost_of_cut(chain, std::vector<int>{0, 5, 8});
  const PlannedPipeline p = pipeline_of(chain, cut, 4);
  std::vector<std::pair<std::string, int>> stages;
  for (const StageInfo& s : p.graph.stages) stages.emplace_back(s.module, p.places[static_cast<std::size_t>(s.id)]);
  REQUIRE(stages ==
          std::vector<std::pair<std::string, int>>{{"eyes", 0}, {"ears", 0}, {"ears", 1}, {"llm", 1}, {"llm", 2}});
  // ears -> ears, llm -> llm, eyes -> llm, ears -> llm; gradients return to eyes' projector alone and within the LLM.
  std::map<std::pair<int, int>, bool> edges;
  for (const Edge& e : p.graph.edges) edges[{e.producer, e.consumer}] = e.needs_grad;
  REQUIRE(edges ==
          std::map<std::pair<int, int>, bool>{{{1, 2}, false}, {{3, 4}, true}, {{0, 3}, true}, {{2, 3}, false}});
  REQUIRE(cut.cut_bytes == 8 + 16 + 16);
  for (const Policy policy : {Policy::gpipe, Policy::one_f_one_b, Policy::list}) {
    REQUIRE(planned_makespan(p, {.policy = policy}) >= 4 * cut.bottleneck);
  }
}

TEST_CASE("a projector of one chain stays with its encoder's end or with the start of the LLM as it is asked to") {
  std::vector<ModuleLayers> modules(3);
  modules[0] = {
      .name = "eyes", .layers = {4, layer("", {.forward = 10}, false)}, .projector = {layer("", {1, 0, 1, 0})}};
  modules[1] = {
      .name = "ears", .layers = {4, layer("", {.forward = 10}, false)}, .projector = {layer("", {9, 0, 9, 0})}};
  modules[2] = {.name = "llm", .layers = {2, layer("", {10, 10, 0, 0})}};
  // By hand: eyes 4 x 10, their projector 2, ears 4 x 10, theirs 18, LLM 2 x 20; the slowest of three places, what each
  // holds, and the edges between stages.
  const auto stages = [&](ProjectorSide eyes, ProjectorSide ears) {
    modules[0].side = eyes;
    modules[1].side = ears;
    const Chain chain = joined_chain(modules);
    const Cut cut = cut_chain(chain, 3);
    const PlannedPipeline p = pipeline_of(chain, cut, 4);
    std::string text = std::to_string(cut.bottleneck) + ": ";
    for (const StageInfo& s : p.graph.stages)
      text += std::to_string(p.places[static_cast<std::size_t>(s.id)]) + " " + s.module + ", ";
    for (const Edge& e : p.graph.edges) text += std::to_string(e.producer) + ">" + std::to_string(e.consumer) + " ";
    return text;
  };
  using enum ProjectorSide;
  CHECK(stages(encoder, encoder) == "52: 0 eyes, 0 ears, 1 ears, 2 llm, 1>2 0>3 2>3 ");
  CHECK(stages(either, reader) == "58: 0 eyes, 1 eyes, 1 ears, 2 ears.projector, 2 llm, 0>1 2>3 1>4 3>4 ");
  CHECK(stages(reader, encoder) == "50: 0 eyes, 0 ears, 1 ears, 2 eyes.projector, 2 llm, 1>2 0>3 3>4 2>4 ");
  CHECK(stages(reader, reader) ==
        "60: 0 eyes, 1 eyes, 1 ears, 2 eyes.projector, 2 ears.projector, 2 llm, 0>1 1>3 2>4 3>5 4>5 ");
  modules[0].side = modules[1].side = reader;
  CHECK_NOTHROW(cut_chain(joined_chain(modules), 10));
  CHECK_THROWS_WITH(cut_chain(joined_chain(modules), 11), Contains("12 layers cannot be cut into 11 stages: 1 to 10"));
}

TEST_CASE("what a place is said to need is what its simulated blocks take at most") {
  Random number(5);
  std::int64_t needed = 0, said = 0;
  for (int round = 0; round < 200; ++round) {
    const int n = number(2, 9), places = number(1, std::min(n, 4));
    Chain chain = random_chain(number, n, number(1, 3), true);
    chain.joins.pop_back();  // from outside
    bool behind = false;     // frozen layers behind a training one have a backward, too
    for (PlannedLayer& l : chain.layers) {
      behind = l.backward = behind || l.backward;
      l.trains = l.backward && number(0, 1) > 0;
      if (!l.backward) l.kept = l.held = l.grad_bytes = 0;
      l.time = {number(1, 9), l.backward ? number(1, 9) : 0, 0, 0};
    }
    for (Join& j : chain.joins) {
      j.needs_grad = chain.layers[static_cast<std::size_t>(j.from)].backward;
      j.grad_bytes = chain.layers[static_cast<std::size_t>(j.from)].grad_bytes;
    }
    CutOptions options;
    options.in_flight.num_blocks = number(1, 7);
    const Cut cut = Partition(chain, options).cut(places, 0);
    const PlannedPipeline p = pipeline_of(chain, cut, options.in_flight.num_blocks);
    const ScheduleProblem problem = problem_of(p);
    const Timeline t = simulate(problem, programs_of(problem, {}));
    for (int place = 0; place < places; ++place) {
      const auto i = static_cast<std::size_t>(place);
      INFO("round " << round << " place " << place << " of " << places);
      const std::int64_t needs = t.ranks[i].arenas + p.simulate.fixed_bytes[i];
      CHECK(needs <= cut.places[i].memory);
      needed += needs;
      said += cut.places[i].memory;
    }
  }
  REQUIRE(said * 100 <= needed * 105);  // never too little, and near
}

TEST_CASE("pieces of a cut go round the places for interleaved schedules") {
  std::vector<ModuleLayers> modules(1);
  modules[0] = {.name = "llm", .layers = {8, layer("", {10, 10, 10, 0})}};
  const Chain chain = joined_chain(modules);
  const PlannedPipeline plain = pipeline_of(chain, cut_chain(chain, 2), 4),
                        chunks = pipeline_of(chain, cut_chain(chain, 4), 4, 2);
  REQUIRE(plain.places == std::vector<int>{0, 1});
  REQUIRE(chunks.places == std::vector<int>{0, 1, 0, 1});
  const std::vector<ScheduleProblem> problems{problem_of(plain), problem_of(chunks)};
  std::vector<ScheduleOptions> schedules(2);
  schedules[1].policy = Policy::interleaved;
  const ScheduleChoice choice = choose_schedule(problems, schedules);
  // Half the fill and drain: (4 + 1) x 120 against (4 + 1/2) x 120.
  REQUIRE(choice.reason == "interleaved 540 ns; 1f1b 600 ns");
}

TEST_CASE("simulated steps gain what the bottlenecks promise less what fill and drain take") {
  struct Case {
    int encoder, llm, places, blocks;
    bool recompute;
    double gain;  // of the table in parallel/plan/README.md
  };
  for (const Case& c : {Case{120, 120, 2, 16, false, 1.29}, Case{120, 120, 2, 16, true, 1.44},
                        Case{324, 40, 16, 64, true, 2.17}, Case{324, 40, 16, 512, true, 2.42}}) {
    const Chain chain = two_parts(c.encoder, c.llm, c.recompute);
    const auto step = [&](CutBy by) {
      const PlannedPipeline p = pipeline_of(chain, cut_chain(chain, c.places, {.by = by}), c.blocks);
      const ScheduleProblem problem = problem_of(p);
      return static_cast<double>(simulate(problem, programs_of(problem, {})).makespan);
    };
    const double gain = step(CutBy::forward) / step(CutBy::time);
    CHECK(gain == Approx(c.gain).margin(0.006));
  }
}

TEST_CASE("the best few divisions are settled by their simulated step time") {
  const auto modules = three_module_layers(true, false);
  const auto few = partition_modules(modules, 8, {}, 4);
  REQUIRE(few.size() == 4);
  for (std::size_t i = 1; i < few.size(); ++i) REQUIRE(few[i - 1].bottleneck <= few[i].bottleneck);
  const Settled settled =
      settle(few.size(), [&](std::size_t c) { return planned_makespan(pipeline_of(modules, few[c], 24)); });
  REQUIRE(settled.makespans.size() == 4);
  REQUIRE(settled.makespans[0] == 7082);
  REQUIRE(settled.makespans[settled.best] == *std::ranges::min_element(settled.makespans));
  // With two blocks the depth of the pipeline costs more than its bottleneck gains.
  const Settled two =
      settle(few.size(), [&](std::size_t c) { return planned_makespan(pipeline_of(modules, few[c], 2)); });
  REQUIRE(two.makespans[two.best] <= two.makespans[0]);
  REQUIRE(settle(3, [](std::size_t c) { return Ns{c == 0 ? 5 : 4}; }).best == 1);
}

TEST_CASE("120 layers of three modules are planned for 64 places") {
  std::vector<ModuleLayers> modules(3);
  const auto make = [](int layers, LayerTime time, bool backward) {
    std::vector<PlannedLayer> all(static_cast<std::size_t>(layers), layer("", time, backward));
    for (PlannedLayer& l : all) {
      l.fixed_bytes = 1 << 20;
      l.kept = backward ? 1 << 16 : 0;
      l.out_bytes = 1 << 12;
      l.grad_bytes = backward ? 1 << 12 : 0;
    }
    return all;
  };
  modules[0] = {.name = "eyes",
                .layers = make(40, {.forward = 900}, false),
                .projector = make(1, {90, 0, 90, 0}, true),
                .side = ProjectorSide::either};
  modules[1] = {.name = "ears",
                .layers = make(31, {.forward = 500}, false),
                .projector = make(1, {50, 0, 50, 0}, true),
                .side = ProjectorSide::either};
  modules[2] = {.name = "llm", .layers = make(47, {2000, 2000, 0, 2000}, true)};
  CutOptions options;
  options.memory = 64 << 20;
  options.links = {{false, 10, 10'000}, {false, 30, 1'000}};
  const auto few = partition_modules(modules, 64, options, 4);
  const Cut all = cut_chain(joined_chain(modules), 64, options);
  REQUIRE((few.size() == 4 && few[0].ranks <= 64 && all.places.size() == 64));
  REQUIRE(few[0].text(modules) == "eyes 3, ears 1, llm 47 places, projector of eyes at llm, projector of ears at llm");
}
