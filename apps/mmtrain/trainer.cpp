#include "apps/mmtrain/trainer.h"

#include "apps/mmtrain/layout.h"
#include "apps/mmtrain/memory.h"
#include "apps/mmtrain/planned_run.h"
#include "apps/mmtrain/shared_loading.h"
#include "apps/mmtrain/signals.h"
#include "apps/mmtrain/state.h"
#include "core/data/text/regex.h"
#include "core/log.h"
#include "kernels/backend.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

namespace mmt::app {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Trainer::Trainer(Config config, Job& job) : config_(std::move(config)), job_(job), stream_(cpu_stream()) {
  open_data();
  memory_before_ = resident_bytes();
  make_model();
  make_optimizer();
}
Trainer::~Trainer() = default;

void Trainer::open_data() {
  in_agreement(job_.world(), [&] { preparer_ = std::make_unique<Preparer>(config_); });
  const std::atomic<bool>& stop = stop_requested();
  indexes_ = open_indexes(config_, config_.data.sets, *preparer_, job_.world(), &stop, true);
  eval_indexes_ = open_indexes(config_, config_.eval.sets, *preparer_, job_.world(), &stop, false);
  in_agreement(job_.world(), [&] { data_identity_ = data_identity(config_, indexes_); });
  std::vector<data::SampledSet> sets;
  std::vector<const data::DatasetIndex*> views;
  for (std::size_t s = 0; s < indexes_.size(); ++s) {
    sets.push_back({static_cast<std::int64_t>(indexes_[s].usable().size()), data::to_ppm(config_.data.sets[s].weight)});
    views.push_back(&indexes_[s]);
  }
  in_agreement(job_.world(), [&] {
    sampler_ = std::make_unique<data::Sampler>(config_.run.seed, std::move(sets), config_.data.shuffle);
  });
  data::LoaderOptions options;
  options.threads = static_cast<int>(config_.data.workers);
  options.weights = config_.train.loss;
  loader_ = std::make_unique<data::Loader>(std::move(views), preparer_->preparation(), options);
  schedule_ = config_.learning_rate;
  schedule_.total_updates = total_steps();
  in_agreement(job_.world(), [&] { check_schedule(schedule_); });
}

std::int64_t Trainer::total_steps() const {
  if (config_.train.steps) return *config_.train.steps;
  return *config_.train.epochs * sampler_->steps_per_epoch(config_.train.global_batch_size);
}

void Trainer::make_model() {
  models::LlmSpec& llm = config_.llm.spec;
  const std::int32_t tokens = preparer_->tokenizer().vocab_size();
  set_vocabulary(config_, preparer_->tokenizer());
  if (llm.vocabulary < tokens) {
    throw Agreed(kUsage, fmt::format("modules.{}.vocabulary is {}, but the tokenizer {} has ids up to {}", llm.name,
                                     llm.vocabulary, config_.data.tokenizer, tokens - 1));
  }
  std::vector<const data::DatasetIndex*> all;
  for (const auto* list : {&indexes_, &eval_indexes_}) {
    for (const data::DatasetIndex& index : *list) all.push_back(&index);
  }
  const RowCaps caps = row_caps(config_, all);
  const Machine machine = machine_of(config_, job_.size(), job_.world());
  std::string reason;
  std::uint64_t chosen = 0;
  std::int64_t needed = 0;
  in_agreement(job_.world(), [&] {
    const Workload workload = workload_of(config_, *sampler_, indexes_, caps, preparer_->preparation());
    LayoutChoice choice = make_layout(config_, workload, machine);
    reason = choice.reason;
    chosen = choice.hash();
    model_ = std::make_unique<Model>(build_model(config_, choice.layout, job_.rank()));
    choice.apply(*model_);
    needed = most_memory(Predictor(config_, *model_, caps, machine, stream_).memory(workload.most_blocks));
  });
  if (!same_on_all(job_.world(), chosen)) {
    throw Agreed(kFailed,
                 "the ranks planned different layouts, since their processors differ: write `stages`, "
                 "`schedule.policy` and `recompute` into the config (`mmtrain plan` shows them)");
  }
  if (!reason.empty()) log::info("planned for {}\n{}", machine.text, reason);
  if (machine.memory > 0 && needed > machine.memory) {  // only of what is written: choices keep to the limit
    log::warning("the fullest rank will need {} of the {} that a rank has: {}", plan::bytes_text(needed),
                 plan::bytes_text(machine.memory), memory_advice(config_));
  }
  required_flops_ = std::make_unique<RequiredFlops>(config_, *model_);
  make_stores(*model_, job_.world(), stream_);
  log::info("{}", describe(*model_));
  initialize_model(*model_, config_.run.seed, stream_);
  engine_ = std::make_unique<Engine>(config_, job_.world(), *model_, caps, stream_);
  if (config_.log.trace)
    tracer_ =
        std::make_unique<StepTracer>(config_, *model_, caps, machine, preparer_->preparation(), job_.world(), stream_);
}

void Trainer::make_optimizer() {
  std::vector<std::pair<data::Regex, const ParamGroup*>> groups;
  std::vector<bool> used(config_.optimizer.groups.size(), false);
  for (const ParamGroup& g : config_.optimizer.groups) {
    in_agreement(job_.world(), [&] { data::Regex(g.match, fmt::format("optimizer.groups: pattern \"{}\"", g.match)); });
    groups.emplace_back(data::Regex(g.match, fmt::format("optimizer.groups: pattern \"{}\"", g.match)), &g);
  }
  std::vector<run::OptimizedParam> params = run::optimized_params(model_->placed(), model_->uses);
  for (run::OptimizedParam& o : params) {
    double lr = config_.optimizer.lr, decay = config_.optimizer.weight_decay;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!groups[g].first.next(o.name, 0).found) continue;
      used[g] = true;
      lr = groups[g].second->lr.value_or(lr);
      decay = groups[g].second->weight_decay.value_or(decay);
      break;
    }
    o.lr_scale = config_.optimizer.lr > 0.0 ? lr / config_.optimizer.lr : 1.0;
    o.weight_decay *= decay;
  }
  std::vector<std::int64_t> found(used.begin(), used.end());  // on any rank
  found.push_back(static_cast<std::int64_t>(params.size()));
  job_.world().all_reduce(Tensor(found.data(), DType::i64, {static_cast<std::int64_t>(found.size())}),
                          comm::ReduceOp::max);
  for (std::size_t g = 0; g < used.size(); ++g) {
    if (found[g] == 0)
      throw Agreed(kUsage,
                   fmt::format("optimizer.groups: \"{}\" matches no trainable parameter", groups[g].second->match));
  }
  if (found.back() == 0) throw Agreed(kUsage, "nothing is trainable: every module is frozen");
  const OptimizerConfig& c = config_.optimizer;
  optimizer_ = std::make_unique<run::Optimizer>(
      std::move(params),
      run::AdamwOptions{
          .beta1 = c.betas[0], .beta2 = c.betas[1], .epsilon = c.eps, .max_grad_norm = config_.train.max_grad_norm},
      job_.size() > 1 ? &job_.world() : nullptr, stream_);
}

std::unique_ptr<PlannedStep> Trainer::plan_next() {
  std::vector<PlannedSample> samples;
  for (const data::Draw& d :
       sampler_->batch(drawn_, config_.train.global_batch_size, config_.train.epochs.has_value())) {
    const data::DatasetIndex& index = indexes_[static_cast<std::size_t>(d.set)];
    samples.push_back({d.set, index.usable()[static_cast<std::size_t>(d.sample)], d.place});
  }
  drawn_ += static_cast<std::int64_t>(samples.size());
  const PlanContext context{&config_, model_.get(), &preparer_->preparation(), true};
  return plan_step(context, indexes_, planned_steps_++, std::move(samples));
}

void Trainer::fill_queue() {
  while (static_cast<std::int64_t>(queue_.size()) < config_.data.prefetch_steps && planned_steps_ < total_steps()) {
    queue_.push_back(plan_next());
    loader_->request(queue_.back()->number, wanted_here(*model_, *queue_.back()));
  }
}

void Trainer::check_plan(const PlannedStep& step) {
  MMT_CHECK(same_on_all(job_.world(), step.hash), "the ranks planned different steps {}", step.number);
}

/// Hands over the step's samples; false when a stop was requested while waiting for them.
bool Trainer::take_samples() {
  bool stopped = false;
  loaded_ = loader_->take(queue_.front()->number, &stop_requested(), &stopped);
  return !stopped;
}

void Trainer::stop_on_failures(const std::vector<std::string>& messages, std::int64_t failed) {
  const bool skip = config_.data.bad_samples == DataConfig::Bad::skip;
  for (const std::string& message : messages) {
    if (skip) log::warning("{}", message);
  }
  if (failed == 0 || skip) return;
  throw Agreed(kFailed, fmt::format("{} (data.bad_samples: skip goes on without such samples)",
                                    agree_on_failure(job_.world(), messages.empty() ? "" : messages.front())));
}

StepFigures Trainer::step() {
  fill_queue();
  const auto start = std::chrono::steady_clock::now();
  const double waited_before = loader_->waited_seconds();
  check_plan(*queue_.front());
  const bool loaded = take_samples();
  std::int64_t stop = loaded && !stop_requested() ? 0 : 1;
  job_.world().all_reduce(Tensor(&stop, DType::i64, {1}), comm::ReduceOp::max);
  StepFigures f;
  if (stop != 0) return f;  // somebody was asked to stop: no rank begins the step
  f.begun = true;
  last_ = std::move(queue_.front());
  queue_.pop_front();
  const PlannedStep& step = *last_;
  f.waited = loader_->waited_seconds() - waited_before;
  std::vector<std::string> messages;
  for (const data::LoadedSample& s : loaded_) {
    if (s.failed) messages.push_back(s.message);
  }
  const std::vector<std::int32_t> faults = agree_on_failed(job_.world(), step, loaded_);
  f.weight = step.weight;
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (faults[i] < 0) continue;
    ++f.failed;
    f.weight -= weight_of(config_.train.loss, step.metas[i].supervised);
  }
  stop_on_failures(messages, f.failed);
  share_loaded(config_, *model_, step, faults, loaded_);
  const double scale = f.weight > 0.0 ? 1.0 / f.weight : 0.0;
  run::Optimizer::Result update;
  f.lr = learning_rate(schedule_, optimizer_->updates() + 1);
  results_ = engine_->run(step, loaded_, scale, true, [&] {
    if (!update_ || f.weight <= 0.0) return;
    const auto active = [&](const std::string& module) {
      for (std::size_t m = 0; m < model_->num_modules(); ++m) {
        if (model_->layout.modules()[m].name == module) return step.module_rows[m] > 0;
      }
      return false;
    };
    update = optimizer_->step(f.lr, active);
    f.updated = true;
  });
  for (const int s : model_->own) model_->stores[static_cast<std::size_t>(s)]->weights_changed();
  f.times = engine_->times();
  f.seconds = seconds_since(start);
  f = gather(f);
  f.grad_norm = update.grad_norm;
  ++progress_.step;
  progress_.cursor += static_cast<std::int64_t>(step.samples.size());
  progress_.updates = optimizer_->updates();
  account(step, faults);
  if (f.updated && !update.finite) {
    throw Agreed(
        kNonFinite,
        fmt::format(
            "step {}: the gradient is not finite (first in {}); nothing was updated, and the last checkpoint is "
            "sound. Loss {}",
            progress_.step, update.culprit, f.loss));
  }
  fill_queue();
  return f;
}

void Trainer::load_initial_weights() { load_initial(job_, config_, *model_, stream_); }

std::map<std::int32_t, std::vector<float>> Trainer::last_logits() {
  PlanContext context{&config_, model_.get(), &preparer_->preparation(), false, true};
  const auto step = plan_step(context, indexes_, last_->number, last_->samples);
  return engine_->logits(*step, loaded_);
}

StepFigures Trainer::gather(const StepFigures& mine) {
  StepFigures f = mine;
  double loss = 0.0;
  for (const SampleResult& r : results_) loss += r.loss;
  const StepTimes& t = mine.times;
  std::array<double, 10> sums = {loss,
                                 mine.waited,
                                 t.encoders,
                                 t.llm,
                                 t.transfers,
                                 t.reduction,
                                 t.optimizer,
                                 t.encoders + t.llm + t.loss,
                                 required_flops_->of(*model_, *last_),
                                 t.loss};
  job_.world().all_reduce(Tensor(sums.data(), DType::f64, {10}), comm::ReduceOp::sum);
  double slowest = t.encoders + t.llm + t.loss;
  job_.world().all_reduce(Tensor(&slowest, DType::f64, {1}), comm::ReduceOp::max);
  const double ranks = job_.size();
  f.loss = f.weight > 0.0 ? sums[0] / f.weight : 0.0;
  f.waited = sums[1] / ranks;
  f.times = {.encoders = sums[2] / ranks,
             .llm = sums[3] / ranks,
             .loss = sums[9] / ranks,
             .transfers = sums[4] / ranks,
             .reduction = sums[5] / ranks,
             .optimizer = sums[6] / ranks};
  f.imbalance = sums[7] > 0.0 ? slowest * ranks / sums[7] - 1.0 : 0.0;
  f.rows = static_cast<double>(last_->module_rows.back());
  f.flops = sums[8];
  return f;
}

void Trainer::account(const PlannedStep& step, const std::vector<std::int32_t>& faults) {
  data::DataReport& r = progress_.report;
  for (std::size_t i = 0; i < step.samples.size(); ++i) {
    const PlannedSample& s = step.samples[i];
    const plan::SampleMeta& m = step.metas[i];
    ++r.samples;
    if (sampler_->at(s.place).pass > 0) ++r.repeated;
    if (indexes_[static_cast<std::size_t>(s.set)].entry(s.record).truncated) ++r.truncated;
    r.supervised += m.supervised;
    std::int64_t media = 0;
    for (const plan::ItemMeta& item : m.items) {
      const bool image = config_.encoders[static_cast<std::size_t>(item.encoder)].spec.modality == "image";
      (image ? r.image_rows : r.audio_rows) += item.rows;
      media += item.rows;
    }
    r.text_rows += m.rows - media;
  }
  for (const std::int32_t fault : faults) {
    if (fault < 0) continue;
    ++r.failed;
    ++r.skipped[static_cast<std::size_t>(fault)];
  }
}

}  // namespace mmt::app
