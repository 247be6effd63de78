#include "tests/engine/layout_run.h"

#include "apps/mmtrain/engine.h"
#include "apps/mmtrain/flops.h"
#include "apps/mmtrain/layout.h"
#include "apps/mmtrain/shared_loading.h"
#include "kernels/backend.h"
#include "parallel/run/checkpoint_pieces.h"
#include "parallel/run/optimized.h"
#include "tests/engine/exact_store.h"

#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>

namespace mmt::test {
namespace {

/// Puts this rank's parts of gradients or weights at their places in the whole tensors.
void put_whole(const app::Model& model, bool trainable_only, Tensor run::ParamState::*what, Outcome::Tensors& out,
               std::mutex& lock) {
  const std::lock_guard guard(lock);
  for (const run::PlacedParam& p : model.params(trainable_only)) {
    if (!p.first_use || p.copies.index != 0) continue;
    const run::ParamSpec& spec = *p.state->spec;
    std::vector<float>& whole = out[p.name];
    whole.resize(static_cast<std::size_t>(run::num_elements(spec.shape)), NAN);
    run::put_range(spec.shape, {spec.box.offset, spec.box.shape}, p.state->owned_first, (p.state->*what).span<float>(),
                   whole);
  }
}

/// Whether the batch has rows for the module; a projector's are those of its encoder.
bool has_rows(const app::Model& model, const app::PlannedStep& step, const std::string& module) {
  for (std::size_t m = 0; m < model.num_modules(); ++m) {
    if (model.layout.modules()[m].name == module) return step.module_rows[m] > 0;
  }
  throw std::logic_error("no module " + module);
}

std::vector<std::string> edge_names(const app::Model& model) {
  const auto name = [&](int stage) {
    const std::size_t module = model.module_of(stage);
    return fmt::format("{} {}", model.layout.modules()[module].name, stage - model.first_stage(module));
  };
  std::vector<std::string> names;
  for (const plan::Edge& edge : plan::layout_edges(model.layout, model.traits))
    names.push_back(fmt::format("{} > {}", name(edge.producer), name(edge.consumer)));
  return names;
}

/// Gives every B of an adapter values, addressed as fresh ones are: at zero they would hide the gradients of A.
void fill_adapters(app::Model& model, const Stream& stream) {
  for (const int s : model.own) {
    run::ParameterStore& store = *model.stores[static_cast<std::size_t>(s)];
    for (run::ParamState& p : store.params()) {
      if (p.spec->name.find(".lora_B.") == std::string::npos) continue;
      run::ParamSpec spec = *p.spec;
      spec.init = {run::Init::Kind::normal, 0.1};
      run::initialize(spec, 1, p.owned_first, p.master);
    }
    app::refresh_compute(store, stream);
  }
}

/// One rank's part of the run.
void run_rank(const app::Config& config, const MadeBatch& batch, const RunOptions& options, comm::Communicator& inner,
              Outcome& out, std::mutex& lock) {
  RankReport& report = out.ranks[static_cast<std::size_t>(inner.rank())];
  const auto traced = comm::make_tracing(inner, report.trace);
  comm::Communicator& world = *traced;
  const Stream stream = cpu_stream();
  app::Model model = app::build_model(config, app::make_layout(config, options.sizes).layout, world.rank());
  make_stores(model, world, stream);
  for (const int s : model.own) {
    auto& store = model.stores[static_cast<std::size_t>(s)];
    if (options.exact) store = make_exact_store(std::move(store), model.comm(s, plan::Axis::dp));
  }
  initialize_model(model, 1, stream);
  fill_adapters(model, stream);
  const app::PlanContext context{&config, &model, nullptr, true};
  const app::RequiredFlops flops(config, model);
  app::Engine engine(config, world, model, options.caps, stream);
  std::vector<run::OptimizedParam> params = run::optimized_params(model.placed(), model.uses);
  for (run::OptimizedParam& p : params) p.weight_decay = 0.0;
  run::Optimizer optimizer(std::move(params), {.max_grad_norm = config.train.max_grad_norm}, &world, stream);
  for (const run::OptimizedParam& p : optimizer.params()) report.moment_bytes += 2 * p.master.bytes();
  for (const int s : model.own) {
    for (const run::ParamState& p : model.stores[static_cast<std::size_t>(s)]->params())
      report.grad_bytes += p.grad.defined() ? p.grad.bytes() : 0;
  }
  if (world.rank() == 0) out.edges = edge_names(model);
  report.trace.events.clear();
  for (int step = 0; step < options.steps; ++step) {
    const auto planned = app::plan_step(context, batch.metas, step, batch.samples);
    std::vector<data::LoadedSample> own;
    if (app::reads_samples(model)) {
      for (const std::int32_t i : planned->own) own.push_back(batch.loaded[static_cast<std::size_t>(i)]);
    }
    share_loaded(config, model, *planned, std::vector<std::int32_t>(batch.samples.size(), -1), own);
    run::Optimizer::Result result;
    const auto results = engine.run(*planned, own, 1.0 / planned->weight, true, [&] {
      // The gradients before clipping.
      if (step == 0) put_whole(model, true, &run::ParamState::grad, out.first_grads, lock);
      if (step + 1 == options.steps) put_whole(model, true, &run::ParamState::grad, out.grads, lock);
      result = optimizer.step(1e-3, [&](const std::string& name) { return has_rows(model, *planned, name); });
    });
    for (const int s : model.own) model.stores[static_cast<std::size_t>(s)]->weights_changed();
    // Added in the order of sample ids, whoever had which: the layout does not change their sum.
    std::vector<double> losses(batch.samples.size() + 1, 0.0);
    for (const app::SampleResult& r : results)
      losses[static_cast<std::size_t>(batch.metas[static_cast<std::size_t>(r.sample)].id)] = r.loss;
    losses.back() = flops.of(model, *planned);
    world.all_reduce(Tensor(losses.data(), DType::f64, {std::ssize(losses)}), comm::ReduceOp::sum);
    if (world.rank() != 0) continue;
    out.flops = losses.back();
    losses.pop_back();
    out.losses.push_back(std::accumulate(losses.begin(), losses.end(), 0.0) / planned->weight);
    out.norms.push_back(result.grad_norm);
  }
  put_whole(model, false, &run::ParamState::master, out.weights, lock);
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(sum);
}
double norm(const std::vector<float>& a) {
  double sum = 0.0;
  for (const float x : a) sum += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(sum);
}

/// || a - b || beyond share * || a ||, or for key biases (without rotary their true gradient is zero) beyond
/// share * floor; by name, the first one.
std::string first_difference(const std::map<std::string, std::vector<float>>& one,
                             const std::map<std::string, std::vector<float>>& other, double share, double floor) {
  if (other.size() != one.size()) return "the set of gradients";
  for (const auto& [name, grad] : one) {
    const auto found = other.find(name);
    if (found == other.end() || found->second.size() != grad.size()) return name;
    const double bound = name.ends_with("k_proj.bias") ? std::max(norm(grad), floor) : norm(grad);
    if (!(distance(grad, found->second) <= share * bound)) return name;
  }
  return "";
}

}  // namespace

Outcome run_layout(const app::Config& config, const MadeBatch& batch, int ranks, const RunOptions& options) {
  Outcome out;
  out.ranks.resize(static_cast<std::size_t>(ranks));
  std::mutex lock;
  comm::ThreadOptions threads;
  threads.seed = 7;
  comm::run_threads(
      ranks, [&](comm::Communicator& world) { run_rank(config, batch, options, world, out, lock); }, threads);
  return out;
}

// Gradients of the first step differ by the order of f32 sums alone: 1e-5 of their norm, where parameters whose true
// gradient is zero (key biases) carry rounding of the size of the others', hence the floor of a hundredth of the whole
// norm. Those of the third step come after two adaptive updates, which turn rounding of small gradients into
// differences of weights of the order of rate * rounding / gradient: the bound is wider, a wrong factor or a lost row
// is larger by orders. Losses are means over rows, in which those differences of weights average out (2e-5: some 170
// roundings of f32); a norm is made of the later gradients and gets a fifth of their bound.
std::string differs(const Outcome& one, const Outcome& other) {
  if (other.flops != one.flops) return "the required FLOPs";
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    if (std::abs(other.losses.at(i) - one.losses[i]) > 2e-5 * one.losses[i])
      return fmt::format("the loss of step {}", i);
    if (std::abs(other.norms.at(i) - one.norms[i]) > 2e-4 * one.norms[i]) return fmt::format("the norm of step {}", i);
  }
  const std::string first = first_difference(one.first_grads, other.first_grads, 1e-5, 1e-2 * one.norms.front());
  return first.empty() ? first_difference(one.grads, other.grads, 1e-3, 1e-3 * one.norms.back()) : first;
}

std::string differs_in_bits(const Outcome& one, const Outcome& other) {
  if (one.losses != other.losses) return "the losses";
  for (std::size_t i = 0; i < one.norms.size(); ++i) {
    if (std::abs(other.norms.at(i) - one.norms[i]) > 1e-12 * one.norms[i]) return fmt::format("the norm of step {}", i);
  }
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  for (const auto& [what, a, b] : {std::tuple("gradients of the first step", &one.first_grads, &other.first_grads),
                                   std::tuple("gradients of the last step", &one.grads, &other.grads),
                                   std::tuple("weights", &one.weights, &other.weights)}) {
    if (a->size() != b->size()) return what;
    for (const auto& [name, values] : *a) {
      const auto found = b->find(name);
      if (found == b->end() || !same(values, found->second)) return fmt::format("{}: {}", what, name);
    }
  }
  return "";
}

}  // namespace mmt::test
