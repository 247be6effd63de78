#include "parallel/run/optimizer.h"

#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "parallel/comm/values.h"

#include <cmath>
#include <map>
#include <tuple>

namespace mmt::run {

Optimizer::Optimizer(std::vector<OptimizedParam> params, const AdamwOptions& options, comm::Communicator* world,
                     const Stream& stream)
    : params_(std::move(params)), options_(options), world_(world), stream_(stream) {
  std::size_t bytes = 0;
  for (const OptimizedParam& p : params_) {
    MMT_CHECK(p.master.contiguous() && p.grad.contiguous() && p.master.numel() == p.grad.numel() &&
                  p.master.dtype == p.grad.dtype && p.compute.numel() == p.master.numel(),
              "{}: master {}, gradient {}, compute {}", p.name, p.master.describe(), p.grad.describe(),
              p.compute.describe());
    bytes += 2 * Arena::footprint(static_cast<std::size_t>(p.master.bytes()));
  }
  moments_ = Arena("optimizer moments", bytes);
  for (const OptimizedParam& p : params_) {
    m_.push_back(moments_.take(p.master.dtype, {p.master.numel()}));
    v_.push_back(moments_.take(p.master.dtype, {p.master.numel()}));
    ops::fill(stream_, m_.back(), 0.0);
    ops::fill(stream_, v_.back(), 0.0);
  }
}

Optimizer::Result Optimizer::step(double lr, const std::function<bool(const std::string& module)>& active_module,
                                  bool finite_loss) {
  std::vector<char> active;
  bool any = false;
  for (const OptimizedParam& p : params_) {
    active.push_back(active_module(p.module) ? 1 : 0);
    any = any || active.back() != 0;
  }
  // Squares of what this rank counts, and its doubts: one sum over all ranks carries both, in rank order. A NaN or an
  // infinity anywhere makes the sum not finite on every rank.
  double sums[2] = {0.0, finite_loss ? 0.0 : 1.0};
  const Tensor square(&sums[0], DType::f64, {1});
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const OptimizedParam& p = params_[i];
    if (active[i] == 0 || p.num_replicas == 0) continue;
    const std::int64_t n = p.grad.numel();
    const std::int64_t first = n * p.replica / p.num_replicas;
    const std::int64_t last = n * (p.replica + 1) / p.num_replicas;
    ops::sum_of_squares(stream_, square, p.grad.row_range(first, last - first), Accumulate::add);
  }
  if (world_ != nullptr) world_->all_reduce(Tensor(sums, DType::f64, {2}), comm::ReduceOp::sum, stream_);

  Result result;
  result.grad_norm = std::sqrt(sums[0]);
  result.finite = std::isfinite(sums[0]) && sums[1] == 0.0;
  if (!result.finite) {
    result.culprit = find_culprit(active, finite_loss);
    return result;
  }
  if (options_.max_grad_norm > 0 && result.grad_norm > options_.max_grad_norm) {
    result.clip = options_.max_grad_norm / (result.grad_norm + 1e-6);
  }
  // Whether any module is active anywhere must not depend on which modules this rank holds.
  if (world_ != nullptr) any = comm::any_of(*world_, any);
  if (!any) return result;
  ++updates_;
  std::map<std::tuple<double, double, DType>, std::vector<AdamwSpan>> groups;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const OptimizedParam& p = params_[i];
    if (active[i] == 0 || p.master.numel() == 0) continue;
    const bool own_compute = p.compute.data != p.master.data;
    groups[{p.lr_scale, p.weight_decay, p.compute.dtype}].push_back(
        {p.master, m_[i], v_[i], p.grad, own_compute ? p.compute : Tensor()});
  }
  for (const auto& [key, spans] : groups) {
    AdamwStep s;
    s.lr = lr * std::get<0>(key);
    s.beta1 = options_.beta1;
    s.beta2 = options_.beta2;
    s.epsilon = options_.epsilon;
    s.weight_decay = std::get<1>(key);
    s.updates = updates_;
    s.grad_scale = result.clip;
    ops::adamw_step(stream_, spans, s);
  }
  return result;
}

// Only after a step that found a value that is not finite, on all ranks alike.
std::string Optimizer::find_culprit(const std::vector<char>& active, bool finite_loss) {
  std::string mine = finite_loss ? "" : "the loss";
  for (std::size_t i = 0; i < params_.size() && mine.empty(); ++i) {
    if (active[i] != 0 && !ops::all_finite(stream_, params_[i].grad)) mine = "the gradient of " + params_[i].name;
  }
  if (world_ == nullptr) return mine;
  const std::vector<std::string> all = comm::all_gather(*world_, mine);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!all[r].empty()) return fmt::format("rank {}: {}", r, all[r]);
  }
  return "the sum of squares of all gradients";
}

}  // namespace mmt::run
