// Parameter stores without a model: what is summed over which ranks, who owns and counts what, ZeRO-1 against ZeRO-0,
// ties, and checkpoints between all of them.
#include "core/philox.h"
#include "kernels/backend.h"
#include "kernels/elementwise.h"
#include "parallel/comm/threads.h"
#include "parallel/comm/tracing.h"
#include "parallel/run/optimized.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

using namespace mmt;
using namespace mmt::run;
using mmt::test::message_of;

namespace {

enum class Kind { whole, split, partial, pairs, frozen };

struct Wanted {
  std::string name;
  std::vector<std::int64_t> shape;
  Kind kind = Kind::whole;
};

/// Parameters alone: every kind that a module of tp ranks may have.
class Holder final : public Unit {
 public:
  Holder(const std::string& name, std::span<const Wanted> list, const plan::Coord& degrees, const plan::Coord& coord,
         DType dtype) {
    UnitPlanner::Setting setting;
    setting.module = "llm";
    setting.dtype = dtype;
    setting.degrees = degrees;
    setting.coord = coord;
    UnitPlanner planner(setting, name);
    const int tp = degrees[plan::Axis::tp], me = coord[plan::Axis::tp];
    for (const Wanted& w : list) {
      ParamSpec spec;
      spec.name = w.name;
      spec.shape = w.shape;
      spec.trainable = w.kind != Kind::frozen;
      const auto cut = [&](int parts, int part) {
        const std::int64_t first = w.shape[0] * part / parts, last = w.shape[0] * (part + 1) / parts;
        spec.box = {std::vector<std::int64_t>(w.shape.size(), 0), w.shape};
        spec.box.offset[0] = first;
        spec.box.shape[0] = last - first;
      };
      if (tp > 1) {
        if (w.kind == Kind::whole || w.kind == Kind::frozen) spec.replica_over = {{plan::Axis::tp, 0}};
        if (w.kind == Kind::split) cut(tp, me);
        if (w.kind == Kind::partial) spec.partial_over = {{plan::Axis::tp, 0}};
        if (w.kind == Kind::pairs) {
          spec.partial_over = {{plan::Axis::tp, 2}};
          if (tp > 2) cut(tp / 2, me / 2);
        }
      }
      planner.param(spec);
    }
    plan_ = planner.take();
  }
  void forward(Ctx&, std::span<const Tensor>, const Tensor&, Saved&) const override {}
  void backward_input(Ctx&, const Tensor&, std::span<const Tensor>, Saved&) const override {}
  void backward_weight(Ctx&, Saved&) const override {}
  void recompute(Ctx&, Saved&) const override {}
};

const std::vector<Wanted> kFirst = {{"embed.weight", {20, 9}, Kind::whole}, {"norm.weight", {33}, Kind::partial}};
const std::vector<Wanted> kSecond = {{"q.weight", {24, 7}, Kind::split},
                                     {"k.weight", {8, 5}, Kind::pairs},
                                     {"table", {100}, Kind::frozen},
                                     {"bias", {3}, Kind::whole}};
// Reads the embedding's weights: tied.
const std::vector<Wanted> kHead = {{"embed.weight", {20, 9}, Kind::whole}, {"head_norm.weight", {9}, Kind::partial}};

struct Grid {
  int tp = 1, dp = 1;
  DType dtype = DType::f32;
  int zero = 0;
  bool tied = false;    ///< the stage has the head, too
  bool spread = false;  ///< and the head is a stage of other ranks
  int ranks() const { return tp * dp * (spread ? 2 : 1); }
};

double number(const std::string& name, std::int64_t element, int salt) {
  return random_normal(random_key(5, name, ""), static_cast<std::uint64_t>(salt), 0,
                       static_cast<std::uint64_t>(element));
}

/// One rank's stages and stores in a grid: tp fastest, then dp, then the two stages.
struct StoreRank {
  StoreRank(const Grid& g, comm::Communicator& world, StoreOptions options = {.bucket_bytes = 1024}) : grid(g) {
    const int lane_size = g.tp * g.dp, r = world.rank();
    place = r / lane_size;
    degrees = plan::Coord{{g.tp, 1, g.dp, g.spread ? 2 : 1}};
    coord = plan::Coord{{r % g.tp, 0, r / g.tp % g.dp, place}};
    tp = make_tracing(*(own_tp = world.split(r / g.tp, r, "tp")), tp_trace);
    data = make_tracing(*(own_data = world.split(r % g.tp + g.tp * place, r, "data")), data_trace);
    comms = StoreComms(g.dp > 1 ? data.get() : nullptr, g.tp > 1 ? tp.get() : nullptr);
    std::vector<Stage> all(g.spread ? 2 : 1);
    const auto add = [&](Stage& stage, const char* name, std::span<const Wanted> list) {
      stage.module = "llm";
      stage.units.push_back(std::make_unique<Holder>(name, list, degrees, coord, g.dtype));
    };
    add(all[0], "a", kFirst);
    add(all[0], "b", kSecond);
    if (g.tied) add(all.back(), "head", kHead);
    for (std::size_t s = 0; s < all.size(); ++s) {
      std::vector<int> ranks;
      for (int i = 0; i < lane_size; ++i) ranks.push_back(static_cast<int>(s) * lane_size + i);
      uses.push_back(uses_of(all[s], ranks));
    }
    options.zero = g.zero;
    for (const Tie& tie : find_ties(uses)) {
      if (tie.stages.size() > 1) options.tied.insert(tie.name);
    }
    stage = std::move(all[static_cast<std::size_t>(place)]);
    store = make_replicated_store(stage, comms, cpu_stream(), options);
    std::vector<ParameterStore*> stores(all.size(), nullptr);
    stores[static_cast<std::size_t>(place)] = store.get();
    ties = make_ties(world, uses, stores);
    placed = {{place, store.get(), degrees, coord}};
    for (ParamState& p : store->params()) {
      initialize(*p.spec, 11, p.owned_first, p.master);
      if (p.compute.data != p.master.data) ops::copy(cpu_stream(), p.compute, p.master);
    }
    store->weights_loaded();
    tp_trace.events.clear();
    data_trace.events.clear();
  }

  Tensor grad(std::size_t i) {
    const ParamState& p = store->params()[i];
    return store->unit(p.unit).grad(p.id).view;
  }
  /// A gradient that depends on what the layout leaves alone: the lane, the tp rank where it is partial, the use.
  void write_grads(int step) {
    store->begin_step();
    const auto params = store->params();
    for (std::size_t i = 0; i < params.size(); ++i) {
      const ParamSpec& spec = *params[i].spec;
      if (!spec.trainable) continue;
      const Tensor g = grad(i);
      const bool partial = !spec.partial_over.empty();
      const int use = params[i].unit == 2 || (place == 1 && params[i].unit == 0) ? 1 : 0;
      const int salt = 1000 * step + 100 * use + 10 * coord[plan::Axis::dp] + (partial ? coord[plan::Axis::tp] : 0);
      const std::int64_t width = g.numel() / g.rows();
      for (std::int64_t k = 0; k < g.numel(); ++k) {
        g.as<float>()[k] = static_cast<float>(number(spec.name, spec.box.offset[0] * width + k, salt));
      }
    }
  }
  void reduce() {
    store->complete_grads();
    for (int b = 0; b < store->num_buckets(); ++b) store->reduce(b);
    for (const TieGroup& tie : ties.groups) {
      if (!tie.uses.empty()) run_tie(tie, cpu_stream());
    }
  }

  Grid grid;
  int place = 0;
  plan::Coord degrees, coord;
  comm::CommTrace tp_trace, data_trace;
  std::unique_ptr<comm::Communicator> own_tp, own_data, tp, data;
  StoreComms comms;
  std::vector<StageUses> uses;
  Stage stage;
  std::unique_ptr<ParameterStore> store;
  Ties ties;
  std::vector<PlacedStore> placed;
};

/// What is in the whole tensors after some steps, put together from every rank's parts.
struct Whole {
  std::map<std::string, std::vector<float>> masters, computes;
  std::vector<double> norms;
  std::int64_t updates = 0;
};

void put(std::map<std::string, std::vector<float>>& into, const PlacedParam& p, const Tensor& part, bool whole_box) {
  const ParamSpec& spec = *p.state->spec;
  std::int64_t n = 1, width = 1;
  for (const std::int64_t d : spec.shape) n *= d;
  for (std::size_t d = 1; d < spec.shape.size(); ++d) width *= spec.shape[d];
  std::vector<float>& all = into[p.name];
  all.resize(static_cast<std::size_t>(n));
  const std::int64_t first = spec.box.offset[0] * width + (whole_box ? 0 : p.state->owned_first);
  for (std::int64_t k = 0; k < part.numel(); ++k) {
    all[static_cast<std::size_t>(first + k)] =
        part.dtype == DType::bf16 ? static_cast<float>(part.as<bf16>()[k]) : part.as<float>()[k];
  }
}

void collect(StoreRank& rank, Whole& whole) {
  for (const PlacedParam& p : placed_params(rank.placed, rank.uses, false)) {
    put(whole.masters, p, p.state->master, false);
    const Tensor w = rank.store->unit(p.state->unit).weight(p.state->id);
    put(whole.computes, p, w.reshape({w.numel()}), true);
  }
}

void put_moments(StoreRank& rank, const Optimizer& optimizer, std::map<std::string, std::vector<float>>& into) {
  const std::vector<PlacedParam> trained = placed_params(rank.placed, rank.uses, true);
  for (std::size_t i = 0; i < trained.size(); ++i) {
    PlacedParam p = trained[i];
    for (int k = 0; k < 2; ++k) {
      p.name = trained[i].name + (k == 0 ? " m" : " v");
      put(into, p, k == 0 ? optimizer.first_moment(i) : optimizer.second_moment(i), false);
    }
  }
}

Optimizer make_optimizer(StoreRank& rank, comm::Communicator& world, double max_norm) {
  AdamwOptions o;
  o.max_grad_norm = max_norm;
  std::vector<OptimizedParam> params = optimized_params(rank.placed, rank.uses);
  for (OptimizedParam& p : params) p.weight_decay *= 0.1;
  return Optimizer(std::move(params), o, &world, cpu_stream());
}

constexpr auto kAllActive = [](const std::string&) { return true; };

void step(StoreRank& rank, Optimizer& optimizer, int number, Whole* whole) {
  rank.write_grads(number);
  rank.reduce();
  const auto result = optimizer.step(1e-2, kAllActive);
  rank.store->weights_changed();
  MMT_CHECK(result.finite, "{}", result.culprit);
  if (whole != nullptr) whole->norms.push_back(result.grad_norm);
}

Whole train(const Grid& grid, int steps, double max_norm) {
  Whole whole;
  std::mutex lock;
  comm::run_threads(grid.ranks(), [&](comm::Communicator& world) {
    StoreRank rank(grid, world);
    Optimizer optimizer = make_optimizer(rank, world, max_norm);
    for (int s = 1; s <= steps; ++s) step(rank, optimizer, s, world.rank() == 0 ? &whole : nullptr);
    check_copies(*rank.store, rank.comms, cpu_stream());
    check_ties(rank.ties.groups, cpu_stream());
    const std::lock_guard guard(lock);
    collect(rank, whole);
  });
  return whole;
}

float largest_difference(const Whole& a, const Whole& b) {
  float worst = 0;
  for (const auto& [name, values] : b.masters) {
    for (std::size_t i = 0; i < values.size(); ++i)
      worst = std::max(worst, std::abs(values[i] - a.masters.at(name)[i]));
  }
  return worst;
}

}  // namespace

TEST_CASE("gradients are summed over partial groups and lanes and nothing else") {
  comm::run_threads(8, [](comm::Communicator& world) {
    const Grid grid{.tp = 4, .dp = 2};
    StoreRank rank(grid, world);
    rank.write_grads(1);
    std::vector<std::vector<float>> expected;
    const auto params = rank.store->params();
    for (const ParamState& p : params) {
      const ParamSpec& spec = *p.spec;
      std::vector<float>& want = expected.emplace_back();
      if (!spec.trainable) continue;
      const int me = rank.coord[plan::Axis::tp];
      const int group = spec.partial_over.empty() ? 1 : spec.partial_over[0].size == 0 ? 4 : spec.partial_over[0].size;
      const std::int64_t width = p.owned_count / spec.box.shape[0];
      for (std::int64_t k = 0; k < p.owned_count; ++k) {
        float sum = 0;
        for (int lane = 0; lane < 2; ++lane) {
          float own = 0;
          for (int t = 0; t < group; ++t) {
            const int salt = 1000 + 10 * lane + (group > 1 ? me / group * group + t : 0);
            const auto v = static_cast<float>(number(spec.name, spec.box.offset[0] * width + k, salt));
            own = t == 0 ? v : own + v;
          }
          sum = lane == 0 ? own : sum + own;
        }
        want.push_back(sum);
      }
    }
    rank.reduce();
    std::int64_t partial = 0, all = 0;
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (!params[i].spec->trainable) {
        MMT_CHECK(!params[i].grad.defined(), "a gradient of the frozen {}", params[i].spec->name);
        continue;
      }
      const std::int64_t bytes = (params[i].owned_count + 15) / 16 * 64;
      all += bytes;
      if (!params[i].spec->partial_over.empty()) partial += bytes;
      MMT_CHECK(std::memcmp(params[i].grad.data, expected[i].data(), expected[i].size() * 4) == 0, "{} on rank {}",
                params[i].spec->name, world.rank());
    }
    // One bucket for each of: not partial, pairs, all of tp. The pairs have a communicator split from the trace.
    MMT_CHECK(rank.store->num_buckets() == 3, "{} buckets", rank.store->num_buckets());
    MMT_CHECK(rank.data_trace.events.size() == 3 && rank.data_trace.bytes("all_reduce") == all, "{} bytes over data",
              rank.data_trace.bytes("all_reduce"));
    MMT_CHECK(rank.tp_trace.events.size() == 2 && rank.tp_trace.bytes("all_reduce") == partial, "{} bytes over tp",
              rank.tp_trace.bytes("all_reduce"));
  });
}

TEST_CASE("the gradient norm counts every element once in any grid") {
  // Gradients of partial parameters differ by grid, so the norm is that of the reduced gradients, each element once.
  for (const Grid grid :
       {Grid{.tp = 4, .dp = 2}, Grid{.tp = 4, .dp = 2, .zero = 1}, Grid{.tp = 2, .dp = 2, .tied = true},
        Grid{.tp = 1, .dp = 2, .zero = 1, .tied = true, .spread = true},
        Grid{.tp = 2, .dp = 2, .tied = true, .spread = true}}) {
    for (const bool wrong : {false, true}) {
      std::map<std::string, std::vector<float>> grads;
      std::mutex lock;
      double norm = 0;
      comm::run_threads(grid.ranks(), [&](comm::Communicator& world) {
        StoreRank rank(grid, world);
        rank.write_grads(1);
        rank.reduce();
        std::vector<OptimizedParam> params = optimized_params(rank.placed, rank.uses);
        for (OptimizedParam& p : params) {
          if (wrong) p.replica = 0, p.num_replicas = 1;  // copies and further uses count again
        }
        Optimizer optimizer(std::move(params), {}, &world, cpu_stream());
        const auto result = optimizer.step(1e-3, kAllActive);
        const std::lock_guard guard(lock);
        norm = result.grad_norm;
        for (const PlacedParam& p : placed_params(rank.placed, rank.uses, true)) put(grads, p, p.state->grad, false);
      });
      double square = 0;
      for (const auto& [name, g] : grads) {
        for (const float v : g) square += static_cast<double>(v) * static_cast<double>(v);
      }
      INFO(grid.tp << " x " << grid.dp << " zero " << grid.zero << " spread " << grid.spread);
      const bool equal = std::abs(norm / std::sqrt(square) - 1) < 1e-12;
      CHECK(equal != wrong);
    }
  }
}

TEST_CASE("ZeRO-1 has the bits of ZeRO-0 without clipping and rounds with it") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (Grid grid :
         {Grid{.dp = 2}, Grid{.dp = 3, .tied = true}, Grid{.tp = 2, .dp = 2}, Grid{.tp = 4, .dp = 2, .tied = true},
          Grid{.dp = 3, .tied = true, .spread = true}, Grid{.tp = 2, .dp = 2, .tied = true, .spread = true}}) {
      grid.dtype = dtype;
      INFO(name_of(dtype) << " " << grid.tp << " x " << grid.dp << " spread " << grid.spread);
      const Whole base = train(grid, 3, 0), clipped = train(grid, 3, 0.5);
      grid.zero = 1;
      const Whole sharded = train(grid, 3, 0), sharded_clipped = train(grid, 3, 0.5);
      CHECK(sharded.masters == base.masters);
      CHECK(sharded.computes == base.computes);
      for (std::size_t s = 0; s < 3; ++s) {
        CHECK(sharded.norms[s] == Approx(base.norms[s]).epsilon(1e-12));
        CHECK(base.norms[s] > 0.5);  // so the clip is at work
      }
      // The clip differs in the last bit of a double: an update of 1e-2 moves by a few of its f32 roundings.
      CHECK(largest_difference(sharded_clipped, clipped) < 1e-6F);
      CHECK(largest_difference(clipped, base) > 0.0F);
    }
  }
}

TEST_CASE("ZeRO-1 moves and keeps what it should") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int dp : {2, 3}) {
      comm::run_threads(dp, [&](comm::Communicator& world) {
        StoreRank rank({.dp = dp, .dtype = dtype, .zero = 1, .tied = true}, world);
        Optimizer optimizer = make_optimizer(rank, world, 0);
        step(rank, optimizer, 1, nullptr);
        // Whole gradients go in, compute weights come out; the second use of the tied table has no weights of its own.
        const std::int64_t line = dtype == DType::bf16 ? 32 : 16, unit = line * dp;
        const auto bucket = [&](std::initializer_list<std::int64_t> counts) {
          std::int64_t sum = 0;
          for (const std::int64_t n : counts) sum += (n + line - 1) / line * line;
          return (sum + unit - 1) / unit * unit;
        };
        // Tied uses are alone; the others in backward order: head norm, q, k, bias, norm, a bucket of 1024 bytes full
        // with k.
        const std::int64_t tied = bucket({180});
        std::int64_t own = bucket({9, 168, 40, 3}) + bucket({33});
        if (dtype == DType::bf16) own = bucket({9, 168, 40}) + bucket({3, 33});
        MMT_CHECK(rank.data_trace.bytes("reduce_scatter") == 4 * (2 * tied + own), "{} bytes reduced, expected {}",
                  rank.data_trace.bytes("reduce_scatter"), 4 * (2 * tied + own));
        MMT_CHECK(rank.data_trace.bytes("all_gather") == size_of(dtype) * (tied + own), "{} bytes gathered, not {}",
                  rank.data_trace.bytes("all_gather"), size_of(dtype) * (tied + own));
        MMT_CHECK(rank.data_trace.bytes("all_reduce") == 0 && rank.tp_trace.events.empty(), "other messages");
        // Moments and f32 masters: one part of dp.
        std::int64_t moments = 0, masters = 0;
        for (std::size_t i = 0; i < optimizer.params().size(); ++i) {
          moments += optimizer.first_moment(i).numel();
          masters += optimizer.params()[i].master.numel();
        }
        MMT_CHECK(moments == masters && moments <= (tied + own) / dp, "{} of {}", moments, tied + own);
        std::int64_t sum = moments;
        world.all_reduce(Tensor(&sum, DType::i64, {1}), comm::ReduceOp::sum);
        MMT_CHECK(sum == 180 + 9 + 168 + 40 + 3 + 33, "{} elements are owned in all", sum);
      });
    }
  }
}

TEST_CASE("what is frozen has no gradient, no bucket, no message, no moments, and keeps its bits") {
  for (const int zero : {0, 1}) {
    const Grid grid{.tp = 2, .dp = 2, .zero = zero, .tied = true};
    const Whole before = train(grid, 0, 0), after = train(grid, 3, 0);
    CHECK(after.masters.at("llm/table") == before.masters.at("llm/table"));
    CHECK(after.computes.at("llm/table") == before.computes.at("llm/table"));
    CHECK(after.masters.at("llm/bias") != before.masters.at("llm/bias"));
    comm::run_threads(4, [&](comm::Communicator& world) {
      const Wanted frozen[] = {{"a", {40}, Kind::frozen}, {"b", {10, 3}, Kind::frozen}};
      const plan::Coord degrees{{2, 1, 2, 1}}, coord{{world.rank() % 2, 0, world.rank() / 2, 0}};
      Stage stage;
      stage.module = "llm";
      stage.units.push_back(std::make_unique<Holder>("frozen", frozen, degrees, coord, DType::f32));
      comm::CommTrace trace;
      const auto tp = world.split(world.rank() / 2, world.rank(), "tp");
      const auto data = world.split(world.rank() % 2, world.rank(), "data");
      const auto traced_tp = make_tracing(*tp, trace), traced_data = make_tracing(*data, trace);
      const auto store =
          make_replicated_store(stage, StoreComms(traced_data.get(), traced_tp.get()), cpu_stream(), {.zero = zero});
      store->begin_step();
      store->complete_grads();
      store->weights_changed();
      MMT_CHECK(store->num_buckets() == 0 && trace.events.empty(), "{} buckets, {} messages", store->num_buckets(),
                trace.events.size());
      // In bf16 there is no f32 copy of it, and fresh values are the rounded ones of f32.
      Stage half;
      half.module = "llm";
      half.units.push_back(std::make_unique<Holder>("frozen", frozen, degrees, coord, DType::bf16));
      const auto rounded = make_replicated_store(half, nullptr, cpu_stream());
      for (std::size_t i = 0; i < rounded->params().size(); ++i) {
        const ParamState &p = rounded->params()[i], &exact = store->params()[i];
        initialize(*p.spec, 3, 0, p.master);
        initialize(*exact.spec, 3, 0, exact.master);
        MMT_CHECK(p.master.data == p.compute.data && p.master.dtype == DType::bf16, "{}", p.master.describe());
        for (std::int64_t k = 0; k < p.owned_count; ++k)
          MMT_CHECK(p.master.as<bf16>()[k].bits == bf16(exact.master.as<float>()[k]).bits, "element {}", k);
      }
      const PlacedStore placed{0, store.get(), degrees, coord};
      MMT_CHECK(optimized_params(std::span(&placed, 1), {}).empty(), "the optimizer has something to do");
      for (const ParamState& p : store->params()) MMT_CHECK(!p.grad.defined(), "{} has a gradient", p.spec->name);
    });
  }
}

TEST_CASE("copies that drift apart are named with their ranks") {
  const auto drift = [](int bad_rank, const std::string& parameter, int zero) {
    return message_of([&] {
      comm::run_threads(8, [&](comm::Communicator& world) {
        StoreRank rank({.tp = 4, .dp = 2, .zero = zero}, world);
        for (const ParamState& p : rank.store->params()) {
          if (world.rank() != bad_rank || p.spec->name != parameter) continue;
          const Tensor w = rank.store->unit(p.unit).weight(p.id);
          w.as<float>()[w.numel() - 1] += 0.25F;
        }
        check_copies(*rank.store, rank.comms, cpu_stream());
      });
    });
  };
  CHECK(drift(-1, "", 0) == "");
  CHECK(drift(-1, "", 1) == "");
  // tp rank 3 of lane 0: another lane differs first.
  CHECK(drift(3, "norm.weight", 0).find("data: llm/norm.weight differs between rank 0 and rank 1") !=
        std::string::npos);
  CHECK(drift(7, "q.weight", 1).find("data: llm/q.weight differs between rank 0 and rank 1") != std::string::npos);
  // Both lanes alike, so that only the tp ranks differ: the pair 2, 3 holds the same rows.
  const auto both = [](const std::string& parameter) {
    return message_of([&] {
      comm::run_threads(8, [&](comm::Communicator& world) {
        StoreRank rank({.tp = 4, .dp = 2}, world);
        for (const ParamState& p : rank.store->params()) {
          if (world.rank() % 4 == 3 && p.spec->name == parameter) p.master.as<float>()[0] += 0.25F;
        }
        check_copies(*rank.store, rank.comms, cpu_stream());
      });
    });
  };
  CHECK(both("k.weight").find("tp: llm/k.weight differs between rank 2 and rank 3") != std::string::npos);
  CHECK(both("bias").find("tp: llm/bias differs between rank 0 and rank 3") != std::string::npos);
  CHECK(both("q.weight") == "");  // every rank has rows of its own
  CHECK(both("table") == "");     // frozen
}

TEST_CASE("uses of a tied parameter that drift apart are named") {
  const std::string text = message_of([] {
    comm::run_threads(4, [](comm::Communicator& world) {
      StoreRank rank({.dp = 2, .tied = true, .spread = true}, world);
      check_ties(rank.ties.groups, cpu_stream());
      if (world.rank() == 3) rank.store->params()[0].master.as<float>()[5] += 0.5F;
      check_ties(rank.ties.groups, cpu_stream());
    });
  });
  CHECK(text.find("tie of llm/embed.weight: llm/embed.weight differs between rank 0 and rank 1") != std::string::npos);
}

TEST_CASE("stages of a tied parameter must have as many ranks each") {
  const std::vector<StageUses> uses = {{{0, 1}, {{"llm/e", true}}}, {{2}, {{"llm/e", true}}}};
  const std::vector<ParameterStore*> stores(2, nullptr);
  CHECK(message_of([&] {
          comm::run_threads(3, [&](comm::Communicator& world) { make_ties(world, uses, stores); });
        }).find("llm/e: stages 0 and 1 of one module run on 2 and 1 ranks") != std::string::npos);
}

TEST_CASE("a parameter that is whole on every tp rank must say so") {
  const std::string text = message_of([] {
    comm::run_threads(1, [](comm::Communicator& world) {
      StoreRank rank({}, world);
      copies_of(*rank.store, rank.store->params()[0], plan::Coord{{2, 1, 1, 1}}, plan::Coord{});
    });
  });
  CHECK(text.find("llm/embed.weight is whole on each of 2 tensor-parallel ranks and does not say so") !=
        std::string::npos);
}

TEST_CASE("a checkpoint of any store and grid continues in any other") {
  const test::TempFolder folder;
  const std::vector<Grid> grids = {{.dp = 3, .zero = 1, .tied = true},
                                   {.dp = 1, .tied = true},
                                   {.tp = 4, .dp = 2, .zero = 1, .tied = true},
                                   {.tp = 2, .dp = 1, .tied = true, .spread = true},
                                   {.dp = 2, .zero = 1, .tied = true, .spread = true},
                                   {.dp = 2, .tied = true, .spread = true}};
  for (std::size_t from = 0; from < grids.size(); ++from) {
    const std::string path = folder / std::to_string(from);
    Whole saved;
    std::map<std::string, std::vector<float>> moments;
    std::mutex lock;
    comm::run_threads(grids[from].ranks(), [&](comm::Communicator& world) {
      StoreRank rank(grids[from], world);
      Optimizer optimizer = make_optimizer(rank, world, 0);
      for (int s = 1; s <= 2; ++s) step(rank, optimizer, s, nullptr);
      CheckpointOptions options;
      options.folder = path;
      CheckpointWriter writer(world, options);
      TrainingState state;
      state.step = 2;
      state.updates = optimizer.updates();
      writer.save(saved_parts(rank.placed, rank.uses, &optimizer), state);
      const std::lock_guard guard(lock);
      collect(rank, saved);
      put_moments(rank, optimizer, moments);
    });
    for (const Grid& to : grids) {
      Whole loaded;
      std::map<std::string, std::vector<float>> again;
      comm::run_threads(to.ranks(), [&](comm::Communicator& world) {
        StoreRank rank(to, world);
        Optimizer optimizer = make_optimizer(rank, world, 0);
        for (ParamState& p : rank.store->params()) ops::fill(cpu_stream(), p.master, 7.0);
        const CheckpointReader reader(*find_checkpoint(world, path));
        const std::vector<SavedPart> all = saved_parts(rank.placed, rank.uses, &optimizer);
        const std::vector<TensorPart> parts(all.begin(), all.end());
        load_checkpoint(world, reader, parts);
        for (ParamState& p : rank.store->params()) {
          if (p.compute.data != p.master.data) ops::copy(cpu_stream(), p.compute, p.master);
        }
        rank.store->weights_loaded();
        const std::lock_guard guard(lock);
        collect(rank, loaded);
        put_moments(rank, optimizer, again);
      });
      INFO("from " << from << " to dp " << to.dp << " zero " << to.zero << " spread " << to.spread);
      CHECK(loaded.masters == saved.masters);
      CHECK(loaded.computes == saved.computes);
      CHECK(again == moments);
      CHECK(again.count("llm/table v") == 0);
    }
  }
}
