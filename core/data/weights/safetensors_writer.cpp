#include "core/data/weights/safetensors_writer.h"

#include "core/error.h"
#include "core/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

namespace mmt::data {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

void write_all(int fd, const std::string& path, const void* data, std::uint64_t size, std::uint64_t at) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::pwrite(fd, from, size, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(path, "cannot write");
    from += n;
    at += static_cast<std::uint64_t>(n);
    size -= static_cast<std::uint64_t>(n);
  }
}

std::uint64_t size_of_tensor(const SafeTensor& t) {
  const std::optional<int> bits = safetensors_bits(t.dtype);
  MMT_CHECK(bits, "{} is of dtype {}", t.name, t.dtype);
  const std::uint64_t all = static_cast<std::uint64_t>(*bits) * static_cast<std::uint64_t>(t.numel());
  MMT_CHECK(all % 8 == 0, "{} has {} bits", t.name, all);
  return all / 8;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, SafeTensors tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), temporary_(fmt::format("{}.{}.tmp", path_, ::getpid())), tensors_(std::move(tensors)) {
  for (SafeTensor& t : tensors_) t.bytes = size_of_tensor(t);
  std::ranges::sort(tensors_, {}, [](const SafeTensor& t) { return std::pair(-*safetensors_bits(t.dtype), t.name); });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    SafeTensor& t = tensors_[i];
    MMT_CHECK(by_name_.emplace(t.name, i).second && t.name != "__metadata__", "two tensors {}", t.name);
    t.first = end;
    end += t.bytes;
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {t.first, end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // the data begin at a multiple of 8
  for (SafeTensor& t : tensors_) t.first += 8 + text.size();
  written_.assign(tensors_.size(), 0);
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail(path_, "cannot create");
  const std::uint64_t size = text.size();
  write_all(fd_, path_, &size, 8, 0);
  write_all(fd_, path_, text.data(), text.size(), 8);
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> data, std::uint64_t first_byte) {
  const auto found = by_name_.find(name);
  MMT_CHECK(found != by_name_.end(), "no tensor {} was announced", name);
  const SafeTensor& t = tensors_[found->second];
  MMT_CHECK(first_byte <= t.bytes && data.size() <= t.bytes - first_byte, "{}: bytes {} to {} of {}", name, first_byte,
            first_byte + data.size(), t.bytes);
  write_all(fd_, path_, data.data(), data.size(), t.first + first_byte);
  written_[found->second] += data.size();
}

void SafetensorsWriter::commit() {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    MMT_CHECK(written_[i] == tensors_[i].bytes, "{}: {} of {} bytes were written", tensors_[i].name, written_[i],
              tensors_[i].bytes);
  if (::fsync(fd_) != 0) fail(path_, "cannot write");
  ::close(std::exchange(fd_, -1));
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    errno = error;
    fail(path_, "cannot be renamed into place");
  }
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  files::sync(folder.empty() ? "." : folder);
}

std::vector<SafetensorsShard> shards_of(SafeTensors tensors, std::uint64_t most_bytes) {
  std::vector<SafetensorsShard> shards;
  std::uint64_t in_last = 0;
  for (SafeTensor& t : tensors) {
    t.bytes = size_of_tensor(t);
    if (shards.empty() || (in_last > 0 && in_last + t.bytes > most_bytes)) {
      shards.emplace_back();
      in_last = 0;
    }
    in_last += t.bytes;
    shards.back().tensors.push_back(std::move(t));
  }
  if (shards.empty()) shards.emplace_back();
  for (std::size_t s = 0; s < shards.size(); ++s)
    shards[s].file = shards.size() == 1 ? "model.safetensors"
                                        : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
  return shards;
}

std::string index_of(std::span<const SafetensorsShard> shards) {
  std::uint64_t bytes = 0;
  nlohmann::json map = nlohmann::json::object();
  for (const SafetensorsShard& shard : shards) {
    for (const SafeTensor& t : shard.tensors) {
      bytes += t.bytes;
      map[t.name] = shard.file;
    }
  }
  return nlohmann::json{{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(map)}}.dump(2) + "\n";
}

}  // namespace mmt::data
