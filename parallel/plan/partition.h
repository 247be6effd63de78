// Partition: layers to stages. A chain of layers is cut into consecutive places so that the slowest place is as fast as
// it can be, with memory as a hard limit; modules on ranks of their own share a budget of ranks so that the slowest
// place of all is.
//
// Exact dynamic programs over integers. With P = prefix sums of T (timing.h), k places from layer i on:
//   D[k][i] = min over j of max(time of [i, j), D[k-1][j])          O(k n^2)
// Among equal bottlenecks: the smaller peak of activations, then fewer bytes over the cuts, then shorter first places.
#pragma once

#include "parallel/plan/timing.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mmt::plan {

/// A layer with its costs for one block of its module.
struct PlannedLayer {
  std::string module;
  std::string name;
  LayerTime time;
  Ns step = 0;            ///< once a step: reduction of its gradients that nothing hides, and its update
  bool backward = false;  ///< a gradient of its output comes back, and costs and memory of its backward count
  bool trains = false;
  bool with_previous = false;                  ///< at the place of the layer before it: no cut between them
  std::int64_t parameters = 0;                 ///< bytes (or any other measure): what `CutBy::parameters` goes by
  std::int64_t fixed_bytes = 0;                ///< parameters, gradients, optimizer, master copies
  std::int64_t kept = 0, held = 0, stash = 0;  ///< a block; under recompute its input stands in `held`
  std::int64_t work = 0;                       ///< within a call, with what is computed again
  std::int64_t out_bytes = 0;
  std::int64_t grad_bytes = 0;  ///< of the gradient of its output
};
PlannedLayer planned(const LayerInfo& layer, const CostModel& model, const BlockSize& size);

/// Rows that leave a layer for one that is not the next of its module. -1: outside the chain.
struct Join {
  int from = -1;
  int to = -1;
  std::int64_t bytes = 0;
  std::int64_t grad_bytes = 0;
  bool needs_grad = false;  ///< a gradient returns
};

/// Layers in topological order. Neighbours of the same module feed each other; everything else is a join.
struct Chain {
  std::vector<PlannedLayer> layers;
  std::vector<Join> joins;
};

/// Blocks between their first forward and their last backward at a place with `distance` places behind it:
/// min(num_blocks, per_place * distance + extra). 1f1b as it stands; gpipe {0, num_blocks}; zero-bubble h2 {2, 1}.
struct InFlight {
  int per_place = 1;
  int extra = 1;
  int num_blocks = std::numeric_limits<int>::max();
  int at(int distance) const;
};

enum class CutBy : std::uint8_t {
  time,        ///< what each layer costs under its frozen pattern, transfers, and step / num_blocks
  parameters,  ///< baseline
  forward,     ///< baseline: forward time, as one does who ignores what is frozen
};

struct CutOptions {
  CutBy by = CutBy::time;
  std::int64_t memory = 0;  ///< bytes a rank may hold; 0: any
  InFlight in_flight{};
  int places_behind = 0;  ///< of other modules, behind the chain's last one
  /// Between a place and the one before it, by the places behind the former; the last entry goes on. Empty: transfers
  /// are free. A place pays for what it sends and receives: inline on top of its time, overlapped where that is longer.
  std::vector<Link> links{};
};

struct PlaceCost {
  int first = 0, count = 0;  ///< layers
  Ns compute = 0;
  Ns transfer = 0;
  Ns step = 0;  ///< once a step
  Ns time = 0;  ///< of a block, forward and backward, with its share of what runs once a step
  int in_flight = 0;
  std::int64_t activations = 0;  ///< of all blocks in flight
  std::int64_t memory = 0;       ///< with everything
};

struct Cut {
  std::vector<PlaceCost> places;
  Ns bottleneck = 0;  ///< the longest time of a place, whatever the cut went by
  std::int64_t activation_peak = 0;
  std::int64_t cut_bytes = 0;  ///< over all cuts, both directions, a block
};

inline constexpr Ns kNoCut = std::numeric_limits<Ns>::max();

/// Cuts of one chain. Makes its tables once; the chain must outlive it.
class Partition {
 public:
  /// Throws std::logic_error for joins that are not between layers.
  Partition(const Chain& chain, CutOptions options);
  ~Partition();
  Partition(Partition&&) noexcept;

  /// By number of places less one, up to `most` (and the number of layers): the least bottleneck; kNoCut where none
  /// fits the memory.
  std::vector<Ns> bottlenecks(int most, int places_behind) const;
  /// The best cut into `places`. Throws ConfigError with the numbers when fewer layers can begin a place, or when no
  /// cut fits the memory (what the best one would need).
  Cut cut(int places, int places_behind) const;
  /// What a given cut costs, whether it fits or not: first layers of the places, the first one 0.
  Cut cost(std::span<const int> first, int places_behind) const;
  /// Whether bottlenecks() depends on `places_behind`.
  bool depends_on_behind() const;

 private:
  struct Tables;
  std::unique_ptr<const Tables> tables_;
};

/// Partition(chain, options).cut(places, options.places_behind).
Cut cut_chain(const Chain& chain, int places, const CutOptions& options = {});
/// Partition(chain, options).cost(first, options.places_behind).
Cut cost_of_cut(const Chain& chain, std::span<const int> first, const CutOptions& options = {});

}  // namespace mmt::plan
