#include "apps/mmtrain/engine.h"

#include "kernels/elementwise.h"
#include "parallel/plan/verify.h"

#include <algorithm>
#include <cstring>

namespace mmt::app {
namespace {

/// The edges that fill a stage's ports: encoders have none, port e of the LLM is edge e.
std::vector<int> port_edges(const Model& model, std::size_t stage) {
  std::vector<int> edges;
  if (stage + 1 < model.stages.size()) return edges;
  for (std::size_t e = 0; e < model.num_encoders(); ++e) edges.push_back(static_cast<int>(e));
  return edges;
}

/// A graph of one empty block a stage: edges, channels and lives do not depend on the step.
plan::StageGraph empty_graph(const Model& model, int rank, bool train) {
  const plan::RowsPlan empty;
  const std::vector<std::vector<const plan::RowsPlan*>> rows(model.stages.size(), {&empty});
  return plan::colocated_graph(model.modules, rank, rows, train);
}

std::int64_t source_cols(const EncoderConfig& e) {
  return e.spec.modality == "audio" ? e.audio.num_mel_bins : e.image.cols();
}

}  // namespace

Engine::Engine(const Config& config, comm::Communicator& world, Model& model, const RowCaps& caps, const Stream& stream)
    : config_(config), model_(model), stream_(stream), memories_(model.stages.size()) {
  const plan::StageGraph graph = empty_graph(model, world.rank(), true);
  const plan::Program program = plan::colocated_program(model.modules, world.rank(), 1, true);
  verify(graph, std::span(&program, 1));
  std::vector<run::StageSetup> setups;
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    const bool llm = s == model.num_encoders();
    run::StageSetup setup;
    setup.id = static_cast<int>(s);
    setup.stage = &model.stages[s];
    setup.store = model.stores[s].get();
    setup.tp_group = {world.rank()};
    setup.cap = llm ? caps.llm : caps.encoders[s];
    for (std::size_t e = 0; llm && e < model.num_encoders(); ++e) setup.port_cap.push_back(caps.encoders[e].out);
    setup.live = live_blocks(graph, program, static_cast<int>(s));
    setup.recompute.assign(model.stages[s].units.size(),
                           config.train.recompute ? run::Recompute::full : run::Recompute::none);
    setups.push_back(setup);

    run::RowsCapacity capacity;
    capacity.size = setup.cap;
    capacity.num_masks = llm ? static_cast<int>(model.llm_windows.size()) : 1;
    capacity.port_rows = setup.port_cap;
    if (!llm) {
      capacity.items = caps.encoder_items[s];
      capacity.source_cols = source_cols(config.encoders[s]);
    }
    if (model.stages[s].rotary) capacity.rotary_pairs = model.stages[s].rotary->pairs();
    capacities_.push_back(capacity);
  }
  executor_ = std::make_unique<run::Executor>(world, graph, std::move(setups), stream);
}

Engine::~Engine() = default;

std::int64_t Engine::capacity_bytes() const { return executor_->capacity_bytes(); }
std::int64_t Engine::peak_bytes() const { return executor_->peak_bytes(); }
std::int64_t Engine::rows_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& stage : memories_) {
    for (const auto& memory : stage) bytes += memory->bytes();
  }
  return bytes;
}
run::RowsMemory& Engine::memory(std::size_t stage, std::size_t block) {
  auto& list = memories_[stage];
  while (list.size() <= block) list.push_back(std::make_unique<run::RowsMemory>(capacities_[stage]));
  return *list[block];
}

void Engine::fill(const PlannedStep& step, const std::vector<data::LoadedSample>& samples, bool with_labels) {
  MMT_CHECK(samples.size() == step.own.size(), "{} samples were loaded, {} planned", samples.size(), step.own.size());
  for (std::size_t s = 0; s < model_.stages.size(); ++s) {
    const std::vector<int> edges = port_edges(model_, s);
    for (std::size_t b = 0; b < step.rows[s].size(); ++b)
      memory(s, b).reset(step.rows[s][b], edges, model_.stages[s], stream_);
  }
  std::size_t next = 0;  // in `samples`
  for (std::size_t b = 0; b < step.rows.back().size(); ++b) {
    std::vector<std::size_t> item_at(model_.num_encoders(), 0);  // next item of the encoder's block
    for (std::size_t i = 0; i < step.rows.back()[b].samples.size(); ++i, ++next) {
      const data::LoadedSample& sample = samples[next];
      run::RowsMemory& text = memory(model_.num_encoders(), b);
      if (with_labels) {
        text.set_sample(i, sample.input_ids, sample.labels, sample.weights);
      } else {
        text.set_ids(i, sample.input_ids);
      }
      const plan::SampleMeta& meta = step.metas[static_cast<std::size_t>(step.own[next])];
      for (const plan::RunMeta& run : meta.runs) {
        if (run.item < 0) continue;
        const data::LoadedItem& item = sample.items.at(static_cast<std::size_t>(run.item));
        const auto encoder = static_cast<std::size_t>(meta.items[static_cast<std::size_t>(run.item)].encoder);
        const Tensor target = memory(encoder, b).source_of(item_at[encoder]++);
        MMT_CHECK(static_cast<std::size_t>(target.numel()) == item.values.size(), "an item of {} values for {}",
                  item.values.size(), target.describe());
        std::ranges::copy(item.values, target.as<float>());
      }
    }
  }
}

std::vector<SampleResult> Engine::run(const PlannedStep& step, const std::vector<data::LoadedSample>& samples,
                                      double loss_scale, bool train, const std::function<void()>& optimize) {
  fill(step, samples, true);
  execute(step, loss_scale, train, optimize);
  read_times();
  return results(step, samples, train);
}

std::map<std::int32_t, std::vector<float>> Engine::logits(const PlannedStep& step,
                                                          const std::vector<data::LoadedSample>& samples) {
  fill(step, samples, false);
  std::map<std::int32_t, std::vector<float>> out;
  executor_->set_logits_sink([&](int block, std::int64_t first, const Tensor& chunk) {
    // Supervised rows are all rows of the block, so row `first + i` of the block has the chunk's row i.
    const auto b = static_cast<std::size_t>(block);
    std::size_t next = 0;  // of the lane's samples, before this block
    for (std::size_t k = 0; k < b; ++k) next += step.rows.back()[k].samples.size();
    for (const plan::SamplePlan& sample : step.rows.back()[b].samples) {
      std::vector<float>& whole = out[step.own[next++]];
      whole.resize(static_cast<std::size_t>(sample.rows.count * chunk.cols()));
      const std::int64_t from = std::max(first, sample.rows.first);
      const std::int64_t to = std::min(first + chunk.rows(), sample.rows.first + sample.rows.count);
      if (from >= to) continue;
      const Tensor target(whole.data() + (from - sample.rows.first) * chunk.cols(), DType::f32,
                          {to - from, chunk.cols()});
      ops::copy(stream_, target, chunk.row_range(from - first, to - from));
    }
  });
  execute(step, 0.0, false, {});
  executor_->set_logits_sink({});
  return out;
}

void Engine::execute(const PlannedStep& step, double loss_scale, bool train, const std::function<void()>& optimize) {
  run::StepData data;
  data.graph = &step.graph;
  data.loss_scale = loss_scale;
  data.rows.resize(model_.stages.size());
  for (std::size_t s = 0; s < model_.stages.size(); ++s) {
    for (std::size_t b = 0; b < step.rows[s].size(); ++b) data.rows[s].push_back(memory(s, b).rows());
  }
  if (train) {
    for (const auto& store : model_.stores) store->begin_step();
  }
  run::StepHooks hooks;
  hooks.reduce = [&](int stage, int bucket) {
    run::ParameterStore& store = *model_.stores[static_cast<std::size_t>(stage)];
    if (bucket == 0) store.complete_grads();
    store.reduce(bucket);
  };
  hooks.tie = [&](int tie) { run_tie(model_.ties[static_cast<std::size_t>(tie)], stream_); };
  hooks.optimize = [&](int) {
    if (optimize) optimize();
  };
  executor_->run(step.program, std::span(&data, 1), hooks, train ? run::Mode::train : run::Mode::eval);
}

std::vector<SampleResult> Engine::results(const PlannedStep& step, const std::vector<data::LoadedSample>& samples,
                                          bool train) {
  std::vector<SampleResult> list;
  std::size_t next = 0;
  for (std::size_t b = 0; b < step.rows.back().size(); ++b) {
    const plan::RowsPlan& plan = step.rows.back()[b];
    const run::Rows& rows = memory(model_.num_encoders(), b).rows();
    const float* loss = rows.loss.as<float>();
    const float* weight = rows.weights.as<float>();
    const std::int32_t* label = rows.labels.as<std::int32_t>();
    const std::int32_t* predicted = rows.predicted.as<std::int32_t>();
    for (const plan::SamplePlan& sample : plan.samples) {
      SampleResult r;
      r.sample = step.own[next];
      r.failed = samples[next].failed;
      ++next;
      r.supervised = sample.supervised.count;
      bool right = true;
      for (std::int64_t i = sample.supervised.first; i < sample.supervised.first + sample.supervised.count; ++i) {
        r.loss += static_cast<double>(weight[i]) * static_cast<double>(loss[i]);
        r.weight += static_cast<double>(weight[i]);
        const std::int64_t row = plan.supervised_rows[static_cast<std::size_t>(i)];
        const bool starts =
            i == sample.supervised.first || plan.supervised_rows[static_cast<std::size_t>(i - 1)] + 1 != row;
        if (starts) {
          r.exact += r.answers > 0 && right ? 1 : 0;
          ++r.answers;
          right = true;
        }
        if (train) continue;
        const bool hit = predicted[i] == label[i];
        r.correct += hit ? 1 : 0;
        right = right && hit;
      }
      if (!train) r.exact += r.answers > 0 && right ? 1 : 0;
      list.push_back(r);
    }
  }
  return list;
}

void Engine::read_times() {
  times_ = StepTimes();
  for (const run::TraceRow& row : executor_->trace()) {
    const double seconds = row.end - row.start;
    using plan::Kind;
    switch (row.action.kind) {
      case Kind::send:
      case Kind::recv: times_.transfers += seconds; break;
      case Kind::reduce:
      case Kind::tie: times_.reduction += seconds; break;
      case Kind::optimize: times_.optimizer += seconds; break;
      default:
        (static_cast<std::size_t>(row.action.stage) == model_.num_encoders() ? times_.llm : times_.encoders) += seconds;
    }
  }
  times_.loss = executor_->sink_seconds();
  times_.llm -= times_.loss;
}

}  // namespace mmt::app
