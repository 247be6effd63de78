// Files, groups, links and attributes.
#include "core/files.h"
#include "core/hdf5/impl.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

namespace mmt::h5 {
namespace {

constexpr std::size_t kMaxName = 1024;
constexpr std::size_t kMaxText = std::size_t{64} << 20;  // of a text attribute
constexpr std::size_t kMaxObjects = 10'000'000;
constexpr int kMaxDepth = 16;

std::vector<std::string> components(const std::string& name) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find('/', at), name.size());
    if (end > at) parts.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool is_name(const std::string& name) {
  const auto parts = components(name);
  return !parts.empty() && name.size() <= kMaxName && name.find('\0') == std::string::npos &&
         std::ranges::none_of(parts, [](const std::string& p) { return p == "." || p == ".."; });
}

herr_t collect_link(hid_t group, const char* name, const H5L_info_t* link, void* data) {
  auto& entries = *static_cast<std::vector<Entry>*>(data);
  if (entries.size() >= kMaxObjects) return -1;
  // No exception may cross the library.
  try {
    bool is_group = false;
    if (link->type == H5L_TYPE_HARD) {
      H5O_info_t object{};
      if (H5Oget_info_by_name2(group, name, &object, H5O_INFO_BASIC, H5P_DEFAULT) < 0) return -1;
      is_group = object.type == H5O_TYPE_GROUP;
    }
    entries.push_back({name, is_group});
  } catch (...) {
    return -1;
  }
  return 0;
}

herr_t collect_key(hid_t, const char* name, const H5A_info_t*, void* data) {
  try {
    static_cast<std::vector<std::string>*>(data)->emplace_back(name);
  } catch (...) {
    return -1;
  }
  return 0;
}

TypeId text_type() {
  TypeId type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type, kVariable);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

PropertyId access() {
  PropertyId properties(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_fclose_degree(properties, H5F_CLOSE_STRONG);
  // The headers of this format carry checksums of their own.
  H5Pset_libver_bounds(properties, H5F_LIBVER_V110, H5F_LIBVER_V110);
  return properties;
}

}  // namespace

void check_name(const std::string& name) { MMT_CHECK(is_name(name), "\"{}\" cannot be the name of an object", name); }

File::File(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
File::File(File&&) noexcept = default;
File& File::operator=(File&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

File::~File() {
  if (!impl_) return;
  const Lock lock;
  impl_.reset();
}

const std::string& File::path() const { return impl_->path; }

File File::create(const std::string& path) {
  const Lock lock;
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->folder = std::filesystem::absolute(path).parent_path().string();
  impl->writing = true;
  const PropertyId properties = access();
  impl->file = FileId(create_file(path, properties, impl->state));
  if (impl->file < 0 && impl->state.error != 0)
    impl->fail("", fmt::format("cannot create the file: {}", std::strerror(impl->state.error)));
  impl->check(static_cast<hid_t>(impl->file), "", "create the file");
  return File(std::move(impl));
}

File File::open(const std::string& path) {
  const Lock lock;
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->folder = std::filesystem::absolute(path).parent_path().string();
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    impl->fail("", error || !std::filesystem::exists(path) ? "there is no such file" : "is not a regular file");
  impl->file = FileId(impl->check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access()), "", "open the file as HDF5"));
  return File(std::move(impl));
}

void File::close() {
  const Lock lock;
  Impl& impl = *impl_;
  if (impl.file < 0) return;
  impl.sources.clear();
  if (impl.writing) {
    for (const auto& [name, pending] : impl.pending) {
      check_exact_cover(pending.shape, pending.boxes, impl.path + ": " + name);
      const DatasetId dataset = impl.open_dataset(name);
      const Info whole{pending.dtype, pending.shape, false};
      const std::uint64_t hash = impl.hash(name, dataset, whole, [](const Box&, const void*) {});
      impl.put_attribute(dataset, name, kChecksum, hash);
    }
    impl.pending.clear();
    impl.check(H5Fflush(impl.file, H5F_SCOPE_GLOBAL), "", "flush the file");
  }
  impl.check(impl.file.reset(), "", "close the file");
  if (!impl.writing) return;
  impl.check_written("");
  files::sync(impl.path);
}

bool File::Impl::find(const std::string& name) const {
  MMT_CHECK(file >= 0, "{}: {}: the file is closed", path, name);
  const auto parts = components(name);
  if (!parts.empty() && !is_name(name)) fail(name, "is not the name of an object");
  std::string at;
  for (const std::string& part : parts) {
    at += "/" + part;
    H5L_info_t link{};
    const htri_t exists = check(H5Lexists(file, at.c_str(), H5P_DEFAULT), name, "look the object up");
    if (exists == 0) return false;
    check(H5Lget_info(file, at.c_str(), &link, H5P_DEFAULT), name, "look the object up");
    if (link.type != H5L_TYPE_HARD) fail(at, "is a soft or external link, which is refused");
  }
  return true;
}

ObjectId File::Impl::open_object(const std::string& name) const {
  if (!find(name)) fail(name, "there is no such object");
  return ObjectId(
      check(H5Oopen(file, components(name).empty() ? "/" : name.c_str(), H5P_DEFAULT), name, "open the object"));
}

DatasetId File::Impl::open_dataset(const std::string& name) const {
  if (!find(name)) fail(name, "there is no such dataset");
  return DatasetId(check(H5Dopen2(file, name.c_str(), H5P_DEFAULT), name, "open the dataset"));
}

void File::make_group(const std::string& name) {
  const Lock lock;
  impl_->check_writing(name);
  check_name(name);
  if (impl_->find(name)) return;
  const PropertyId links(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(links, 1);
  H5Pset_char_encoding(links, H5T_CSET_UTF8);
  const GroupId group(
      impl_->check(H5Gcreate2(impl_->file, name.c_str(), links, H5P_DEFAULT, H5P_DEFAULT), name, "make the group"));
}

bool File::contains(const std::string& name) const {
  const Lock lock;
  return impl_->find(name);
}

std::vector<Entry> File::list(const std::string& group) const {
  const Lock lock;
  const ObjectId object = impl_->open_object(group);
  if (H5Iget_type(object) != H5I_GROUP) impl_->fail(group, "is not a group");
  std::vector<Entry> entries;
  impl_->check(H5Literate(object, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_link, &entries), group,
               "list the group");
  return entries;
}

std::vector<std::string> File::datasets(const std::string& group) const {
  std::vector<std::string> names;
  std::size_t visited = 0;
  // Groups may contain themselves: depth and number are limited.
  const std::function<void(const std::string&, int)> walk = [&](const std::string& at, int depth) {
    if (depth > kMaxDepth) impl_->fail(at, fmt::format("groups are nested more than {} deep", kMaxDepth));
    for (const Entry& entry : list(at)) {
      if (++visited > kMaxObjects) impl_->fail(at, fmt::format("the file holds more than {} objects", kMaxObjects));
      const std::string name = components(at).empty() ? entry.name : at + "/" + entry.name;
      if (entry.is_group) {
        walk(name, depth + 1);
      } else {
        names.push_back(name);
      }
    }
  };
  walk(group, 0);
  return names;
}

void File::Impl::put_attribute(hid_t object, const std::string& name, const std::string& key,
                               const Attribute& value) const {
  TypeId text;
  hid_t type = -1;
  const void* data = nullptr;
  const char* characters = nullptr;
  if (const auto* i = std::get_if<std::int64_t>(&value)) {
    type = H5T_STD_I64LE;
    data = i;
  } else if (const auto* u = std::get_if<std::uint64_t>(&value)) {
    type = H5T_STD_U64LE;
    data = u;
  } else if (const auto* d = std::get_if<double>(&value)) {
    type = H5T_IEEE_F64LE;
    data = d;
  } else {
    const auto& s = std::get<std::string>(value);
    MMT_CHECK(s.find('\0') == std::string::npos && s.size() <= kMaxText,
              "{}: {}: the text of attribute {} has a NUL byte or {} bytes", path, name, key, s.size());
    text = text_type();
    type = text;
    characters = s.c_str();
    data = &characters;
  }
  if (check(H5Aexists(object, key.c_str()), name, "look an attribute up") > 0)
    check(H5Adelete(object, key.c_str()), name, "replace an attribute");
  const SpaceId space(H5Screate(H5S_SCALAR));
  const AttributeId attribute(
      check(H5Acreate2(object, key.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), name, "create an attribute"));
  check(H5Awrite(attribute, type, data), name, "write an attribute");
  check_written(name);
}

std::optional<Attribute> File::Impl::get_attribute(hid_t object, const std::string& name,
                                                   const std::string& key) const {
  if (check(H5Aexists(object, key.c_str()), name, "look an attribute up") == 0) return std::nullopt;
  const AttributeId attribute(check(H5Aopen(object, key.c_str(), H5P_DEFAULT), name, "open an attribute"));
  const TypeId type(check(H5Aget_type(attribute), name, "read an attribute's type"));
  const SpaceId space(check(H5Aget_space(attribute), name, "read an attribute's shape"));
  if (H5Sget_simple_extent_npoints(space) != 1) return std::nullopt;
  const H5T_class_t kind = H5Tget_class(type);
  if (kind == H5T_INTEGER && H5Tget_size(type) <= 8) {
    if (H5Tget_sign(type) == H5T_SGN_NONE) {
      std::uint64_t value = 0;
      check(H5Aread(attribute, H5T_NATIVE_UINT64, &value), name, "read an attribute");
      return value;
    }
    std::int64_t value = 0;
    check(H5Aread(attribute, H5T_NATIVE_INT64, &value), name, "read an attribute");
    return value;
  }
  if (kind == H5T_FLOAT) {
    double value = 0;
    check(H5Aread(attribute, H5T_NATIVE_DOUBLE, &value), name, "read an attribute");
    return value;
  }
  if (kind != H5T_STRING) return std::nullopt;
  if (H5Tis_variable_str(type) > 0) {
    const TypeId memory = text_type();
    H5Tset_cset(memory, H5Tget_cset(type));
    char* value = nullptr;
    check(H5Aread(attribute, memory, static_cast<void*>(&value)), name, "read an attribute");
    std::string text = value == nullptr ? "" : value;
    H5free_memory(value);
    return text;
  }
  const std::size_t size = H5Tget_size(type);
  if (size > kMaxText) fail(name, fmt::format("the attribute {} has {} bytes", key, size));
  std::string text(size, '\0');
  check(H5Aread(attribute, type, text.data()), name, "read an attribute");
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

void File::set_attribute(const std::string& object, const std::string& key, const Attribute& value) {
  const Lock lock;
  impl_->check_writing(object);
  MMT_CHECK(!key.empty() && key != kChecksum, "\"{}\" cannot be the name of an attribute", key);
  impl_->put_attribute(impl_->open_object(object), object, key, value);
}

std::optional<Attribute> File::attribute(const std::string& object, const std::string& key) const {
  const Lock lock;
  return impl_->get_attribute(impl_->open_object(object), object, key);
}

std::map<std::string, Attribute> File::attributes(const std::string& object) const {
  const Lock lock;
  const ObjectId id = impl_->open_object(object);
  std::vector<std::string> keys;
  impl_->check(H5Aiterate2(id, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_key, &keys), object, "list the attributes");
  std::map<std::string, Attribute> result;
  for (const std::string& key : keys) {
    if (auto value = impl_->get_attribute(id, object, key)) result.emplace(key, std::move(*value));
  }
  return result;
}

namespace {

template <class T> T typed(const std::optional<Attribute>& value, const std::string& path, const std::string& object,
                           const std::string& key) {
  if (!value) throw Error(fmt::format("{}: {}: the attribute {} is missing", path, object, key));
  if (const T* t = std::get_if<T>(&*value)) return *t;
  throw Error(fmt::format("{}: {}: the attribute {} is of another kind than expected", path, object, key));
}

}  // namespace

std::int64_t File::int_attribute(const std::string& object, const std::string& key) const {
  return typed<std::int64_t>(attribute(object, key), path(), object, key);
}
std::uint64_t File::uint_attribute(const std::string& object, const std::string& key) const {
  return typed<std::uint64_t>(attribute(object, key), path(), object, key);
}
double File::double_attribute(const std::string& object, const std::string& key) const {
  return typed<double>(attribute(object, key), path(), object, key);
}
std::string File::string_attribute(const std::string& object, const std::string& key) const {
  return typed<std::string>(attribute(object, key), path(), object, key);
}

}  // namespace mmt::h5
