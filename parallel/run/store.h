// Parameter store: one stage's weights and gradients on one rank. Units reach them through UnitParameters and cannot
// tell whether they are replicated, sharded or fetched.
#pragma once

#include "parallel/run/stage.h"

#include <memory>
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
  Tensor master;   ///< master dtype (owned_count)
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
  /// Sums a bucket of gradients over the data lanes. Buckets are the same on every lane.
  virtual int num_buckets() const = 0;
  virtual void reduce(int bucket) = 0;
  /// Call after the optimizer changed `master` and `compute` of what trains.
  virtual void weights_changed() = 0;
  /// Call after anything else wrote them (a start, a checkpoint): frozen matrices are packed again.
  virtual void weights_loaded() = 0;
  /// What packed frozen matrices take beside `master` and `compute`.
  virtual std::int64_t packed_bytes() const = 0;
};

/// Fills a parameter's box by its Init: value = f(seed, canonical name, global element index), whatever the layout.
void initialize(const ParamSpec& spec, std::uint64_t seed, std::int64_t owned_first, const Tensor& master);

struct StoreOptions {
  std::int64_t bucket_bytes = std::int64_t{32} << 20;
  /// Frozen matrices are kept a second time in the layout of the backend's products, where it has one.
  bool pack_frozen = true;
};

/// Collective. Every data lane keeps everything; `data` sums gradients over the lanes (null: one lane).
std::unique_ptr<ParameterStore> make_replicated_store(const Stage& stage, comm::Communicator* data,
                                                      const Stream& stream, const StoreOptions& options = {});
/// Each data lane keeps an even share of every parameter: weights are gathered per unit, gradients are reduce-scattered
/// per unit and block into the share.
std::unique_ptr<ParameterStore> make_sharded_store(const Stage& stage, comm::Communicator& data, const Stream& stream);

/// Uses of one tied parameter on this rank, in graph order, and the ranks that hold the other uses.
struct TieGroup {
  std::string name;
  struct Use {
    ParameterStore* store = nullptr;
    std::size_t param = 0;  ///< index into store->params()
  };
  std::vector<Use> uses;
  comm::Communicator* comm = nullptr;  ///< ranks in graph order of their uses; null when all uses are here
};
/// Adds the gradients of all uses, in use order, into every use that has weights of its own; the first always has.
void run_tie(const TieGroup& group, const Stream& stream);

}  // namespace mmt::run
