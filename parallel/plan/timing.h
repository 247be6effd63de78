// From FLOPs and bytes of a layer to time and memory of a block: analytic rates, overridden by measured times.
#pragma once

#include "parallel/plan/cost.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::plan {

using Ns = std::int64_t;  ///< nanoseconds

/// Time of one layer or stage for one block.
struct LayerTime {
  Ns forward = 0;
  Ns backward_input = 0;
  Ns backward_weight = 0;
  Ns recompute = 0;  ///< inside the backward (or an action R): 0 where nothing is recomputed or no backward runs

  Ns backward() const { return backward_input + backward_weight + recompute; }
  Ns total() const { return forward + backward(); }  ///< T = F + Bd + Bw + [recomputed and any backward] F
  LayerTime& operator+=(const LayerTime& o);
  friend bool operator==(const LayerTime&, const LayerTime&) = default;
};

/// Nanoseconds per 10^9 FLOPs, by what is computed.
struct CostRates {
  Ns forward = 0;
  Ns backward_input = 0;
  Ns backward_weight = 0;
};

/// FLOPs of one layer for one block.
struct LayerFlops {
  std::int64_t forward = 0;
  std::int64_t backward_input = 0;
  std::int64_t backward_weight = 0;
};
LayerFlops flops_of(const LayerCost& cost, const BlockSize& size);

/// One measurement of a kind of layer: a row of the cost file that `mmtrain profile` writes.
struct MeasuredLayer {
  std::string kind;
  LayerFlops flops;  ///< at the size that was measured, under the pattern that was measured
  LayerTime time;    ///< `recompute` as if it were recomputed
};

/// Bytes of one layer on one rank, after tensor parallelism and sharding (ZeRO).
struct LayerMemory {
  std::int64_t parameters = 0;  ///< as computed with
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;  ///< moments
  std::int64_t master = 0;     ///< f32 copies of parameters that are computed with in bf16
  Linear kept;                 ///< a block, F (or R) .. BI
  Linear held;                 ///< a block, F (or R) .. BW
  Linear stash;                ///< a block, BI .. BW
  Linear input;                ///< a block, F .. backward: all that survives the forward under recompute
  Linear scratch;              ///< within one call
  std::int64_t fixed() const { return parameters + gradients + optimizer + master; }
};

/// What planning knows of a layer. `cost` and `memory` are what its frozen pattern needs (frozen.h; models/ give them).
struct LayerInfo {
  std::string module;
  std::string name;  ///< "llm.layers.3"
  std::string kind;  ///< layers of one kind share measurements: "llama layer"
  LayerCost cost;
  LayerMemory memory;
  bool backward = false;   ///< anything to compute in BI or BW; then a gradient of its output comes back, too
  bool trains = false;     ///< anything to compute in BW
  bool recompute = false;  ///< full: everything but its input is computed again in the backward
  Linear out_bytes;        ///< of its output, as it crosses a cut behind the layer
};

/// Costs of layers by rates, and by measurements where a layer's kind has some. With measurements, each of F, Bd, Bw is
/// read off the line through the two points around its FLOPs; below the smallest point in proportion to it, above the
/// largest along the last line. FLOPs 0 take no time.
class CostModel {
 public:
  CostModel() = default;
  explicit CostModel(CostRates rates, std::vector<MeasuredLayer> measured = {});

  LayerTime time_of(const LayerInfo& layer, const BlockSize& size) const;
  bool has_measured(std::string_view kind) const;

 private:
  struct Point {
    std::int64_t flops = 0;
    Ns time = 0;
  };
  struct Kind {
    std::string name;
    std::vector<Point> forward, backward_input, backward_weight, recompute;
  };
  const Kind* find(std::string_view kind) const;
  static Ns read(std::span<const Point> points, std::int64_t flops);

  CostRates rates_;
  std::vector<Kind> kinds_;  ///< by name
};

/// A transfer's price. `inline`: each end copies, and is busy meanwhile; `overlapped`: ranks go on, and the message
/// arrives later; messages of one channel follow each other.
struct Link {
  bool overlapped = false;
  Ns latency = 0;                 ///< overlapped: added to the way; inline: to each copy
  std::int64_t bytes_per_us = 0;  ///< MB/s; 0: any number of bytes at once
  Ns time(std::int64_t bytes) const;
  friend bool operator==(const Link&, const Link&) = default;
};

/// "812 ms", "1.24 s"; "2.0 GiB".
std::string duration_text(Ns time);
std::string bytes_text(std::int64_t bytes);

}  // namespace mmt::plan
