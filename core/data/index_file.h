// The bytes of an index file: a header, then chunks of entries, each with its own checksum, only ever appended.
//   header  "MMTINDEX", u32 version, u32 samples a chunk, u64 key, i64 samples in the data file, u64 checksum
//   chunk   u32 mark, u32 payload bytes, i64 first sample, u64 checksum of payload and place; payload
// Little-endian. Nothing in the file is believed: a chunk counts only if its checksum fits, it follows the one before
// and every entry is possible.
#pragma once

#include "core/data/index.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

inline constexpr std::int64_t kIndexChunk = 256;  ///< samples a chunk (the last may hold fewer)

/// Entries of consecutive samples, growing at the end.
struct IndexTable {
  struct Row {
    std::int64_t offset = 0;
    std::uint64_t first_item = 0, first_run = 0;
    std::int32_t tokens = 0, supervised = 0;
    std::int16_t fault = -1;  // a DataFault; -1: none
    std::uint16_t truncated = 0;
  };
  std::vector<Row> rows;
  std::vector<Item> items;
  std::vector<SegmentRun> runs;

  std::int64_t size() const { return static_cast<std::int64_t>(rows.size()); }
  void add(std::int64_t offset, const Prepared& sample);
  void add(std::int64_t offset, DataFault fault);
  void append(const IndexTable& other);
  IndexEntry entry(std::int64_t i) const;
};

std::string index_header(std::uint64_t key, std::int64_t num_samples);
bool index_header_fits(std::string_view header, std::uint64_t key, std::int64_t num_samples);
inline constexpr std::size_t kIndexHeaderBytes = 40;

/// One chunk with its header. `payload_hash` is what `read_index_chunk` gives back for the same entries.
std::string write_index_chunk(std::int64_t first_sample, const IndexTable& chunk, std::uint64_t& payload_hash);

/// Reads the chunk at `at` of the file's text and moves `at` behind it; nothing when it is not sound. `offsets` and
/// `num_encoders` bound what entries may say.
std::optional<IndexTable> read_index_chunk(std::string_view file, std::size_t& at, std::int64_t first_sample,
                                           const RecordSource& records, std::size_t num_encoders,
                                           std::uint64_t& payload_hash);

}  // namespace mmt::data
