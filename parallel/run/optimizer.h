// AdamW over this rank's parts of the parameters, with one global gradient norm, one clip and one agreement on finite.
#pragma once

#include "core/arena.h"
#include "core/stream.h"
#include "parallel/comm/communicator.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mmt::run {

/// One parameter, or this rank's part of one. The tensors are 1-D and of one length; their memory is the store's.
struct OptimizedParam {
  std::string name;    ///< canonical, for messages and the checkpoint
  std::string module;  ///< a module without rows in the whole batch is not updated
  Tensor master;       ///< master dtype
  Tensor compute;      ///< compute dtype; the same memory as master where the dtypes are equal
  Tensor grad;         ///< master dtype, complete (after all reductions)
  double lr_scale = 1;
  double weight_decay = 0;
  /// How many ranks hold this very part, and which of them this is: each counts its share of it in the norm, so that
  /// every element of every parameter is counted once. 0 replicas: never counted here (a further use of a tied one).
  int replica = 0;
  int num_replicas = 1;
};

struct AdamwOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double max_grad_norm = 0;  ///< 0: no clipping
};

class Optimizer {
 public:
  /// `world` holds every part of every parameter (null: one rank). Moments start at zero.
  Optimizer(std::vector<OptimizedParam> params, const AdamwOptions& options, comm::Communicator* world,
            const Stream& stream);

  struct Result {
    double grad_norm = 0;  ///< before clipping, over all parameters of modules that are active
    double clip = 1;       ///< what the gradients were multiplied by
    bool finite = true;    ///< false: nothing was changed anywhere
    std::string culprit;   ///< not finite: "rank R: llm/model.norm.weight" (the lowest rank's first), or "the loss"
  };
  /// One update at this rate. Collective over the world; all ranks get the same result. `active` tells which modules
  /// had rows in the global batch and must answer the same on all ranks; the others keep weights, moments and norm out
  /// of it. `finite_loss`: what this rank knows of its loss. When any rank's loss or gradient is not finite, nothing is
  /// updated anywhere. Otherwise `updates()` grows by one, unless no module is active.
  Result step(double lr, const std::function<bool(const std::string& module)>& active, bool finite_loss = true);

  std::int64_t updates() const { return updates_; }  ///< made so far; bias correction and learning rate use it
  void set_updates(std::int64_t updates) { updates_ = updates; }
  const std::vector<OptimizedParam>& params() const { return params_; }
  /// Moments of params()[i], master dtype, for the checkpoint.
  const Tensor& first_moment(std::size_t i) const { return m_[i]; }
  const Tensor& second_moment(std::size_t i) const { return v_[i]; }

 private:
  std::string find_culprit(const std::vector<char>& active, bool finite_loss);

  std::vector<OptimizedParam> params_;
  AdamwOptions options_;
  comm::Communicator* world_;
  Stream stream_;
  Arena moments_;
  std::vector<Tensor> m_, v_;
  std::int64_t updates_ = 0;
};

}  // namespace mmt::run
