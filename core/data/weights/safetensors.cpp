#include "core/data/weights/safetensors.h"

#include "core/at.h"
#include "core/data/json_guard.h"
#include "core/data/weights/float_formats.h"
#include "core/error.h"
#include "core/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace mmt::data {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the data is little-endian and read as it stands");

constexpr std::uint64_t kMaxHeader = 100'000'000;            // as the reference reader
constexpr std::uint64_t kMaxIndex = std::uint64_t{1} << 28;  // bytes of an index file
constexpr std::size_t kMaxDimensions = 16;
constexpr const char *kIndexName = "model.safetensors.index.json", *kOneName = "model.safetensors";

struct Dtype {
  std::string_view name;
  int bits;
};
constexpr Dtype kDtypes[] = {
    {"BOOL", 8},        {"U8", 8},   {"I8", 8},      {"U16", 16},    {"I16", 16},    {"F16", 16},
    {"BF16", 16},       {"U32", 32}, {"I32", 32},    {"F32", 32},    {"U64", 64},    {"I64", 64},
    {"F64", 64},        {"C64", 64}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

/// The header's JSON as events, so that a large one never stands in memory as a tree. Refuses with `fault`.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<SafeTensor> tensors;  ///< `first` and `bytes`: begin and end in the data, until they are checked
  std::map<std::string, std::string> metadata;
  std::string fault;

  bool start_object(std::size_t) override {
    if (depth_ == 0) return enter();
    if (depth_ == 1 && !list_) {
      if (entry_ == "__metadata__") {
        in_metadata_ = true;
      } else {
        tensors.push_back({entry_, "", {}, 0, 0});
        fields_.clear();
        in_metadata_ = false;
      }
      return enter();
    }
    return refuse("has an object where none belongs");
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_) {
      for (const char* field : {"dtype", "shape", "data_offsets"})
        if (!fields_.contains(field)) return refuse(fmt::format("has no {}", field));
    }
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) {
      entry_ = name;
      field_.clear();
      return entries_.insert(name).second || refuse("stands there twice");
    }
    field_ = name;
    if (in_metadata_) return !metadata.contains(name) || refuse(fmt::format("has {} twice", name));
    if (name != "dtype" && name != "shape" && name != "data_offsets")
      return refuse(fmt::format("has a field {}, which the format does not know", name));
    return fields_.insert(name).second || refuse(fmt::format("has {} twice", name));
  }
  bool string(std::string& text) override {
    if (depth_ == 2 && !list_ && in_metadata_) {
      metadata[field_] = text;
      return true;
    }
    if (depth_ == 2 && !list_ && field_ == "dtype") {
      tensors.back().dtype = text;
      return safetensors_bits(text).has_value() || refuse(fmt::format("is of dtype {}, which is not known", text));
    }
    return refuse("has text where none belongs");
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || list_ || in_metadata_ || (field_ != "shape" && field_ != "data_offsets"))
      return refuse("has a list where none belongs");
    list_ = true;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    list_ = false;
    SafeTensor& t = tensors.back();
    if (field_ == "shape") {
      for (const std::uint64_t n : numbers_) {
        if (n > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
          return refuse(fmt::format("has a dimension of {}", n));
        t.shape.push_back(static_cast<std::int64_t>(n));
      }
      return true;
    }
    if (numbers_.size() != 2) return refuse(fmt::format("has {} data_offsets, two belong there", numbers_.size()));
    t.first = numbers_[0];
    t.bytes = numbers_[1];
    return true;
  }
  bool number_unsigned(std::uint64_t n) override {
    if (!list_) return refuse("has a number where none belongs");
    numbers_.push_back(n);
    const std::size_t most = field_ == "shape" ? kMaxDimensions : 2;
    return numbers_.size() <= most || refuse(fmt::format("has more than {} numbers in {}", most, field_));
  }
  bool number_integer(std::int64_t n) override { return refuse(fmt::format("has the negative number {}", n)); }
  bool number_float(double, const std::string& text) override {
    return refuse(fmt::format("has the number {}, whole ones belong there", text));
  }
  bool boolean(bool) override { return refuse("has true or false where none belongs"); }
  bool null() override { return refuse("has null where none belongs"); }
  bool binary(nlohmann::json::binary_t&) override { return refuse("has binary data"); }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::json::exception&) override {
    fault = fmt::format("its header is no JSON: byte {}", byte);
    return false;
  }

 private:
  bool enter() {
    ++depth_;
    return true;
  }
  bool refuse(const std::string& what) {
    fault = entry_.empty() ? "its header " + what : fmt::format("{} {}", entry_, what);
    return false;
  }

  int depth_ = 0;
  bool in_metadata_ = false, list_ = false;
  std::string entry_, field_;
  std::set<std::string> entries_, fields_;
  std::vector<std::uint64_t> numbers_;
};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(fmt::format("{}: {}", path, what));
}

std::span<const std::byte> map_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse(path, fmt::format("cannot open: {}", std::strerror(errno)));
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    refuse(path, "is not a regular file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size < 8) {
    ::close(fd);
    refuse(path, fmt::format("is no safetensors file: {} bytes", size));
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (data == MAP_FAILED) refuse(path, fmt::format("cannot be mapped: {}", std::strerror(error)));
  return {static_cast<const std::byte*>(data), size};
}

/// Bytes of a tensor of this shape; nothing where they would not be whole or not fit 64 bits.
std::optional<std::uint64_t> bytes_of(const SafeTensor& t) {
  auto bits = static_cast<std::uint64_t>(*safetensors_bits(t.dtype));
  const bool empty = std::ranges::find(t.shape, 0) != t.shape.end();
  if (empty) return 0;
  for (const std::int64_t n : t.shape)
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(n), &bits)) return std::nullopt;
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

struct Half {
  std::uint16_t bits;
  operator float() const { return half_to_float(bits); }
};

template <class From, class To> void convert(const std::byte* from, std::int64_t count, To* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    From x;
    std::memcpy(&x, from + i * std::int64_t{sizeof(From)}, sizeof(From));  // data need not be aligned
    if constexpr (std::is_same_v<To, From>)
      to[i] = x;
    else if constexpr (std::is_same_v<From, double>)
      to[i] = To(x);
    else
      to[i] = To(static_cast<float>(x));
  }
}

}  // namespace

std::int64_t SafeTensor::numel() const {
  std::int64_t n = 1;
  for (const std::int64_t d : shape) n *= d;
  return n;
}

std::optional<int> safetensors_bits(std::string_view dtype) {
  const auto* found = std::ranges::find(kDtypes, dtype, &Dtype::name);
  if (found == std::end(kDtypes)) return std::nullopt;
  return found->bits;
}

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)), map_(map_file(path_)) {
  try {
    std::uint64_t header = 0;
    std::memcpy(&header, map_.data(), 8);
    if (header > kMaxHeader || header > map_.size() - 8)
      refuse(path_, fmt::format("is no safetensors file: a header of {} bytes in a file of {}", header, map_.size()));
    const auto* text = reinterpret_cast<const char*>(map_.data()) + 8;
    if (header == 0 || text[0] != '{') refuse(path_, "is no safetensors file: its header does not begin with {");
    HeaderReader reader;
    if (!nlohmann::json::sax_parse(text, text + header, &reader))
      refuse(path_, reader.fault.empty() ? "its header is no JSON" : reader.fault);
    tensors_ = std::move(reader.tensors);
    metadata_ = std::move(reader.metadata);
    // Empty tensors take no place: they may begin where another one begins or ends.
    std::ranges::sort(tensors_, {}, [](const SafeTensor& t) { return std::pair(t.first, t.bytes); });
    std::uint64_t end = 0;
    for (SafeTensor& t : tensors_) {
      if (t.bytes < t.first) refuse(path_, fmt::format("{} ends before it begins", t.name));
      if (t.first != end)
        refuse(path_, fmt::format("{} begins at byte {} of the data, where {} is due: {}", t.name, t.first, end,
                                  t.first < end ? "tensors overlap" : "there is a hole"));
      end = t.bytes;
      t.bytes -= t.first;
      const std::optional<std::uint64_t> wanted = bytes_of(t);
      if (!wanted || *wanted != t.bytes)
        refuse(path_, fmt::format("{} has {} bytes; {} [{}] has {}", t.name, t.bytes, t.dtype, fmt::join(t.shape, ", "),
                                  wanted ? std::to_string(*wanted) : "no size of whole bytes"));
      t.first += 8 + header;
    }
    if (end != map_.size() - 8 - header)
      refuse(path_, fmt::format("its tensors end at byte {} of the data, which has {}", end, map_.size() - 8 - header));
    for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].name] = i;
  } catch (...) {
    ::munmap(const_cast<std::byte*>(map_.data()), map_.size());
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  if (!map_.empty()) ::munmap(const_cast<std::byte*>(map_.data()), map_.size());
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      map_(std::exchange(other.map_, {})),
      tensors_(std::move(other.tensors_)),
      by_name_(std::move(other.by_name_)),
      metadata_(std::move(other.metadata_)) {}

const SafeTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> SafetensorsFile::data(const SafeTensor& tensor) const {
  return map_.subspan(tensor.first, tensor.bytes);
}

bool SafetensorsModel::looks_like(const std::string& path) {
  std::error_code none;
  const fs::path p = path;
  return path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json") ||
         fs::exists(p / kIndexName, none) || fs::exists(p / kOneName, none);
}

SafetensorsModel SafetensorsModel::open(const std::string& path) {
  SafetensorsModel model;
  model.path_ = path;
  std::string file = path;
  std::error_code none;
  if (fs::is_directory(path, none)) {
    const fs::path folder = path;
    if (fs::exists(folder / kIndexName, none)) {
      file = (folder / kIndexName).string();
    } else if (fs::exists(folder / kOneName, none)) {
      file = (folder / kOneName).string();
    } else {
      std::vector<std::string> found;
      for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".safetensors") found.push_back(entry.path().string());
      if (found.size() != 1)
        refuse(path, found.empty()
                         ? "holds no .safetensors file; weights in other formats must be converted first"
                         : fmt::format("holds {} .safetensors files and no {}: name one", found.size(), kIndexName));
      file = found.front();
    }
  }
  if (!file.ends_with(".json")) {
    model.files_.emplace_back(file);
    const SafetensorsFile& only = model.files_.front();
    for (std::size_t i = 0; i < only.tensors().size(); ++i) model.places_[only.tensors()[i].name] = {0, i};
  } else {
    const std::string text = files::read(file, kMaxIndex);
    std::string error;
    const nlohmann::json index = parse_json(text, 8, error);
    if (!error.empty()) refuse(file, error);
    const auto map = index.is_object() ? index.find("weight_map") : index.end();
    if (map == index.end() || !map->is_object() || map->empty()) refuse(file, "has no weight_map");
    const std::string folder = fs::path(file).parent_path().string();
    std::map<std::string, std::size_t> opened;
    for (const auto& [name, shard] : map->items()) {
      if (!shard.is_string()) refuse(file, fmt::format("weight_map: {} has no file name", name));
      const auto& in = shard.get_ref<const std::string&>();
      const auto [at, fresh] = opened.try_emplace(in, model.files_.size());
      if (fresh) {
        // What the index names must lie in its folder; where links there lead is the owner's matter (download caches).
        const fs::path shard_path = in;
        if (in.empty() || in.find('\0') != std::string::npos || shard_path.is_absolute() ||
            std::ranges::find(shard_path, fs::path("..")) != shard_path.end())
          refuse(file, fmt::format("weight_map: \"{}\" is no file of its folder", in));
        model.files_.emplace_back((fs::path(folder.empty() ? "." : folder) / shard_path).string());
      }
      const SafetensorsFile& where = model.files_[at->second];
      const SafeTensor* tensor = where.find(name);
      if (tensor == nullptr) refuse(file, fmt::format("weight_map: {} is said to be in {}, which lacks it", name, in));
      model.places_[name] = {at->second, static_cast<std::size_t>(tensor - where.tensors().data())};
    }
  }
  for (const auto& [name, place] : model.places_) model.names_.push_back(name);
  return model;
}

const SafetensorsModel::Place& SafetensorsModel::place(std::string_view name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) refuse(path_, fmt::format("there is no tensor {}", name));
  return found->second;
}

const SafeTensor& SafetensorsModel::tensor(std::string_view name) const {
  const Place& p = place(name);
  return files_[p.file].tensors()[p.tensor];
}

std::span<const std::byte> SafetensorsModel::data(std::string_view name) const {
  const Place& p = place(name);
  return files_[p.file].data(files_[p.file].tensors()[p.tensor]);
}

void SafetensorsModel::read_box(std::string_view name, const h5::Box& box, DType dtype, void* out) const {
  const SafeTensor& t = tensor(name);
  const std::string& path = file_of(name);
  const std::size_t dims = t.shape.size();
  bool inside = box.offset.size() == dims && box.shape.size() == dims;
  for (std::size_t d = 0; inside && d < dims; ++d)
    inside = box.offset[d] >= 0 && box.shape[d] >= 0 && box.offset[d] <= t.shape[d] - box.shape[d];
  if (!inside)
    refuse(path, fmt::format("{} is [{}]: there are no [{}] elements from ({})", name, fmt::join(t.shape, ", "),
                             fmt::join(box.shape, ", "), fmt::join(box.offset, ", ")));
  if (t.dtype != "F32" && t.dtype != "BF16" && t.dtype != "F16" && t.dtype != "F64")
    refuse(path, fmt::format("{} is of dtype {}; weights must be F32, BF16, F16 or F64", name, t.dtype));
  const std::byte* from = data(name).data();
  const std::int64_t size = *safetensors_bits(t.dtype) / 8;
  // The last dimensions that the box has whole are one run of elements.
  std::size_t outer = dims;
  std::int64_t run = 1;
  while (outer > 0 && box.shape[outer - 1] == t.shape[outer - 1]) run *= t.shape[--outer];
  std::int64_t skip = 0, step = run;  // the first dimension from the end that is cut
  if (outer > 0) {
    --outer;
    skip = box.offset[outer] * run;
    step = t.shape[outer] * run;
    run *= box.shape[outer];
  }
  std::int64_t runs = 1;
  for (std::size_t d = 0; d < outer; ++d) runs *= box.shape[d];
  if (run == 0) return;
  for (std::int64_t r = 0; r < runs; ++r) {
    std::int64_t rest = r, row = 0, stride = 1;
    for (std::size_t d = outer; d-- > 0;) {
      row += (box.offset[d] + rest % box.shape[d]) * stride;
      rest /= box.shape[d];
      stride *= t.shape[d];
    }
    const std::byte* start = from + (row * step + skip) * size;
    visit_float(dtype, [&]<class T>() {
      T* to = static_cast<T*>(out) + r * run;
      if (t.dtype == "F32") convert<float>(start, run, to);
      if (t.dtype == "BF16") convert<bf16>(start, run, to);
      if (t.dtype == "F16") convert<Half>(start, run, to);
      if (t.dtype == "F64") convert<double>(start, run, to);
    });
  }
}

}  // namespace mmt::data
