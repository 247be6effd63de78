// The file that keeps what was found in shards: "MMTTARS1", checksum of the rest, then shard by shard. Little-endian.
#include <xxhash.h>

#include <cstring>

#include "core/data/records/tar_shard.h"

namespace mmt::data {
namespace {

constexpr std::string_view kShardsMark = "MMTTARS1";

class ShardWriter {
 public:
  template <class T> void number(T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    text.append(bytes, sizeof value);
  }
  void string(std::string_view value) {
    number(static_cast<std::uint64_t>(value.size()));
    text += value;
  }
  std::string text;
};

/// Nothing is believed: what does not fit makes `good` false, and zero is read from then on.
class ShardReader {
 public:
  explicit ShardReader(std::string_view text) : text_(text) {}
  template <class T> T number() {
    T value{};
    if (text_.size() < sizeof value) {
      good = false;
      text_ = {};
      return value;
    }
    std::memcpy(&value, text_.data(), sizeof value);
    text_.remove_prefix(sizeof value);
    return value;
  }
  std::string_view string() {
    const std::size_t size = count(1);
    const std::string_view value = text_.substr(0, size);
    text_.remove_prefix(size);
    return value;
  }
  /// A number of things that take at least `each` bytes.
  std::size_t count(std::size_t each) {
    const auto n = number<std::uint64_t>();
    if (n > text_.size() / each) good = false;
    return good ? static_cast<std::size_t>(n) : 0;
  }
  bool at_end() const { return text_.empty(); }
  bool good = true;

 private:
  std::string_view text_;
};

bool read_shard(ShardReader& in, TarShard& shard) {
  shard.bytes = in.number<std::int64_t>();
  shard.modified_ns = in.number<std::int64_t>();
  shard.keys = in.string();
  const std::size_t names = in.count(8), samples = in.count(8), fields = in.count(20);
  for (std::size_t i = 0; i < names && in.good; ++i) shard.field_names.emplace_back(in.string());
  std::uint64_t key_at = 0, first_field = 0;
  for (std::size_t i = 0; i < samples && in.good; ++i) {
    const auto key_bytes = in.number<std::uint32_t>(), num_fields = in.number<std::uint32_t>();
    if (num_fields == 0 || key_bytes > shard.keys.size() - key_at || num_fields > fields - first_field) return false;
    shard.samples.push_back({key_at, key_bytes, static_cast<std::uint32_t>(first_field)});
    key_at += key_bytes;
    first_field += num_fields;
  }
  if (key_at != shard.keys.size() || first_field != fields) return false;
  for (std::size_t i = 0; i < fields && in.good; ++i) {
    TarShard::Field field;
    field.offset = in.number<std::int64_t>();
    field.bytes = in.number<std::int64_t>();
    field.name = in.number<std::uint32_t>();
    if (field.name >= names || field.offset < 0 || field.bytes < 0 || field.offset > shard.bytes ||
        field.bytes > shard.bytes - field.offset) {
      return false;
    }
    shard.fields.push_back(field);
  }
  return in.good;
}

}  // namespace

std::string write_known_shards(const std::vector<KnownShard>& shards) {
  ShardWriter out;
  for (const auto& [name, shard] : shards) {
    out.string(name);
    out.number(shard.bytes);
    out.number(shard.modified_ns);
    out.string(shard.keys);
    out.number(static_cast<std::uint64_t>(shard.field_names.size()));
    out.number(static_cast<std::uint64_t>(shard.samples.size()));
    out.number(static_cast<std::uint64_t>(shard.fields.size()));
    for (const std::string& field : shard.field_names) out.string(field);
    for (std::size_t i = 0; i < shard.samples.size(); ++i) {
      out.number(shard.samples[i].key_bytes);
      out.number(static_cast<std::uint32_t>(shard.fields_end(i) - shard.samples[i].first_field));
    }
    for (const TarShard::Field& field : shard.fields) {
      out.number(field.offset);
      out.number(field.bytes);
      out.number(field.name);
    }
  }
  ShardWriter head;
  head.number(XXH3_64bits(out.text.data(), out.text.size()));
  return std::string(kShardsMark) + head.text + out.text;
}

std::vector<KnownShard> read_known_shards(std::string_view text) {
  if (!text.starts_with(kShardsMark)) return {};
  ShardReader head(text.substr(kShardsMark.size()));
  const auto checksum = head.number<std::uint64_t>();
  if (!head.good) return {};
  text.remove_prefix(kShardsMark.size() + sizeof checksum);
  if (checksum != XXH3_64bits(text.data(), text.size())) return {};
  ShardReader in(text);
  std::vector<KnownShard> shards;
  while (!in.at_end()) {
    KnownShard known;
    known.name = in.string();
    if (!in.good || !read_shard(in, known.shard)) return {};
    shards.push_back(std::move(known));
  }
  return shards;
}

}  // namespace mmt::data
