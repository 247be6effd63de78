#include "apps/mmtrain/dataset.h"

#include "apps/mmtrain/job.h"

#include "core/files.h"
#include "core/log.h"
#include "core/philox.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>

namespace mmt::app {
namespace {

data::ChatTemplate make_chat(const Config& c, const data::Tokenizer& tokenizer) {
  data::ChatTemplate chat(c.data.chat, tokenizer);
  for (const EncoderConfig& e : c.encoders) {
    chat.require(e.spec.modality == "image" ? data::Modality::image : data::Modality::audio);
  }
  return chat;
}

data::EncoderInput encoder_input(const Config& c, const EncoderConfig& e) {
  // Rows inside an encoder by row that leaves: two frames, the patches of a square, what is averaged and a rest, all
  // tiles where one tile's rows leave (with its class row). An address has 20 bits for them.
  const std::int64_t inside = std::max({std::int64_t{2}, std::int64_t{e.spec.merge} * e.spec.merge,
                                        std::int64_t{e.spec.pool} + 1, 2 * models::most_tiles(e.spec)});
  const auto cap = static_cast<std::int32_t>(std::min(inside * c.train.tokens_per_microbatch, std::int64_t{1} << 20));
  if (e.spec.modality == "audio") return data::audio_input(e.spec.name, c.data.audio, e.audio, cap);
  const auto select = e.spec.select == "full" ? data::VisionSelect::full : data::VisionSelect::patches;
  data::EncoderInput input = data::image_input(e.spec.name, c.data.image, e.image, e.spec.class_token, select, cap);
  if (takes_videos(e)) data::take_videos(input, c.data.image, c.data.video, e.image, e.video);
  return input;
}

/// The messages of the first few bad samples of a set.
std::string first_faults(const data::DatasetIndex& index, const data::Preparation& preparation) {
  std::string text;
  int shown = 0;
  for (std::int64_t i = 0; i < index.size() && shown < 5; ++i) {
    if (!index.entry(i).fault) continue;
    text += "\n  " + index.explain(i, preparation);
    ++shown;
  }
  return text;
}

void check_usable(const Config& c, const SetConfig& set, const data::DatasetIndex& index,
                  const data::Preparation& preparation, bool training) {
  const std::vector<std::int64_t> faults = index.faults();
  const std::string counts = fault_counts(faults);
  if (index.size() == 0) throw ConfigError(fmt::format("data set {}: {} has no samples", set.name, set.path));
  if (index.usable().empty()) {
    throw ConfigError(fmt::format("data set {}: none of its {} samples can be used ({}):{}", set.name, index.size(),
                                  counts, first_faults(index, preparation)));
  }
  if (counts.empty()) return;
  if (training && c.data.bad_samples == DataConfig::Bad::error) {
    throw ConfigError(
        fmt::format("data set {}: {} of {} samples cannot be used ({}); mend them, or set data.bad_samples: skip:{}",
                    set.name, index.size() - static_cast<std::int64_t>(index.usable().size()), index.size(), counts,
                    first_faults(index, preparation)));
  }
  log::warning("data set {}: {} of {} samples are left out: {}", set.name,
               index.size() - static_cast<std::int64_t>(index.usable().size()), index.size(), counts);
}

}  // namespace

std::string fault_counts(const std::vector<std::int64_t>& faults) {
  std::string text;
  for (std::size_t f = 0; f < faults.size(); ++f) {
    if (faults[f] > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", faults[f], name_of(static_cast<DataFault>(f)));
  }
  return text;
}

Preparer::Preparer(const Config& c)
    : tokenizer_(data::Tokenizer::load(c.data.tokenizer)), chat_(make_chat(c, tokenizer_)) {
  preparation_.tokenizer = &tokenizer_;
  preparation_.chat = &chat_;
  for (const EncoderConfig& e : c.encoders) preparation_.encoders.push_back(encoder_input(c, e));
  preparation_.max_sequence = static_cast<std::int32_t>(c.data.max_sequence);
  preparation_.over_length = c.data.over_length;
}

namespace {

/// Rank 0 builds; the others wait for it, however long it takes: it says at times that it is still at work, so that
/// none takes a large data set for a dead rank. What rank 0 throws is thrown to all.
void build_on_first(comm::Communicator& world, std::vector<data::DatasetIndex>& indexes, const data::SetSpec& spec,
                    const Preparer& preparer, data::IndexOptions options) {
  constexpr auto kSignEvery = std::chrono::seconds(20);
  std::int64_t working = 1;
  const auto sign = [&] { world.broadcast(Tensor(&working, DType::i64, {1}), 0); };
  std::exception_ptr problem;
  if (world.rank() == 0) {
    options.progress = [&, show = options.progress,
                        last = std::chrono::steady_clock::now()](const data::IndexProgress& p) mutable {
      show(p);
      if (std::chrono::steady_clock::now() - last < kSignEvery) return;
      sign();
      last = std::chrono::steady_clock::now();
    };
    try {
      indexes.push_back(data::DatasetIndex::build(spec, preparer.preparation(), options));
    } catch (...) {
      problem = std::current_exception();
    }
    working = 0;
    sign();
  }
  while (working != 0 && world.rank() != 0) sign();
  in_agreement(world, [&] {
    if (problem) std::rethrow_exception(problem);
  });
}

}  // namespace

void set_vocabulary(Config& c, const data::Tokenizer& tokenizer) {
  if (c.llm.spec.vocabulary == 0) c.llm.spec.vocabulary = tokenizer.vocab_size();
}

data::SetSpec set_spec(const Config& c, const SetConfig& set) {
  const bool shards = set.format == SetConfig::Format::webdataset;
  return {set.name, set.path, set.media_root, c.data.index_dir,
          shards ? data::SetFormat::webdataset : data::SetFormat::records};
}

std::vector<data::DatasetIndex> open_indexes(const Config& c, const std::vector<SetConfig>& sets,
                                             const Preparer& preparer, comm::Communicator& world,
                                             const std::atomic<bool>* stop, bool training) {
  std::vector<data::DatasetIndex> indexes;
  for (const SetConfig& set : sets) {
    const data::SetSpec spec = set_spec(c, set);
    data::IndexOptions options;
    options.stop = stop;
    options.threads = static_cast<int>(std::max<std::int64_t>(c.data.workers, world.size()));
    options.progress = [&, last = std::chrono::steady_clock::now()](const data::IndexProgress& p) mutable {
      const auto now = std::chrono::steady_clock::now();
      if (now - last < std::chrono::seconds(5)) return;
      last = now;
      log::info("indexing {}: {} of {} samples", set.name, p.done, p.total);
    };
    // Rank 0 builds and writes; the others then read what it wrote. Where they do not see that file (no shared file
    // system between nodes) they build their own in memory, and the digest below says whether all see the same data.
    build_on_first(world, indexes, spec, preparer, options);
    in_agreement(world, [&] {
      if (world.rank() == 0) return;
      options.write = false;
      options.recheck = false;
      options.progress = {};
      indexes.push_back(data::DatasetIndex::build(spec, preparer.preparation(), options));
    });
    const data::DatasetIndex& index = indexes.back();
    std::int64_t stopped = index.complete() ? 0 : 1;
    world.all_reduce(Tensor(&stopped, DType::i64, {1}), comm::ReduceOp::max);
    if (stopped != 0) throw Agreed(kRequeue, "stopped while indexing; the work done so far is kept");
    std::int64_t digest = static_cast<std::int64_t>(index.digest() >> 1), low = digest, high = digest;
    world.all_reduce(Tensor(&low, DType::i64, {1}), comm::ReduceOp::min);
    world.all_reduce(Tensor(&high, DType::i64, {1}), comm::ReduceOp::max);
    if (low != high) {
      throw Agreed(
          kFailed,
          fmt::format("data set {}: the ranks see different samples or media in {}; all ranks must see the same files",
                      set.name, set.path));
    }
    in_agreement(world, [&] { check_usable(c, set, index, preparer.preparation(), training); });
  }
  return indexes;
}

std::string data_identity(const Config& c, const std::vector<data::DatasetIndex>& indexes) {
  const std::filesystem::path tokenizer = data::Tokenizer::file_of(c.data.tokenizer);
  constexpr std::uint64_t kMaxTokenizer = std::uint64_t{1} << 30;
  // A SentencePiece model has its added tokens in other files.
  std::uint64_t hash = tokenizer.extension() == ".model" ? data::Tokenizer::load(tokenizer).hash()
                                                         : hash64(files::read(tokenizer.string(), kMaxTokenizer));
  const auto add = [&](std::int64_t value) { hash = hash64(hash, static_cast<std::uint64_t>(value)); };
  for (const data::DatasetIndex& index : indexes) {
    add(index.size());
    for (std::int64_t i = 0; i < index.size(); ++i) {
      const data::IndexEntry e = index.entry(i);
      add(e.fault ? 1 + static_cast<std::int64_t>(*e.fault) : 0);
      add(e.tokens);
      add(e.supervised);
      for (const data::Item& item : e.items) {
        add(item.encoder);
        add(item.shape.input_rows);
      }
    }
  }
  return fmt::format("{:016x}", hash);
}

plan::SampleMeta sample_meta(const data::IndexEntry& entry, std::int64_t id, const data::Preparation& preparation) {
  plan::SampleMeta meta;
  meta.id = id;
  meta.rows = entry.tokens;
  meta.supervised = entry.supervised;
  for (const data::Item& item : entry.items) {
    const data::ItemShape& s = item.shape;
    const data::EncoderInput& input = preparation.encoders[static_cast<std::size_t>(item.encoder)];
    const bool sound = input.modality == data::Modality::audio;
    plan::ItemMeta& m = meta.items.emplace_back();
    m.encoder = item.encoder;
    m.source_rows = s.input_rows;
    m.inner_rows = s.inner_rows;
    m.rows = s.rows;
    if (input.tiles) {
      m.tiles = {.rows = s.grid[0],
                 .cols = s.grid[1],
                 .trim_rows = std::max(s.grid[2], 0),
                 .trim_cols = std::max(-s.grid[2], 0)};
      continue;
    }
    // Pictures are a grid unless a class row leaves with them.
    const std::array<std::int64_t, 3> grid{s.grid[0], s.grid[1] / input.merge, s.grid[2] / input.merge};
    if (!sound && grid[0] * grid[1] * grid[2] == s.rows) m.grid = grid;
  }
  for (const data::SegmentRun& run : entry.runs) meta.runs.push_back({run.item, run.length, run.supervised});
  return meta;
}

RowCaps row_caps(const Config& c, const std::vector<const data::DatasetIndex*>& sets) {
  RowCaps caps;
  const std::int64_t rows = c.train.tokens_per_microbatch;
  caps.llm = {.rows = rows, .supervised = rows, .source = 0, .out = rows, .tiles = 0};
  caps.encoders.resize(c.encoders.size());
  caps.encoder_items.assign(c.encoders.size(), 1);  // of a modality that no set has: its blocks are empty, but there
  // A block's media rows are at most `rows`; an encoder's own rows follow by the worst ratio of any item, rounded up,
  // and the remainder of one item.
  struct Worst {
    double inner = 0, source = 0;
    std::int64_t smallest = 0;
  };
  std::vector<Worst> worst(c.encoders.size());
  for (const data::DatasetIndex* set : sets) {
    for (const std::int64_t sample : set->usable()) {
      for (const data::Item& item : set->entry(sample).items) {
        Worst& w = worst[static_cast<std::size_t>(item.encoder)];
        const data::ItemShape& s = item.shape;
        w.inner = std::max(w.inner, static_cast<double>(s.inner_rows) / s.rows);
        w.source = std::max(w.source, static_cast<double>(s.input_rows) / s.rows);
        w.smallest = w.smallest == 0 ? s.rows : std::min<std::int64_t>(w.smallest, s.rows);
      }
    }
  }
  for (std::size_t e = 0; e < worst.size(); ++e) {
    if (worst[e].smallest == 0) continue;  // no set has an item for it
    plan::BlockSize& size = caps.encoders[e];
    size.out = rows;
    size.rows = static_cast<std::int64_t>(static_cast<double>(rows) * worst[e].inner) + 1;
    size.source = static_cast<std::int64_t>(static_cast<double>(rows) * worst[e].source) + 1;
    caps.encoder_items[e] = rows / worst[e].smallest + 1;
  }
  std::int64_t total = 0, samples = 0;
  for (const data::DatasetIndex* set : sets) {
    for (const std::int64_t sample : set->usable()) total += set->entry(sample).tokens;
    samples += static_cast<std::int64_t>(set->usable().size());
  }
  // A batch of half again the mean length.
  const std::int64_t lane_rows = samples == 0 ? 0
                                              : 3 * c.train.global_batch_size * (total / samples + 1) /
                                                    (2 * std::max(1, c.parallel.meshes.front().dp));
  caps.blocks = static_cast<int>(std::max(c.train.microbatches.value_or(1), lane_rows / rows + 2));
  return caps;
}

}  // namespace mmt::app
