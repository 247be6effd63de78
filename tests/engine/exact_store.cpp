#include "tests/engine/exact_store.h"

#include <cmath>

namespace mmt::test {
namespace {

constexpr double kScale = 0x1p40;

class ExactStore final : public run::ParameterStore {
 public:
  ExactStore(std::unique_ptr<run::ParameterStore> store, comm::Communicator* data)
      : store_(std::move(store)), data_(data) {
    for (const run::ParamState& p : store_->params())
      sums_.emplace_back(p.grad.defined() ? static_cast<std::size_t>(p.owned_count) : 0, 0);
  }

  void gather(int unit) override { store_->gather(unit); }
  void release(int unit) override { store_->release(unit); }
  run::UnitParameters& unit(int unit) override { return store_->unit(unit); }
  void begin_step() override {
    store_->begin_step();
    for (auto& sum : sums_) std::ranges::fill(sum, 0);
  }
  /// Only this unit's gradients have been written since the last call: the next block overwrites all of them.
  void block_done(int unit) override {
    const auto params = store_->params();
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (params[i].unit != unit || sums_[i].empty()) continue;
      const std::span<const float> grad = params[i].grad.span<float>();
      for (std::size_t k = 0; k < grad.size(); ++k) sums_[i][k] += std::llround(static_cast<double>(grad[k]) * kScale);
    }
    store_->begin_step();
  }
  void complete_grads() override {}
  std::span<run::ParamState> params() override { return store_->params(); }
  int num_buckets() const override { return store_->num_buckets(); }
  /// All at once with the first bucket, which every lane reduces first.
  void reduce(int bucket) override {
    if (bucket != 0) return;
    const auto params = store_->params();
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (sums_[i].empty()) continue;
      if (data_ != nullptr)
        data_->all_reduce(Tensor(sums_[i].data(), DType::i64, {std::ssize(sums_[i])}), comm::ReduceOp::sum);
      const std::span<float> grad = params[i].grad.span<float>();
      for (std::size_t k = 0; k < grad.size(); ++k)
        grad[k] = static_cast<float>(static_cast<double>(sums_[i][k]) / kScale);
    }
  }
  void weights_changed() override { store_->weights_changed(); }
  void weights_loaded() override { store_->weights_loaded(); }
  bool splits_over_data(const run::ParamState& p) const override { return store_->splits_over_data(p); }
  std::int64_t packed_bytes() const override { return store_->packed_bytes(); }

 private:
  std::unique_ptr<run::ParameterStore> store_;
  comm::Communicator* data_;
  std::vector<std::vector<std::int64_t>> sums_;  ///< by parameter; empty where it is frozen
};

}  // namespace

std::unique_ptr<run::ParameterStore> make_exact_store(std::unique_ptr<run::ParameterStore> store,
                                                      comm::Communicator* data) {
  return std::make_unique<ExactStore>(std::move(store), data);
}

}  // namespace mmt::test
