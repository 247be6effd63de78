// From a record and the sizes of its media to rows: ids, labels and the segment runs that planning needs.
#pragma once

#include "core/data/media/encoder_input.h"
#include "core/data/text/chat_template.h"

#include <cstdint>
#include <string>
#include <vector>

namespace mmt::data {

/// One encoder's share of a media file.
struct Item {
  std::int32_t encoder = 0;    ///< index in Preparation::encoders (config order)
  std::int32_t media = 0;      ///< index in Record::media
  std::int32_t part = 0;       ///< chunk of the file
  std::int32_t first_row = 0;  ///< first LLM row, within the sample
  ItemShape shape;
  bool operator==(const Item&) const = default;
};

/// Consecutive rows of one sample: text, or all rows of one item. The *last* `supervised` rows of the run predict a
/// supervised token (their next label is not kIgnoreLabel); the others do not. A run ends where that would not hold.
struct SegmentRun {
  std::int32_t item = -1;  ///< index in the sample's items; -1: text
  std::int32_t length = 0;
  std::int32_t supervised = 0;
  std::int32_t first_row = 0;  ///< within the sample
  bool operator==(const SegmentRun&) const = default;
};

enum class OverLength : std::uint8_t {
  drop,  ///< the sample is unusable (too_long)
  text,  ///< text is cut from the end, media and their surroundings stay; too_long only where that is not enough
};

/// Everything that turns records into rows, the same for all data sets of a run.
struct Preparation {
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat = nullptr;
  std::vector<EncoderInput> encoders;
  std::int32_t max_sequence = 0;  ///< cap on LLM rows of a sample (also the block's cap); 0: none
  OverLength over_length = OverLength::drop;

  std::uint64_t key() const;  ///< hash of all of it
};

/// A sample in rows. An `<image>` slot becomes one item per encoder of its modality, in config order.
struct Prepared {
  std::vector<TokenId> ids;          ///< media rows: the placeholder's id
  std::vector<std::int32_t> labels;  ///< aligned with ids; kIgnoreLabel where not supervised
  std::vector<Item> items;
  std::vector<SegmentRun> runs;
  std::int32_t supervised = 0;  ///< number of labels that are not kIgnoreLabel
  bool truncated = false;
};

/// Media of a modality that no encoder takes: ConfigError. Too long: DataError(too_long); nothing supervised left:
/// DataError(no_labels); an item over its encoder's cap: DataError(too_long). `shapes[encoder][media]` gives the items.
using Shapes = std::vector<std::vector<std::vector<ItemShape>>>;
Prepared assemble(const Preparation& preparation, const Record& record, const Shapes& shapes, const std::string& where,
                  bool for_answer = false);

/// Measures the record's media, whose sources are known (with every encoder of their modality), and assembles it.
Prepared prepare(const Preparation& preparation, const Record& record, const std::string& where,
                 bool for_answer = false);

}  // namespace mmt::data
