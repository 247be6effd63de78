#include "tests/models/harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mmt::test {

Values values_of(const Tensor& t) {
  Values v;
  v.reserve(static_cast<std::size_t>(t.numel()));
  if (t.numel() == 0) return v;
  visit_float(t.dtype, [&]<class T>() {
    for (std::int64_t r = 0; r < t.rows(); ++r)
      for (std::int64_t c = 0; c < t.cols(); ++c) v.push_back(static_cast<double>(t.row<T>(r)[c]));
  });
  return v;
}

void set_values(const Tensor& t, const Values& v) {
  MMT_CHECK(static_cast<std::int64_t>(v.size()) == t.numel(), "{} values for {}", v.size(), t.describe());
  if (v.empty()) return;
  visit_float(t.dtype, [&]<class T>() {
    for (std::size_t i = 0; i < v.size(); ++i) t.as<T>()[i] = T(v[i]);
  });
}

Values random_values(std::int64_t n, unsigned seed, double scale) {
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal(0.0, scale);
  Values v(static_cast<std::size_t>(n));
  for (double& x : v) x = static_cast<double>(static_cast<float>(normal(rng)));
  return v;
}

double dot(const Values& a, const Values& b) {
  MMT_CHECK(a.size() == b.size(), "{} and {} values", a.size(), b.size());
  double s = 0;
  for (std::size_t i = 0; i < a.size(); ++i) s += a[i] * b[i];
  return s;
}

double norm2(const Values& a) { return std::sqrt(dot(a, a)); }

double max_difference(const Values& a, const Values& b) {
  MMT_CHECK(a.size() == b.size(), "{} and {} values", a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

void add_random_values(NamedValues& values, const run::Stage& stage, unsigned seed) {
  for (const auto& unit : stage.units) {
    for (const run::ParamSpec& spec : unit->plan().params) {
      Values& v = values[canonical_name(spec)];
      if (!v.empty()) continue;
      std::int64_t n = 1;
      for (const std::int64_t d : spec.shape) n *= d;
      const bool ones = spec.init.kind == run::Init::Kind::ones, zeros = spec.init.kind == run::Init::Kind::zeros;
      const double scale =
          ones || zeros ? 0.2 : 0.8 / std::sqrt(static_cast<double>(spec.shape.size() > 1 ? n / spec.shape[0] : 4));
      v = random_values(n, seed + static_cast<unsigned>(std::hash<std::string>{}(canonical_name(spec))), scale);
      if (ones)
        for (double& x : v) x = static_cast<double>(static_cast<float>(x + 1.0));
    }
  }
}

struct Params::Unit final : run::UnitParameters {
  struct Param {
    const run::ParamSpec* spec = nullptr;
    OwnedTensor weight, grad;
    bool written = false;
  };
  std::vector<Param> params;

  Tensor weight(run::ParamId id) override { return params[static_cast<std::size_t>(id)].weight; }
  run::GradTarget grad(run::ParamId id) override {
    Param& p = params[static_cast<std::size_t>(id)];
    MMT_CHECK(p.spec->trainable, "the gradient of {}, which is frozen, was asked for", canonical_name(*p.spec));
    const run::GradTarget target{p.grad, p.written ? Accumulate::add : Accumulate::overwrite};
    p.written = true;
    return target;
  }
};

Params::Params(const run::Stage& stage, const NamedValues& values) : stage_(stage), values_(values) {
  for (const auto& unit : stage.units) {
    auto state = std::make_shared<Unit>();
    for (const run::ParamSpec& spec : unit->plan().params) {
      Unit::Param p;
      p.spec = &spec;
      p.weight = OwnedTensor(spec.dtype, std::span<const std::int64_t>(spec.box.shape));
      if (spec.trainable) p.grad = OwnedTensor(master_of(spec.dtype), std::span<const std::int64_t>(spec.box.shape));
      state->params.push_back(std::move(p));
    }
    units_.push_back(std::move(state));
  }
  load();
}

run::UnitParameters& Params::unit(std::size_t u) { return *units_[u]; }

void Params::load() {
  for (const auto& unit : units_) {
    for (const Unit::Param& p : unit->params) {
      const Values& global = values_.at(canonical_name(*p.spec));
      const run::Box& box = p.spec->box;
      const std::int64_t n = p.weight->numel();
      Values part(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) {
        // Index within the box -> index within the global tensor.
        std::int64_t rest = i, at = 0, stride = 1;
        for (std::size_t d = box.shape.size(); d-- > 0;) {
          at += (rest % box.shape[d] + box.offset[d]) * stride;
          rest /= box.shape[d];
          stride *= p.spec->shape[d];
        }
        part[static_cast<std::size_t>(i)] = global[static_cast<std::size_t>(at)];
      }
      set_values(p.weight, part);
    }
  }
}

void Params::begin_step() {
  for (const auto& unit : units_) {
    for (Unit::Param& p : unit->params) {
      p.written = false;
      if (p.spec->trainable) poison(p.grad->data, static_cast<std::size_t>(p.grad->bytes()));
    }
  }
}

NamedValues Params::gradients() const {
  NamedValues all;
  for (const auto& unit : units_) {
    for (const Unit::Param& p : unit->params) {
      if (!p.spec->trainable) continue;
      MMT_CHECK(p.written, "no gradient of {} was written", canonical_name(*p.spec));
      const Values v = values_of(p.grad);
      Values& sum = all[canonical_name(*p.spec)];
      if (sum.empty()) {
        sum = v;
      } else {
        for (std::size_t i = 0; i < v.size(); ++i) sum[i] += v[i];
      }
    }
  }
  return all;
}

}  // namespace mmt::test
