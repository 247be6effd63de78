// Datasets: writing, reading, checksums.
#include "core/arena.h"
#include "core/hdf5/impl.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

namespace mmt::h5 {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;
// What a compressed dataset may expand to; deflate's own limit is about 1032.
constexpr std::uint64_t kMaxExpansion = 1100;

struct HashState {
  XXH3_state_t* state = XXH3_createState();
  HashState() { XXH3_64bits_reset(state); }
  HashState(const HashState&) = delete;
  HashState& operator=(const HashState&) = delete;
  ~HashState() { XXH3_freeState(state); }
};

SpaceId select(hid_t dataset, const Box& box) {
  SpaceId space(H5Dget_space(dataset));
  if (box.shape.empty() || count(box.shape) == 0) return space;
  const std::vector<hsize_t> start(box.offset.begin(), box.offset.end());
  const std::vector<hsize_t> size(box.shape.begin(), box.shape.end());
  H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr);
  return space;
}

Box whole(std::span<const std::int64_t> shape) { return {Dims(shape.size(), 0), Dims(shape.begin(), shape.end())}; }

}  // namespace

DatasetId File::Impl::create(const std::string& name, hid_t type, std::span<const std::int64_t> shape,
                             hid_t properties) const {
  check_writing(name);
  check_name(name);
  if (find(name)) fail(name, "there is such an object already");
  MMT_CHECK(shape.size() <= 16 && count(shape) >= 0, "{}: too many dimensions", name);
  const PropertyId links(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(links, 1);
  H5Pset_char_encoding(links, H5T_CSET_UTF8);
  H5Pset_obj_track_times(properties, 0);
  const SpaceId space = make_space(shape);
  return DatasetId(
      check(H5Dcreate2(file, name.c_str(), type, space, links, properties, H5P_DEFAULT), name, "create the dataset"));
}

void File::write(const std::string& name, DType dtype, std::span<const std::int64_t> shape, const void* data) {
  const Lock lock;
  const PropertyId properties(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
  const DatasetId dataset = impl_->create(name, file_type(dtype), shape, properties);
  const auto bytes = static_cast<std::size_t>(count(shape) * size_of(dtype));
  if (bytes > 0)
    impl_->check(H5Dwrite(dataset, file_type(dtype), kAll, kAll, H5P_DEFAULT, data), name, "write the dataset");
  impl_->put_attribute(dataset, name, kChecksum, XXH3_64bits(data, bytes));
}

void File::write(const std::string& name, const Tensor& tensor) {
  MMT_CHECK(tensor.defined() && tensor.device.kind == DeviceKind::cpu, "{}: {} cannot be written", name,
            tensor.describe());
  if (tensor.contiguous()) return write(name, tensor.dtype, tensor.shape(), tensor.data);
  const OwnedTensor packed(tensor.dtype, tensor.shape());
  const std::int64_t row = tensor.cols() * size_of(tensor.dtype);
  const std::int64_t stride = tensor.row_stride * size_of(tensor.dtype);
  for (std::int64_t r = 0; r < tensor.rows(); ++r) {
    std::memcpy(static_cast<char*>(packed->data) + r * row, static_cast<const char*>(tensor.data) + r * stride,
                static_cast<std::size_t>(row));
  }
  write(name, packed.view());
}

void File::write_scalar(const std::string& name, double value) { write(name, DType::f64, {}, &value); }

void File::create_dataset(const std::string& name, DType dtype, std::span<const std::int64_t> shape,
                          std::int64_t chunk) {
  const Lock lock;
  const PropertyId properties(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
  if (chunk > 0 && count(shape) > 0 && !shape.empty()) {
    std::vector<hsize_t> dims(shape.begin(), shape.end());
    dims[0] = static_cast<hsize_t>(std::min(chunk, shape[0]));
    impl_->check(H5Pset_chunk(properties, static_cast<int>(dims.size()), dims.data()), name,
                 "make the dataset chunked");
  }
  const DatasetId dataset = impl_->create(name, file_type(dtype), shape, properties);
  impl_->check_written(name);
  impl_->pending[name] = {dtype, Dims(shape.begin(), shape.end()), {}};
}

void File::write_box(const std::string& name, const Box& box, DType dtype, const void* data) {
  const Lock lock;
  impl_->check_writing(name);
  const auto found = impl_->pending.find(name);
  MMT_CHECK(found != impl_->pending.end(), "{}: {} was not made by create_dataset", impl_->path, name);
  MMT_CHECK(dtype == found->second.dtype, "{}: {} is {}, not {}", impl_->path, name, name_of(found->second.dtype),
            name_of(dtype));
  check_inside(box, found->second.shape, impl_->path + ": " + name);
  if (count(box.shape) > 0) {
    const DatasetId dataset = impl_->open_dataset(name);
    const SpaceId target = select(dataset, box);
    const SpaceId memory = make_space(box.shape);
    impl_->check(H5Dwrite(dataset, file_type(dtype), memory, target, H5P_DEFAULT, data), name, "write the dataset");
    impl_->check_written(name);
  }
  found->second.boxes.push_back(box);
}

Info File::Impl::info(hid_t dataset, const std::string& name) const {
  Info result;
  const TypeId type(check(H5Dget_type(dataset), name, "read the type"));
  const auto dtype = parse_type(type);
  if (!dtype) fail(name, "is of a type that is not supported");
  result.dtype = *dtype;
  const SpaceId space(check(H5Dget_space(dataset), name, "read the shape"));
  const int rank = check(H5Sget_simple_extent_ndims(space), name, "read the shape");
  if (H5Sget_simple_extent_type(space) == H5S_NULL) fail(name, "holds no data");
  std::vector<hsize_t> dims(static_cast<std::size_t>(rank));
  if (rank > 0) check(H5Sget_simple_extent_dims(space, dims.data(), nullptr), name, "read the shape");
  std::uint64_t bytes = static_cast<std::uint64_t>(size_of(*dtype));
  for (const hsize_t d : dims) {
    if (__builtin_mul_overflow(bytes, std::max<hsize_t>(d, 1), &bytes) || bytes >> 62 != 0)
      fail(name, "has an impossible shape");
    result.shape.push_back(static_cast<std::int64_t>(d));
  }
  if (count(result.shape) == 0) bytes = 0;
  const PropertyId properties(check(H5Dget_create_plist(dataset), name, "read the properties"));
  const H5D_layout_t layout = H5Pget_layout(properties);
  result.is_virtual = layout == H5D_VIRTUAL;
  if (result.is_virtual) return result;
  if (H5Pget_external_count(properties) != 0) fail(name, "keeps its data outside the file, which is refused");
  const int filters = check(H5Pget_nfilters(properties), name, "read the properties");
  const hsize_t stored = H5Dget_storage_size(dataset);
  std::error_code error;
  const std::uintmax_t on_disk = std::filesystem::file_size(path, error);
  // While writing, blocks may not have reached the disk yet.
  if (!writing && !error && stored > on_disk)
    fail(name, fmt::format("claims {} bytes in a file of {}", stored, on_disk));
  if (filters > 0 ? bytes / kMaxExpansion > stored : bytes > stored) {
    fail(name,
         fmt::format("its shape {} needs {} bytes, but {} are stored", describe(*dtype, result.shape), bytes, stored));
  }
  return result;
}

Info File::info(const std::string& name) const {
  const Lock lock;
  const DatasetId dataset = impl_->open_dataset(name);
  Info result = impl_->info(dataset, name);
  // The size of a virtual dataset is believed once its pieces are there.
  if (result.is_virtual) impl_->pieces(dataset, result, name);
  return result;
}

void File::Impl::read_plain(hid_t dataset, const Box& box, DType dtype, void* out, const std::string& name) const {
  if (count(box.shape) == 0) return;
  const SpaceId from = select(dataset, box);
  const SpaceId memory = make_space(box.shape);
  check(H5Dread(dataset, file_type(dtype), memory, from, H5P_DEFAULT, out), name, "read the dataset");
}

std::uint64_t File::Impl::hash(const std::string& name, hid_t dataset, const Info& info,
                               const std::function<void(const Box&, const void*)>& piece) const {
  const HashState hash;
  std::vector<char> bytes;
  for_each_piece(info.shape, size_of(info.dtype), kPieceBytes, [&](const Box& box) {
    bytes.resize(static_cast<std::size_t>(count(box.shape) * size_of(info.dtype)));
    read_plain(dataset, box, info.dtype, bytes.data(), name);
    XXH3_64bits_update(hash.state, bytes.data(), bytes.size());
    piece(box, bytes.data());
  });
  return XXH3_64bits_digest(hash.state);
}

void File::Impl::stream(const std::string& name, hid_t dataset, const Info& info,
                        const std::function<void(const Box&, const void*)>& piece) const {
  const auto expected = get_attribute(dataset, name, kChecksum);
  if (!expected || !std::holds_alternative<std::uint64_t>(*expected)) fail(name, "has no checksum");
  const std::uint64_t found = hash(name, dataset, info, piece);
  if (found != std::get<std::uint64_t>(*expected)) {
    fail(name, fmt::format("its data is damaged: the checksum is {:016x}, {:016x} was written", found,
                           std::get<std::uint64_t>(*expected)));
  }
  proven.insert(name);
}

void File::read_box(const std::string& name, const Box& box, DType dtype, void* out, Check check) const {
  const Lock lock;
  const DatasetId dataset = impl_->open_dataset(name);
  const Info info = impl_->info(dataset, name);
  if (info.dtype != dtype)
    impl_->fail(name, fmt::format("is {}, {} was expected", name_of(info.dtype), name_of(dtype)));
  check_inside(box, info.shape, impl_->path + ": " + name);
  if (!info.is_virtual) {
    if (check == Check::none || impl_->proven.contains(name)) return impl_->read_plain(dataset, box, dtype, out, name);
    return impl_->stream(name, dataset, info, [&](const Box& piece, const void* bytes) {
      copy_overlap(bytes, piece, out, box, size_of(dtype));
    });
  }
  for (const Piece& piece : impl_->pieces(dataset, info, name)) {
    const auto common = overlap(piece.box, box);
    if (!common) continue;
    const File& file = impl_->source(piece.file, name);
    // The piece in the coordinates of its own dataset.
    Box part = *common;
    for (std::size_t i = 0; i < part.offset.size(); ++i) part.offset[i] += piece.source_offset[i] - piece.box.offset[i];
    try {
      if (part.shape == box.shape) {
        file.read_box(piece.dataset, part, dtype, out, check);
        continue;
      }
      std::vector<char> bytes(static_cast<std::size_t>(count(part.shape) * size_of(dtype)));
      file.read_box(piece.dataset, part, dtype, bytes.data(), check);
      copy_overlap(bytes.data(), *common, out, box, size_of(dtype));
    } catch (const Error& e) {
      impl_->fail(name, e.what());
    }
  }
}

void File::read(const std::string& name, DType dtype, std::span<const std::int64_t> shape, void* out,
                Check check) const {
  const Lock lock;
  const Info found = impl_->info(impl_->open_dataset(name), name);
  if (found.dtype != dtype || !std::ranges::equal(found.shape, shape)) {
    impl_->fail(name,
                fmt::format("is {}, {} was expected", describe(found.dtype, found.shape), describe(dtype, shape)));
  }
  read_box(name, whole(shape), dtype, out, check);
}

void File::read(const std::string& name, const Tensor& out, Check check) const {
  MMT_CHECK(out.defined() && out.contiguous() && out.device.kind == DeviceKind::cpu, "{}: cannot be read into {}", name,
            out.describe());
  read(name, out.dtype, out.shape(), out.data, check);
}

double File::read_scalar(const std::string& name) const {
  double value = 0;
  read(name, DType::f64, {}, &value);
  return value;
}

void File::verify(const std::string& name) const {
  const Lock lock;
  const DatasetId dataset = impl_->open_dataset(name);
  const Info info = impl_->info(dataset, name);
  if (!info.is_virtual) return impl_->stream(name, dataset, info, [](const Box&, const void*) {});
  for (const Piece& piece : impl_->pieces(dataset, info, name)) {
    try {
      impl_->source(piece.file, name).verify(piece.dataset);
    } catch (const Error& e) {
      impl_->fail(name, e.what());
    }
  }
}

}  // namespace mmt::h5
