#include "parallel/run/store.h"

#include "core/philox.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "parallel/run/buckets.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace mmt::run {
namespace {

std::int64_t numel(std::span<const std::int64_t> shape) {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) n *= d;
  return n;
}

/// Whisper's fixed table: row = position, the first half of the columns sines, the second cosines, of wave lengths in a
/// geometric row from 2 pi to 10000 * 2 pi (Radford et al. 2022, `sinusoids`).
double sinusoid(std::int64_t row, std::int64_t col, std::int64_t cols) {
  const std::int64_t half = cols / 2;
  const double step = std::log(10000.0) / static_cast<double>(std::max<std::int64_t>(half - 1, 1));
  const double angle = static_cast<double>(row) * std::exp(-step * static_cast<double>(col % half));
  return col < half ? std::sin(angle) : std::cos(angle);
}

template <class T>
void fill_run(const ParamSpec& spec, std::uint64_t key, std::int64_t first_global, std::span<T> out) {
  const std::int64_t cols = spec.shape.back();
  std::vector<double> values(out.size());
  switch (spec.init.kind) {
    case Init::Kind::zeros: break;
    case Init::Kind::ones: std::ranges::fill(values, 1.0); break;
    case Init::Kind::normal:
      random_normals(key, 0, 0, static_cast<std::uint64_t>(first_global), values);
      for (double& v : values) v *= spec.init.scale;
      break;
    case Init::Kind::uniform:
      random_uniforms(key, 0, 0, static_cast<std::uint64_t>(first_global), values);
      for (double& v : values) v = (2.0 * v - 1.0) * spec.init.scale;
      break;
    case Init::Kind::sinusoid:
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::int64_t at = first_global + static_cast<std::int64_t>(i);
        values[i] = sinusoid(at / cols, at % cols, cols);
      }
      break;
  }
  std::ranges::transform(values, out.begin(), [](double v) { return static_cast<T>(v); });
}

template <class T>
void initialize_typed(const ParamSpec& spec, std::uint64_t key, std::int64_t owned_first, std::span<T> out) {
  // Walk the box in runs that are contiguous in the global tensor: one row of its last dimension each.
  const std::int64_t width = spec.box.shape.back();
  std::int64_t at = owned_first;
  std::size_t done = 0;
  while (done < out.size()) {
    std::int64_t rest = at / width, global = 0, stride = spec.shape.back();
    for (std::size_t d = spec.shape.size() - 1; d-- > 0;) {
      global += (spec.box.offset[d] + rest % spec.box.shape[d]) * stride;
      rest /= spec.box.shape[d];
      stride *= spec.shape[d];
    }
    const std::int64_t col = at % width;
    const std::size_t run = std::min<std::size_t>(out.size() - done, static_cast<std::size_t>(width - col));
    fill_run(spec, key, global + spec.box.offset.back() + col, out.subspan(done, run));
    done += run;
    at += static_cast<std::int64_t>(run);
  }
}

/// Parameters of a stage in the order of its units.
std::vector<ParamState> list_params(const Stage& stage) {
  std::vector<ParamState> params;
  for (std::size_t u = 0; u < stage.units.size(); ++u) {
    const auto& specs = stage.units[u]->plan().params;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      ParamState p;
      p.spec = &specs[i];
      p.unit = static_cast<int>(u);
      p.id = static_cast<int>(i);
      params.push_back(p);
    }
  }
  return params;
}

/// Places of a unit's parameters in the list.
std::vector<std::vector<std::size_t>> places_by_unit(const Stage& stage, const std::vector<ParamState>& params) {
  std::vector<std::vector<std::size_t>> places(stage.units.size());
  for (std::size_t i = 0; i < params.size(); ++i) places[static_cast<std::size_t>(params[i].unit)].push_back(i);
  return places;
}

Tensor shaped(const Tensor& flat, const ParamSpec& spec) {
  return Tensor(flat.data, flat.dtype, spec.box.shape, flat.device);
}

class ReplicatedStore final : public ParameterStore {
 public:
  ReplicatedStore(const Stage& stage, comm::Communicator* data, const Stream& stream, const StoreOptions& options)
      : data_(data),
        stream_(stream),
        params_(list_params(stage)),
        places_(places_by_unit(stage, params_)),
        written_(params_.size(), 0) {
    std::size_t masters = 0, computes = 0;
    std::map<std::string, std::size_t> first_use;  // tied uses within the stage share their weights
    for (std::size_t i = 0; i < params_.size(); ++i) {
      const ParamSpec& spec = *params_[i].spec;
      params_[i].owned_count = numel(spec.box.shape);
      if (!first_use.emplace(canonical_name(spec), i).second) continue;
      const auto n = static_cast<std::size_t>(params_[i].owned_count);
      masters += Arena::footprint(n * static_cast<std::size_t>(size_of(master_of(spec.dtype))));
      if (spec.dtype != master_of(spec.dtype))
        computes += Arena::footprint(n * static_cast<std::size_t>(size_of(spec.dtype)));
    }
    masters_ = Arena("master weights", masters);
    computes_ = Arena("compute weights", computes);
    for (std::size_t i = 0; i < params_.size(); ++i) {
      ParamState& p = params_[i];
      const std::size_t first = first_use.at(canonical_name(*p.spec));
      if (first != i) {
        p.master = params_[first].master;
        p.compute = params_[first].compute;
        continue;
      }
      p.master = masters_.take(master_of(p.spec->dtype), {p.owned_count});
      p.compute = p.spec->dtype == p.master.dtype ? p.master : computes_.take(p.spec->dtype, {p.owned_count});
    }
    if (options.pack_frozen) plan_packing(first_use);
    make_buckets(stage.module, options.bucket_bytes);
    for (std::size_t u = 0; u < stage.units.size(); ++u) units_.push_back({*this, u});
  }

  void gather(int) override {}
  void release(int) override {}
  UnitParameters& unit(int unit) override { return units_[static_cast<std::size_t>(unit)]; }
  void block_done(int) override {}
  void begin_step() override { std::ranges::fill(written_, 0); }
  void complete_grads() override {
    for (std::size_t i = 0; i < params_.size(); ++i) {
      if (params_[i].grad.defined() && !written_[i]) ops::fill(stream_, params_[i].grad, 0.0);
    }
  }
  std::span<ParamState> params() override { return params_; }
  int num_buckets() const override { return buckets_ ? buckets_->num_buckets() : 0; }
  void reduce(int bucket) override { buckets_->reduce(bucket); }
  void weights_changed() override {}
  void weights_loaded() override {
    for (const Packed& p : packed_) {
      const ParamState& param = params_[p.param];
      ops::pack(stream_, p.memory, p.transpose, as_matrix(param));
    }
    packed_valid_ = !packed_.empty();
  }
  std::int64_t packed_bytes() const override { return static_cast<std::int64_t>(packed_memory_.capacity()); }

 private:
  struct Access final : UnitParameters {
    Access(ReplicatedStore& s, std::size_t u) : store(s), unit(u) {}
    Tensor packed(ParamId id, Transpose transpose) override {
      if (!store.packed_valid_) return {};
      const std::size_t at = store.places_[unit][static_cast<std::size_t>(id)];
      const int place = store.packed_places_[at][transpose == Transpose::yes ? 1 : 0];
      return place < 0 ? Tensor() : store.packed_[static_cast<std::size_t>(place)].memory;
    }
    Tensor weight(ParamId id) override {
      const ParamState& p = store.param(unit, id);
      return shaped(p.compute, *p.spec);
    }
    GradTarget grad(ParamId id) override {
      const std::size_t at = store.places_[unit][static_cast<std::size_t>(id)];
      const ParamState& p = store.params_[at];
      MMT_CHECK(p.grad.defined(), "{} is frozen", canonical_name(*p.spec));
      const Accumulate mode = store.written_[at] ? Accumulate::add : Accumulate::overwrite;
      store.written_[at] = 1;
      return {shaped(p.grad, *p.spec), mode};
    }
    ReplicatedStore& store;
    std::size_t unit;
  };

  const ParamState& param(std::size_t unit, ParamId id) const {
    return params_[places_[unit][static_cast<std::size_t>(id)]];
  }

  static Tensor as_matrix(const ParamState& p) {
    return p.compute.reshape({p.spec->box.shape[0], p.owned_count / p.spec->box.shape[0]});
  }

  /// Which frozen matrices are packed, for which products; tied uses share one packed form. It is filled, and read from
  /// then on, when weights have been loaded.
  void plan_packing(const std::map<std::string, std::size_t>& first_use) {
    packed_places_.assign(params_.size(), {-1, -1});
    std::vector<std::int64_t> bytes;
    std::size_t memory = 0;
    for (std::size_t i = 0; i < params_.size(); ++i) {
      const ParamSpec& spec = *params_[i].spec;
      const std::size_t first = first_use.at(canonical_name(spec));
      for (const Transpose t : {Transpose::no, Transpose::yes}) {
        const bool forward = t == Transpose::yes;
        if (spec.trainable || !(forward ? spec.forward_product : spec.input_product) || params_[i].owned_count == 0)
          continue;
        const std::int64_t out = spec.box.shape[0], in = params_[i].owned_count / out;
        const std::int64_t size = ops::packed_bytes(stream_, spec.dtype, t, forward ? in : out, forward ? out : in);
        if (size == 0) continue;
        int& place = packed_places_[first][forward ? 1 : 0];
        if (place < 0) {
          place = static_cast<int>(packed_.size());
          packed_.push_back({first, t, {}});
          bytes.push_back(size);
          memory += Arena::footprint(static_cast<std::size_t>(size));
        }
        packed_places_[i][forward ? 1 : 0] = place;
      }
    }
    packed_memory_ = Arena("packed frozen weights", memory);
    for (std::size_t k = 0; k < packed_.size(); ++k) packed_[k].memory = packed_memory_.take(DType::u8, {bytes[k]});
  }

  /// In the order in which the backward completes them: last unit first.
  void make_buckets(const std::string& name, std::int64_t bucket_bytes) {
    std::vector<std::size_t> order;
    std::vector<BucketItem> items;
    for (std::size_t u = places_.size(); u-- > 0;) {
      for (const std::size_t i : places_[u]) {
        if (!params_[i].spec->trainable) continue;
        order.push_back(i);
        items.push_back({canonical_name(*params_[i].spec), params_[i].owned_count});
      }
    }
    if (items.empty()) return;
    const DType dtype = params_[order.front()].master.dtype;
    buckets_ = std::make_unique<GradientBuckets>(name, items, dtype, bucket_bytes, data_, stream_);
    for (std::size_t k = 0; k < order.size(); ++k) params_[order[k]].grad = buckets_->grad(k);
  }

  comm::Communicator* data_;
  Stream stream_;
  std::vector<ParamState> params_;
  std::vector<std::vector<std::size_t>> places_;
  std::vector<char> written_;
  Arena masters_, computes_, packed_memory_;
  /// A frozen matrix packed for one product.
  struct Packed {
    std::size_t param;
    Transpose transpose;
    Tensor memory;
  };
  std::vector<Packed> packed_;
  std::vector<std::array<int, 2>> packed_places_;  ///< by parameter: for dy w, for x w^T; -1: none
  bool packed_valid_ = false;
  std::unique_ptr<GradientBuckets> buckets_;
  std::vector<Access> units_;
};

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
        const std::int64_t n = numel(p.spec->box.shape);
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

void initialize(const ParamSpec& spec, std::uint64_t seed, std::int64_t owned_first, const Tensor& master) {
  const std::uint64_t key = random_key(seed, "init", canonical_name(spec));
  if (master.numel() == 0) return;
  // A value depends on its place alone, so the pieces may be made by any thread.
  constexpr std::int64_t kPiece = 64 * 1024;
  const std::int64_t count = master.numel();
#pragma omp parallel for schedule(dynamic, 1) if (count > kPiece)
  for (std::int64_t first = 0; first < count; first += kPiece) {
    const std::int64_t size = std::min(kPiece, count - first);
    const auto piece = [&]<class T>(std::span<T> all) {
      initialize_typed(spec, key, owned_first + first,
                       all.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size)));
    };
    if (master.dtype == DType::f64)
      piece(master.span<double>());
    else
      piece(master.span<float>());
  }
}

std::unique_ptr<ParameterStore> make_replicated_store(const Stage& stage, comm::Communicator* data,
                                                      const Stream& stream, const StoreOptions& options) {
  return std::make_unique<ReplicatedStore>(stage, data, stream, options);
}

std::unique_ptr<ParameterStore> make_sharded_store(const Stage& stage, comm::Communicator& data, const Stream& stream) {
  return std::make_unique<ShardedStore>(stage, data, stream);
}

void run_tie(const TieGroup& group, const Stream& stream) {
  MMT_CHECK(!group.uses.empty(), "tied parameter {} has no use here", group.name);
  const auto param = [&](std::size_t i) -> const ParamState& {
    return group.uses[i].store->params()[group.uses[i].param];
  };
  const auto grad = [&](std::size_t i) { return param(i).grad; };
  for (std::size_t i = 1; i < group.uses.size(); ++i) ops::add_in_place(stream, grad(0), grad(i));
  if (group.comm != nullptr) group.comm->all_reduce(grad(0), comm::ReduceOp::sum, stream);
  for (std::size_t i = 1; i < group.uses.size(); ++i) {
    // A use that shares its weights with the first is updated with it: nobody reads its gradient.
    if (param(i).master.data != param(0).master.data) ops::copy(stream, grad(i), grad(0));
  }
}

}  // namespace mmt::run
