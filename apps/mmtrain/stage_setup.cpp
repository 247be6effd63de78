#include "apps/mmtrain/stage_setup.h"

#include "apps/mmtrain/step.h"
#include "parallel/plan/verify.h"

#include <algorithm>

namespace mmt::app {

std::vector<int> port_edges(const Model& model, int stage) {
  std::vector<int> edges;
  for (const run::Stage::Port& port : model.stages[static_cast<std::size_t>(stage)].ports()) {
    int edge = -1;
    for (std::size_t e = 0; e < model.num_encoders(); ++e) {
      if (port.name == model.layout.modules()[e].name) edge = static_cast<int>(e);
    }
    edges.push_back(edge);
  }
  return edges;
}

namespace {

/// The largest block, filled up to the quantum of its rows.
plan::BlockSize block_cap(const Model& model, const RowCaps& caps, std::size_t module) {
  plan::BlockSize size = module == model.num_encoders() ? caps.llm : caps.encoders[module];
  size.rows = plan::round_up(size.rows, model.row_quantum[module]);
  return size;
}

}  // namespace

run::StageSetup stage_setup(const Model& model, const RowCaps& caps, int stage) {
  const std::size_t module = model.module_of(stage);
  run::StageSetup setup;
  setup.id = stage;
  setup.stage = &model.stages[static_cast<std::size_t>(stage)];
  setup.cap = block_cap(model, caps, module);
  for (const int edge : port_edges(model, stage))
    setup.port_cap.push_back(edge < 0 ? setup.cap.rows : caps.encoders[static_cast<std::size_t>(edge)].out);
  setup.recompute = model.recompute[static_cast<std::size_t>(stage)];
  return setup;
}

run::RowsCapacity rows_capacity(const Config& config, const Model& model, const RowCaps& caps, int stage) {
  const std::size_t module = model.module_of(stage);
  const bool llm = module == model.num_encoders();
  const run::Stage& units = model.stages[static_cast<std::size_t>(stage)];
  run::RowsCapacity capacity;
  capacity.size = block_cap(model, caps, module);
  capacity.num_masks = llm ? static_cast<int>(model.llm_rows.windows.size()) : 1;
  capacity.num_positions = llm ? model.llm_rows.num_positions : model.encoder_rows[module].num_positions();
  for (const int edge : port_edges(model, stage))
    capacity.port_rows.push_back(edge < 0 ? 0 : caps.encoders[static_cast<std::size_t>(edge)].out);
  if (!llm) capacity.items = caps.encoder_items[module];
  if (!llm && stage == model.first_stage(module)) capacity.source_cols = source_cols(config.encoders[module]);
  if (units.rotary) capacity.rotary_pairs = units.rotary->pairs();
  return capacity;
}

AliveBlocks most_alive(const Model& model, const RowCaps& caps) {
  AliveBlocks most;
  // Schedules but gpipe stop growing with the number of blocks once every place is warm.
  const int warm = 3 * static_cast<int>(model.layout.places().size()) + 4;
  const int top = model.schedule.policy == plan::Policy::gpipe ? std::max(warm, caps.blocks) : warm;
  // All small numbers, then fewer: what is alive never falls with the number of blocks.
  constexpr int kAll = 24;
  plan::BlockSize full;
  full.rows = full.out = 1024;
  for (const bool train : {true, false}) {
    for (int m = 1; m <= top; m = m == top ? top + 1 : std::min(top, m < kAll ? m + 1 : m * 5 / 4)) {
      const std::vector<std::vector<plan::BlockSize>> sizes(
          model.num_modules(), std::vector<plan::BlockSize>(static_cast<std::size_t>(m), full));
      plan::StageGraph graph = plan::lane_graph(model.layout, model.lane, model.traits, sizes, train);
      const std::vector<plan::Program> programs = lane_programs(model, graph, train);
      plan::VerifyOptions options;
      if (train) options.end = &model.end;
      plan::verify(graph, programs, options);
      const plan::Wiring wiring(graph);
      for (const plan::Program& program : programs) {
        auto& of_rank = most[program.rank];
        of_rank.resize(model.stages.size());
        for (const int s : model.layout.stages_on(program.rank)) {
          const plan::LiveBlocks live = plan::live_blocks(wiring, program, s);
          plan::LiveBlocks& x = of_rank[static_cast<std::size_t>(s)];
          x.kept = std::max(x.kept, live.kept);
          x.held = std::max(x.held, live.held);
          x.stash = std::max(x.stash, live.stash);
          x.restored = std::max(x.restored, live.restored);
          x.ports = std::max(x.ports, live.ports);
          x.joint = x.joint || live.joint;
        }
      }
    }
  }
  return most;
}

}  // namespace mmt::app
