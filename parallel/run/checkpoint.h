// Checkpoints: saved by any layout, loaded by any other, never half there.
//
// <folder>/step_00001000/index.h5          every tensor whole (virtual datasets) under its canonical name; the state
//                        rank_00000.h5     what a rank wrote, a dataset per box: <tensor>/<offset of the box>
//                        rank_00000.frozen.h5  the same for tensors that do not change: a hard link to the file of the
//                                          checkpoint before, so stored once though every folder is complete
//                        config.yaml       the resolved config
// <folder>/latest                          the name of the newest complete one
//
// A save writes into step_N.tmp, checks, fsyncs, renames, then renews `latest`, then deletes what retention lets go
// (renamed to step_N.deleting first). At every moment the last complete checkpoint is loadable.
// All functions marked collective are entered by all ranks; rank 0 looks at the file system and decides, and a failure
// on one rank is thrown on all.
#pragma once

#include "core/hdf5/store.h"
#include "core/tensor.h"
#include "parallel/comm/communicator.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mmt::run {

/// Newer ones are refused. Raised when an older program could not read what this one writes.
inline constexpr std::int64_t kCheckpointVersion = 1;

/// This rank's part of a tensor: elements [first, first + count) of `box` in row-major order (a sharded store keeps
/// ranges, others whole boxes).
struct TensorPart {
  std::string name;  ///< "model/<module>/<parameter>", "optimizer/first_moment/<module>/<parameter>", ...
  std::vector<std::int64_t> shape;  ///< of the whole tensor; rank 1 to 5
  h5::Box box;
  std::int64_t first = 0;
  std::int64_t count = -1;  ///< -1: all of the box
  Tensor data;              ///< contiguous, `count` elements; saved in its dtype, loaded with conversion between floats
};

struct SavedPart : TensorPart {
  bool is_owner = true;  ///< every element of a tensor has exactly one owner among all ranks (replica 0)
  /// Does not change in this run. An asynchronous save does not copy it: its memory stays until the save is complete.
  bool frozen = false;
};

/// All that a run needs besides tensors. Global: nothing in it depends on the layout.
struct TrainingState {
  std::int64_t step = 0;
  std::int64_t updates = 0;
  std::int64_t samples = 0;  ///< drawn so far: the place in the data order
  std::uint64_t seed = 0;
  std::string config;                        ///< resolved, as text
  std::string instruction_set;               ///< bits are promised for one
  std::map<std::string, double> metrics;     ///< of the last evaluation; for keep_best
  std::map<std::string, std::string> notes;  ///< anything else, short
};

struct Retention {
  int keep_last = 3;            ///< at least 1; 0: all
  std::int64_t keep_every = 0;  ///< also steps that are multiples of it; 0: none
  std::string keep_best{};      ///< also the one with the best value of this metric
  bool best_is_highest = true;
};

struct CheckpointOptions {
  std::string folder;
  Retention retention{};
  bool async = false;         ///< write from a copy in a thread; failures are thrown at a later step boundary
  bool embed_frozen = false;  ///< write frozen tensors into every checkpoint
  /// Tests: called between any two changes of the file system, with what was done.
  std::function<void(std::string_view)> after{};
};

class CheckpointWriter {
 public:
  CheckpointWriter(comm::Communicator& world, CheckpointOptions options);
  ~CheckpointWriter();  ///< gives up a save in progress
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Collective. Throws Error on all ranks when it fails (parts that do not cover a tensor exactly once, no space,
  /// I/O), leaving older checkpoints as they are. With `async` it returns when the data is copied; a save still in
  /// progress is finished first.
  void save(std::span<const SavedPart> parts, const TrainingState& state);
  /// Collective, at step boundaries: completes an asynchronous save once all ranks have written. True when it did.
  bool poll();
  /// Collective: waits for a save in progress and completes it.
  void finish();
  bool saving() const { return job_ != nullptr; }

 private:
  struct Job;
  void prepare(Job& job, std::span<const SavedPart> parts);
  void write(Job& job) const;
  void commit();
  void delete_old(const std::string& newest) const;

  comm::Communicator& world_;
  CheckpointOptions options_;
  std::unique_ptr<Job> job_;
  std::string last_;          // name of the newest complete checkpoint, "" if none; equal on all ranks
  bool looked_ = false;       // for `last_`
  std::uint64_t frozen_ = 0;  // what this writer knows to be in the frozen file of `last_` (0: nothing)
};

/// Collective: path of the checkpoint to resume from, or nothing. That is the one that `latest` names, else (it is
/// missing or damaged) the one completed last. Half-written folders are passed over with a warning that names them.
/// Throws ConfigError when it was written by a newer program.
std::optional<std::string> find_checkpoint(comm::Communicator& world, const std::string& folder);

class CheckpointReader {
 public:
  /// Opens the index of one checkpoint folder (`.../step_00001000`). Throws ConfigError when it is none, when files are
  /// missing or cut, or when its format is newer.
  explicit CheckpointReader(const std::string& path);
  ~CheckpointReader();

  const TrainingState& state() const { return state_; }
  const std::string& path() const { return path_; }
  struct Item {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    bool frozen = false;
  };
  std::vector<Item> tensors() const;  ///< sorted by name
  bool contains(const std::string& name) const;
  /// Fills part.data, converting between float types where the stored one differs (to bf16: nearest even). Proves the
  /// checksums of what it reads; Error names the tensor. ConfigError: no such tensor, or another shape.
  void read(const TensorPart& part) const;
  /// Proves every checksum.
  void verify() const;

 private:
  std::string path_;
  std::unique_ptr<h5::File> index_;
  TrainingState state_;
};

/// Collective: every rank reads its parts; throws on all ranks when one fails.
void load_checkpoint(comm::Communicator& world, const CheckpointReader& reader, std::span<const TensorPart> parts);

}  // namespace mmt::run
