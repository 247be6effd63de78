#include "kernels/elementwise.h"
#include "parallel/run/store_params.h"

#include <algorithm>
#include <map>

namespace mmt::run {
namespace {

class ShardedStore final : public ParameterStore {
 public:
  ShardedStore(const Stage& stage, comm::Communicator& data, const Stream& stream)
      : data_(data),
        stream_(stream),
        params_(list_params(stage)),
        places_(places_by_unit(stage, params_)),
        written_(params_.size(), 0) {
    const int lanes = data.size();
    std::size_t owned = 0, full_weights = 0, full_grads = 0;
    for (std::size_t u = 0; u < places_.size(); ++u) {
      std::size_t weights = 0, grads = 0;
      for (const std::size_t i : places_[u]) {
        ParamState& p = params_[i];
        const std::int64_t n = num_owned(*p.spec);
        const std::int64_t share = (n + lanes - 1) / lanes;
        shares_.push_back(share);
        p.owned_first = std::min(share * data.rank(), n);
        p.owned_count = std::min(share, n - p.owned_first);
        const auto master = static_cast<std::size_t>(size_of(master_of(p.spec->dtype)));
        const auto padded = static_cast<std::size_t>(share * lanes);
        owned += 2 * Arena::footprint(static_cast<std::size_t>(share) * master) +
                 Arena::footprint(static_cast<std::size_t>(share * size_of(p.spec->dtype)));
        weights += Arena::footprint(padded * static_cast<std::size_t>(size_of(p.spec->dtype)));
        grads += Arena::footprint(padded * master) + Arena::footprint(static_cast<std::size_t>(share) * master);
      }
      full_weights = std::max(full_weights, weights);
      full_grads = std::max(full_grads, grads);
    }
    owned_ = Arena("weight shards", owned);
    gathered_ = Arena("gathered weights", full_weights);
    accumulators_ = Arena("unit gradients", full_grads);
    for (std::size_t i = 0; i < params_.size(); ++i) {
      ParamState& p = params_[i];
      const DType master = master_of(p.spec->dtype);
      master_shards_.push_back(owned_.take(master, {shares_[i]}));
      compute_shards_.push_back(p.spec->dtype == master ? master_shards_[i] : owned_.take(p.spec->dtype, {shares_[i]}));
      grad_shards_.push_back(p.spec->trainable ? owned_.take(master, {shares_[i]}) : Tensor());
      ops::fill(stream_, master_shards_[i], 0.0);
      ops::fill(stream_, compute_shards_[i], 0.0);
      p.master = master_shards_[i].row_range(0, p.owned_count);
      p.compute = compute_shards_[i].row_range(0, p.owned_count);
      if (p.spec->trainable) p.grad = grad_shards_[i].row_range(0, p.owned_count);
    }
    for (std::size_t u = 0; u < places_.size(); ++u) units_.push_back({*this, u});
  }

  void gather(int unit) override {
    MMT_CHECK(current_ < 0, "unit {} is gathered while unit {} is", unit, current_);
    current_ = unit;
    full_.clear();
    for (const std::size_t i : places_[static_cast<std::size_t>(unit)]) {
      full_.push_back(gathered_.take(params_[i].spec->dtype, {shares_[i] * data_.size()}));
      data_.all_gather(compute_shards_[i], full_.back(), stream_);
    }
  }
  void release(int unit) override {
    MMT_CHECK(current_ == unit, "unit {} is released, unit {} is gathered", unit, current_);
    current_ = -1;
    full_.clear();
    gathered_.release_to(0);
  }
  UnitParameters& unit(int unit) override { return units_[static_cast<std::size_t>(unit)]; }

  /// The unit's gradients of this block are summed over the lanes into the shards and their accumulators given back.
  void block_done(int unit) override {
    for (const std::size_t i : places_[static_cast<std::size_t>(unit)]) {
      if (!params_[i].spec->trainable) continue;
      const Tensor whole = accumulator(i);
      const Tensor share = accumulators_.take(whole.dtype, {shares_[i]});
      data_.reduce_scatter(whole, share, comm::ReduceOp::sum, stream_);
      if (written_[i]) {
        ops::add_in_place(stream_, grad_shards_[i], share);
      } else {
        ops::copy(stream_, grad_shards_[i], share);
      }
      written_[i] = 1;
    }
    open_.clear();
    accumulators_.release_to(0);
  }
  void begin_step() override { std::ranges::fill(written_, 0); }
  void complete_grads() override {
    for (std::size_t i = 0; i < params_.size(); ++i) {
      if (params_[i].spec->trainable && !written_[i]) ops::fill(stream_, grad_shards_[i], 0.0);
    }
  }
  std::span<ParamState> params() override { return params_; }
  int num_buckets() const override { return 0; }
  void reduce(int) override {}
  void weights_changed() override {}
  bool splits_over_data(const ParamState&) const override { return true; }
  void weights_loaded() override {}
  std::int64_t packed_bytes() const override { return 0; }

 private:
  struct Access final : UnitParameters {
    Access(ShardedStore& s, std::size_t u) : store(s), unit(u) {}
    Tensor weight(ParamId id) override {
      MMT_CHECK(store.current_ == static_cast<int>(unit), "weights of unit {} are not gathered", unit);
      const std::size_t i = store.places_[unit][static_cast<std::size_t>(id)];
      return shaped(store.full_[static_cast<std::size_t>(id)], *store.params_[i].spec);
    }
    GradTarget grad(ParamId id) override {
      const std::size_t i = store.places_[unit][static_cast<std::size_t>(id)];
      const bool fresh = !store.open_.contains(i);
      return {shaped(store.accumulator(i), *store.params_[i].spec), fresh ? Accumulate::overwrite : Accumulate::add};
    }
    ShardedStore& store;
    std::size_t unit;
  };

  /// The block's gradient of a parameter over all lanes' shares; the tail beyond the parameter is zero.
  Tensor accumulator(std::size_t i) {
    const auto found = open_.find(i);
    if (found != open_.end()) return found->second;
    const Tensor whole = accumulators_.take(master_of(params_[i].spec->dtype), {shares_[i] * data_.size()});
    ops::fill(stream_, whole, 0.0);
    return open_.emplace(i, whole).first->second;
  }

  comm::Communicator& data_;
  Stream stream_;
  std::vector<ParamState> params_;
  std::vector<std::vector<std::size_t>> places_;
  std::vector<std::int64_t> shares_;
  std::vector<Tensor> master_shards_, compute_shards_, grad_shards_;
  std::vector<char> written_;
  std::map<std::size_t, Tensor> open_;
  std::vector<Tensor> full_;
  Arena owned_, gathered_, accumulators_;
  std::vector<Access> units_;
  int current_ = -1;
};

}  // namespace

std::unique_ptr<ParameterStore> make_sharded_store(const Stage& stage, comm::Communicator& data, const Stream& stream) {
  return std::make_unique<ShardedStore>(stage, data, stream);
}

}  // namespace mmt::run
