#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "parallel/run/buckets.h"
#include "parallel/run/param_bytes.h"
#include "parallel/run/store_params.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace mmt::run {
namespace {

/// Consecutive tp ranks over which a parameter's gradients are partial sums; 1: none.
int partial_group(const ParamSpec& spec, int tp) {
  for (const AxisGroup& g : spec.partial_over) {
    if (g.axis == Axis::tp && tp > 1) return g.size == 0 ? tp : g.size;
  }
  return 1;
}

class ReplicatedStore final : public ParameterStore {
 public:
  ReplicatedStore(const Stage& stage, const StoreComms& comms, const Stream& stream, const StoreOptions& options)
      : comms_(comms),
        stream_(stream),
        zero_(options.zero),
        params_(list_params(stage)),
        places_(places_by_unit(stage, params_)),
        written_(params_.size(), 0) {
    MMT_CHECK(zero_ == 0 || zero_ == 1, "ZeRO-{} of a store whose weights are whole", zero_);
    std::map<std::string, std::size_t> first_use;  // tied uses within the stage share their weights
    for (std::size_t i = 0; i < params_.size(); ++i) first_use.emplace(canonical_name(*params_[i].spec), i);
    whole_compute_.resize(params_.size());
    whole_grads_.resize(params_.size());
    make_groups(stage.module, options, first_use);
    make_weights(first_use);
    if (options.pack_frozen) plan_packing(first_use);
    for (std::size_t u = 0; u < stage.units.size(); ++u) units_.push_back({*this, u});
  }

  void gather(int) override {}
  void release(int) override {}
  UnitParameters& unit(int unit) override { return units_[static_cast<std::size_t>(unit)]; }
  void block_done(int) override {}
  void begin_step() override { std::ranges::fill(written_, 0); }
  void complete_grads() override {
    for (std::size_t i = 0; i < params_.size(); ++i) {
      if (whole_grads_[i].defined() && !written_[i]) ops::fill(stream_, whole_grads_[i], 0.0);
    }
  }
  std::span<ParamState> params() override { return params_; }
  int num_buckets() const override {
    int n = 0;
    for (const Group& g : groups_) n += g.buckets->num_buckets();
    return n;
  }
  void reduce(int bucket) override {
    for (const Group& g : groups_) {
      if (bucket < g.buckets->num_buckets()) return g.buckets->reduce(bucket);
      bucket -= g.buckets->num_buckets();
    }
    MMT_CHECK(false, "a store of {} buckets reduces number {} beyond them", num_buckets(), bucket);
  }
  void weights_changed() override {
    for (const Group& g : groups_) {
      for (int b = 0; g.compute.defined() && b < g.buckets->num_buckets(); ++b) g.buckets->gather(b, g.compute);
    }
  }
  bool splits_over_data(const ParamState& param) const override { return zero_ == 1 && param.spec->trainable; }
  void weights_loaded() override {
    weights_changed();
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
      const std::size_t at = store.places_[unit][static_cast<std::size_t>(id)];
      return shaped(store.whole_compute_[at], *store.params_[at].spec);
    }
    GradTarget grad(ParamId id) override {
      const std::size_t at = store.places_[unit][static_cast<std::size_t>(id)];
      const ParamState& p = store.params_[at];
      MMT_CHECK(store.whole_grads_[at].defined(), "{} is frozen", canonical_name(*p.spec));
      const Accumulate mode = store.written_[at] ? Accumulate::add : Accumulate::overwrite;
      store.written_[at] = 1;
      return {shaped(store.whole_grads_[at], *p.spec), mode};
    }
    ReplicatedStore& store;
    std::size_t unit;
  };

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
        const std::int64_t size = run::packed_bytes(spec, t, stream_);
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

  /// Trainable parameters whose gradients are reduced alike, in buckets of their own.
  struct Group {
    std::vector<std::size_t> params;  ///< in the order in which the backward completes them: last unit first
    std::unique_ptr<GradientBuckets> buckets;
    Tensor compute;  ///< ZeRO-1: compute weights, laid out as the gradients; absent for a further use of tied ones
  };

  /// By size of the tp groups; under ZeRO-1 a use of a tied parameter is alone, so that all uses are cut alike.
  void make_groups(const std::string& name, const StoreOptions& options,
                   const std::map<std::string, std::size_t>& first_use) {
    std::set<std::string> tied = options.tied;
    for (std::size_t i = 0; i < params_.size(); ++i) {
      const std::string canonical = canonical_name(*params_[i].spec);
      if (first_use.at(canonical) != i) tied.insert(canonical);
    }
    const int tp = comms_.tp == nullptr ? 1 : comms_.tp->size();
    std::map<std::tuple<int, std::string, std::size_t>, Group> by_kind;
    for (std::size_t u = places_.size(); u-- > 0;) {
      for (const std::size_t i : places_[u]) {
        const ParamSpec& spec = *params_[i].spec;
        if (!spec.trainable) continue;
        const bool alone = zero_ == 1 && tied.contains(canonical_name(spec));
        by_kind[{partial_group(spec, tp), alone ? canonical_name(spec) : "", alone ? i : 0}].params.push_back(i);
      }
    }
    std::map<int, comm::Communicator*> partial = {{1, nullptr}, {tp, comms_.tp}};
    for (auto& [kind, group] : by_kind) {
      const int size = std::get<int>(kind);
      if (!partial.contains(size)) {
        MMT_CHECK(tp % size == 0, "{}: gradients are partial over {} of {} tensor-parallel ranks", name, size, tp);
        split_.push_back(comms_.tp->split(comms_.tp->rank() / size, comms_.tp->rank(),
                                          fmt::format("{} in groups of {}", comms_.tp->name(), size)));
        partial[size] = split_.back().get();
      }
      std::vector<BucketItem> items;
      std::vector<std::int64_t> largest;
      for (const std::size_t i : group.params) largest.push_back(num_owned(*params_[i].spec));
      // Shares of a vocabulary differ by a row; the buckets of all tp ranks end at the same parameters all the same.
      if (comms_.tp != nullptr)
        comms_.tp->all_reduce(Tensor(largest.data(), DType::i64, {std::ssize(largest)}), comm::ReduceOp::max, stream_);
      for (std::size_t k = 0; k < group.params.size(); ++k) {
        const ParamSpec& spec = *params_[group.params[k]].spec;
        items.push_back({canonical_name(spec), num_owned(spec), largest[k]});
      }
      const DType compute = params_[group.params.front()].spec->dtype;
      // A cache line of the smaller of gradients and compute weights.
      const BucketOptions bucket_options{options.bucket_bytes, 64 / (zero_ == 1 ? size_of(compute) : 4), zero_ == 1};
      group.buckets = std::make_unique<GradientBuckets>(name, items, master_of(compute), bucket_options,
                                                        BucketComms{partial.at(size), comms_.data}, stream_);
      for (std::size_t k = 0; k < group.params.size(); ++k) {
        ParamState& p = params_[group.params[k]];
        MMT_CHECK(p.spec->dtype == compute, "{} is {}, others of its stage {}", items[k].name, name_of(p.spec->dtype),
                  name_of(compute));
        const GradientBuckets::Range kept = group.buckets->kept(k);
        whole_grads_[group.params[k]] = group.buckets->grad(k);
        p.owned_first = kept.first;
        p.owned_count = kept.count;
        p.grad = group.buckets->grad(k).row_range(kept.first, kept.count);
      }
      groups_.push_back(std::move(group));
    }
  }

  /// Master and compute weights: whole, or under ZeRO-1 those of trainable parameters in the layout of the buckets.
  void make_weights(const std::map<std::string, std::size_t>& first_use) {
    const auto of = [](DType dtype, std::int64_t n) {
      return Arena::footprint(static_cast<std::size_t>(n * size_of(dtype)));
    };
    const auto is_first = [&](std::size_t i) { return first_use.at(canonical_name(*params_[i].spec)) == i; };
    const auto in_buckets = [&](std::size_t i) { return zero_ == 1 && params_[i].spec->trainable; };
    std::size_t masters = 0, computes = 0;
    for (std::size_t i = 0; i < params_.size(); ++i) {
      const DType dtype = params_[i].spec->dtype, master = master_dtype(*params_[i].spec);
      if (!is_first(i)) continue;
      if (!in_buckets(i)) params_[i].owned_count = num_owned(*params_[i].spec);
      if (!in_buckets(i) || dtype != master) masters += of(master, params_[i].owned_count);
      if (!in_buckets(i) && dtype != master) computes += of(dtype, params_[i].owned_count);
    }
    for (const Group& g : groups_) {
      if (zero_ == 1) computes += of(params_[g.params.front()].spec->dtype, g.buckets->numel());
    }
    masters_ = Arena("master weights", masters);
    computes_ = Arena("compute weights", computes);
    for (Group& g : groups_) {
      if (zero_ == 0 || !is_first(g.params.front())) continue;
      g.compute = computes_.take(params_[g.params.front()].spec->dtype, {g.buckets->numel()});
      ops::fill(stream_, g.compute, 0.0);  // the gaps between parameters are gathered, too
      for (std::size_t k = 0; k < g.params.size(); ++k) {
        const GradientBuckets::Range at = g.buckets->of_item(k);
        whole_compute_[g.params[k]] = g.compute.row_range(at.first, at.count);
      }
    }
    for (std::size_t i = 0; i < params_.size(); ++i) {
      ParamState& p = params_[i];
      if (!is_first(i)) {
        const std::size_t first = first_use.at(canonical_name(*p.spec));
        p.owned_first = params_[first].owned_first;
        p.owned_count = params_[first].owned_count;
        p.master = params_[first].master;
        p.compute = params_[first].compute;
        whole_compute_[i] = whole_compute_[first];
        continue;
      }
      const DType dtype = p.spec->dtype, master = master_dtype(*p.spec);
      if (in_buckets(i)) {
        p.compute = whole_compute_[i].row_range(p.owned_first, p.owned_count);
        p.master = dtype == master ? p.compute : masters_.take(master, {p.owned_count});
      } else {
        p.master = masters_.take(master, {p.owned_count});
        p.compute = whole_compute_[i] = dtype == master ? p.master : computes_.take(dtype, {p.owned_count});
      }
    }
  }

  StoreComms comms_;
  Stream stream_;
  int zero_;
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
  std::vector<std::unique_ptr<comm::Communicator>> split_;
  std::vector<Group> groups_;
  std::vector<Tensor> whole_compute_, whole_grads_;  ///< by parameter: the whole box
  std::vector<Access> units_;
};

}  // namespace

std::unique_ptr<ParameterStore> make_replicated_store(const Stage& stage, const StoreComms& comms, const Stream& stream,
                                                      const StoreOptions& options) {
  return std::make_unique<ReplicatedStore>(stage, comms, stream, options);
}

}  // namespace mmt::run
