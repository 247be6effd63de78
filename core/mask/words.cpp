#include "core/mask/words.h"

#include "core/error.h"

namespace mmt {

std::uint64_t pack_word(std::int64_t sample, std::int64_t group, std::uint64_t classes) {
  MMT_CHECK(word_fits(sample, group, classes),
            "attention word: sample {} (at most {}), group {} (at most {}), classes {:#x} ({} bits)", sample,
            kMaxSampleId, group, kMaxGroupId, classes, kClassBits);
  MMT_CHECK(sample != 0 || (group == 0 && classes == 0), "attention word: padding row with group {}, classes {:#x}",
            group, classes);
  return (static_cast<std::uint64_t>(sample) << (kGroupBits + kClassBits)) |
         (static_cast<std::uint64_t>(group) << kClassBits) | classes;
}

void MaskWords::push(std::int64_t sample, std::int64_t group, std::uint32_t sees, std::uint32_t is,
                     std::int32_t place) {
  MMT_CHECK(place >= 0, "attention word: place {} in sample {}", place, sample);
  const std::uint64_t as_query = pack_word(sample, group, sees);
  const std::uint64_t as_key = pack_word(sample, group, is);
  query.push_back(as_query);
  key.push_back(as_key);
  order.push_back(place);
}

void MaskWords::push_padding(std::int64_t count) {
  const auto n = rows() + static_cast<std::size_t>(count);
  query.resize(n, 0);
  key.resize(n, 0);
  order.resize(n, 0);
}

}  // namespace mmt
