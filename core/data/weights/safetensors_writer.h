// Writing safetensors files (safetensors.h has the format): sizes are known first, data come in any order.
#pragma once

#include "core/data/weights/safetensors.h"

#include <map>
#include <span>
#include <string>
#include <vector>

namespace mmt::data {

/// What a file will hold. `first` and `bytes` are ignored.
using SafeTensors = std::vector<SafeTensor>;

/// One file. Nothing stands at `path` before commit(): the data go to a temporary file beside it, which a writer that
/// is destroyed without a commit removes. Throws mmt::Error with the path and the cause (a full disk, for one).
class SafetensorsWriter {
 public:
  /// Tensors are laid out as the reference writer does: by falling size of an element, then by name. `metadata` should
  /// say {"format": "pt"}, which some readers insist on. Throws std::logic_error for two tensors of one name.
  SafetensorsWriter(std::string path, SafeTensors tensors, const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// `data` are bytes [first_byte, first_byte + size) of the tensor. Each byte is to be written once.
  void write(const std::string& name, std::span<const std::byte> data, std::uint64_t first_byte = 0);
  /// All of it is there: fsync, rename. Throws std::logic_error when a tensor has not got all of its bytes.
  void commit();

 private:
  std::string path_, temporary_;
  int fd_ = -1;
  SafeTensors tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::vector<std::uint64_t> written_;
};

/// Groups of tensors, in the given order, of at most `most_bytes` each (one larger tensor is a group of its own), with
/// the names that their files have: "model.safetensors", or "model-00001-of-00003.safetensors".
struct SafetensorsShard {
  std::string file;
  SafeTensors tensors;
};
std::vector<SafetensorsShard> shards_of(SafeTensors tensors, std::uint64_t most_bytes);
/// model.safetensors.index.json of several shards.
std::string index_of(std::span<const SafetensorsShard> shards);

}  // namespace mmt::data
