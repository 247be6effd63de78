// Parameter store: one stage's weights and gradients on one rank. Units reach them through UnitParameters and cannot
// tell whether they are replicated, sharded or fetched.
#pragma once

#include "parallel/run/stage.h"

#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace mmt::run {

/// One parameter as the optimizer, the checkpoint and reductions see it on this rank.
struct ParamState {
  const ParamSpec* spec = nullptr;
  int unit = 0;
  ParamId id = 0;
  /// The part whose master weights and moments this rank keeps, within the flattened box: all of it where the store
  /// replicates, a shard of it else.
  std::int64_t owned_first = 0;
  std::int64_t owned_count = 0;
  Tensor master;   ///< master dtype (owned_count); a replicated store keeps spec->dtype of what is frozen
  Tensor compute;  ///< spec->dtype (owned_count); the same memory as master where the dtypes are equal
  Tensor grad;     ///< master dtype (owned_count), complete after the reduction; undefined when frozen
};

/// Virtual: replicated, sharded (and later offloaded) stores differ behind it.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  /// Weights of a unit are valid from gather to release.
  virtual void gather(int unit) = 0;
  virtual void release(int unit) = 0;
  virtual UnitParameters& unit(int unit) = 0;
  /// The unit's gradients of one block have been written (by backward_weight, or by the forward of a sink).
  virtual void block_done(int unit) = 0;
  /// Gradients of the last step are no longer needed: the next write of each overwrites.
  virtual void begin_step() = 0;
  /// A parameter that no block wrote in this step gets zeros, so that reductions see every element.
  virtual void complete_grads() = 0;

  /// In order of the stage's units and their declarations.
  virtual std::span<ParamState> params() = 0;
  /// Sums a bucket of gradients over the ranks that hold partial sums of it. Buckets are the same on all of them.
  virtual int num_buckets() const = 0;
  virtual void reduce(int bucket) = 0;
  /// Call after the optimizer changed `master` and `compute` of what trains. Collective over the data lanes.
  virtual void weights_changed() = 0;
  /// Call after anything else wrote them (a start, a checkpoint): frozen matrices are packed again. Collective, too.
  virtual void weights_loaded() = 0;
  /// Whether each data lane owns other elements; else all own everything. What is frozen may be whole on all lanes even
  /// so: those parameters answer false.
  virtual bool splits_over_data(const ParamState& param) const = 0;
  /// What packed frozen matrices take beside `master` and `compute`.
  virtual std::int64_t packed_bytes() const = 0;
};

/// Fills a parameter's box (`master` of any float dtype, rounded to nearest even) by its Init: value = f(seed,
/// canonical name, global element index), whatever the layout.
void initialize(const ParamSpec& spec, std::uint64_t seed, std::int64_t owned_first, const Tensor& master);

struct StoreOptions {
  std::int64_t bucket_bytes = std::int64_t{32} << 20;
  /// Frozen matrices are kept a second time in the layout of the backend's products, where it has one.
  bool pack_frozen = true;
  /// 0: every data lane keeps everything. 1 (ZeRO-1): gradients and compute weights are whole on every lane; a
  /// reduction leaves each lane the sums of its part of every bucket, it keeps master weights (and moments) of that
  /// part alone, and `weights_changed` gathers the updated compute weights.
  int zero = 0;
  /// Canonical names of parameters with uses in several stages (find_ties): their shards are cut alike in all of them.
  std::set<std::string> tied{};
};

/// The ranks of a module's mesh that a store works with; null where there is one rank.
struct StoreComms {
  StoreComms(comm::Communicator* data_lanes = nullptr, comm::Communicator* tp_ranks = nullptr)
      : data(data_lanes), tp(tp_ranks) {}
  comm::Communicator* data;  ///< ranks of equal tp and pp coordinates, ordered by (cp, dp)
  comm::Communicator* tp;    ///< ranks of equal other coordinates, in order
};

/// Collective over both: all their ranks make stores of the same stage. Gradients are summed over the data lanes, and
/// those of parameters that are `partial_over` tp before that over its groups of consecutive ranks, in rank order.
std::unique_ptr<ParameterStore> make_replicated_store(const Stage& stage, const StoreComms& comms, const Stream& stream,
                                                      const StoreOptions& options = {});
/// Each data lane keeps an even share of every parameter: weights are gathered per unit, gradients are reduce-scattered
/// per unit and block into the share.
std::unique_ptr<ParameterStore> make_sharded_store(const Stage& stage, comm::Communicator& data, const Stream& stream);

/// How many ranks of a module's mesh own the same part of a parameter, and which of them this is: number 0 writes it
/// into a checkpoint, and each counts its share of it in the gradient norm.
struct Copies {
  int index = 0;
  int count = 1;
};
/// `coord`: of this rank in the module's mesh of these degrees. Throws std::logic_error for a parameter that is whole
/// on every tp rank and says nothing about them.
Copies copies_of(const ParameterStore& store, const ParamState& param, const plan::Coord& degrees,
                 const plan::Coord& coord);

/// Trainable weights that must be equal on several ranks are: over the data lanes and over the tp groups that hold
/// copies. Collective over both; Error (on all ranks of a communicator) names the parameter and the ranks.
void check_copies(ParameterStore& store, const StoreComms& comms, const Stream& stream);

/// Uses of one tied parameter on this rank, in graph order, and the ranks that hold the other uses.
struct TieGroup {
  std::string name;
  struct Use {
    ParameterStore* store = nullptr;
    std::size_t param = 0;  ///< index into store->params()
  };
  std::vector<Use> uses;
  comm::Communicator* comm = nullptr;  ///< ranks in graph order of their first uses; null when all uses are here
};
/// Adds the gradients of all uses into every use that has weights of its own; the first here always has. In use order
/// where a rank's uses follow each other: those of one rank are added first, then the ranks' sums.
void run_tie(const TieGroup& group, const Stream& stream);

}  // namespace mmt::run
