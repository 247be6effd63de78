#include "apps/mmtrain/layout.h"

#include "apps/mmtrain/dataset.h"
#include "apps/mmtrain/model.h"
#include "parallel/plan/partition.h"

#include <algorithm>

namespace mmt::app {
namespace {

std::vector<plan::ModuleUnits> module_units(const Config& c) {
  std::vector<plan::ModuleUnits> modules;
  for (std::size_t m = 0; m <= c.encoders.size(); ++m)
    modules.push_back({module_name(c, m), static_cast<int>(unit_names(c, m).size())});
  return modules;
}

}  // namespace

plan::Layout one_rank_layout(const Config& c) {
  plan::LayoutSpec spec;
  spec.modules = module_units(c);
  spec.meshes.push_back(plan::Mesh(1, 1, 1, 1, {0}));
  auto& runs = spec.runs.emplace_back();
  runs.emplace_back();
  for (std::size_t m = 0; m < spec.modules.size(); ++m) runs.back().push_back(whole_module(c, m));
  return plan::Layout(std::move(spec));
}

plan::EncoderRows encoder_rows_of(const EncoderConfig& e) {
  const bool drops_class = e.spec.modality == "image" && e.spec.class_token && e.spec.select == "patch";
  return {e.spec.name, drops_class ? 1 : 0};
}

std::vector<plan::BlockSize> typical_block(const Config& c, const data::DatasetIndex& index,
                                           const data::Preparation& preparation) {
  std::vector<plan::SampleMeta> metas;
  std::vector<std::int32_t> block;
  std::int64_t rows = 0;
  for (const std::int64_t sample : index.usable()) {
    plan::SampleMeta meta = sample_meta(index.entry(sample), sample, preparation);
    if (rows + meta.rows > c.train.tokens_per_microbatch && !metas.empty()) break;
    rows += meta.rows;
    block.push_back(static_cast<std::int32_t>(metas.size()));
    metas.push_back(std::move(meta));
  }
  std::vector<plan::BlockSize> sizes;
  for (std::size_t e = 0; e < c.encoders.size(); ++e)
    sizes.push_back(plan::encoder_rows(metas, block, static_cast<int>(e), encoder_rows_of(c.encoders[e])).size);
  const std::vector<std::int32_t> windows = models::mask_windows(c.llm.spec);
  sizes.push_back(
      plan::llm_rows(metas, block, static_cast<int>(c.encoders.size()), windows, c.llm.bidirectional_media).size);
  return sizes;
}

namespace {

/// The units of the modules of one mesh in topological order, with what each costs for a block. FLOPs stand for time.
struct UnitChain {
  plan::Chain chain;
  std::vector<plan::UnitSpan> units;  ///< of one unit each
};

UnitChain unit_chain(const Config& c, const Model& model, std::size_t mesh, const std::vector<plan::BlockSize>& sizes) {
  UnitChain out;
  for (std::size_t m = 0; m < model.num_modules(); ++m) {
    const run::Stage& stage = model.stages[m];
    const plan::UnitSpan here = units_on(c, m, mesh);
    const bool recomputes = c.recompute_of(m) == run::Recompute::full;  // selective: no products
    for (auto u = static_cast<std::size_t>(here.first); u < static_cast<std::size_t>(here.last); ++u) {
      const run::UnitPlan& unit = stage.units[u]->plan();
      plan::PlannedLayer layer;
      layer.module = model.layout.modules()[m].name;
      layer.name = unit.name;
      layer.backward = unit.needs_backward();
      layer.trains = unit.trains();
      const plan::LayerFlops flops = plan::flops_of(unit.cost, sizes[m]);
      layer.time = {flops.forward, flops.backward_input, flops.backward_weight,
                    recomputes && layer.backward && unit.has_output() ? flops.forward : 0};
      for (const run::ParamSpec& p : unit.params) {
        std::int64_t n = 1;
        for (const std::int64_t d : p.box.shape) n *= d;
        layer.parameters += 4 * n;
      }
      layer.kept = unit.bytes(run::Life::kept, sizes[m]);
      layer.held = unit.bytes(run::Life::held, sizes[m]);
      layer.out_bytes = unit.output.cols * size_of(unit.output.dtype) * sizes[m].rows;
      layer.grad_bytes = layer.backward ? layer.out_bytes : 0;
      out.chain.layers.push_back(std::move(layer));
      out.units.push_back({static_cast<int>(m), static_cast<int>(u), static_cast<int>(u) + 1});
    }
  }
  return out;
}

/// Joins the units of each place to spans.
std::vector<std::vector<plan::UnitSpan>> runs_of(const UnitChain& chain, const plan::Cut& cut) {
  std::vector<std::vector<plan::UnitSpan>> runs;
  for (const plan::PlaceCost& place : cut.places) {
    auto& run = runs.emplace_back();
    for (int i = place.first; i < place.first + place.count; ++i) {
      const plan::UnitSpan& unit = chain.units[static_cast<std::size_t>(i)];
      if (!run.empty() && run.back().module == unit.module) {
        ++run.back().last;
      } else {
        run.push_back(unit);
      }
    }
  }
  return runs;
}

std::string describe(const Config& c, const std::vector<std::vector<plan::UnitSpan>>& runs, const plan::Cut& cut) {
  std::int64_t total = 0;
  for (const plan::PlaceCost& place : cut.places) total += place.compute;
  std::string text;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    text += r == 0 ? "[" : ", ";
    std::string parts;
    for (const plan::UnitSpan& span : runs[r]) {
      const std::vector<std::string> names = unit_names(c, static_cast<std::size_t>(span.module));
      parts += fmt::format("{}{}: \"{}-{}\"", parts.empty() ? "" : ", ",
                           module_name(c, static_cast<std::size_t>(span.module)),
                           names[static_cast<std::size_t>(span.first)], names[static_cast<std::size_t>(span.last) - 1]);
    }
    text += fmt::format("{{{}}}", parts);
  }
  return fmt::format(
      "{}]; the slowest stage has {:.1f}% of the work, an even share is {:.1f}%", text,
      100.0 * static_cast<double>(cut.bottleneck) / static_cast<double>(std::max<std::int64_t>(total, 1)),
      100.0 / static_cast<double>(runs.size()));
}

}  // namespace

LayoutChoice make_layout(const Config& c, const std::vector<plan::BlockSize>& sizes) {
  const ParallelConfig& p = c.parallel;
  if (p.mesh_of.empty()) return {one_rank_layout(c), ""};
  LayoutChoice choice;
  plan::LayoutSpec spec;
  spec.modules = module_units(c);
  for (std::size_t k = 0; k < p.meshes.size(); ++k) {
    const MeshConfig& mesh = p.meshes[k];
    spec.meshes.push_back(plan::Mesh(mesh.tp, mesh.cp, mesh.dp, mesh.pp, {mesh.ranks.begin(), mesh.ranks.end()}));
    if (!mesh.stages.empty()) {
      auto runs = stage_spans(c, mesh);
      for (std::size_t m = c.encoders.size(); m-- > 0;) {
        if (projector_moves(c, m) && p.mesh_of.back() == static_cast<int>(k))
          runs.front().insert(runs.front().begin(), units_on(c, m, k));
      }
      spec.runs.push_back(std::move(runs));
      continue;
    }
    const UnitChain chain = unit_chain(c, build_model(c), k, sizes);
    const plan::Cut cut = plan::cut_chain(chain.chain, mesh.pp * p.chunks);
    spec.runs.push_back(runs_of(chain, cut));
    if (mesh.pp * p.chunks > 1) {
      choice.reason += fmt::format("{}stages cut by the work of each layer: {}", choice.reason.empty() ? "" : "\n",
                                   describe(c, spec.runs.back(), cut));
    }
  }
  choice.layout = plan::Layout(std::move(spec));
  return choice;
}

}  // namespace mmt::app
