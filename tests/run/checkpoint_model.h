// A small model in checkpoints of many layouts: what the checkpoint tests share.
#pragma once

#include "core/log.h"
#include "core/philox.h"
#include "parallel/comm/self.h"
#include "parallel/comm/threads.h"
#include "parallel/run/checkpoint.h"
#include "parallel/run/checkpoint_files.h"
#include "parallel/run/checkpoint_pieces.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

#include <set>

namespace mmt::test {

using namespace mmt::run;
namespace fs = std::filesystem;

using Shape = std::vector<std::int64_t>;

// Values of every element follow from its tensor, its place and the step alone.
inline float value(const std::string& name, std::int64_t element, std::int64_t step) {
  const bool frozen = name.find("eyes") != std::string::npos;
  return bf16(static_cast<float>(random_normal(
      random_key(1, name, ""), 0, frozen ? 0 : static_cast<std::uint32_t>(step), static_cast<std::uint64_t>(element))));
}

struct Whole {
  std::string name;
  Shape shape;
  DType dtype;
  bool frozen = false;
};
inline const std::vector<Whole> kTensors = {
    {"model/llm/model.layers.0.mlp.up_proj.weight", {10, 7}, DType::f32},
    {"model/llm/model.norm.weight", {5}, DType::bf16},
    {"model/eyes/patch.weight", {3, 4, 2}, DType::bf16, true},
    {"optimizer/first_moment/llm/model.layers.0.mlp.up_proj.weight", {10, 7}, DType::f32},
    {"model/llm/embed.weight", {4, 3, 5, 2}, DType::f32},
};

// How a layout cuts a tensor into parts, by rank.
enum class Cut { rows, columns, range, one_owner };

struct Parts {
  std::vector<SavedPart> parts;
  std::vector<std::vector<char>> memory;
};

inline std::int64_t global_index(const Shape& shape, const h5::Box& box, std::int64_t local) {
  std::int64_t index = 0;
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    index += (box.offset[d] + local % box.shape[d]) * stride;
    local /= box.shape[d];
    stride *= shape[d];
  }
  return index;
}

inline void set(const Tensor& t, std::int64_t i, float v) {
  if (t.dtype == DType::f32) t.as<float>()[i] = v;
  if (t.dtype == DType::bf16) t.as<bf16>()[i] = bf16(v);
}
inline float get(const Tensor& t, std::int64_t i) {
  return t.dtype == DType::f32 ? t.as<float>()[i] : static_cast<float>(t.as<bf16>()[i]);
}

inline SavedPart make_part(const Whole& w, Cut cut, int rank, int ranks, Parts& out) {
  SavedPart p;
  p.name = w.name;
  p.shape = w.shape;
  p.frozen = w.frozen;
  p.box = {Shape(w.shape.size(), 0), w.shape};
  if (cut == Cut::rows || cut == Cut::columns) {
    const std::size_t d = cut == Cut::rows ? 0 : w.shape.size() - 1;
    p.box.offset[d] = w.shape[d] * rank / ranks;
    p.box.shape[d] = w.shape[d] * (rank + 1) / ranks - p.box.offset[d];
  }
  std::int64_t count = num_elements(p.box.shape);
  if (cut == Cut::range) {
    p.first = count * rank / ranks;
    p.count = count * (rank + 1) / ranks - p.first;
    count = p.count;
  }
  p.is_owner = cut != Cut::one_owner || rank == ranks - 1;
  out.memory.emplace_back(static_cast<std::size_t>(count * size_of(w.dtype)));
  p.data = Tensor(out.memory.back().data(), w.dtype, {count});
  return p;
}

inline Parts make_parts(int rank, int ranks, int shift) {
  Parts out;
  out.memory.reserve(kTensors.size());
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    const auto cut = static_cast<Cut>((i + static_cast<std::size_t>(shift)) % 4);
    out.parts.push_back(make_part(kTensors[i], cut, rank, ranks, out));
  }
  return out;
}

/// `frozen_too` false: as training does while a save is being written, which reads frozen tensors where they are.
inline void fill(Parts& parts, std::int64_t step, bool frozen_too = true) {
  for (const SavedPart& p : parts.parts) {
    if (p.frozen && !frozen_too) continue;
    for (std::int64_t i = 0; i < p.data.numel(); ++i) {
      set(p.data, i, value(p.name, global_index(p.shape, p.box, p.first + i), step));
    }
  }
}

inline TrainingState state_of(std::int64_t step) {
  TrainingState s;
  s.step = step;
  s.updates = step - 1;
  s.samples = step * 32;
  s.seed = 0xfedcba9876543210ull;
  s.config = "train: {steps: 1000}\n" + std::string(100000, '#') + "\n";
  s.instruction_set = "avx512_bf16";
  s.metrics["answer_accuracy"] = 0.5 + 0.001 * static_cast<double>(step % 7);
  s.notes["epoch"] = "3";
  return s;
}

inline Parts save(comm::Communicator& world, CheckpointWriter& writer, std::int64_t step, int shift = 0) {
  Parts parts = make_parts(world.rank(), world.size(), shift);
  fill(parts, step);
  writer.save(parts.parts, state_of(step));
  return parts;
}

// Reads everything in this layout and compares every element.
inline void check_load(comm::Communicator& world, const std::string& path, std::int64_t step, int shift = 0) {
  const CheckpointReader reader(path);
  MMT_CHECK(reader.state().step == step, "{} is of step {}, not {}", path, reader.state().step, step);
  Parts parts = make_parts(world.rank(), world.size(), shift);
  const std::vector<TensorPart> wanted(parts.parts.begin(), parts.parts.end());
  load_checkpoint(world, reader, wanted);
  for (const TensorPart& p : wanted) {
    for (std::int64_t i = 0; i < p.data.numel(); ++i) {
      const float want = value(p.name, global_index(p.shape, p.box, p.first + i), step);
      MMT_CHECK(get(p.data, i) == want, "{} element {}: {}, not {}", p.name, i, get(p.data, i), want);
    }
  }
}

inline CheckpointOptions in(const std::string& folder) {
  CheckpointOptions o;
  o.folder = folder;
  return o;
}

inline std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& e : fs::directory_iterator(folder)) names.insert(e.path().filename());
  return names;
}

}  // namespace mmt::test
