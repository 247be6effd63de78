// The stage contract: all that a model shows to the runtime, and all that it sees of it.
//
// A *stage* is a run of consecutive layers of one module on one rank; a *unit* is one layer of it (embedding with the
// port writes, one transformer block, head). The runtime walks units: gather weights, compute, reduce, release.
//
// A unit is made once, from a UnitPlanner, in which its constructor declares everything that must be known before the
// run: parameters, ports, saved tensors, scratch, inner collectives, cost. After that a unit is immutable: it owns no
// tensors, and every call gets what it works on:
//   forward          fills `out` and what the plan declared as kept or held
//   backward_input   reads d_out and Saved; writes d_in of the ports that need it, and the stash
//   backward_weight  reads Saved only (any time after backward_input); writes parameter gradients
//   recompute        fills kept and held again from the unit's inputs (full recompute)
//   recompute_cheap  fills those kept and held tensors again that are cheap, from the others (selective recompute)
// The head of a sink has no d_out: its forward also computes its parameter gradients and what backward_input scatters.
#pragma once

#include "core/arena.h"
#include "core/mask/tiles.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/gemm.h"
#include "parallel/comm/communicator.h"
#include "parallel/plan/cost.h"
#include "parallel/plan/mesh.h"
#include "parallel/plan/rows.h"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mmt::run {

using plan::Axis;

// ---------------------------------------------------------------------------------------------------------------- plan

/// What the number of rows of a tensor is: a size of the block, or of one of its ports. With `parts` above 1, this
/// rank's even share of it: under sequence parallelism, where tp divides a block's rows.
struct RowCount {
  enum Of : std::uint8_t { one, rows, supervised, source, out, port } of = rows;
  int parts = 1;
  constexpr RowCount(Of what = rows, int shares = 1) : of(what), parts(shares) {}
  constexpr operator Of() const { return of; }
};

/// How long a tensor must live. A tensor that no backward reads is `scratch`, never more (frozen-aware saving).
enum class Life : std::uint8_t {
  scratch,  ///< within one F or R: the caller takes it for the call, as it does the longer-lived ones
  kept,     ///< F (or R) .. BI
  held,     ///< F (or R) .. BW: inputs of trainable products
  stash,    ///< BI .. BW: output gradients
};

using ParamId = int;  ///< within a unit
using SlotId = int;   ///< within a unit

/// How a fresh parameter starts; values are addressed by (seed, parameter name, global element index).
struct Init {
  enum class Kind : std::uint8_t { zeros, ones, normal, uniform, sinusoid } kind = Kind::normal;
  double scale = 0.02;  ///< standard deviation, or half width of the uniform range
};

/// Consecutive groups of `size` ranks along an axis; 0 means the whole axis.
struct AxisGroup {
  Axis axis = Axis::tp;
  int size = 0;
  friend bool operator==(const AxisGroup&, const AxisGroup&) = default;
};

/// A rank's box of a global tensor.
struct Box {
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> shape;
  friend bool operator==(const Box&, const Box&) = default;
};

/// `module` and `name` together are the canonical name (`eyes.projector` + `linear_1.weight`); patterns are searched in
/// `<module>/<name>`. Units that declare the same canonical name use one tied parameter: the first in graph order owns
/// init, optimizer state, norm and checkpoint; every use has an accumulator of its own.
struct ParamSpec {
  std::string module{};
  std::string name{};
  std::vector<std::int64_t> shape{};  ///< global
  Box box{};                          ///< this rank's part
  DType dtype = DType::f32;           ///< of the compute copy; the master is f32 (f64 for f64)
  Init init{};
  bool trainable = true;
  bool decay = true;  ///< weight decay applies (matrices; not norms and biases)
  /// Axes over which gradients are partial sums and must be added, besides the data axes (dp, cp), which always are.
  std::vector<AxisGroup> partial_over{};
  /// Axes over which the parameter is a copy with an already complete gradient.
  std::vector<AxisGroup> replica_over{};
  /// Products that read the whole box as a matrix w (first dim, the others): x w^T and dy w. A store may keep w packed
  /// for them where it is frozen (kernels/gemm.h).
  bool forward_product = false, input_product = false;
};
std::string canonical_name(const ParamSpec& spec);  ///< "<module>/<name>"

struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  RowCount count = RowCount::rows;
  std::int64_t cols = 0;
  Life life = Life::kept;
  /// Made from what else is kept without a product (a norm, an activation): selective recompute drops it after the
  /// forward and lets Unit::recompute_cheap make it again.
  bool cheap = false;
};
/// What a tensor takes of an arena at most, alignment and guard zone included.
plan::Linear arena_bytes(DType dtype, RowCount count, std::int64_t cols);

/// One named (rows, cols) tensor that enters or leaves a unit. The caller allocates it and its gradient.
struct PortPlan {
  std::string name = "x";
  std::int64_t cols = 0;
  DType dtype = DType::f32;
  RowCount count = RowCount::rows;
  bool needs_grad = false;         ///< input: backward_input writes d_in. Output: the consumer must return d_out
  Life keep = Life::scratch;       ///< input: how long the unit reads it (scratch: forward only, kept: BI, held: BW)
  Life keep_grad = Life::scratch;  ///< output: how long the unit reads d_out (scratch: BI only, stash: BW)
  /// Input: backward_input adds to d_in, which the caller zeroed or which other readers of the tensor wrote before.
  bool add_grad = false;
};

enum class Phase : std::uint8_t { forward, recompute, backward_input, backward_weight };
inline constexpr int kNumPhases = 4;

/// Why a unit is called: its collectives may differ.
enum class Purpose : std::uint8_t {
  train = 1,
  evaluate = 2,  ///< without Ctx::logits
  logits = 4,    ///< with it
};
inline constexpr std::uint8_t kAlways = 7;

/// One collective inside an action: planned once, executed in this order, compared in debug builds.
struct InnerEvent {
  enum class Op : std::uint8_t { all_reduce, reduce_scatter, all_gather } op = Op::all_reduce;
  Axis axis = Axis::tp;
  plan::Linear bytes;           ///< of the whole tensor (of all ranks' parts together where they hold parts)
  std::uint8_t when = kAlways;  ///< of Purpose
  /// Above 0: once for every chunk of so many supervised rows; neighbours of equal chunks take turns. `bytes` is by
  /// supervised rows alone.
  std::int64_t chunk = 0;
};

struct UnitPlan {
  std::string name;  ///< "llm.layers.3"
  std::vector<ParamSpec> params;
  std::vector<PortPlan> inputs;
  PortPlan output;  ///< cols == 0: a sink
  std::vector<TensorSpec> tensors;
  std::array<plan::Linear, kNumPhases> scratch;  ///< bytes taken from Ctx::scratch at most, by phase
  /// What kernels take on top, where only the backend knows: f(stream, phase, size, key rows).
  std::function<std::int64_t(const Stream&, Phase, const plan::BlockSize&, std::int64_t)> kernel_scratch;
  std::array<std::vector<InnerEvent>, kNumPhases> events;
  plan::LayerCost cost;
  int mask = -1;  ///< index into Rows::masks; -1: no attention

  bool has_output() const { return output.cols > 0; }
  bool trains() const;          ///< any trainable parameter
  bool needs_backward() const;  ///< trains, or an input needs its gradient
  /// The collectives of one call for a block of this size, chunks written out, as (op, axis, bytes).
  struct Collective {
    InnerEvent::Op op;
    Axis axis;
    std::int64_t bytes;
    friend bool operator==(const Collective&, const Collective&) = default;
  };
  std::vector<Collective> collectives(Phase phase, Purpose purpose, const plan::BlockSize& size) const;
  /// Bytes of the declared tensors of one life for a block of this size, alignment included.
  std::int64_t bytes(Life life, const plan::BlockSize& size) const;
  /// Bytes that Ctx::scratch must have free for one call. `key_rows`: rows of the KvCache in a generation, else -1.
  std::int64_t scratch_bytes(const Stream& stream, Phase phase, const plan::BlockSize& size,
                             std::int64_t key_rows = -1) const;
};

/// A low-rank adapter beside a linear layer W: y = W x + scale * B A dropout(x).
struct AdapterSpec {
  std::int64_t rank = 0;
  double scale = 1.0;
  double dropout = 0.0;  ///< probability of an element of x, in training; [0, 1)
};

/// What a unit's constructor plans with.
class UnitPlanner {
 public:
  /// `trainable` answers for a canonical name "<module>/<name>", `adapter` for a linear layer "<module>/<name>" without
  /// ".weight"; degrees and coord are those of the module's mesh.
  struct Setting {
    std::string module;
    DType dtype = DType::f32;  ///< of activations and compute weights
    plan::Coord degrees{{1, 1, 1, 1}};
    plan::Coord coord{};
    bool sequence_parallel = false;  ///< between layers a tp rank holds its share of the rows
    bool replicate_tp = false;       ///< every tp rank holds and computes all of the module
    std::function<bool(const std::string&)> trainable = [](const std::string&) { return true; };
    std::function<std::optional<AdapterSpec>(const std::string&)> adapter{};  ///< unset: none
  };

  UnitPlanner(const Setting& setting, std::string unit_name);

  const Setting& setting() const { return setting_; }
  DType dtype() const { return setting_.dtype; }
  /// Over how many tp ranks the module is cut, and which part this is.
  int tp() const { return setting_.replicate_tp ? 1 : setting_.degrees[Axis::tp]; }
  int tp_rank() const { return setting_.replicate_tp ? 0 : setting_.coord[Axis::tp]; }
  bool sequence_parallel() const { return setting_.sequence_parallel && tp() > 1; }
  /// Rows of what is passed from layer to layer: all of the block's, or this tp rank's share.
  RowCount between_layers() const { return {RowCount::rows, sequence_parallel() ? tp() : 1}; }

  /// Sets spec.module (when empty), spec.dtype and spec.trainable (unless it is false already) from the setting. `box`
  /// defaults to the whole tensor.
  ParamId param(ParamSpec spec);
  bool trains(ParamId id) const { return plan_.params[static_cast<std::size_t>(id)].trainable; }

  int input(PortPlan port);  ///< returns the port's number
  void output(PortPlan port);
  PortPlan& input_port(int number) { return plan_.inputs[static_cast<std::size_t>(number)]; }

  SlotId tensor(std::string name, std::int64_t cols, Life life, RowCount count = RowCount::rows);  ///< compute dtype
  SlotId tensor(std::string name, DType dtype, std::int64_t cols, Life life, RowCount count = RowCount::rows);
  /// The tensor is cheap (TensorSpec). What recompute_cheap reads must live as long as the unit's backward_input.
  void cheap(SlotId id) { plan_.tensors[static_cast<std::size_t>(id)].cheap = true; }
  /// The longer of two lives of one tensor: scratch < kept < held.
  void lengthen(SlotId id, Life life);

  void scratch(Phase phase, const plan::Linear& bytes);  ///< keeps the maximum per coefficient
  void kernel_scratch(decltype(UnitPlan::kernel_scratch) bytes) { plan_.kernel_scratch = std::move(bytes); }
  void event(Phase phase, InnerEvent event);
  /// For composites, whose parts run in another order than they are made in.
  std::vector<InnerEvent>& events(Phase phase) { return plan_.events[static_cast<std::size_t>(phase)]; }
  void cost(const plan::LayerCost& cost);
  void mask(int index) { plan_.mask = index; }

  /// Checks consistency (nothing is kept for a backward that does not run) and sets the output's needs_grad. The
  /// planner is empty afterwards.
  UnitPlan take();

 private:
  Setting setting_;
  UnitPlan plan_;
};

// ----------------------------------------------------------------------------------------------------------------- run

/// Attention's view of a block: host-side tile runs and the words on the device.
struct MaskRows {
  const TilePlan* tiles = nullptr;
  Tensor query_words, key_words;  ///< u64 (rows)
  Tensor query_order, key_order;  ///< i32 (rows)
};

/// Cosines and sines that every attention layer of the block shares: (rows, pairs), master dtype.
struct RotaryRows {
  Tensor cos, sin;
};

/// What a stage's rotary layers want: their frequencies, the position that each multiplies, a factor on cos and sin.
struct RotarySpec {
  std::vector<double> inv_freq;
  std::vector<std::uint8_t> axis;  ///< by frequency: which of the row's positions; empty with one position
  double scale = 1.0;
  int num_positions() const;
  std::int64_t pairs() const { return static_cast<std::int64_t>(inv_freq.size()); }
};
/// Takes both tables from `memory` and fills them from positions (rows, n).
RotaryRows make_rotary_rows(const Stream& stream, const RotarySpec& spec, DType compute, const Tensor& positions,
                            Arena& memory);

/// The rows of one block on this rank: sizes, ids, positions, masks, and what the loader brought. All device tensors.
struct Rows {
  plan::BlockSize size;
  const plan::RowsPlan* plan = nullptr;  ///< host side: items and samples
  Tensor ids;                            ///< i32 (rows): token ids; media and padding rows hold -1
  Tensor positions;                      ///< i32 (rows, n)
  std::vector<MaskRows> masks;
  std::optional<RotaryRows> rotary;  ///< where the stage has a RotarySpec
  Tensor supervised_rows;            ///< i32 (supervised)
  Tensor labels;                     ///< i32 (supervised): the id that the row must predict
  Tensor weights;       ///< master dtype (supervised): loss weights of the labels; 0 for a sample that failed to load
  Tensor source;        ///< master dtype (source, cols): patches or mel frames, encoder blocks
  Tensor source_spans;  ///< i32 (items, 2): first and count of each item's source rows
  /// The same of those that a convolution of stride 2 to the item's rows reads: 2 x rows of them at most.
  Tensor halved_spans;
  Tensor out_rows;      ///< i32 (out): which rows leave; -1: a row of zeros, which the projector makes a newline
  Tensor newline_rows;  ///< i32: these rows, by their number among those that leave
  /// i64 (rows, 2) and (out, 2): the global sample of each row and the row's number in it, -1 for padding: what draws
  /// are addressed by. Rows of an encoder's item count from its ordinal times 2^20.
  Tensor address, out_address;
  std::vector<Tensor> port_dst;  ///< by input port of the stage: i32, the row that each port row goes to

  Tensor loss;       ///< master dtype (supervised), written by the head: unweighted loss of each label
  Tensor predicted;  ///< i32 (supervised), written by the head in evaluation: the arg max
};

struct GradTarget {
  Tensor view;  ///< master dtype, the parameter's box
  Accumulate mode = Accumulate::overwrite;
};

/// Access to one unit's parameters during a call; the unit cannot tell how they are stored.
class UnitParameters {
 public:
  virtual ~UnitParameters() = default;
  virtual Tensor weight(ParamId id) = 0;
  /// The weight packed for x w^T (yes) or dy w (no); absent where the store keeps none.
  virtual Tensor packed(ParamId, Transpose) { return {}; }
  /// The store knows whether the gradient was written since its last reduction; asking counts as writing.
  virtual GradTarget grad(ParamId id) = 0;
};

enum class Mode : std::uint8_t { train, eval };

/// Keys and values of earlier rows of a generation, one pair a layer.
struct KvCache {
  Tensor keys, values;  ///< (capacity rows, kv_heads * head_dim)
};

struct Ctx {
  Stream stream;
  Rows* rows = nullptr;
  UnitParameters* params = nullptr;
  Arena* scratch = nullptr;
  std::array<comm::Communicator*, plan::kNumAxes> comms{};  ///< by axis; null where the degree is 1
  Mode mode = Mode::train;
  std::uint64_t seed = 0;  ///< with the step, what draws are addressed by besides rows
  std::uint32_t step = 0;
  double loss_scale = 0.0;  ///< loss weight / W; 0 when W is 0
  KvCache* cache =
      nullptr;  ///< generation only: rows' keys and values are written to `cache_rows` and all keys are read there
  Tensor cache_rows;  ///< i32 (rows)
  /// Evaluation: called with chunks of logits of consecutive supervised rows, when set.
  const std::function<void(std::int64_t first, const Tensor& logits)>* logits = nullptr;

  Tensor weight(ParamId id) const { return params->weight(id); }
  Tensor packed(ParamId id, Transpose transpose) const { return params->packed(id, transpose); }
  GradTarget grad(ParamId id) const { return params->grad(id); }
  comm::Communicator& comm(Axis axis) const;
};

/// A unit's state of one block between calls. It belongs to the slot (stage, block), never to the unit.
struct Saved {
  std::vector<Tensor> in;       ///< by input port, as long as the plan keeps it
  Tensor d_out;                 ///< BI, and BW where the plan keeps it
  std::vector<Tensor> tensors;  ///< by SlotId; scratch-life ones exist only within a call

  const Tensor& operator[](SlotId id) const { return tensors[static_cast<std::size_t>(id)]; }
};

/// What becomes of a unit's kept and held tensors between forward and backward.
enum class Recompute : std::uint8_t {
  none,
  selective,  ///< cheap ones are made again
  full,       ///< only the unit's inputs survive, all are made again
};

/// One layer. Virtual: the seam between models and the runtime.
class Unit {
 public:
  virtual ~Unit() = default;
  const UnitPlan& plan() const { return plan_; }

  /// `in` by port; `out` undefined for a sink.
  virtual void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const = 0;
  /// `d_in` by port, undefined where the port needs no gradient.
  virtual void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const = 0;
  virtual void backward_weight(Ctx& ctx, Saved& saved) const = 0;
  virtual void recompute(Ctx& ctx, Saved& saved) const = 0;
  /// Called only where the plan has cheap tensors that are kept or held. No collectives.
  virtual void recompute_cheap(Ctx& ctx, Saved& saved) const;

 protected:
  UnitPlan plan_;
};

/// Consecutive units of one module. Unit u > 0 reads the output of unit u - 1 at its port "x"; a port of another name
/// (or "x" of the first unit) is a port of the stage, filled by an edge.
struct Stage {
  std::string module;
  std::vector<std::unique_ptr<Unit>> units;
  std::vector<std::int32_t> windows;  ///< by mask index: the window that its tile plan is made with
  std::optional<RotarySpec> rotary;   ///< the runtime fills Rows::rotary once a block

  struct Port {
    std::string name;
    int unit = 0;
    int port = 0;
  };
  std::vector<Port> ports() const;
  bool needs_backward() const;
  bool trains() const;
};

}  // namespace mmt::run
