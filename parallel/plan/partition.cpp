#include "parallel/plan/partition.h"

#include "core/at.h"
#include "core/error.h"

#include <algorithm>
#include <utility>

namespace mmt::plan {
PlannedLayer planned(const LayerInfo& layer, const CostModel& model, const BlockSize& size) {
  PlannedLayer p;
  p.module = layer.module;
  p.name = layer.name;
  p.time = model.time_of(layer, size);
  p.backward = layer.backward;
  p.trains = layer.trains;
  p.parameters = layer.memory.parameters;
  p.fixed_bytes = layer.memory.fixed();
  p.out_bytes = layer.out_bytes(size);
  p.work = layer.memory.scratch(size);
  if (!layer.backward) return p;
  p.grad_bytes = p.out_bytes;
  p.kept = layer.memory.kept(size);
  p.held = layer.memory.held(size);
  p.stash = layer.memory.stash(size);
  if (layer.recompute) {
    p.work += p.kept + p.held;
    p.kept = 0;
    p.held = layer.memory.input(size);
  }
  return p;
}

int InFlight::at(int distance) const {
  return static_cast<int>(std::min<std::int64_t>(num_blocks, static_cast<std::int64_t>(per_place) * distance + extra));
}

/// Everything about segments [i, j) of the chain, and the dynamic programs over them.
struct Partition::Tables {
  const Chain& chain;
  CutOptions options;
  int n = 0;
  std::vector<std::int64_t> weight, compute, step, fixed, block, backward;  ///< prefix sums
  /// By (i, j), rows of n + 1: the most blocks in flight that the memory allows; -1: none, kAny: forward only.
  std::vector<std::int32_t> room;
  static constexpr std::int32_t kAny = std::numeric_limits<std::int32_t>::max();

  Tables(const Chain& c, CutOptions o) : chain(c), options(std::move(o)), n(static_cast<int>(c.layers.size())) {
    const auto sums = [&](const auto& value) {
      std::vector<std::int64_t> prefix{0};
      for (const PlannedLayer& l : chain.layers) prefix.push_back(prefix.back() + value(l));
      return prefix;
    };
    compute = sums([](const PlannedLayer& l) { return l.time.total(); });
    step = sums([](const PlannedLayer& l) { return l.step; });
    fixed = sums([](const PlannedLayer& l) { return l.fixed_bytes; });
    block = sums([](const PlannedLayer& l) { return l.kept + l.held; });
    backward = sums([](const PlannedLayer& l) { return l.backward ? 1 : 0; });
    weight = options.by == CutBy::time         ? compute
             : options.by == CutBy::parameters ? sums([](const PlannedLayer& l) { return l.parameters; })
                                               : sums([](const PlannedLayer& l) { return l.time.forward; });
    MMT_CHECK(options.in_flight.num_blocks > 0, "a step of {} blocks", options.in_flight.num_blocks);
    for (const Join& join : chain.joins) {
      MMT_CHECK(join.from >= -1 && join.from < n && join.to >= -1 && join.to < n &&
                    (join.from < join.to || join.from < 0 || join.to < 0),
                "a join from layer {} to layer {} of {}", join.from, join.to, n);
    }
    if (options.memory > 0) make_room();
  }

  /// Whether a place may begin with layer i.
  bool may_begin(int i) const { return i == n || !chain.layers[at(i)].with_previous; }
  int most_places() const {
    int most = 0;
    for (int i = 0; i < n; ++i) most += i == 0 || may_begin(i) ? 1 : 0;
    return most;
  }
  bool linked(int i) const {  // layer i - 1 feeds layer i
    return i > 0 && i < n && chain.layers[at(i)].module == chain.layers[at(i - 1)].module;
  }
  /// Calls `in(bytes, grad_bytes)` for what enters [i, j) and `out` for what leaves it.
  template <class In, class Out> void borders(int i, int j, const In& in, const Out& out) const {
    if (linked(i)) in(chain.layers[at(i - 1)].out_bytes, chain.layers[at(i - 1)].grad_bytes);
    if (linked(j)) out(chain.layers[at(j - 1)].out_bytes, chain.layers[at(j - 1)].grad_bytes);
    for (const Join& join : chain.joins) {
      const bool from = join.from >= i && join.from < j, to = join.to >= i && join.to < j;
      if (to && !from) in(join.bytes, join.grad_bytes);
      if (from && !to) out(join.bytes, join.grad_bytes);
    }
  }
  std::int64_t ports(int i, int j) const {
    std::int64_t bytes = 0;
    const auto add = [&](std::int64_t rows, std::int64_t grads) { bytes += rows + grads; };
    borders(i, j, add, add);
    // A join within the place is a local copy from one stage's buffer to another's.
    for (const Join& join : chain.joins) {
      if (join.from >= i && join.from < j && join.to >= i && join.to < j) bytes += 2 * (join.bytes + join.grad_bytes);
    }
    return bytes;
  }
  std::int64_t entering(int i, int j) const {
    std::int64_t bytes = 0;
    borders(
        i, j, [&](std::int64_t rows, std::int64_t grads) { bytes += rows + grads; }, [](std::int64_t, std::int64_t) {});
    return bytes;
  }
  std::int64_t work(int i, int j) const {
    std::int64_t most = 0;
    for (int l = i; l < j; ++l) most = std::max(most, chain.layers[at(l)].work + chain.layers[at(l)].stash);
    return most;
  }
  bool forward_only(int i, int j) const { return backward[at(j)] == backward[at(i)]; }
  int in_flight(int i, int j, int distance) const { return forward_only(i, j) ? 0 : options.in_flight.at(distance); }
  std::int64_t activations(int i, int j, int distance) const {
    return (block[at(j)] - block[at(i)]) * in_flight(i, j, distance);
  }
  /// Port buffers: one a block in flight (or the one that passes), and one for what arrives meanwhile.
  int spare(int i, int j) const { return entering(i, j) > 0 ? 1 : 0; }
  std::int64_t memory(int i, int j, int distance) const {
    return fixed[at(j)] - fixed[at(i)] + work(i, j) + activations(i, j, distance) +
           ports(i, j) * (std::max(1, in_flight(i, j, distance)) + spare(i, j));
  }

  void make_room() {
    room.assign(at(n) * at(n + 1), -1);
    for (int i = 0; i < n; ++i) {
      std::int64_t most = 0;
      for (int j = i + 1; j <= n; ++j) {
        most = std::max(most, chain.layers[at(j - 1)].work + chain.layers[at(j - 1)].stash);
        const std::int64_t port = ports(i, j), per_block = block[at(j)] - block[at(i)] + port;
        const std::int64_t left = options.memory - (fixed[at(j)] - fixed[at(i)]) - most - port * spare(i, j);
        std::int32_t& r = room[at(i) * at(n + 1) + at(j)];
        if (forward_only(i, j)) {
          r = left >= port ? kAny : -1;
        } else if (left >= per_block) {
          r = per_block == 0 ? kAny : static_cast<std::int32_t>(std::min<std::int64_t>(left / per_block, kAny));
        }
      }
    }
  }
  bool fits(int i, int j, int blocks) const { return room.empty() || room[at(i) * at(n + 1) + at(j)] >= blocks; }

  const Link* link(int distance) const {
    if (options.links.empty()) return nullptr;
    return &options.links[std::min(at(std::max(distance, 0)), options.links.size() - 1)];
  }

  /// Times of the transfers of places with a given number of places behind them.
  struct Transfers {
    std::vector<Ns> enter, leave;            ///< over inner links, by first layer and by end
    std::vector<Ns> join_enter, join_leave;  ///< by join
    bool enter_overlapped = false, leave_overlapped = false;
  };
  Transfers transfers_at(int distance) const {
    Transfers t;
    const Link *in = link(distance), *out = link(distance - 1);
    if (in == nullptr) return t;
    t.enter_overlapped = in->overlapped;
    t.leave_overlapped = out->overlapped;
    const auto time = [](const Link& l, std::int64_t rows, std::int64_t grads) {
      return (rows > 0 ? l.time(rows) : 0) + (grads > 0 ? l.time(grads) : 0);
    };
    for (int i = 0; i <= n; ++i) {
      const PlannedLayer* l = linked(i) ? &chain.layers[at(i - 1)] : nullptr;
      t.enter.push_back(l == nullptr ? 0 : time(*in, l->out_bytes, l->grad_bytes));
      t.leave.push_back(l == nullptr ? 0 : time(*out, l->out_bytes, l->grad_bytes));
    }
    for (const Join& j : chain.joins) {
      t.join_enter.push_back(time(*in, j.bytes, j.grad_bytes));
      t.join_leave.push_back(time(*out, j.bytes, j.grad_bytes));
    }
    return t;
  }
  /// Inline and overlapped time of the transfers of [i, j).
  std::pair<Ns, Ns> transfer(int i, int j, const Transfers& t) const {
    if (t.enter.empty()) return {0, 0};
    Ns in = t.enter[at(i)], out = t.leave[at(j)];
    for (std::size_t k = 0; k < chain.joins.size(); ++k) {
      const bool from = chain.joins[k].from >= i && chain.joins[k].from < j,
                 to = chain.joins[k].to >= i && chain.joins[k].to < j;
      if (to && !from) in += t.join_enter[k];
      if (from && !to) out += t.join_leave[k];
    }
    return {(t.enter_overlapped ? 0 : in) + (t.leave_overlapped ? 0 : out),
            (t.enter_overlapped ? in : 0) + (t.leave_overlapped ? out : 0)};
  }
  /// What the cut goes by.
  Ns price(int i, int j, const Transfers& t) const {
    if (options.by != CutBy::time) return weight[at(j)] - weight[at(i)];
    return time(i, j, transfer(i, j, t));
  }
  Ns time(int i, int j, std::pair<Ns, Ns> transfers) const {
    const Ns own = compute[at(j)] - compute[at(i)] + (step[at(j)] - step[at(i)]) / options.in_flight.num_blocks;
    return std::max(own + transfers.first, transfers.second);
  }

  /// best[k][i] over k = 1 .. most and i: the least over cuts of [i, n) into k of combine(value of the first place,
  /// best of the rest), among places that `allowed` permits. Value and allowed see (i, j, distance, transfers).
  template <class Value, class Combine, class Allowed>
  std::vector<std::vector<std::int64_t>> solve(int most, int behind, const Value& value, const Combine& combine,
                                               const Allowed& allowed) const {
    std::vector<std::vector<std::int64_t>> best(at(most + 1), std::vector<std::int64_t>(at(n + 1), kNoCut));
    for (int k = 1; k <= most; ++k) {
      const int distance = k - 1 + behind;
      const Transfers t = transfers_at(distance);
      for (int i = 0; i + k <= n; ++i) {
        std::int64_t& least = best[at(k)][at(i)];
        const int last = k == 1 ? n : n - k + 1;
        for (int j = k == 1 ? n : i + 1; j <= last; ++j) {
          const std::int64_t rest = k == 1 ? 0 : best[at(k - 1)][at(j)];
          if (rest == kNoCut || !may_begin(j) || !allowed(i, j, distance, t)) continue;
          least = std::min(least, combine(value(i, j, distance, t), rest));
        }
      }
    }
    return best;
  }
  bool in_memory(int i, int j, int distance) const { return room.empty() || fits(i, j, in_flight(i, j, distance)); }
  static std::int64_t larger(std::int64_t a, std::int64_t b) { return std::max(a, b); }
  std::vector<std::vector<std::int64_t>> bottlenecks(int most, int behind) const {
    return solve(
        most, behind, [&](int i, int j, int, const Transfers& t) { return price(i, j, t); }, larger,
        [&](int i, int j, int distance, const Transfers&) { return in_memory(i, j, distance); });
  }

  Cut cost(std::span<const int> first, int behind) const {
    Cut cut;
    for (std::size_t p = 0; p < first.size(); ++p) {
      const int i = first[p], j = p + 1 < first.size() ? first[p + 1] : n;
      MMT_CHECK(i < j && j <= n && (p > 0 || i == 0), "place {} of a cut has layers [{}, {}) of {}", p, i, j, n);
      const int distance = static_cast<int>(first.size() - p) - 1 + behind;
      PlaceCost place;
      place.first = i;
      place.count = j - i;
      place.compute = compute[at(j)] - compute[at(i)];
      place.step = step[at(j)] - step[at(i)];
      const auto transfers = transfer(i, j, transfers_at(distance));
      place.transfer = transfers.first + transfers.second;
      place.time = time(i, j, transfers);
      place.in_flight = in_flight(i, j, distance);
      place.activations = activations(i, j, distance);
      place.memory = memory(i, j, distance);
      cut.bottleneck = std::max(cut.bottleneck, place.time);
      cut.activation_peak = std::max(cut.activation_peak, place.activations);
      cut.cut_bytes += entering(i, j);
      cut.places.push_back(place);
    }
    return cut;
  }

  [[noreturn]] void refuse(int places, int behind) const {
    const auto least = solve(
        places, behind, [&](int i, int j, int distance, const Transfers&) { return memory(i, j, distance); }, larger,
        [](int, int, int, const Transfers&) { return true; });
    throw ConfigError(fmt::format(
        "no cut of {} layers into {} stages fits {} a rank: the one that needs least takes {} on its fullest rank; "
        "more stages, recompute, or a smaller block would lower it",
        n, places, bytes_text(options.memory), bytes_text(least[at(places)][0])));
  }

  Cut best_cut(int places, int behind) const {
    if (const int most = most_places(); places < 1 || places > most) {
      throw ConfigError(fmt::format("{} layers cannot be cut into {} stages: 1 to {} are possible", n, places, most));
    }
    const Ns least = bottlenecks(places, behind)[at(places)][0];
    if (least == kNoCut) refuse(places, behind);
    const auto fast = [&](int i, int j, int distance, const Transfers& t) {
      return in_memory(i, j, distance) && price(i, j, t) <= least;
    };
    const std::int64_t peak = solve(
        places, behind, [&](int i, int j, int distance, const Transfers&) { return activations(i, j, distance); },
        larger, fast)[at(places)][0];
    const auto small = [&](int i, int j, int distance, const Transfers& t) {
      return fast(i, j, distance, t) && activations(i, j, distance) <= peak;
    };
    const auto bytes = solve(
        places, behind, [&](int i, int j, int, const Transfers&) { return entering(i, j); },
        [](std::int64_t a, std::int64_t b) { return a + b; }, small);
    std::vector<int> first{0};
    for (int k = places; k > 1; --k) {
      const int i = first.back(), distance = k - 1 + behind;
      const Transfers t = transfers_at(distance);
      for (int j = i + 1; j <= n - k + 1; ++j) {
        if (bytes[at(k - 1)][at(j)] == kNoCut || !may_begin(j) || !small(i, j, distance, t)) continue;
        if (entering(i, j) + bytes[at(k - 1)][at(j)] != bytes[at(k)][at(i)]) continue;
        first.push_back(j);
        break;
      }
    }
    return cost(first, behind);
  }
};

Partition::Partition(const Chain& chain, CutOptions options)
    : tables_(std::make_unique<const Tables>(chain, std::move(options))) {}
Partition::~Partition() = default;
Partition::Partition(Partition&&) noexcept = default;

std::vector<Ns> Partition::bottlenecks(int most, int places_behind) const {
  most = std::min(most, tables_->n);
  const auto best = tables_->bottlenecks(most, places_behind);
  std::vector<Ns> own;
  for (int k = 1; k <= most; ++k) own.push_back(best[at(k)][0]);
  return own;
}

Cut Partition::cut(int places, int places_behind) const { return tables_->best_cut(places, places_behind); }

Cut Partition::cost(std::span<const int> first, int places_behind) const {
  MMT_CHECK(!first.empty(), "a cut has places");
  return tables_->cost(first, places_behind);
}

bool Partition::depends_on_behind() const { return tables_->options.memory > 0 || tables_->options.links.size() > 1; }

Cut cut_chain(const Chain& chain, int places, const CutOptions& options) {
  return Partition(chain, options).cut(places, options.places_behind);
}

Cut cost_of_cut(const Chain& chain, std::span<const int> first, const CutOptions& options) {
  return Partition(chain, options).cost(first, options.places_behind);
}

}  // namespace mmt::plan
