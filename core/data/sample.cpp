#include "core/data/sample.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace mmt::data {
namespace {

constexpr std::int64_t kMaxRows = 1 << 30;

/// Drops tokens that are not `fixed` from the end until `excess` are gone. Returns false when there are not enough.
bool cut_text(Dialogue& dialogue, std::int64_t excess) {
  std::vector<std::uint8_t> gone(dialogue.ids.size(), 0);
  for (std::size_t i = dialogue.ids.size(); i > 0 && excess > 0; --i) {
    if (dialogue.fixed[i - 1] != 0) continue;
    gone[i - 1] = 1;
    --excess;
  }
  if (excess > 0) return false;
  std::size_t kept = 0, slot = 0;
  for (std::size_t i = 0; i < dialogue.ids.size(); ++i) {
    if (gone[i] != 0) continue;
    if (slot < dialogue.slots.size() && dialogue.slots[slot].at == static_cast<std::int32_t>(i)) {
      dialogue.slots[slot++].at = static_cast<std::int32_t>(kept);
    }
    dialogue.ids[kept] = dialogue.ids[i];
    dialogue.labels[kept] = dialogue.labels[i];
    dialogue.fixed[kept++] = dialogue.fixed[i];
  }
  dialogue.ids.resize(kept);
  dialogue.labels.resize(kept);
  dialogue.fixed.resize(kept);
  if (!dialogue.labels.empty()) dialogue.labels[0] = kIgnoreLabel;
  return true;
}

/// Runs of rows [begin, end), which are text, cut where a supervised stretch ends.
void add_text_runs(Prepared& p, std::int32_t begin, std::int32_t end, const std::vector<std::uint8_t>& predicts) {
  for (std::int32_t t = begin; t < end;) {
    SegmentRun run{-1, 0, 0, t};
    while (t < end && predicts[static_cast<std::size_t>(t)] == 0) ++t;
    const std::int32_t first_supervised = t;
    while (t < end && predicts[static_cast<std::size_t>(t)] != 0) ++t;
    run.length = t - run.first_row;
    run.supervised = t - first_supervised;
    p.runs.push_back(run);
  }
}

}  // namespace

std::uint64_t Preparation::key() const {
  std::string all = fmt::format("1 {} {} {}", chat->hash(), max_sequence, static_cast<int>(over_length));
  for (const EncoderInput& e : encoders) {
    all += fmt::format(" {} {} {} {}", e.module, static_cast<int>(e.modality), e.max_rows, e.key);
  }
  return XXH3_64bits(all.data(), all.size());
}

Prepared assemble(const Preparation& preparation, const Record& record, const Shapes& shapes, const std::string& where,
                  bool for_answer) {
  Dialogue dialogue = for_answer ? preparation.chat->prompt(record, where) : preparation.chat->build(record, where);
  // Rows of each slot, encoder by encoder.
  std::int64_t total = static_cast<std::int64_t>(dialogue.ids.size() - dialogue.slots.size());
  for (const auto& slot : dialogue.slots) {
    const Modality modality = record.media[static_cast<std::size_t>(slot.media)].modality;
    bool taken = false;
    for (std::size_t e = 0; e < preparation.encoders.size(); ++e) {
      const EncoderInput& encoder = preparation.encoders[e];
      if (!encoder.takes(modality)) continue;
      taken = true;
      for (const ItemShape& shape : shapes.at(e).at(static_cast<std::size_t>(slot.media))) {
        MMT_CHECK(shape.rows > 0 && shape.inner_rows >= 0, "{}: an item of {} rows", where, shape.rows);
        if (encoder.max_rows > 0 && shape.inner_rows > encoder.max_rows) {
          throw DataError(DataFault::too_long, where,
                          fmt::format("an {} item has {} rows in {}, more than its block's cap of {}",
                                      name_of(modality), shape.inner_rows, encoder.module, encoder.max_rows));
        }
        total += shape.rows;
      }
    }
    if (!taken) {
      throw ConfigError(
          modality == Modality::video
              ? fmt::format("{}: holds videos, but no module of the config takes them: image encoders of "
                            "kind qwen2_vl do",
                            where)
              : fmt::format("{}: holds {} files, but no module of the config is an encoder of modality {}", where,
                            name_of(modality), name_of(modality)));
    }
  }
  Prepared result;
  const std::int64_t cap = preparation.max_sequence > 0 ? preparation.max_sequence : kMaxRows;
  if (total > cap) {
    if (preparation.over_length == OverLength::drop || for_answer || !cut_text(dialogue, total - cap)) {
      throw DataError(
          DataFault::too_long, where,
          fmt::format("{} rows ({} of text), more than {}", total, dialogue.ids.size() - dialogue.slots.size(), cap));
    }
    result.truncated = true;
    total = cap;
  }
  result.ids.reserve(static_cast<std::size_t>(total));
  result.labels.reserve(static_cast<std::size_t>(total));
  struct Stretch {
    std::int32_t item, begin, end;
  };
  std::vector<Stretch> stretches;
  const auto rows = [&] { return static_cast<std::int32_t>(result.ids.size()); };
  std::size_t next_slot = 0;
  for (std::size_t i = 0; i < dialogue.ids.size(); ++i) {
    const bool is_slot =
        next_slot < dialogue.slots.size() && dialogue.slots[next_slot].at == static_cast<std::int32_t>(i);
    if (!is_slot) {
      if (stretches.empty() || stretches.back().item >= 0) stretches.push_back({-1, rows(), rows()});
      result.ids.push_back(dialogue.ids[i]);
      result.labels.push_back(dialogue.labels[i]);
      ++stretches.back().end;
      continue;
    }
    const std::int32_t media = dialogue.slots[next_slot++].media;
    const Modality modality = record.media[static_cast<std::size_t>(media)].modality;
    for (std::size_t e = 0; e < preparation.encoders.size(); ++e) {
      if (!preparation.encoders[e].takes(modality)) continue;
      std::int32_t part = 0;
      for (const ItemShape& shape : shapes[e][static_cast<std::size_t>(media)]) {
        const auto item = static_cast<std::int32_t>(result.items.size());
        result.items.push_back({static_cast<std::int32_t>(e), media, part++, rows(), shape});
        stretches.push_back({item, rows(), rows() + shape.rows});
        result.ids.insert(result.ids.end(), static_cast<std::size_t>(shape.rows), dialogue.ids[i]);
        result.labels.insert(result.labels.end(), static_cast<std::size_t>(shape.rows), kIgnoreLabel);
      }
    }
  }
  MMT_CHECK(static_cast<std::int64_t>(result.ids.size()) == total, "{}: {} rows made, {} counted", where,
            result.ids.size(), total);

  std::vector<std::uint8_t> predicts(result.labels.size(), 0);
  for (std::size_t t = 0; t + 1 < result.labels.size(); ++t) predicts[t] = result.labels[t + 1] != kIgnoreLabel ? 1 : 0;
  for (const Stretch& s : stretches) {
    if (s.item < 0) {
      add_text_runs(result, s.begin, s.end, predicts);
    } else {
      result.runs.push_back({s.item, s.end - s.begin, predicts[static_cast<std::size_t>(s.end - 1)], s.begin});
    }
  }
  result.supervised = static_cast<std::int32_t>(std::count(predicts.begin(), predicts.end(), 1));
  if (result.supervised == 0 && !for_answer) {
    throw DataError(DataFault::no_labels, where,
                    result.truncated ? "nothing of the answers is left after truncation" : "no answer to learn from");
  }
  return result;
}

Prepared prepare(const Preparation& preparation, const Record& record, const std::string& where, bool for_answer) {
  Shapes shapes(preparation.encoders.size());
  for (std::size_t e = 0; e < preparation.encoders.size(); ++e) {
    shapes[e].resize(record.media.size());
    for (std::size_t m = 0; m < record.media.size(); ++m) {
      if (!preparation.encoders[e].takes(record.media[m].modality)) continue;
      shapes[e][m] = preparation.encoders[e].shapes_of(record.media[m], where);
    }
  }
  return assemble(preparation, record, shapes, where, for_answer);
}

}  // namespace mmt::data
