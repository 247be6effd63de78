#include "parallel/run/optimizer.h"
#include "core/philox.h"
#include "kernels/backend.h"
#include "parallel/comm/threads.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <limits>

using namespace mmt;
using namespace mmt::run;

namespace {

constexpr std::int64_t kA = 37, kB = 1000;

double value_of(std::uint64_t tensor, std::int64_t i) {
  return random_normal(3, tensor, 0, static_cast<std::uint64_t>(i));
}

struct Param {
  OwnedTensor master, grad, compute;
  Param(std::uint64_t id, std::int64_t first, std::int64_t count, DType dtype = DType::f32)
      : master(DType::f32, {count}), grad(DType::f32, {count}), compute(dtype, {count}) {
    for (std::int64_t i = 0; i < count; ++i) master->as<float>()[i] = static_cast<float>(value_of(id, first + i));
  }
  void set_grad(std::uint64_t id, std::int64_t first) {
    for (std::int64_t i = 0; i < grad->numel(); ++i) grad->as<float>()[i] = static_cast<float>(value_of(id, first + i));
  }
  OptimizedParam entry(const std::string& module, double lr_scale, double decay) const {
    OptimizedParam p;
    p.name = module + "/w";
    p.module = module;
    p.master = master;
    p.grad = grad;
    p.compute = compute->dtype == DType::f32 ? master.view() : compute.view();
    p.lr_scale = lr_scale;
    p.weight_decay = decay;
    return p;
  }
};

AdamwOptions options(double max_norm) {
  AdamwOptions o;
  o.beta1 = 0.9;
  o.beta2 = 0.95;
  o.epsilon = 1e-8;
  o.max_grad_norm = max_norm;
  return o;
}

const auto all_active = [](const std::string&) { return true; };

// The definition in double, one element at a time.
struct Scalar {
  double w, m = 0, v = 0;
  void step(double g, double lr, double decay, int t) {
    m = 0.9 * m + 0.1 * g;
    v = 0.95 * v + 0.05 * g * g;
    w -= lr * decay * w;
    w -= lr * (m / (1 - std::pow(0.9, t))) / (std::sqrt(v / (1 - std::pow(0.95, t))) + 1e-8);
  }
};

}  // namespace

TEST_CASE("AdamW follows its definition with clipping and scales of its own") {
  Param a(1, 0, kA), b(2, 0, kB, DType::bf16);
  Optimizer optimizer({a.entry("llm", 1.0, 0.1), b.entry("eyes", 50.0, 0.0)}, options(1.0), nullptr, cpu_stream());
  std::vector<Scalar> sa, sb;
  for (std::int64_t i = 0; i < kA; ++i) sa.push_back({value_of(1, i)});
  for (std::int64_t i = 0; i < kB; ++i) sb.push_back({value_of(2, i)});
  for (int t = 1; t <= 5; ++t) {
    const auto id = static_cast<std::uint64_t>(10 * t);
    a.set_grad(id, 0);
    b.set_grad(id + 1, 0);
    double square = 0;
    for (std::int64_t i = 0; i < kA; ++i) square += std::pow(a.grad->as<float>()[i], 2);
    for (std::int64_t i = 0; i < kB; ++i) square += std::pow(b.grad->as<float>()[i], 2);
    const double clip = 1.0 / (std::sqrt(square) + 1e-6);
    const double lr = 1e-3 * t;
    const auto result = optimizer.step(lr, all_active);
    CHECK(result.finite);
    CHECK(result.grad_norm == Approx(std::sqrt(square)).epsilon(1e-12));
    CHECK(result.clip == Approx(clip).epsilon(1e-12));
    for (std::int64_t i = 0; i < kA; ++i)
      sa[static_cast<std::size_t>(i)].step(clip * a.grad->as<float>()[i], lr, 0.1, t);
    for (std::int64_t i = 0; i < kB; ++i)
      sb[static_cast<std::size_t>(i)].step(clip * b.grad->as<float>()[i], 50 * lr, 0.0, t);
  }
  CHECK(optimizer.updates() == 5);
  // f32 state against double: a few roundings of values near 1 a step, and m / sqrt(v) of f32 moments.
  double worst = 0;
  for (std::int64_t i = 0; i < kA; ++i)
    worst = std::max(worst, std::abs(a.master->as<float>()[i] - sa[static_cast<std::size_t>(i)].w));
  for (std::int64_t i = 0; i < kB; ++i) {
    worst = std::max(worst, std::abs(b.master->as<float>()[i] - sb[static_cast<std::size_t>(i)].w));
    REQUIRE(b.compute->as<bf16>()[i].bits == bf16(b.master->as<float>()[i]).bits);
  }
  CHECK(worst < 5e-6);
  CHECK(worst > 0);
}

TEST_CASE("parts on several ranks give the bits of one rank and each element counts once") {
  Param whole(1, 0, kB), copy(2, 0, kA);
  Optimizer single({whole.entry("llm", 1, 0.1), copy.entry("eyes", 1, 0)}, options(0.5), nullptr, cpu_stream());
  std::vector<double> norms;
  for (int t = 1; t <= 3; ++t) {
    whole.set_grad(static_cast<std::uint64_t>(t), 0);
    copy.set_grad(static_cast<std::uint64_t>(t) + 50, 0);
    norms.push_back(single.step(1e-3, all_active).grad_norm);
  }
  for (const int ranks : {2, 3}) {
    for (const bool wrong : {false, true}) {
      // The first parameter is cut into a part a rank, the second is a copy on all. The mutation counts copies n times.
      const auto body = [&](comm::Communicator& comm) {
        const std::int64_t first = kB * comm.rank() / ranks, last = kB * (comm.rank() + 1) / ranks;
        Param part(1, first, last - first), replica(2, 0, kA);
        OptimizedParam second = replica.entry("eyes", 1, 0);
        second.replica = wrong ? 0 : comm.rank();
        second.num_replicas = wrong ? 1 : ranks;
        Optimizer optimizer({part.entry("llm", 1, 0.1), second}, options(0), &comm, cpu_stream());
        for (int t = 1; t <= 3; ++t) {
          part.set_grad(static_cast<std::uint64_t>(t), first);
          replica.set_grad(static_cast<std::uint64_t>(t) + 50, 0);
          const auto result = optimizer.step(1e-3, all_active);
          const double error = std::abs(result.grad_norm / norms[static_cast<std::size_t>(t - 1)] - 1);
          MMT_CHECK((error < 1e-12) != wrong, "norm {} of {} ranks, error {}", result.grad_norm, ranks, error);
        }
      };
      CHECK_NOTHROW(comm::run_threads(ranks, body));
    }
    // With the clip of the norm, which is summed in another order and may differ in its last bit, weights agree
    // closely.
    comm::run_threads(ranks, [&](comm::Communicator& comm) {
      const std::int64_t first = kB * comm.rank() / ranks, last = kB * (comm.rank() + 1) / ranks;
      Param part(1, first, last - first), replica(2, 0, kA);
      OptimizedParam second = replica.entry("eyes", 1, 0);
      second.replica = comm.rank();
      second.num_replicas = ranks;
      Optimizer optimizer({part.entry("llm", 1, 0.1), second}, options(0.5), &comm, cpu_stream());
      for (int t = 1; t <= 3; ++t) {
        part.set_grad(static_cast<std::uint64_t>(t), first);
        replica.set_grad(static_cast<std::uint64_t>(t) + 50, 0);
        optimizer.step(1e-3, all_active);
      }
      for (std::int64_t i = 0; i < last - first; ++i) {
        const float want = whole.master->as<float>()[first + i];
        MMT_CHECK(std::abs(part.master->as<float>()[i] - want) <= 1e-6f, "element {}", first + i);
      }
    });
  }
}

TEST_CASE("a module without rows keeps its weights and moments") {
  Param a(1, 0, kA), b(2, 0, kA);
  Optimizer optimizer({a.entry("llm", 1, 0.1), b.entry("eyes", 1, 0.1)}, options(0), nullptr, cpu_stream());
  a.set_grad(5, 0);
  b.set_grad(6, 0);
  optimizer.step(1e-3, all_active);
  std::vector<float> w(b.master->as<float>(), b.master->as<float>() + kA);
  std::vector<float> m(optimizer.first_moment(1).as<float>(), optimizer.first_moment(1).as<float>() + kA);
  std::vector<float> other(a.master->as<float>(), a.master->as<float>() + kA);
  double square = 0;
  for (std::int64_t i = 0; i < kA; ++i) square += std::pow(a.grad->as<float>()[i], 2);
  b.grad->as<float>()[0] = std::numeric_limits<float>::quiet_NaN();  // nobody looks at it
  const auto result = optimizer.step(1e-3, [](const std::string& module) { return module == "llm"; });
  CHECK(result.finite);
  CHECK(result.grad_norm == Approx(std::sqrt(square)));
  CHECK(optimizer.updates() == 2);
  CHECK(std::memcmp(w.data(), b.master->data, w.size() * 4) == 0);
  CHECK(std::memcmp(m.data(), optimizer.first_moment(1).data, m.size() * 4) == 0);
  CHECK(std::memcmp(other.data(), a.master->data, other.size() * 4) != 0);
  optimizer.step(1e-3, [](const std::string&) { return false; });
  CHECK(optimizer.updates() == 2);
}

TEST_CASE("a value that is not finite stops the update on every rank") {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    comm::run_threads(3, [&](comm::Communicator& comm) {
      Param a(1, 0, kA);
      a.set_grad(2, 0);
      if (comm.rank() == 1) a.grad->as<float>()[17] = bad;
      OptimizedParam p = a.entry("llm", 1, 0);
      p.replica = comm.rank();
      p.num_replicas = 3;
      // The rank that holds the bad value counts elements 12 to 23 of it.
      Optimizer optimizer({p}, options(1), &comm, cpu_stream());
      std::vector<float> w(a.master->as<float>(), a.master->as<float>() + kA);
      const auto result = optimizer.step(1e-3, all_active);
      MMT_CHECK(!result.finite && optimizer.updates() == 0, "rank {}", comm.rank());
      MMT_CHECK(result.culprit == "rank 1: the gradient of llm/w", "{}", result.culprit);
      MMT_CHECK(std::memcmp(w.data(), a.master->data, w.size() * 4) == 0, "weights changed");
      a.set_grad(2, 0);
      const auto loss = optimizer.step(1e-3, all_active, comm.rank() != 2);
      MMT_CHECK(!loss.finite && loss.culprit == "rank 2: the loss", "{}", loss.culprit);
      MMT_CHECK(optimizer.step(1e-3, all_active).finite && optimizer.updates() == 1, "rank {}", comm.rank());
    });
  }
}

TEST_CASE("updates continue where a checkpoint left them") {
  Param a(1, 0, kA), b(1, 0, kA);
  Optimizer through({a.entry("llm", 1, 0.1)}, options(0), nullptr, cpu_stream());
  Optimizer first({b.entry("llm", 1, 0.1)}, options(0), nullptr, cpu_stream());
  for (int t = 1; t <= 4; ++t) {
    a.set_grad(static_cast<std::uint64_t>(t), 0);
    through.step(1e-2, all_active);
  }
  for (int t = 1; t <= 2; ++t) {
    b.set_grad(static_cast<std::uint64_t>(t), 0);
    first.step(1e-2, all_active);
  }
  Optimizer second({b.entry("llm", 1, 0.1)}, options(0), nullptr, cpu_stream());
  std::memcpy(second.first_moment(0).data, first.first_moment(0).data, static_cast<std::size_t>(kA) * 4);
  std::memcpy(second.second_moment(0).data, first.second_moment(0).data, static_cast<std::size_t>(kA) * 4);
  second.set_updates(first.updates());
  for (int t = 3; t <= 4; ++t) {
    b.set_grad(static_cast<std::uint64_t>(t), 0);
    second.step(1e-2, all_active);
  }
  CHECK(std::memcmp(a.master->data, b.master->data, static_cast<std::size_t>(kA) * 4) == 0);
}
