// The library itself: lock, error stack, types.
#include "core/hdf5/impl.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace mmt::h5 {
namespace {

std::recursive_mutex& library_mutex() {
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}

void init_library() {
  // Lustre and NFS mounts often cannot lock; nothing here relies on it. The user's own choice stays.
  ::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 0);
  // Files are closed by us; what a crash left open is not touched again when the process ends.
  H5dont_atexit();
  H5open();
  // A file may name any filter; code of plug-ins is not loaded for it.
  H5PLset_loading_state(0);
}

herr_t collect_error(unsigned, const H5E_error2_t* error, void* data) {
  auto& lines = *static_cast<std::vector<std::string>*>(data);
  std::string line = error->desc == nullptr ? "" : error->desc;
  if (!line.empty() && std::ranges::find(lines, line) == lines.end()) lines.push_back(std::move(line));
  return 0;
}

hid_t make_bf16() {
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  // sign at bit 15, 8 exponent bits from bit 7 on, 7 mantissa bits from bit 0 on
  H5Tset_fields(type, 15, 7, 8, 0, 7);
  H5Tset_size(type, 2);
  H5Tset_ebias(type, 127);
  H5Tlock(type);
  return type;
}

}  // namespace

Lock::Lock() {
  library_mutex().lock();
  static const bool initialised = [] {
    init_library();
    return true;
  }();
  static_cast<void>(initialised);
  // Builds with thread support keep one error stack, and one switch for printing it, per thread.
  thread_local const herr_t quiet = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  static_cast<void>(quiet);
}

Lock::~Lock() { library_mutex().unlock(); }

void File::Impl::fail(const std::string& object, const std::string& message) const {
  throw Error(object.empty() ? fmt::format("{}: {}", path, message) : fmt::format("{}: {}: {}", path, object, message));
}

void File::Impl::fail_library(const std::string& object, const char* action) const {
  // From the innermost reason to the call; the first two say what happened.
  std::vector<std::string> lines;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect_error, &lines);
  H5Eclear2(H5E_DEFAULT);
  if (lines.size() > 2) lines.resize(2);
  fail(object, fmt::format("cannot {}: {}", action, fmt::join(lines, " / ")));
}

void File::Impl::check_writing(const std::string& object) const {
  MMT_CHECK(file >= 0 && writing, "{}: {}: the file is {}", path, object,
            file < 0 ? "closed" : "open for reading only");
}

void File::Impl::check_written(const std::string& object) const {
  if (state.error != 0) fail(object, fmt::format("cannot write: {}", std::strerror(state.error)));
}

hid_t file_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return H5T_IEEE_F32LE;
    case DType::f64: return H5T_IEEE_F64LE;
    case DType::i32: return H5T_STD_I32LE;
    case DType::i64: return H5T_STD_I64LE;
    case DType::u64: return H5T_STD_U64LE;
    case DType::u8: return H5T_STD_U8LE;
    case DType::bf16: {
      static const hid_t type = make_bf16();
      return type;
    }
  }
  return -1;
}

std::optional<DType> parse_type(hid_t type) {
  for (const DType d : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::i64, DType::u64, DType::u8}) {
    if (H5Tequal(type, file_type(d)) > 0) return d;
  }
  return std::nullopt;
}

SpaceId make_space(std::span<const std::int64_t> shape) {
  if (shape.empty()) return SpaceId(H5Screate(H5S_SCALAR));
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  return SpaceId(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
}

}  // namespace mmt::h5
