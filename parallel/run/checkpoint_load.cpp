#include "core/files.h"
#include "core/log.h"
#include "parallel/comm/values.h"
#include "parallel/run/checkpoint_files.h"
#include "parallel/run/checkpoint_pieces.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <cstring>

namespace mmt::run {

namespace {

constexpr std::uint64_t kMaxConfig = 16 << 20;

template <class From, class To> void convert(const std::vector<char>& raw, void* out) {
  const auto* from = reinterpret_cast<const From*>(raw.data());
  auto* to = static_cast<To*>(out);
  const std::size_t n = raw.size() / sizeof(From);
  for (std::size_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<From, bf16>) {
      to[i] = To(static_cast<float>(from[i]));
    } else {
      to[i] = To(from[i]);
    }
  }
}

}  // namespace

std::optional<std::string> find_checkpoint(comm::Communicator& world, const std::string& folder) {
  std::string found;
  std::string problem;
  bool newer = false;
  if (world.rank() == 0) {
    try {
      const Scan scan = scan_checkpoints(folder);
      for (const std::string& text : scan.problems) log::warning("passed over: {}", text);
      if (!scan.latest.empty()) found = folder + "/" + scan.latest;
    } catch (const ConfigError& e) {
      problem = e.what();
      newer = true;
    } catch (const std::exception& e) {
      problem = e.what();
    }
  }
  problem = comm::broadcast(world, problem);
  if (comm::any_of(world, newer)) throw ConfigError(problem);
  if (!problem.empty()) throw Error(problem);
  found = comm::broadcast(world, found);
  return found.empty() ? std::nullopt : std::optional(found);
}

CheckpointReader::CheckpointReader(const std::string& path) try
    : path_(path), index_(std::make_unique<h5::File>(open_index(path))) {
  TrainingState& s = state_;
  s.step = index_->int_attribute("/", "step");
  s.updates = index_->int_attribute("/", "updates");
  s.samples = index_->int_attribute("/", "samples");
  s.seed = index_->uint_attribute("/", "seed");
  s.instruction_set = index_->string_attribute("/", "instruction_set");
  for (const auto& [key, value] : index_->attributes("/")) {
    if (key.starts_with("metric.") && std::holds_alternative<double>(value))
      s.metrics[key.substr(7)] = std::get<double>(value);
    if (key.starts_with("note.") && std::holds_alternative<std::string>(value))
      s.notes[key.substr(5)] = std::get<std::string>(value);
  }
  s.config = files::read(path + "/config.yaml", kMaxConfig);
  if (XXH3_64bits(s.config.data(), s.config.size()) != index_->uint_attribute("/", "config_xxh3_64")) {
    throw Error(fmt::format("{}/config.yaml was changed after it was saved", path));
  }
} catch (const ConfigError&) {
  throw;
} catch (const Error& e) {
  throw ConfigError(e.what());
}

CheckpointReader::~CheckpointReader() = default;

std::vector<CheckpointReader::Item> CheckpointReader::tensors() const {
  std::vector<Item> items;
  for (std::string name : index_->datasets()) {
    if (name.starts_with('/')) name.erase(0, 1);
    const h5::Info info = index_->info(name);
    items.push_back({name, info.dtype, info.shape, index_->attribute(name, "frozen").has_value()});
  }
  return items;
}

bool CheckpointReader::contains(const std::string& name) const { return index_->contains(name); }

void CheckpointReader::read(const TensorPart& part) const {
  if (!contains(part.name)) throw ConfigError(fmt::format("{}: no tensor {}", path_, part.name));
  const h5::Info info = index_->info(part.name);
  if (info.shape != part.shape) {
    throw ConfigError(fmt::format("{}: {} is {}, the model wants [{}]", path_, part.name,
                                  h5::describe(info.dtype, info.shape), fmt::join(part.shape, ",")));
  }
  const DType want = part.data.dtype;
  if (info.dtype != want && !(is_float(info.dtype) && is_float(want))) {
    throw ConfigError(fmt::format("{}: {} is {}, wanted {}", path_, part.name, name_of(info.dtype), name_of(want)));
  }
  char* out = static_cast<char*>(part.data.data);
  std::vector<char> raw;
  for (const h5::Box& box : boxes_of(part)) {
    const std::int64_t n = num_elements(box.shape);
    if (info.dtype == want) {
      index_->read_box(part.name, box, want, out);
    } else {
      raw.resize(static_cast<std::size_t>(n * size_of(info.dtype)));
      index_->read_box(part.name, box, info.dtype, raw.data());
      visit_float(info.dtype,
                  [&]<class From>() { visit_float(want, [&]<class To>() { convert<From, To>(raw, out); }); });
    }
    out += n * size_of(want);
  }
}

void CheckpointReader::verify() const {
  for (const Item& item : tensors()) index_->verify(item.name);
}

void load_checkpoint(comm::Communicator& world, const CheckpointReader& reader, std::span<const TensorPart> parts) {
  std::string problem;
  bool config = false;
  try {
    for (const TensorPart& part : parts) reader.read(part);
  } catch (const ConfigError& e) {
    problem = e.what();
    config = true;
  } catch (const Error& e) {
    problem = e.what();
  }
  if (!comm::any_of(world, config)) return comm::agree_on_success(world, problem);
  try {
    comm::agree_on_success(world, problem);
  } catch (const PeerError&) {
    throw;
  } catch (const Error& e) {
    throw ConfigError(e.what());
  }
}

}  // namespace mmt::run
