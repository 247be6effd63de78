#include "apps/mmtrain/layout.h"
#include "core/philox.h"
#include "parallel/plan/choose.h"

namespace mmt::app {

std::string stages_text(const Config& c, const std::vector<std::vector<plan::UnitSpan>>& runs) {
  std::string text;
  for (const auto& run : runs) {
    std::string parts;
    for (const plan::UnitSpan& span : run) {
      const std::vector<std::string> names = unit_names(c, static_cast<std::size_t>(span.module));
      parts += fmt::format("{}{}: \"{}-{}\"", parts.empty() ? "" : ", ",
                           module_name(c, static_cast<std::size_t>(span.module)),
                           names[static_cast<std::size_t>(span.first)], names[static_cast<std::size_t>(span.last) - 1]);
    }
    text += fmt::format("{}{{{}}}", text.empty() ? "" : ", ", parts);
  }
  return text;
}

std::vector<std::string> stage_names(const Config& c, const plan::Layout& layout) {
  std::vector<std::string> names;
  for (const plan::LayoutStage& stage : layout.stages()) {
    const auto module = static_cast<std::size_t>(stage.units.module);
    const std::vector<std::string> units = unit_names(c, module);
    const std::string& first = units[static_cast<std::size_t>(stage.units.first)];
    const std::string& last = units[static_cast<std::size_t>(stage.units.last) - 1];
    names.push_back(fmt::format("{} {}", module_name(c, module), first == last ? first : first + "-" + last));
  }
  return names;
}

std::uint64_t LayoutChoice::hash() const {
  std::uint64_t h = 0;
  const auto add = [&](std::int64_t x) { h = hash64(h, static_cast<std::uint64_t>(x)); };
  for (const plan::LayoutStage& stage : layout.stages()) {
    for (const int x : {stage.units.module, stage.units.first, stage.units.last, stage.place, stage.round}) add(x);
  }
  if (schedule) {
    for (const char c : plan::name_of(*schedule)) add(c);
  }
  for (const auto& module : recompute) {
    for (const run::Recompute level : module) add(static_cast<int>(level));
  }
  for (const char c : reason) add(c);  // with the times that orders follow from
  return h;
}

void LayoutChoice::apply(Model& model) const {
  if (schedule) model.schedule = *schedule;
  if (recompute.empty()) return;
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    const plan::UnitSpan& span = model.layout.stages()[s].units;
    const auto& levels = recompute[static_cast<std::size_t>(span.module)];
    model.recompute[s].assign(levels.begin() + span.first, levels.begin() + span.last);
  }
}

}  // namespace mmt::app
