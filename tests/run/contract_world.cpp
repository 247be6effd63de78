#include "contract_world.h"

#include "kernels/backend.h"
#include "parallel/comm/threads.h"
#include "parallel/plan/verify.h"
#include "parallel/run/rows.h"
#include "parallel/run/ties.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

namespace mmt::testing {
namespace {

using namespace run;
using plan::Edge;
using plan::Route;
using plan::StageGraph;

constexpr int kEncoder = 0, kPartA = 1, kPartB = 2;
constexpr int kMediaEdge = 0, kInnerEdge = 1;

struct Item {
  std::int64_t source_rows;  // one row more than leaves (as a class token would)
};
struct Sample {
  std::int64_t before, item, after;  // text rows, item index or -1, text rows
};

// Item 0 is read by two samples of different blocks; sample 1 has no media.
const std::vector<Item> kItems = {{5}, {7}};
const std::vector<Sample> kSamples = {{2, 0, 3}, {5, -1, 0}, {1, 1, 2}, {1, 0, 2}};

/// One lane: blocks {0, 1} and {2, 3}, both items encoded here. Two lanes: lane l has blocks {l} and {2 + l}, item l.
std::vector<std::vector<int>> llm_blocks(int lanes, int lane) {
  if (lanes == 1) return {{0, 1}, {2, 3}};
  return {{lane}, {2 + lane}};
}
std::vector<int> encoder_items(int lanes, int lane) {
  if (lanes == 1) return {0, 1};
  return {lane};
}

std::int64_t out_rows_of(int item) { return kItems[static_cast<std::size_t>(item)].source_rows - 1; }
std::int64_t rows_of_sample(const Sample& s) {
  return s.before + s.after + (s.item < 0 ? 0 : out_rows_of(static_cast<int>(s.item)));
}

void add_masks(plan::RowsPlan& p) {
  p.masks.clear();
  p.tiles.clear();
}

plan::RowsPlan encoder_rows(int lanes, int lane) {
  plan::RowsPlan p;
  p.num_positions = 3;
  for (const int item : encoder_items(lanes, lane)) {
    const std::int64_t n = kItems[static_cast<std::size_t>(item)].source_rows;
    p.items.push_back({item, 0, {p.size.rows, n}, {p.size.rows, n}, {p.size.out, n - 1}});
    for (std::int64_t r = 0; r < n; ++r) {
      for (int k = 0; k < 3; ++k) p.positions.push_back(static_cast<std::int32_t>(r + k));
      if (r > 0) p.out_rows.push_back(static_cast<std::int32_t>(p.size.rows + r));
    }
    p.size.rows += n;
    p.size.source += n;
    p.size.out += n - 1;
  }
  add_masks(p);
  return p;
}

plan::RowsPlan llm_rows(const std::vector<int>& samples) {
  plan::RowsPlan p;
  p.num_positions = 3;
  plan::PortRows port{kMediaEdge, {}};
  for (const int index : samples) {
    const Sample& s = kSamples[static_cast<std::size_t>(index)];
    const std::int64_t n = rows_of_sample(s);
    const std::int64_t media_end = n - s.after;
    plan::SamplePlan sp{index, {p.size.rows, n}, {p.size.supervised, 0}};
    for (std::int64_t r = 0; r < n; ++r) {
      const bool media = s.item >= 0 && r >= s.before && r < media_end;
      if (media) port.dst.push_back(static_cast<std::int32_t>(p.size.rows + r));
      // Rows after the media (all but the first of a text-only sample) are labels; the row before each predicts it.
      if (r > 0 && !media && r >= std::min(s.before + 1, media_end)) {
        p.supervised_rows.push_back(static_cast<std::int32_t>(p.size.rows + r - 1));
        ++sp.supervised.count;
      }
      for (int k = 0; k < 3; ++k) p.positions.push_back(static_cast<std::int32_t>(r * (k + 1)));
    }
    p.size.rows += n;
    p.size.supervised += sp.supervised.count;
    p.samples.push_back(sp);
  }
  p.size.out = p.size.rows;
  p.ports.push_back(port);
  add_masks(p);
  return p;
}

void fill_sample(RowsMemory& memory, std::size_t at, int index) {
  const Sample& s = kSamples[static_cast<std::size_t>(index)];
  const std::int64_t n = rows_of_sample(s), media_end = n - s.after;
  std::vector<std::int32_t> ids, labels;
  std::vector<float> weights;
  for (std::int64_t r = 0; r < n; ++r) {
    const bool media = s.item >= 0 && r >= s.before && r < media_end;
    const auto id = static_cast<std::int32_t>((7 * index + 3 * r + 1) % kVocabulary);
    ids.push_back(media ? -1 : id);
    labels.push_back(r > 0 && !media && r >= std::min(s.before + 1, media_end) ? id : -100);
    weights.push_back(1.0F + 0.25F * static_cast<float>(index));
  }
  memory.set_sample(at, ids, labels, weights);
}

double total_weight() {
  double w = 0.0;
  for (std::size_t i = 0; i < kSamples.size(); ++i) {
    const plan::RowsPlan p = llm_rows({static_cast<int>(i)});
    w += static_cast<double>(p.size.supervised) * (1.0 + 0.25 * static_cast<double>(i));
  }
  return w;
}

/// Where everything is: ranks of stages by lane, and who a rank is.
struct Places {
  explicit Places(const Layout& l) : layout(l) {}
  const Layout& layout;

  int tp(int stage) const { return stage == kEncoder ? layout.encoder_tp : layout.llm_tp; }
  int per_lane() const { return layout.together ? 1 : layout.encoder_tp + 2 * layout.llm_tp; }
  std::vector<int> group(int stage, int lane) const {
    const int first = layout.together ? 0 : stage == kEncoder ? 0 : layout.encoder_tp + (stage - 1) * layout.llm_tp;
    std::vector<int> ranks(static_cast<std::size_t>(layout.together ? 1 : tp(stage)));
    std::iota(ranks.begin(), ranks.end(), lane * per_lane() + first);
    return ranks;
  }
  int lane(int rank) const { return rank / per_lane(); }
  bool runs(int stage, int rank) const {
    const auto g = group(stage, lane(rank));
    return std::ranges::find(g, rank) != g.end();
  }
  int tp_rank(int stage, int rank) const { return rank - group(stage, lane(rank)).front(); }
};

StageGraph make_graph(const Layout& layout, const std::array<bool, 3>& needs_backward,
                      const std::array<bool, 3>& trains) {
  const Places places(layout);
  StageGraph g;
  const std::array<std::string, 3> modules = {"eyes", "llm", "llm"};
  for (int s = 0; s < 3; ++s) {
    plan::StageInfo info;
    info.id = s;
    info.module = modules[static_cast<std::size_t>(s)];
    for (int lane = 0; lane < layout.lanes; ++lane) {
      for (const int r : places.group(s, lane)) info.ranks.push_back(r);
    }
    info.num_blocks = s == kEncoder ? 1 : 2;
    info.needs_backward = needs_backward[static_cast<std::size_t>(s)];
    info.has_weight_grads = trains[static_cast<std::size_t>(s)];
    g.stages.push_back(info);
  }
  g.edges = {{kMediaEdge, kEncoder, kPartA, "eyes", needs_backward[kEncoder]},
             {kInnerEdge, kPartA, kPartB, "x", needs_backward[kPartA]}};
  g.producers_of = {{{0}, {0}}, {{0}, {1}}};
  std::vector<plan::SourceItem> items(kItems.size());
  for (int lane = 0; lane < layout.lanes; ++lane) {
    std::int64_t row = 0;
    for (const int item : encoder_items(layout.lanes, lane)) {
      items[static_cast<std::size_t>(item)] = {places.group(kEncoder, lane).front(), 0, row, out_rows_of(item)};
      row += out_rows_of(item);
    }
  }
  const auto group_of = [&](int stage) {
    return [&, stage](int first) { return places.group(stage, places.lane(first)); };
  };
  g.routes.resize(2);
  for (int m = 0; m < 2; ++m) {
    std::vector<plan::WantedItem> media, inner;
    std::vector<plan::SourceItem> blocks;
    for (int lane = 0; lane < layout.lanes; ++lane) {
      const int rank_a = places.group(kPartA, lane).front(), rank_b = places.group(kPartB, lane).front();
      const std::vector<int> samples = llm_blocks(layout.lanes, lane)[static_cast<std::size_t>(m)];
      for (const int s : samples) {
        const auto item = static_cast<int>(kSamples[static_cast<std::size_t>(s)].item);
        if (item >= 0) media.push_back({rank_a, item, 0, out_rows_of(item)});
      }
      const std::int64_t rows = llm_rows(samples).size.rows;
      blocks.push_back({rank_a, m, 0, rows});
      inner.push_back({rank_b, lane, 0, rows});
    }
    g.routes[0].push_back(
        spread_over_tp(make_route(kMediaEdge, m, items, media), group_of(kEncoder), group_of(kPartA)));
    g.routes[1].push_back(spread_over_tp(make_route(kInnerEdge, m, blocks, inner), group_of(kPartA), group_of(kPartB)));
  }
  return g;
}

/// The program of one rank from the text of its stages, without sends that reach nobody.
plan::Program program_of(const StageGraph& g, const Layout& layout, const std::vector<std::string>& texts, int rank) {
  const Places places(layout);
  std::string text = fmt::format("rank {}:", rank);
  for (int s = 0; s < (layout.together ? 1 : 3); ++s) {
    if (places.runs(s, rank)) text += " " + texts[static_cast<std::size_t>(s)];
  }
  plan::Program p = plan::parse_program(text);
  std::erase_if(p.actions, [&](const plan::Action& a) {
    if (a.kind != plan::Kind::send) return false;
    const Route& r = g.routes[static_cast<std::size_t>(a.edge)][static_cast<std::size_t>(a.block)];
    std::vector<int> peers = a.transposed ? sources_of(r, rank) : destinations_of(r, rank);
    std::erase(peers, rank);
    return peers.empty();
  });
  return p;
}

std::array<Stage, 3> make_stages(const Layout& layout, int rank) {
  const Places places(layout);
  std::array<Stage, 3> stages;
  UnitOptions e{.tp = layout.together ? 1 : layout.encoder_tp, .trainable = layout.trainable};
  if (places.runs(kEncoder, rank)) e.tp_rank = places.tp_rank(kEncoder, rank);
  Stage& encoder = stages[kEncoder];
  encoder.module = "eyes";
  encoder.units.push_back(make_stem("eyes", e));
  e.input_needs_grad = encoder.units.back()->plan().output.needs_grad;
  encoder.units.push_back(make_mlp("eyes", "layers.0", e));
  e.input_needs_grad = encoder.units.back()->plan().output.needs_grad;
  encoder.units.push_back(make_projector("eyes", e));
  const bool media_grads = encoder.units.back()->plan().output.needs_grad;

  UnitOptions a{.tp = layout.together ? 1 : layout.llm_tp, .trainable = layout.trainable};
  for (const int s : {kPartA, kPartB}) {
    if (places.runs(s, rank)) a.tp_rank = places.tp_rank(s, rank);
  }
  Stage& first = stages[kPartA];
  first.module = "llm";
  first.rotary = test_rotary();
  first.units.push_back(make_embedding("llm", "eyes", media_grads, a));
  a.input_needs_grad = first.units.back()->plan().output.needs_grad;
  first.units.push_back(make_rotation("llm", "layers.0.rotation", a));
  a.input_needs_grad = first.units.back()->plan().output.needs_grad;
  first.units.push_back(make_mlp("llm", "layers.0.mlp", a));
  a.input_needs_grad = first.units.back()->plan().output.needs_grad;
  Stage& second = stages[kPartB];
  second.module = "llm";
  if (layout.shared_link) {
    first.units.push_back(make_cut("llm", a));
    second.units.push_back(make_join("llm", a));
  }
  second.units.push_back(make_mlp("llm", "layers.1.mlp", a));
  a.input_needs_grad = second.units.back()->plan().output.needs_grad;
  second.units.push_back(make_head("llm", a));
  return stages;
}

/// Puts a rank's part of a gradient into the whole tensor.
void place_grad(const ParamState& p, std::vector<double>& whole) {
  const Box& box = p.spec->box;
  const std::int64_t cols = p.spec->shape[1];
  for (std::int64_t i = 0; i < p.owned_count; ++i) {
    const std::int64_t at = p.owned_first + i;
    const std::int64_t row = box.offset[0] + at / box.shape[1], col = box.offset[1] + at % box.shape[1];
    whole[static_cast<std::size_t>(row * cols + col)] = p.grad.as<double>()[i];
  }
}

class WorldRank {
 public:
  WorldRank(const Layout& layout, comm::Communicator& world)
      : layout_(layout), places_(layout), world_(world), stream_(reference_stream()) {
    stages_ = make_stages(layout, world.rank());
    std::array<bool, 3> backward{}, trains{};
    for (std::size_t s = 0; s < 3; ++s) {
      backward[s] = stages_[s].needs_backward();
      trains[s] = stages_[s].trains();
    }
    graph_ = make_graph(layout, backward, trains);
    if (layout.drop_segment_of_edge >= 0) {
      for (auto& s : graph_.routes[static_cast<std::size_t>(layout.drop_segment_of_edge)][1].segments) s.src_row = 0;
    }
    make_comms();
    make_stores();
    make_executor();
  }

  void run(Outcome& outcome, std::mutex& lock) {
    std::vector<StepData> steps;
    for (int ahead = 0; ahead <= layout_.encoder_ahead; ++ahead) steps.push_back(step_data());
    const StepHooks hooks{
        .load = {},
        .reduce = [&](int stage, int bucket) { stores_[static_cast<std::size_t>(stage)]->reduce(bucket); },
        .tie =
            [&](int tie) {
              // The programs are the same where the tied parameter is frozen.
              if (!ties_.groups.empty()) run_tie(ties_.groups[static_cast<std::size_t>(tie)], stream_);
            },
        .optimize = {}};
    if (!layout_.prologue.empty()) {
      // What runs ahead of the first step is written as a step of its own.
      executor_->run(program_of(graph_, layout_, layout_.prologue, world_.rank()), steps, hooks, Mode::train);
    }
    plan::Program program;
    for (int step = 0; step < layout_.steps; ++step) {
      for (auto& store : stores_) {
        if (store) store->begin_step();
      }
      const bool ends = step + 1 == layout_.steps && !layout_.last.empty();
      program = program_of(graph_, layout_, ends ? layout_.last : layout_.programs, world_.rank());
      if (world_.rank() == layout_.silent_rank) program.actions.clear();
      executor_->run(program, steps, hooks, Mode::train);
    }
    const std::lock_guard guard(lock);
    outcome.programs[static_cast<std::size_t>(world_.rank())] = to_string(program);
    collect(steps[0], outcome);
    outcome.arenas[static_cast<std::size_t>(world_.rank())] = executor_->arenas();
    if (world_.rank() == 0) {
      outcome.peak_bytes = executor_->peak_bytes();
      outcome.capacity_bytes = executor_->capacity_bytes();
    }
  }

 private:
  void make_comms() {
    const int rank = world_.rank(), lane = places_.lane(rank);
    for (int s = 0; s < 3; ++s) {
      const auto at = static_cast<std::size_t>(s);
      const bool here = places_.runs(s, rank);
      tp_[at] = world_.split(here ? lane : -1, rank, fmt::format("stage {} tp", s));
      data_[at] = world_.split(here ? places_.tp_rank(s, rank) : -1, rank, fmt::format("stage {} data", s));
    }
  }

  std::vector<int> ranks_of(int stage) const {
    std::vector<int> ranks;
    for (int lane = 0; lane < layout_.lanes; ++lane) {
      for (const int r : places_.group(stage, lane)) ranks.push_back(r);
    }
    return ranks;
  }

  void make_stores() {
    std::vector<StageUses> uses;
    for (int s = 0; s < 3; ++s) uses.push_back(uses_of(stages_[static_cast<std::size_t>(s)], ranks_of(s)));
    StoreOptions options{.bucket_bytes = 1 << 20, .zero = layout_.zero};
    for (const Tie& tie : find_ties(uses)) options.tied.insert(tie.name);
    for (std::size_t s = 0; s < 3; ++s) {
      if (!places_.runs(static_cast<int>(s), world_.rank())) continue;
      comm::Communicator* data = layout_.lanes > 1 ? data_[s].get() : nullptr;
      stores_[s] = layout_.sharded ? make_sharded_store(stages_[s], *data_[s], stream_)
                                   : make_replicated_store(stages_[s], data, stream_, options);
      for (ParamState& p : stores_[s]->params()) {
        initialize(*p.spec, 7, p.owned_first, p.master);
        if (canonical_name(*p.spec) == layout_.perturb && p.owned_first == 0 && p.spec->box.offset[0] == 0 &&
            p.spec->box.offset[1] == 0) {
          p.master.as<double>()[0] = perturbed(*p.spec);
        }
      }
    }
    std::array<ParameterStore*, 3> stores{};
    for (std::size_t s = 0; s < 3; ++s) stores[s] = stores_[s].get();
    ties_ = make_ties(world_, uses, stores);
    for (const auto& store : stores_) {
      if (store) store->weights_loaded();
    }
  }
  double perturbed(const ParamSpec& spec) const {
    double value = 0.0;
    initialize(spec, 7, 0, Tensor(&value, DType::f64, {1}));
    return value + layout_.perturb_by;
  }

  std::vector<plan::Program> all_programs(const std::vector<std::string>& texts) const {
    std::vector<plan::Program> programs;
    for (int r = 0; r < world_.size(); ++r) programs.push_back(program_of(graph_, layout_, texts, r));
    return programs;
  }

  void make_executor() {
    const std::vector<plan::Program> programs = all_programs(layout_.programs);
    std::vector<plan::Action> before;
    if (layout_.encoder_ahead > 0) before.push_back(plan::parse_action("0F0"));
    if (layout_.drop_segment_of_edge < 0) verify(graph_, programs, before);
    std::vector<StageSetup> setups;
    for (int s = 0; s < 3; ++s) {
      const auto at = static_cast<std::size_t>(s);
      if (!places_.runs(s, world_.rank())) continue;
      StageSetup setup;
      setup.id = s;
      setup.stage = &stages_[at];
      setup.store = stores_[at].get();
      if (tp_[at]->size() > 1) setup.comms[static_cast<std::size_t>(Axis::tp)] = tp_[at].get();
      setup.tp_group = places_.group(s, places_.lane(world_.rank()));
      setup.cap = {.rows = 32, .supervised = 32, .source = 32, .out = 32, .tiles = 0};
      setup.port_cap = s == kEncoder ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{32};
      for (std::size_t u = 0; !layout_.recompute.empty() && u < setup.stage->units.size(); ++u)
        setup.recompute.push_back(layout_.recompute[u % layout_.recompute.size()]);
      if (layout_.tight) tighten(s, setup);
      setup.live = live_blocks(graph_, programs[static_cast<std::size_t>(world_.rank())], s);
      setups.push_back(setup);
    }
    executor_ = std::make_unique<Executor>(world_, graph_, setups, stream_, ExecutorOptions{.check_events = true});
  }

  /// Caps are the largest sizes of this lane's blocks.
  void tighten(int stage, StageSetup& setup) const {
    const int lane = places_.lane(world_.rank());
    setup.evaluates = false;
    setup.cap = {};
    const auto widen = [](std::int64_t& a, std::int64_t b) { a = std::max(a, b); };
    std::vector<plan::RowsPlan> blocks;
    if (stage == kEncoder) blocks.push_back(encoder_rows(layout_.lanes, lane));
    for (const auto& samples : llm_blocks(layout_.lanes, lane)) {
      if (stage != kEncoder) blocks.push_back(llm_rows(samples));
    }
    if (stage == kPartA) setup.port_cap = {0};
    for (const plan::RowsPlan& b : blocks) {
      widen(setup.cap.rows, b.size.rows);
      widen(setup.cap.supervised, b.size.supervised);
      widen(setup.cap.source, b.size.source);
      widen(setup.cap.out, b.size.out);
    }
    for (const auto& samples : llm_blocks(layout_.lanes, lane)) {
      std::int64_t media = 0;
      for (const int i : samples) {
        const auto item = kSamples[static_cast<std::size_t>(i)].item;
        media += item < 0 ? 0 : out_rows_of(static_cast<int>(item));
      }
      if (stage == kPartA) widen(setup.port_cap[0], media);
    }
    if (stage == kPartB) setup.port_cap = {setup.cap.rows};
  }

  StepData step_data() {
    StepData step;
    step.graph = &graph_;
    step.loss_scale = 1.0 / total_weight();
    step.rows.resize(3);
    const int lane = places_.lane(world_.rank());
    for (int s = 0; s < 3; ++s) {
      if (!places_.runs(s, world_.rank())) continue;
      for (int b = 0; b < graph_.stages[static_cast<std::size_t>(s)].num_blocks; ++b) {
        const std::vector<int> samples =
            s == kEncoder ? std::vector<int>{} : llm_blocks(layout_.lanes, lane)[static_cast<std::size_t>(b)];
        plans_.push_back(
            std::make_unique<plan::RowsPlan>(s == kEncoder ? encoder_rows(layout_.lanes, lane) : llm_rows(samples)));
        RowsCapacity capacity;
        capacity.master = DType::f64;
        capacity.size = {.rows = 32, .supervised = 32, .source = 32, .out = 32, .tiles = 0};
        capacity.num_positions = 3;
        capacity.num_masks = 0;
        capacity.source_cols = s == kEncoder ? kSourceCols : 0;
        capacity.items = s == kEncoder ? 2 : 0;
        capacity.rotary_pairs = kWidth / 2;
        capacity.port_rows = s == kPartA ? std::vector<std::int64_t>{32} : std::vector<std::int64_t>{};
        memories_.push_back(std::make_unique<RowsMemory>(capacity));
        RowsMemory& memory = *memories_.back();
        const std::vector<int> ports = s == kPartA   ? std::vector<int>{kMediaEdge}
                                       : s == kPartB ? std::vector<int>{-1}
                                                     : std::vector<int>{};
        memory.reset(*plans_.back(), ports, stages_[static_cast<std::size_t>(s)], stream_);
        for (std::size_t i = 0; i < samples.size(); ++i) fill_sample(memory, i, samples[i]);
        if (s == kEncoder) fill_media(memory);
        step.rows[static_cast<std::size_t>(s)].push_back(memory.rows());
      }
    }
    return step;
  }

  void fill_media(RowsMemory& memory) const {
    const std::vector<int> items = encoder_items(layout_.lanes, places_.lane(world_.rank()));
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Tensor rows = memory.source_of(i);
      for (std::int64_t k = 0; k < rows.numel(); ++k) {
        rows.as<double>()[k] = std::sin(0.7 * static_cast<double>(k) + static_cast<double>(items[i]));
      }
    }
  }

  void collect(const StepData& step, Outcome& outcome) {
    for (std::size_t s = 0; s < 3; ++s) {
      if (!stores_[s]) continue;
      for (const ParamState& p : stores_[s]->params()) {
        if (!p.spec->trainable) continue;
        auto& whole = outcome.grads[canonical_name(*p.spec)];
        whole.resize(static_cast<std::size_t>(p.spec->shape[0] * p.spec->shape[1]));
        place_grad(p, whole);
      }
    }
    if (!places_.runs(kPartB, world_.rank()) || places_.tp_rank(kPartB, world_.rank()) != 0) return;
    for (const Rows& rows : step.rows[kPartB]) {
      for (std::int64_t i = 0; i < rows.size.supervised; ++i) {
        outcome.losses[static_cast<std::size_t>(world_.rank())] +=
            rows.loss.as<double>()[i] * rows.weights.as<double>()[i] / total_weight();
      }
    }
  }

  const Layout& layout_;
  Places places_;
  comm::Communicator& world_;
  Stream stream_;
  std::array<Stage, 3> stages_;
  StageGraph graph_;
  std::array<std::unique_ptr<comm::Communicator>, 3> tp_, data_;
  Ties ties_;
  std::array<std::unique_ptr<ParameterStore>, 3> stores_;
  std::vector<std::unique_ptr<plan::RowsPlan>> plans_;
  std::vector<std::unique_ptr<RowsMemory>> memories_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace

Outcome run_layout(const Layout& layout) {
  Outcome outcome;
  outcome.programs.resize(static_cast<std::size_t>(layout.world_size()));
  outcome.losses.resize(outcome.programs.size());
  outcome.arenas.resize(outcome.programs.size());
  std::mutex lock;
  comm::ThreadOptions threads;
  threads.timeout_seconds = layout.timeout_seconds;
  comm::run_threads(
      layout.world_size(), [&](comm::Communicator& world) { WorldRank(layout, world).run(outcome, lock); }, threads);
  outcome.loss = std::accumulate(outcome.losses.begin(), outcome.losses.end(), 0.0);
  return outcome;
}

}  // namespace mmt::testing
