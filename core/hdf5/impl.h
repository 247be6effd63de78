// The library's C API behind handles; included by the .cpp files of this folder alone.
#pragma once

#include "core/error.h"
#include "core/hdf5/store.h"

#include <hdf5.h>

#include <functional>
#include <set>
#include <utility>

namespace mmt::h5 {

/// The process's turn in the library. Re-entrant.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

template <herr_t (*Close)(hid_t)> class Handle {
 public:
  Handle() = default;
  explicit Handle(hid_t id) : id_(id) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Handle() { reset(); }
  herr_t reset() { return id_ < 0 ? 0 : Close(std::exchange(id_, -1)); }
  operator hid_t() const { return id_; }

 private:
  hid_t id_ = -1;
};
using FileId = Handle<H5Fclose>;
using DatasetId = Handle<H5Dclose>;
using SpaceId = Handle<H5Sclose>;
using TypeId = Handle<H5Tclose>;
using PropertyId = Handle<H5Pclose>;
using AttributeId = Handle<H5Aclose>;
using ObjectId = Handle<H5Oclose>;
using GroupId = Handle<H5Gclose>;

// The library's own macros are old-style casts.
constexpr hid_t kAll = 0;                           // H5S_ALL
constexpr std::size_t kVariable = ~std::size_t{0};  // H5T_VARIABLE

constexpr const char* kChecksum = "xxh3_64";

/// What became of a file's writes: 0, or the errno of the first that failed.
struct WriteState {
  int error = 0;
};
/// H5Fcreate with the driver of driver.cpp; `state` must live until the file is closed.
hid_t create_file(const std::string& path, hid_t access, WriteState& state);

struct File::Impl {
  std::string path;
  std::string folder;
  WriteState state;
  FileId file;
  bool writing = false;
  struct Pending {
    DType dtype;
    Dims shape;
    std::vector<Box> boxes;
  };
  std::map<std::string, Pending> pending;
  mutable std::set<std::string> proven;         // datasets whose checksum was right
  mutable std::map<std::string, File> sources;  // files of the pieces of virtual datasets

  [[noreturn]] void fail(const std::string& object, const std::string& message) const;
  /// Throws with the library's error stack when `result` is negative; returns it otherwise.
  template <class T> T check(T result, const std::string& object, const char* action) const {
    if (result < 0) fail_library(object, action);
    return result;
  }
  [[noreturn]] void fail_library(const std::string& object, const char* action) const;
  void check_writing(const std::string& object) const;
  void check_written(const std::string& object) const;  ///< throws when a write of this file failed

  DatasetId open_dataset(const std::string& name) const;
  ObjectId open_object(const std::string& name) const;
  /// Every link on the way must be a hard one: others lead out of the file or nowhere.
  bool find(const std::string& name) const;
  DatasetId create(const std::string& name, hid_t type, std::span<const std::int64_t> shape, hid_t properties) const;

  Info info(hid_t dataset, const std::string& name) const;
  std::vector<Piece> pieces(hid_t dataset, const Info& info, const std::string& name) const;
  /// The file of a piece of `object`, opened once.
  const File& source(const std::string& file, const std::string& object) const;
  void read_plain(hid_t dataset, const Box& box, DType dtype, void* out, const std::string& name) const;
  /// Reads all of a dataset that is not virtual in order, a few MiB at a time; proves its checksum at the end.
  void stream(const std::string& name, hid_t dataset, const Info& info,
              const std::function<void(const Box&, const void*)>& piece) const;
  std::uint64_t hash(const std::string& name, hid_t dataset, const Info& info,
                     const std::function<void(const Box&, const void*)>& piece) const;
  void put_attribute(hid_t object, const std::string& name, const std::string& key, const Attribute& value) const;
  std::optional<Attribute> get_attribute(hid_t object, const std::string& name, const std::string& key) const;
};

hid_t file_type(DType dtype);  ///< lives as long as the process
std::optional<DType> parse_type(hid_t type);
/// Throws std::logic_error unless an object of ours may have this name.
void check_name(const std::string& name);
SpaceId make_space(std::span<const std::int64_t> shape);
std::int64_t count(std::span<const std::int64_t> shape);

/// The boxes of at most `max_bytes` that make up `shape`, in row-major order.
void for_each_piece(const Dims& shape, std::int64_t element_bytes, std::int64_t max_bytes,
                    const std::function<void(const Box&)>& f);
std::optional<Box> overlap(const Box& a, const Box& b);
/// Throws std::logic_error unless the box lies inside the shape.
void check_inside(const Box& box, std::span<const std::int64_t> shape, const std::string& what);

}  // namespace mmt::h5
