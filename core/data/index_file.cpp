#include "core/data/index_file.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace mmt::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the index file is written as it lies in memory");

constexpr std::uint32_t kVersion = 1, kChunkMark = 0x4B434D4D;
constexpr std::size_t kChunkHeaderBytes = 24;
constexpr std::uint32_t kMaxPayload = 1U << 30;

template <class T> void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

template <class T> T get(std::string_view text, std::size_t at) {
  T value;
  std::memcpy(&value, text.data() + at, sizeof value);
  return value;
}

/// Variable-length integers, 7 bits a byte, the lowest first; signed ones in zigzag.
void put_varint(std::string& out, std::int64_t value) {
  auto v = (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
  for (; v >= 0x80; v >>= 7) out.push_back(static_cast<char>(v | 0x80));
  out.push_back(static_cast<char>(v));
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  std::int64_t varint() {
    std::uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ >= text_.size()) break;
      const auto byte = static_cast<std::uint8_t>(text_[at_++]);
      v |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return static_cast<std::int64_t>((v >> 1) ^ (~(v & 1) + 1));
    }
    good_ = false;
    return 0;
  }
  /// A value within [low, high]; anything else makes the whole chunk bad.
  std::int32_t in(std::int64_t low, std::int64_t high) {
    const std::int64_t v = varint();
    if (v < low || v > high) good_ = false;
    return good_ ? static_cast<std::int32_t>(v) : 0;
  }
  bool good() const { return good_; }
  bool at_end() const { return at_ == text_.size(); }
  std::size_t left() const { return text_.size() - at_; }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
  bool good_ = true;
};

constexpr std::int64_t kMaxRows = 1 << 30;

std::uint64_t checksum(std::string_view payload, std::int64_t first) {
  return XXH3_64bits_withSeed(payload.data(), payload.size(), static_cast<std::uint64_t>(first));
}

/// Items and runs fit each other: runs follow one another without holes, an item is one run of its own rows.
bool possible(const IndexEntry& e) {
  std::int64_t next = 0, supervised = 0, items = 0;
  for (const SegmentRun& run : e.runs) {
    if (run.first_row != next || run.length <= 0 || run.supervised > run.length) return false;
    if (run.item >= 0) {
      if (run.item != items++) return false;
      const Item& item = e.items[static_cast<std::size_t>(run.item)];
      if (item.shape.rows != run.length || item.first_row != run.first_row || run.supervised > 1) return false;
    }
    next += run.length;
    supervised += run.supervised;
  }
  if (e.runs.empty() || e.runs.back().supervised != 0) return false;  // the last row predicts nothing
  return next == e.tokens && supervised == e.supervised && supervised > 0 &&
         items == static_cast<std::int64_t>(e.items.size());
}

}  // namespace

void IndexTable::add(std::int64_t offset, const Prepared& sample) {
  rows.push_back({offset, items.size(), runs.size(), static_cast<std::int32_t>(sample.ids.size()), sample.supervised,
                  -1, static_cast<std::uint16_t>(sample.truncated)});
  items.insert(items.end(), sample.items.begin(), sample.items.end());
  runs.insert(runs.end(), sample.runs.begin(), sample.runs.end());
}

void IndexTable::add(std::int64_t offset, DataFault fault) {
  rows.push_back({offset, items.size(), runs.size(), 0, 0, static_cast<std::int16_t>(fault), 0});
}

void IndexTable::append(const IndexTable& other) {
  for (Row row : other.rows) {
    row.first_item += items.size();
    row.first_run += runs.size();
    rows.push_back(row);
  }
  items.insert(items.end(), other.items.begin(), other.items.end());
  runs.insert(runs.end(), other.runs.begin(), other.runs.end());
}

IndexEntry IndexTable::entry(std::int64_t i) const {
  const auto at = static_cast<std::size_t>(i);
  const Row& row = rows[at];
  const bool last = at + 1 == rows.size();
  const std::size_t items_end = last ? items.size() : rows[at + 1].first_item;
  const std::size_t runs_end = last ? runs.size() : rows[at + 1].first_run;
  IndexEntry e;
  e.offset = row.offset;
  if (row.fault >= 0) e.fault = static_cast<DataFault>(row.fault);
  e.tokens = row.tokens;
  e.supervised = row.supervised;
  e.truncated = row.truncated != 0;
  e.items = std::span(items).subspan(row.first_item, items_end - row.first_item);
  e.runs = std::span(runs).subspan(row.first_run, runs_end - row.first_run);
  return e;
}

std::string index_header(std::uint64_t key, std::int64_t num_samples) {
  std::string out = "MMTINDEX";
  put(out, kVersion);
  put(out, static_cast<std::uint32_t>(kIndexChunk));
  put(out, key);
  put(out, num_samples);
  put(out, XXH3_64bits(out.data(), out.size()));
  return out;
}

bool index_header_fits(std::string_view header, std::uint64_t key, std::int64_t num_samples) {
  return header.starts_with(index_header(key, num_samples));
}

std::string write_index_chunk(std::int64_t first_sample, const IndexTable& chunk, std::uint64_t& payload_hash) {
  std::string payload;
  put_varint(payload, chunk.size());
  for (std::int64_t i = 0; i < chunk.size(); ++i) {
    const IndexEntry e = chunk.entry(i);
    put_varint(payload, e.offset);
    put_varint(payload, e.fault ? static_cast<std::int64_t>(*e.fault) : -1);
    if (e.fault) continue;
    put_varint(payload, e.tokens);
    put_varint(payload, e.supervised);
    put_varint(payload, e.truncated ? 1 : 0);
    put_varint(payload, static_cast<std::int64_t>(e.items.size()));
    for (const Item& item : e.items) {
      for (const std::int32_t v :
           {item.encoder, item.media, item.part, item.first_row, item.shape.rows, item.shape.inner_rows,
            item.shape.input_rows, item.shape.input_cols, item.shape.grid[0], item.shape.grid[1], item.shape.grid[2]}) {
        put_varint(payload, v);
      }
    }
    put_varint(payload, static_cast<std::int64_t>(e.runs.size()));
    for (const SegmentRun& run : e.runs) {
      for (const std::int32_t v : {run.item, run.length, run.supervised, run.first_row}) put_varint(payload, v);
    }
  }
  payload_hash = checksum(payload, first_sample);
  std::string out;
  put(out, kChunkMark);
  put(out, static_cast<std::uint32_t>(payload.size()));
  put(out, first_sample);
  put(out, payload_hash);
  return out + payload;
}

std::optional<IndexTable> read_index_chunk(std::string_view file, std::size_t& at, std::int64_t first_sample,
                                           const RecordSource& records, std::size_t num_encoders,
                                           std::uint64_t& payload_hash) {
  if (at > file.size() || file.size() - at < kChunkHeaderBytes) return std::nullopt;
  const auto bytes = get<std::uint32_t>(file, at + 4);
  if (get<std::uint32_t>(file, at) != kChunkMark || bytes > kMaxPayload ||
      bytes > file.size() - at - kChunkHeaderBytes || get<std::int64_t>(file, at + 8) != first_sample) {
    return std::nullopt;
  }
  const std::string_view payload = file.substr(at + kChunkHeaderBytes, bytes);
  payload_hash = get<std::uint64_t>(file, at + 16);
  if (payload_hash != checksum(payload, first_sample)) return std::nullopt;
  Reader in(payload);
  IndexTable table;
  const std::int64_t expected = std::min(kIndexChunk, records.size() - first_sample);
  if (in.varint() != expected) return std::nullopt;
  for (std::int64_t i = 0; i < expected && in.good(); ++i) {
    const std::int64_t offset = in.varint();
    if (!in.good() || offset != records.offset(first_sample + i)) return std::nullopt;
    const std::int32_t fault = in.in(-1, kNumDataFaults - 1);
    if (fault >= 0) {
      table.add(offset, static_cast<DataFault>(fault));
      continue;
    }
    IndexTable::Row row;
    row.offset = offset;
    row.first_item = table.items.size();
    row.first_run = table.runs.size();
    row.tokens = in.in(1, kMaxRows);
    row.supervised = in.in(1, row.tokens);
    row.truncated = static_cast<std::uint16_t>(in.in(0, 1));
    // Every item and run takes several bytes, so counts beyond what is left are lies and allocate nothing.
    const std::int32_t num_items = in.in(0, static_cast<std::int64_t>(in.left() / 11));
    for (std::int32_t k = 0; k < num_items && in.good(); ++k) {
      Item item;
      item.encoder = in.in(0, static_cast<std::int64_t>(num_encoders) - 1);
      item.media = in.in(0, kMaxRows);
      item.part = in.in(0, kMaxRows);
      item.first_row = in.in(0, row.tokens);
      item.shape.rows = in.in(1, row.tokens);
      item.shape.inner_rows = in.in(0, kMaxRows);
      item.shape.input_rows = in.in(0, kMaxRows);
      item.shape.input_cols = in.in(0, kMaxRows);
      for (std::int32_t& g : item.shape.grid) g = in.in(INT32_MIN, INT32_MAX);
      table.items.push_back(item);
    }
    const std::int32_t num_runs = in.in(0, static_cast<std::int64_t>(in.left() / 4));
    for (std::int32_t k = 0; k < num_runs && in.good(); ++k) {
      SegmentRun run;
      run.item = in.in(-1, num_items - 1);
      run.length = in.in(1, row.tokens);
      run.supervised = in.in(0, row.tokens);
      run.first_row = in.in(0, row.tokens);
      table.runs.push_back(run);
    }
    table.rows.push_back(row);
    if (!in.good() || !possible(table.entry(i))) return std::nullopt;
  }
  if (!in.good() || !in.at_end()) return std::nullopt;
  at += kChunkHeaderBytes + bytes;
  return table;
}

}  // namespace mmt::data
