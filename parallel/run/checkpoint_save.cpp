#include "core/files.h"
#include "core/log.h"
#include "parallel/comm/values.h"
#include "parallel/run/checkpoint_files.h"
#include "parallel/run/checkpoint_pieces.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

namespace mmt::run {

namespace fs = std::filesystem;

namespace {

// What HDF5 adds to a dataset at most: object header, attribute, layout, alignment.
constexpr std::int64_t kDatasetOverhead = 2048;

}  // namespace

struct CheckpointWriter::Job {
  struct Piece {
    PieceRow row;
    const void* data = nullptr;
    std::int64_t bytes = 0;
  };

  TrainingState state;
  std::string name;                  // "step_00001000"
  std::string folder;                // where it is written: ".../step_00001000.tmp"
  std::vector<Piece> pieces;         // of this rank
  std::vector<PieceRow> all_pieces;  // rank 0: of all
  std::vector<char> copies;          // async: the data of what changes
  bool link_frozen = false;          // the frozen file is that of the newest complete checkpoint
  std::uint64_t frozen = 0;          // identifies the frozen pieces of this rank; 0: none

  std::thread thread;
  std::atomic<bool> written = false;
  std::string problem;  // valid when written

  ~Job() {
    if (thread.joinable()) thread.join();
  }
};

CheckpointWriter::CheckpointWriter(comm::Communicator& world, CheckpointOptions options)
    : world_(world), options_(std::move(options)) {
  MMT_CHECK(!options_.folder.empty(), "a checkpoint folder without a name");
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::save(std::span<const SavedPart> parts, const TrainingState& state) {
  finish();
  auto job = std::make_unique<Job>();
  job->state = state;
  job->name = step_name(state.step);
  job->folder = options_.folder + "/" + job->name + ".tmp";
  prepare(*job, parts);
  job_ = std::move(job);
  if (options_.async) {
    job_->thread = std::thread([this, &job_now = *job_] { write(job_now); });
    return;
  }
  write(*job_);
  commit();
}

bool CheckpointWriter::poll() {
  if (job_ == nullptr || !comm::all_of(world_, job_->written.load())) return false;
  commit();
  return true;
}

void CheckpointWriter::finish() {
  if (job_ == nullptr) return;
  if (job_->thread.joinable()) job_->thread.join();
  commit();
}

// Everything that can be known to fail before a byte is written; makes the folder; copies for an asynchronous save.
void CheckpointWriter::prepare(Job& job, std::span<const SavedPart> parts) {
  std::string problem;
  try {
    for (const SavedPart& part : parts) {
      if (!part.is_owner) continue;
      const char* data = static_cast<const char*>(part.data.data);
      for (const h5::Box& box : boxes_of(part)) {
        const std::int64_t bytes = num_elements(box.shape) * size_of(part.data.dtype);
        job.pieces.push_back({{part.name, part.data.dtype, part.shape, box, part.frozen, world_.rank()}, data, bytes});
        data += bytes;
      }
    }
    if (world_.rank() == 0 && !looked_) {
      fs::create_directories(options_.folder);
      last_ = scan_checkpoints(options_.folder).latest;
    }
  } catch (const std::exception& e) {
    problem = e.what();
  }
  comm::agree_on_success(world_, problem);
  if (!looked_) last_ = comm::broadcast(world_, last_);
  looked_ = true;

  std::vector<PieceRow> rows;
  for (const Job::Piece& p : job.pieces) rows.push_back(p.row);
  const std::vector<std::string> tables = comm::all_gather(world_, pack(rows));

  // Frozen tensors: is the file of the newest checkpoint just what this one would write?
  std::string signature;
  for (const Job::Piece& p : job.pieces) {
    if (p.row.frozen) signature += pack(std::span(&p.row, 1));
  }
  const std::string old_file = fmt::format("{}/{}/rank_{:05}.frozen.h5", options_.folder, last_, world_.rank());
  if (!signature.empty()) {
    job.frozen = XXH3_64bits(signature.data(), signature.size()) | 1;
    if (!options_.embed_frozen && !last_.empty()) {
      if (frozen_ != 0) {
        job.link_frozen = frozen_ == job.frozen && fs::exists(old_file);
      } else {
        // Written by an earlier process: the checksums tell whether the values are the same.
        try {
          const h5::File old = h5::File::open(old_file);
          job.link_frozen = true;
          for (const Job::Piece& p : job.pieces) {
            if (!p.row.frozen) continue;
            job.link_frozen = job.link_frozen && old.contains(p.row.dataset()) &&
                              old.uint_attribute(p.row.dataset(), "xxh3_64") ==
                                  XXH3_64bits(p.data, static_cast<std::size_t>(p.bytes));
          }
        } catch (const std::exception&) {
          job.link_frozen = false;
        }
      }
    }
  }

  std::int64_t bytes = 1 << 20;
  for (const Job::Piece& p : job.pieces) {
    if (!(p.row.frozen && job.link_frozen)) bytes += p.bytes + kDatasetOverhead;
  }
  bytes = comm::all_reduce(world_, bytes, comm::ReduceOp::sum);

  if (world_.rank() == 0) {
    try {
      for (std::size_t r = 0; r < tables.size(); ++r) {
        for (PieceRow& row : unpack(tables[r], static_cast<int>(r))) job.all_pieces.push_back(std::move(row));
      }
      check_coverage(job.all_pieces);
      remove_leftovers(options_.folder);
      const files::Space space = files::space(options_.folder);
      if (space.available < static_cast<std::uint64_t>(bytes)) {
        throw Error(fmt::format("{}: a checkpoint needs {} MiB, {} MiB are free; older checkpoints are untouched",
                                options_.folder, (bytes >> 20) + 1, space.available >> 20));
      }
      fs::create_directory(job.folder);
      if (options_.after) options_.after("folder made");
    } catch (const std::exception& e) {
      problem = e.what();
    }
  }
  comm::agree_on_success(world_, problem);

  if (!options_.async) return;
  std::int64_t copied = 0;
  for (const Job::Piece& p : job.pieces) copied += p.row.frozen ? 0 : p.bytes;
  job.copies.resize(static_cast<std::size_t>(copied));
  char* at = job.copies.data();
  for (Job::Piece& p : job.pieces) {
    if (p.row.frozen) continue;
    std::memcpy(at, p.data, static_cast<std::size_t>(p.bytes));
    p.data = at;
    at += p.bytes;
  }
}

// This rank's files. Runs in a thread of its own when asynchronous; talks to no other rank.
void CheckpointWriter::write(Job& job) const {
  try {
    const auto put = [&](bool frozen) {
      PieceRow any;
      any.writer = world_.rank();
      any.frozen = frozen;
      const std::string path = job.folder + "/" + any.file();
      std::optional<h5::File> file;
      for (const Job::Piece& p : job.pieces) {
        if (p.row.frozen != frozen) continue;
        if (!file) file = h5::File::create(path);
        file->write(p.row.dataset(), p.row.dtype, p.row.box.shape, p.data);
      }
      if (!file) return;
      file->close();
      if (options_.after) options_.after(any.file());
    };
    put(false);
    if (job.link_frozen) {
      PieceRow any;
      any.writer = world_.rank();
      any.frozen = true;
      const std::string from = options_.folder + "/" + last_ + "/" + any.file();
      const std::string to = job.folder + "/" + any.file();
      if (::link(from.c_str(), to.c_str()) != 0) put(true);  // a file system without hard links
    } else {
      put(true);
    }
  } catch (const std::exception& e) {
    job.problem = e.what();
  }
  job.written = true;
}

// All ranks have written: rank 0 makes it a checkpoint.
void CheckpointWriter::commit() {
  if (job_->thread.joinable()) job_->thread.join();
  const std::unique_ptr<Job> job = std::move(job_);
  std::string problem = job->problem;
  const bool failed = comm::any_of(world_, !problem.empty());
  if (world_.rank() == 0 && !failed) {
    try {
      const std::string path = options_.folder + "/" + job->name;
      const Scan before = scan_checkpoints(options_.folder);
      std::int64_t commit = 0;
      for (const Complete& c : before.complete) commit = std::max(commit, c.commit);

      files::write_atomic(job->folder + "/config.yaml", job->state.config);
      if (options_.after) options_.after("config written");
      h5::File index = h5::File::create(job->folder + "/index.h5");
      std::map<std::string, std::int64_t> sizes;
      for (const auto& [tensor, rows] : check_coverage(job->all_pieces)) {
        std::vector<h5::Piece> pieces;
        for (const PieceRow& row : rows) {
          pieces.push_back({row.file(), row.dataset(), row.box, {}, {}});
          sizes.try_emplace(row.file(), 0);
        }
        index.write_virtual(tensor, rows[0].dtype, rows[0].shape, pieces);
        if (rows[0].frozen) index.set_attribute(tensor, "frozen", std::int64_t{1});
      }
      for (auto& [file, size] : sizes) {
        size = static_cast<std::int64_t>(fs::file_size(job->folder + "/" + file));
        index.set_attribute("/", "file." + file, size);
      }
      const TrainingState& s = job->state;
      index.set_attribute("/", "format_version", kCheckpointVersion);
      index.set_attribute("/", "commit", commit + 1);
      index.set_attribute("/", "step", s.step);
      index.set_attribute("/", "updates", s.updates);
      index.set_attribute("/", "samples", s.samples);
      index.set_attribute("/", "seed", s.seed);
      index.set_attribute("/", "instruction_set", s.instruction_set);
      index.set_attribute("/", "config_xxh3_64", XXH3_64bits(s.config.data(), s.config.size()));
      for (const auto& [name, value] : s.metrics) index.set_attribute("/", "metric." + name, value);
      for (const auto& [name, value] : s.notes) index.set_attribute("/", "note." + name, value);
      index.close();
      files::sync(job->folder);
      if (options_.after) options_.after("index written");

      replace_folder(job->folder, path);
      files::sync(options_.folder);
      if (options_.after) options_.after("renamed");
      files::write_atomic(options_.folder + "/latest", job->name + "\n");
      if (options_.after) options_.after("latest written");
      delete_old(job->name);
    } catch (const std::exception& e) {
      problem = e.what();
    }
  }
  if (!failed && !comm::any_of(world_, !problem.empty())) {
    last_ = job->name;
    frozen_ = job->frozen;
    return;
  }
  // The folder may already have been renamed when something later failed: then it is a checkpoint.
  if (world_.rank() == 0) {
    std::error_code ignored;
    fs::remove_all(job->folder, ignored);
  }
  looked_ = false;
  frozen_ = 0;
  comm::agree_on_success(world_, problem.empty() ? "" : fmt::format("saving {}: {}", job->name, problem));
}

// The checkpoint is there already: what cannot be deleted is a warning.
void CheckpointWriter::delete_old(const std::string& newest) const {
  for (const std::string& name : to_delete(scan_checkpoints(options_.folder).complete, options_.retention, newest)) {
    try {
      remove_folder(options_.folder + "/" + name);
    } catch (const std::exception& e) {
      log::warning("old checkpoint not deleted: {}", e.what());
    }
    if (options_.after) options_.after("deleted");
  }
}

}  // namespace mmt::run
