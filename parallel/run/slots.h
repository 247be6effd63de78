// Memory of the blocks in flight of one stage: pools of arenas, taken and given back by the executor.
#pragma once

#include "parallel/run/executor.h"

#include <memory>
#include <string>
#include <vector>

namespace mmt::run {

/// Where the tensors between and inside a stage's units live.
struct StageLayout {
  explicit StageLayout(const StageSetup& setup);

  const Stage* stage = nullptr;
  std::vector<Stage::Port> ports;
  std::vector<int> x_port;                   ///< by unit: the port that reads the unit before it; -1: none
  std::vector<std::vector<int>> stage_port;  ///< by unit and port: the stage's port; -1: the unit before
  std::vector<Life> chain_life;      ///< by unit: how long its output lives inside the stage (last unit: unused)
  std::vector<Recompute> recompute;  ///< by unit, where it has an effect

  /// Whether a tensor of the unit keeps what the forward wrote until its reader in the backward.
  bool stored(std::size_t unit, const TensorSpec& t) const {
    return recompute[unit] == Recompute::none || (recompute[unit] == Recompute::selective && !t.cheap);
  }

  std::size_t num_units() const { return stage->units.size(); }
  const UnitPlan& plan(std::size_t unit) const { return stage->units[unit]->plan(); }
};

std::int64_t rows_of(RowCount count, const plan::BlockSize& size, std::int64_t port_rows);

/// Arenas of equal size, handed out and taken back.
class ArenaPool {
 public:
  ArenaPool(std::string name, int count, std::size_t bytes);
  Arena* take();  ///< throws std::logic_error when all are in use
  void give_back(Arena*& arena);
  const std::string& name() const { return name_; }
  std::size_t capacity() const;
  std::size_t peak() const;  ///< of the arena that was used most, times the most arenas in use at once

 private:
  std::string name_;
  std::vector<std::unique_ptr<Arena>> all_;
  std::vector<Arena*> free_;
  std::size_t most_in_use_ = 0;
};

/// One block of a stage between its first receive and its last reader.
struct Slot {
  Arena* ports = nullptr;  ///< in, out, d_out, d_in
  Arena* kept = nullptr;
  Arena* held = nullptr;
  Arena* stash = nullptr;
  Arena* restored = nullptr;     ///< what an R action restored of the kept tensors
  std::vector<Tensor> in, d_in;  ///< by stage port
  Tensor out, d_out;
  std::vector<Saved> saved;  ///< by unit
  bool forwarded = false;
  bool computed = false;  ///< nothing of this block is left to compute
  int out_readers = 0;    ///< transfers that still read `out`
  int grad_readers = 0;   ///< transfers that still read `d_in`
  int returns = 0;        ///< transfers that still write `d_out`
};

}  // namespace mmt::run
