// Runs stages on one rank with the smallest possible runtime: what the tests of models stand on.
//   Params     weights (master values by canonical name) and one gradient accumulator per use
//   BlockData  a block: row plan, ids, labels, weights, media, made piece by piece
//   StageRun   forward and backward of one block; every tensor dies (poisoned) when the plan says so, scratch arenas
//              have exactly the planned bytes
#pragma once

#include "parallel/plan/step.h"
#include "parallel/run/rows.h"
#include "parallel/run/stage.h"
#include "parallel/run/store.h"

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace mmt::test {

using Values = std::vector<double>;
using NamedValues = std::map<std::string, Values>;

/// A tensor's elements as double, and back (rounded to its dtype).
Values values_of(const Tensor& t);
void set_values(const Tensor& t, const Values& v);
Values random_values(std::int64_t n, unsigned seed, double scale = 1.0);
double dot(const Values& a, const Values& b);
double norm2(const Values& a);
/// Largest |a - b|, and the number of elements that differ in any bit.
double max_difference(const Values& a, const Values& b);

/// The value of every parameter of the stages, as a function of its name; biases and norms away from 0 and 1.
/// Rounded to f32, so that f32 and f64 runs have the same weights.
void add_random_values(NamedValues& values, const run::Stage& stage, unsigned seed = 1);

class Params {
 public:
  /// `values` holds global tensors; a rank's box is cut out of them. Refers to `values` and `stage`.
  Params(const run::Stage& stage, const NamedValues& values);
  void load();        ///< copies `values` again
  void begin_step();  ///< poisons gradients: the next write of each overwrites
  run::UnitParameters& unit(std::size_t u);
  /// This rank's boxes: the sum over the uses in order. Throws when a trainable parameter was never written or a frozen
  /// one was.
  NamedValues gradients() const;

 private:
  struct Unit;
  const run::Stage& stage_;
  const NamedValues& values_;
  std::vector<std::shared_ptr<Unit>> units_;
};

/// A run of rows in an LLM sample.
struct Piece {
  int text = 0;   ///< text rows, or
  int media = 0;  ///< rows of port `port`
  int port = 0;
  bool supervised = false;  ///< the ids of the piece are labels
};

struct BlockData {
  plan::RowsPlan plan;
  std::vector<std::vector<std::int32_t>> ids, labels;  ///< by sample
  std::vector<std::vector<float>> weights;             ///< by sample
  Values source;
  std::int64_t source_cols = 0;
  std::vector<std::int64_t> port_rows;

  /// An LLM block, causal; media rows of one piece see each other. `windows` by mask.
  static BlockData text(const std::vector<std::vector<Piece>>& samples, int vocabulary, int num_ports,
                        std::vector<std::int32_t> windows = {0}, int num_positions = 1, unsigned seed = 7);
  /// An encoder block of pictures: `patches[i]` patches each, a class row before them, `full` keeps it at the exit.
  static BlockData pictures(const std::vector<int>& patches, int patch_cols, bool class_token, bool full,
                            unsigned seed = 8);
  /// An encoder block of pictures of any size: frames, height and width in rows that leave, of merge x merge patches.
  static BlockData grids(const std::vector<std::array<std::int64_t, 3>>& grids, int merge, int patch_cols,
                         unsigned seed = 10);
  /// An encoder block of pictures in tiles of side x side patches, each with a class row if there is one.
  static BlockData tiles(const std::vector<plan::TileGrid>& pictures, int side, int patch_cols, bool class_token,
                         unsigned seed = 11);
  /// An encoder block of clips with these numbers of mel frames. `pool` above 1: means of so many rows leave, and of an
  /// odd number of frames the last lies behind the clip.
  static BlockData clips(const std::vector<int>& frames, int mels, int pool = 1, unsigned seed = 9);
};

struct RunOptions {
  Stream stream;
  bool recompute = false;
  bool selective = false;        ///< recompute of what is cheap
  bool delayed_weights = false;  ///< all BI first, then all BW
  run::Mode mode = run::Mode::train;
  double loss_scale = 1.0;
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::array<comm::Communicator*, plan::kNumAxes> comms{};
  run::KvCache* cache = nullptr;  ///< by unit, when set
  Tensor cache_rows;
  const std::function<void(std::int64_t, const Tensor&)>* logits = nullptr;
  run::ParameterStore* store = nullptr;  ///< weights and gradients come from here, when set
  /// Fills one saved tensor with NaN as soon as it is saved: by unit and the tensor's name, "in <port>" or "d_out".
  /// Where no gradient turns NaN, it was kept for nothing.
  int spoil_unit = -1;
  std::string spoil;
};

/// On the scalar reference backend.
RunOptions reference_options();

class StageRun {
 public:
  StageRun(const run::Stage& stage, Params& params, const BlockData& data, const RunOptions& options);
  /// `in` by stage port.
  void forward(const std::vector<Values>& in = {});
  /// `d_out` empty for a sink.
  void backward(const Values& d_out = {});

  Values out() const { return out_; }
  Values loss() const { return loss_; }
  std::vector<std::int32_t> predicted() const { return predicted_; }
  /// Sum of weight * loss * loss_scale.
  double objective() const;
  Values d_in(std::size_t port) const { return d_in_[port]; }
  run::Rows& rows() { return memory_.rows(); }

 private:
  struct UnitState;
  run::Ctx ctx(std::size_t u, run::Phase phase, Arena& scratch);
  Arena scratch_for(std::size_t u, run::Phase phase) const;
  std::int64_t rows_of(run::RowCount count, std::size_t port) const;
  void spoil(std::size_t u, const std::string& name, const Tensor& t) const;
  void backward_unit_input(std::size_t u);
  void backward_unit_weight(std::size_t u);

  const run::Stage& stage_;
  Params& params_;
  const BlockData& data_;
  RunOptions options_;
  run::RowsMemory memory_;
  std::vector<std::shared_ptr<UnitState>> units_;
  Values out_, loss_;
  std::vector<std::int32_t> predicted_;
  std::vector<Values> d_in_;
};

/// Names of what a unit saves, by life: tensors, "in <port>" and "d_out" (stash).
std::vector<std::string> saved_names(const run::UnitPlan& plan, run::Life life);

/// One pass: what came out, and every gradient.
struct Pass {
  double objective = 0.0;
  Values out, loss;
  std::vector<Values> d_in;
  NamedValues grads;
};
/// Forward, and backward with `d_out` where the stage has an output (objective = <out, d_out>).
Pass run_pass(const run::Stage& stage, const NamedValues& values, const BlockData& data, const RunOptions& options,
              const std::vector<Values>& in, const Values& d_out, bool backward = true);

/// Central differences against the gradients of `pass` in f64: along one random direction and at single elements of
/// every trainable parameter and of every input that has a gradient. Returns the complaints.
struct GradcheckOptions {
  int elements = 2;           ///< single elements a tensor
  double scale_of_bug = 1.0;  ///< multiplies the analytic gradients: a mutation
};
std::vector<std::string> gradcheck(const run::Stage& stage, NamedValues values, const BlockData& data,
                                   const RunOptions& options, std::vector<Values> in, const Values& d_out,
                                   const GradcheckOptions& check = {});

std::string join(const std::vector<std::string>& lines);
DType dtype_of_stage(const run::Stage& stage);

}  // namespace mmt::test
