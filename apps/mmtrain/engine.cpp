#include "apps/mmtrain/engine.h"

#include "apps/mmtrain/stage_setup.h"
#include "core/philox.h"
#include "kernels/elementwise.h"
#include "parallel/plan/verify.h"

#include <algorithm>
#include <cstring>

namespace mmt::app {

Engine::Engine(const Config& config, comm::Communicator& world, Model& model, const RowCaps& caps, const Stream& stream)
    : model_(model), stream_(stream), caps_(most_alive(model, caps).at(model.rank)) {
  std::vector<run::StageSetup> setups;
  for (const int s : model.own) {
    run::StageSetup setup = stage_setup(model, caps, s);
    setup.store = model.stores[static_cast<std::size_t>(s)].get();
    setup.comms[static_cast<std::size_t>(plan::Axis::tp)] = model.comm(s, plan::Axis::tp);
    setup.tp_group = model.layout.ranks_of(s, model.lane);
    setup.live = caps_[static_cast<std::size_t>(s)];
    setups.push_back(setup);
    capacities_[s] = rows_capacity(config, model, caps, s);
  }
  std::vector<std::vector<plan::BlockSize>> one(model.num_modules(), std::vector<plan::BlockSize>(1));
  plan::StageGraph graph = plan::lane_graph(model.layout, model.lane, model.traits, one, true);
  lane_programs(model, graph, true);  // its credits
  executor_ =
      std::make_unique<run::Executor>(world, graph, std::move(setups), stream,
                                      run::ExecutorOptions{.seed = config.run.seed, .check_events = poisoning()});
}

/// Programs differ by their number of blocks and by which blocks have rows to send; each shape is verified before it
/// runs the first time.
void Engine::verify_once(const PlannedStep& step, bool train) {
  std::uint64_t shape = hash64(train ? 1 : 0, step.graph.stages.front().num_blocks);
  for (const plan::Action& a : step.program.actions) {
    shape = hash64(shape, hash64(static_cast<std::uint64_t>(a.kind) << 32 | static_cast<std::uint32_t>(a.block),
                                 static_cast<std::uint64_t>(a.stage) << 32 | static_cast<std::uint16_t>(a.edge)));
  }
  if (!verified_.insert(shape).second) return;
  plan::VerifyOptions options;
  if (train) options.end = &model_.end;
  plan::StageGraph graph = step.graph;
  plan::verify(step.graph, lane_programs(model_, graph, train), options);
  for (const int s : model_.own) {
    const plan::LiveBlocks live = plan::live_blocks(step.graph, step.program, s);
    const plan::LiveBlocks& cap = caps_[static_cast<std::size_t>(s)];
    if (live.kept <= cap.kept && live.held <= cap.held && live.stash <= cap.stash && live.ports <= cap.ports) continue;
    throw Error(
        fmt::format("step {}: {} blocks are alive at once in stage {}, and memory was taken for {}: lower "
                    "train.global_batch_size, raise train.tokens_per_microbatch, or choose another "
                    "parallel.schedule.policy than {}",
                    step.number, std::max(live.kept, live.ports), s, std::max(cap.kept, cap.ports),
                    plan::name_of(model_.schedule.policy)));
  }
}

Engine::~Engine() = default;

std::int64_t Engine::capacity_bytes() const { return executor_->capacity_bytes(); }
std::int64_t Engine::peak_bytes() const { return executor_->peak_bytes(); }
std::vector<run::Executor::ArenaUse> Engine::arenas() const { return executor_->arenas(); }
std::int64_t Engine::rows_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [stage, blocks] : memories_) {
    for (const auto& memory : blocks) bytes += memory->bytes();
  }
  return bytes;
}
run::RowsMemory& Engine::memory(int stage, std::size_t block) {
  auto& list = memories_[stage];
  while (list.size() <= block) list.push_back(std::make_unique<run::RowsMemory>(capacities_.at(stage)));
  return *list[block];
}

void Engine::fill(const PlannedStep& step, const std::vector<data::LoadedSample>& samples, bool with_labels) {
  MMT_CHECK(samples.size() == step.own.size(), "{} samples were loaded, {} planned", samples.size(), step.own.size());
  for (const int s : model_.own) {
    const auto& blocks = step.rows[model_.module_of(s)];
    const std::vector<int> edges = port_edges(model_, s);
    for (std::size_t b = 0; b < blocks.size(); ++b)
      memory(s, b).reset(blocks[b], edges, model_.stages[static_cast<std::size_t>(s)], stream_);
  }
  const auto here = [&](int stage) { return capacities_.contains(stage); };
  const std::size_t llm = model_.num_encoders();
  std::vector<int> text_stages;
  for (const int s : std::set<int>{model_.first_stage(llm), model_.last_stage(llm)}) {
    if (here(s)) text_stages.push_back(s);
  }
  std::size_t next = 0;  // in `samples`
  const auto& blocks = step.assignment.samples[static_cast<std::size_t>(model_.lane)];
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    std::vector<std::size_t> item_at(llm, 0);  // next item of the encoder's block
    for (std::size_t i = 0; i < blocks[b].size(); ++i, ++next) {
      const data::LoadedSample& sample = samples[next];
      for (const int s : text_stages) {
        if (with_labels) {
          memory(s, b).set_sample(i, sample.input_ids, sample.labels, sample.weights);
        } else {
          memory(s, b).set_ids(i, sample.input_ids);
        }
      }
      const plan::SampleMeta& meta = step.metas[static_cast<std::size_t>(step.own[next])];
      for (const plan::RunMeta& run : meta.runs) {
        if (run.item < 0) continue;
        const auto encoder = static_cast<std::size_t>(meta.items[static_cast<std::size_t>(run.item)].encoder);
        const int stage = model_.first_stage(encoder);
        if (!here(stage)) continue;
        const auto item = std::ranges::find(sample.items, run.item, &data::LoadedItem::item);
        MMT_CHECK(item != sample.items.end(), "item {} of a sample was not loaded", run.item);
        const Tensor target = memory(stage, b).source_of(item_at[encoder]++);
        MMT_CHECK(static_cast<std::size_t>(target.numel()) == item->values.size(), "an item of {} values for {}",
                  item->values.size(), target.describe());
        std::ranges::copy(item->values, target.as<float>());
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
  verify_once(step, train);
  run::StepData data;
  data.graph = &step.graph;
  data.loss_scale = loss_scale;
  data.number = step.number;
  data.rows.resize(model_.stages.size());
  for (const int s : model_.own) {
    const std::size_t blocks = step.rows[model_.module_of(s)].size();
    for (std::size_t b = 0; b < blocks; ++b) data.rows[static_cast<std::size_t>(s)].push_back(memory(s, b).rows());
    if (train) model_.stores[static_cast<std::size_t>(s)]->begin_step();
  }
  run::StepHooks hooks;
  hooks.reduce = [&](int stage, int bucket) {
    run::ParameterStore& store = *model_.stores[static_cast<std::size_t>(stage)];
    if (bucket == 0) store.complete_grads();
    store.reduce(bucket);
  };
  hooks.tie = [&](int tie) { run_tie(model_.ties.groups[static_cast<std::size_t>(tie)], stream_); };
  hooks.optimize = [&](int) {
    if (optimize) optimize();
  };
  executor_->run(step.program, std::span(&data, 1), hooks, train ? run::Mode::train : run::Mode::eval);
}

std::vector<SampleResult> Engine::results(const PlannedStep& step, const std::vector<data::LoadedSample>& samples,
                                          bool train) {
  std::vector<SampleResult> list;
  const int sink = model_.last_stage(model_.num_encoders());
  if (!model_.leads(sink)) return list;
  std::size_t next = 0;
  for (std::size_t b = 0; b < step.rows.back().size(); ++b) {
    const plan::RowsPlan& plan = step.rows.back()[b];
    const run::Rows& rows = memory(sink, b).rows();
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
      default: (model_.module_of(row.action.stage) == model_.num_encoders() ? times_.llm : times_.encoders) += seconds;
    }
  }
  times_.loss = executor_->sink_seconds();
  times_.llm -= times_.loss;
}

}  // namespace mmt::app
