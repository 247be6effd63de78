// Lives of a stage's blocks in one rank's program, by the rules with which the executor takes and gives back memory.
#pragma once

#include "parallel/plan/program.h"
#include "parallel/plan/wiring.h"

#include <cstdint>
#include <vector>

namespace mmt::plan {

/// Parts of a block's memory: `kept` F .. I, `held` F .. W, `stash` I .. W, `restored` R .. I, `ports` first receive ..
/// last reader.
enum class LivePart : std::uint8_t { kept, held, stash, restored, ports };
inline constexpr int kNumLiveParts = 5;

/// One block's part is taken (at the start of an action) or given back (at its end).
struct LiveEvent {
  std::int32_t action = 0;  ///< index in the program; -1: there from the start, made by an earlier step
  bool at_end = false;
  LivePart part = LivePart::kept;
  std::int16_t stage = 0;
  std::int8_t delta = 0;       ///< +1 or -1
  std::int8_t step_ahead = 0;  ///< of the block
  std::int32_t block = 0;
};

/// In program order; the takes of an action before what it gives back.
std::vector<LiveEvent> live_events(const Wiring& wiring, const Program& program);
std::vector<LiveEvent> live_events(const StageGraph& graph, const Program& program);

/// Bytes of one block of a stage by part, and what is shared by all stages of a rank (the largest counts).
struct BlockBytes {
  std::int64_t kept = 0, held = 0, stash = 0, restored = 0, ports = 0;
  std::int64_t work = 0;
  std::int64_t of(LivePart part) const;
};

}  // namespace mmt::plan
