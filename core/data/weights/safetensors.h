// safetensors files: the weights of a model by name, mapped into memory and read where they are wanted.
//
// Format (specification of the safetensors project): 8 bytes little-endian N, N bytes of JSON
// {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, ..., "__metadata__": {"key": "value"}}, then
// the data, to which the offsets refer; row-major, little-endian. Files are not trusted: the tensors must fill the data
// from its first byte to its last without holes or overlap, each with as many bytes as its shape and dtype say.
// Everything throws mmt::Error with the path and the tensor.
#pragma once

#include "core/dtype.h"
#include "core/hdf5/store.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

struct SafeTensor {
  std::string name;
  std::string dtype;                ///< as the file names it: "F32", "BF16", "I64", "F8_E4M3", ...
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::uint64_t first = 0;          ///< byte of the file
  std::uint64_t bytes = 0;

  std::int64_t numel() const;
};

/// Bits of an element of a dtype that the format knows; nothing for an unknown name.
std::optional<int> safetensors_bits(std::string_view dtype);

/// One file, mapped as long as the object lives.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<SafeTensor>& tensors() const { return tensors_; }  ///< in the order of the data
  const SafeTensor* find(std::string_view name) const;                 ///< null: none of this name
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::span<const std::byte> data(const SafeTensor& tensor) const;

 private:
  std::string path_;
  std::span<const std::byte> map_;
  std::vector<SafeTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// The weights of a model in one file or many.
class SafetensorsModel {
 public:
  /// A .safetensors file; a model.safetensors.index.json; or a folder that holds model.safetensors.index.json,
  /// model.safetensors, or one .safetensors file. Files of an index must lie in its folder and hold what it says.
  static SafetensorsModel open(const std::string& path);
  /// Whether `path` has the name of such a file, or is a folder with a model.safetensors or its index.
  static bool looks_like(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<std::string>& names() const { return names_; }  ///< ascending
  bool contains(std::string_view name) const { return places_.find(name) != places_.end(); }
  const SafeTensor& tensor(std::string_view name) const;
  const std::string& file_of(std::string_view name) const { return files_[place(name).file].path(); }
  std::span<const std::byte> data(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const {
    return files_.front().metadata();
  }  ///< the first file's

  /// A box of a floating-point tensor (F64, F32, F16, BF16) as f64, f32 or bf16 into contiguous `out`; only its pages
  /// are read. Rounds to nearest even where `dtype` is narrower.
  void read_box(std::string_view name, const h5::Box& box, DType dtype, void* out) const;

 private:
  struct Place {
    std::size_t file = 0, tensor = 0;
  };
  const Place& place(std::string_view name) const;

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::string> names_;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace mmt::data
