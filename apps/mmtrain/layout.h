// From the configuration to a layout: meshes as written; stages, schedule and recompute as written or chosen.
#pragma once

#include "apps/mmtrain/machine.h"
#include "apps/mmtrain/model.h"
#include "apps/mmtrain/workload.h"
#include "parallel/plan/layout.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mmt::app {

struct LayoutChoice {
  plan::Layout layout;
  std::optional<plan::ScheduleOptions> schedule;       ///< where the configuration leaves it open
  std::vector<std::vector<run::Recompute>> recompute;  ///< by module and unit, where it is chosen; else empty
  std::string reason;                                  ///< a line for each choice; empty: everything was written

  std::uint64_t hash() const;  ///< of all of it: ranks that decided the same have the same
  /// Puts schedule and recompute into a model of the layout.
  void apply(Model& model) const;
};

/// The layout that the configuration asks for. What it leaves open (`stages`, `policy`, `recompute`: auto) is chosen by
/// simulation of an average step on the machine, whose memory is a hard limit for it. The same on every rank. Throws
/// ConfigError.
LayoutChoice make_layout(const Config& config, const Workload& workload, const Machine& machine);
/// For blocks of these sizes, by module, on a machine without limits.
LayoutChoice make_layout(const Config& config, const std::vector<plan::BlockSize>& sizes);
/// Every module on rank 0.
plan::Layout one_rank_layout(const Config& config);

/// By stage, for people: "eyes embed-3".
std::vector<std::string> stage_names(const Config& config, const plan::Layout& layout);
/// "{eyes: "embed-3"}, {eyes: "4-projector", llm: "embed-1"}": as `stages` has it.
std::string stages_text(const Config& config, const std::vector<std::vector<plan::UnitSpan>>& runs);

}  // namespace mmt::app
