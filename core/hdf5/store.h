// Tensors, attributes and virtual datasets in HDF5 files, so that h5py or HDFView opens what we write.
//
// Every dataset carries the XXH3-64 of its elements (row-major, as stored) in the attribute `xxh3_64`. bf16 is stored
// as a 16-bit float type with 8 exponent and 7 mantissa bits, which other programs read as float. All calls of the
// process go through one lock (the library may be in one thread at a time only). Failures throw mmt::Error with the
// file, the object and the library's own reason; nothing is printed. A file is hostile until proven otherwise: sizes
// are checked against what is stored before anything is allocated, links out of the file and plug-ins are refused.
#pragma once

#include "core/dtype.h"
#include "core/tensor.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace mmt::h5 {

using Dims = std::vector<std::int64_t>;  ///< empty: a scalar

/// A box of a tensor: elements [offset, offset + shape) in every dimension.
struct Box {
  Dims offset;
  Dims shape;
  friend bool operator==(const Box&, const Box&) = default;
};

/// Throws std::logic_error naming `what` unless the boxes cover every element of `shape` exactly once.
void check_exact_cover(std::span<const std::int64_t> shape, std::span<const Box> boxes, const std::string& what);

/// Copies what `from_box` and `to_box`, both boxes of one tensor, have in common, between their packed elements.
void copy_overlap(const void* from, const Box& from_box, void* to, const Box& to_box, std::int64_t element_bytes);

struct Info {
  DType dtype = DType::f32;
  Dims shape;
  bool is_virtual = false;
};
std::string describe(DType dtype, std::span<const std::int64_t> shape);  ///< "bf16[4,8]"

/// One piece of a virtual dataset: `box` of the whole is the box of the same shape at `source_offset` (empty: the
/// origin) of the dataset `dataset`, whose shape is `source_shape` (empty: that of the box), in `file`, a name relative
/// to the folder of the index.
struct Piece {
  std::string file;
  std::string dataset;
  Box box;
  Dims source_offset;
  Dims source_shape;
};

struct Entry {
  std::string name;
  bool is_group = false;
};

using Attribute = std::variant<std::int64_t, std::uint64_t, double, std::string>;

/// Whether a read proves the checksum of every dataset that it touches, or trusts the disk. The proof reads all of the
/// dataset, once for each open File.
enum class Check { all, none };

/// One file. Object names are paths (`grads/llm/model.norm.weight`); groups on the way are made when missing.
class File {
 public:
  static File create(const std::string& path);  ///< replaces an existing file
  static File open(const std::string& path);    ///< to read
  File(File&&) noexcept;
  File& operator=(File&&) noexcept;
  ~File();  ///< gives the file up without the promises of `close`

  /// Proves that datasets written in boxes are complete, adds their checksums, flushes to the disk (fsync).
  void close();
  const std::string& path() const;

  // Writing

  /// Contiguous, or with rows of a host tensor that are apart. Rank 1 to 4.
  void write(const std::string& name, const Tensor& tensor);
  void write(const std::string& name, DType dtype, std::span<const std::int64_t> shape, const void* data);
  void write_scalar(const std::string& name, double value);
  /// A dataset that `write_box` fills, every element once, before `close`. `chunk` (rows of the first dimension) makes
  /// it chunked.
  void create_dataset(const std::string& name, DType dtype, std::span<const std::int64_t> shape,
                      std::int64_t chunk = 0);
  void write_box(const std::string& name, const Box& box, DType dtype, const void* data);
  /// The pieces must cover the tensor exactly once. File names must be relative and stay below the index's folder.
  void write_virtual(const std::string& name, DType dtype, std::span<const std::int64_t> shape,
                     std::span<const Piece> pieces);
  void make_group(const std::string& name);
  /// Of a dataset or a group; "/" is the file's own.
  void set_attribute(const std::string& object, const std::string& key, const Attribute& value);

  // Reading

  bool contains(const std::string& name) const;
  std::vector<Entry> list(const std::string& group = "/") const;            ///< sorted by name
  std::vector<std::string> datasets(const std::string& group = "/") const;  ///< all below, as full paths
  Info info(const std::string& name) const;
  std::vector<Piece> pieces(const std::string& name) const;  ///< of a virtual dataset; proves their names

  /// The whole dataset, whose type and shape must be these. Virtual ones are put together from their files.
  void read(const std::string& name, DType dtype, std::span<const std::int64_t> shape, void* out,
            Check check = Check::all) const;
  void read(const std::string& name, const Tensor& out, Check check = Check::all) const;  ///< contiguous
  void read_box(const std::string& name, const Box& box, DType dtype, void* out, Check check = Check::all) const;
  double read_scalar(const std::string& name) const;
  /// Proves the checksums of the dataset (and of its pieces) without keeping anything.
  void verify(const std::string& name) const;

  std::optional<Attribute> attribute(const std::string& object, const std::string& key) const;
  std::map<std::string, Attribute> attributes(const std::string& object) const;
  /// These throw when the attribute is missing or of another kind.
  std::int64_t int_attribute(const std::string& object, const std::string& key) const;
  std::uint64_t uint_attribute(const std::string& object, const std::string& key) const;
  double double_attribute(const std::string& object, const std::string& key) const;
  std::string string_attribute(const std::string& object, const std::string& key) const;

 private:
  struct Impl;
  explicit File(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mmt::h5
