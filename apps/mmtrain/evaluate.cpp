#include "apps/mmtrain/evaluate.h"

#include "apps/mmtrain/shared_loading.h"

#include "core/log.h"

#include <algorithm>
#include <array>

namespace mmt::app {
namespace {

/// Samples of one forward pass: a few microbatches a lane, whatever the training's batch is.
std::int64_t batch_size(const Config& c, const data::DatasetIndex& index, int lanes) {
  std::int64_t rows = 0;
  const std::vector<std::int64_t>& usable = index.usable();
  for (const std::int64_t s : usable) rows += index.entry(s).tokens;
  const std::int64_t mean =
      std::max<std::int64_t>(1, rows / std::max<std::int64_t>(1, static_cast<std::int64_t>(usable.size())));
  return std::max<std::int64_t>(1, c.train.tokens_per_microbatch / mean) * lanes;
}

void add(EvalResult& total, const std::vector<SampleResult>& results) {
  for (const SampleResult& r : results) {
    ++total.samples;
    if (r.failed) {
      ++total.failed;
      continue;
    }
    total.loss += r.loss;
    total.weight += r.weight;
    total.tokens += r.supervised;
    total.correct += r.correct;
    total.answers += r.answers;
    total.exact += r.exact;
  }
}

/// Sums of all ranks; the loss becomes a mean.
void reduce(EvalResult& r, comm::Communicator& world) {
  std::array<double, 2> sums = {r.loss, r.weight};
  std::array<std::int64_t, 6> counts = {r.samples, r.failed, r.tokens, r.correct, r.answers, r.exact};
  world.all_reduce(Tensor(sums.data(), DType::f64, {2}), comm::ReduceOp::sum);
  world.all_reduce(Tensor(counts.data(), DType::i64, {6}), comm::ReduceOp::sum);
  r.weight = sums[1];
  r.loss = sums[1] > 0.0 ? sums[0] / sums[1] : 0.0;
  r.samples = counts[0];
  r.failed = counts[1];
  r.tokens = counts[2];
  r.correct = counts[3];
  r.answers = counts[4];
  r.exact = counts[5];
}

bool any_rank(comm::Communicator& world, bool mine) {
  std::int64_t flag = mine ? 1 : 0;
  world.all_reduce(Tensor(&flag, DType::i64, {1}), comm::ReduceOp::max);
  return flag != 0;
}

}  // namespace

std::vector<EvalResult> evaluate(const Config& c, Job& job, Model& model, Engine& engine, const Preparer& preparer,
                                 const std::vector<data::DatasetIndex>& indexes, const std::atomic<bool>& stop) {
  std::vector<EvalResult> results;
  std::vector<const data::DatasetIndex*> sets;
  for (const data::DatasetIndex& index : indexes) sets.push_back(&index);
  data::LoaderOptions options;
  options.threads = static_cast<int>(c.data.workers);
  options.weights = c.train.loss;
  data::Loader loader(sets, preparer.preparation(), options);
  PlanContext context{&c, &model, &preparer.preparation(), false};
  for (std::size_t s = 0; s < indexes.size(); ++s) {
    EvalResult result;
    result.set = indexes[s].spec().name;
    const std::vector<std::int64_t>& usable = indexes[s].usable();
    const std::int64_t batch = batch_size(c, indexes[s], model.layout.lanes());
    const auto total = static_cast<std::int64_t>(usable.size());
    const std::int64_t steps = (total + batch - 1) / batch;
    std::vector<std::unique_ptr<PlannedStep>> planned(static_cast<std::size_t>(steps));
    const auto request = [&](std::int64_t step) {
      if (step >= steps) return;
      std::vector<PlannedSample> samples;
      for (std::int64_t i = step * batch; i < std::min(total, (step + 1) * batch); ++i) {
        samples.push_back({static_cast<std::int32_t>(s), usable[static_cast<std::size_t>(i)], i});
      }
      auto& slot = planned[static_cast<std::size_t>(step)];
      slot = plan_step(context, indexes, step, std::move(samples));
      loader.request(step, wanted_here(model, *slot));
    };
    for (std::int64_t ahead = 0; ahead < c.data.prefetch_steps; ++ahead) request(ahead);
    for (std::int64_t step = 0; step < steps; ++step) {
      request(step + c.data.prefetch_steps);
      bool stopped = false;
      std::vector<data::LoadedSample> samples = loader.take(step, &stop, &stopped);
      if (any_rank(job.world(), stopped || stop)) return results;
      for (const data::LoadedSample& sample : samples) {
        if (sample.failed) log::warning("{}", sample.message);
      }
      const PlannedStep& now = *planned[static_cast<std::size_t>(step)];
      share_loaded(c, model, now, agree_on_failed(job.world(), now, samples), samples);
      add(result, engine.run(now, samples, 0.0, false));
      planned[static_cast<std::size_t>(step)].reset();
    }
    loader.clear();
    reduce(result, job.world());
    results.push_back(result);
  }
  return results;
}

EvalResult combined(const std::vector<EvalResult>& results) {
  EvalResult all;
  all.set = "all";
  for (const EvalResult& r : results) {
    all.samples += r.samples;
    all.failed += r.failed;
    all.loss += r.loss * r.weight;
    all.weight += r.weight;
    all.tokens += r.tokens;
    all.correct += r.correct;
    all.answers += r.answers;
    all.exact += r.exact;
  }
  if (all.weight > 0.0) all.loss /= all.weight;
  return all;
}

}  // namespace mmt::app
