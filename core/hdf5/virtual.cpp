// Virtual datasets: one tensor whose pieces lie in other files. They are written for the library's own readers (h5py,
// HDFView); we read the pieces ourselves, since the library fills in zeros for what is missing and checks nothing.
#include "core/files.h"
#include "core/hdf5/impl.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace mmt::h5 {
namespace {

constexpr std::size_t kMaxPieces = 8192;
constexpr std::size_t kMaxLinkName = 4096;
constexpr std::size_t kMaxOpen = 128;

// The box that a selection is, if it is one. That of a whole dataset (as h5py writes it) knows no size of its own.
std::optional<Box> box_of(hid_t space, const Dims& whole) {
  if (H5Sget_select_type(space) == H5S_SEL_ALL) return Box{Dims(whole.size(), 0), whole};
  const int rank = H5Sget_simple_extent_ndims(space);
  if (rank < 0) return std::nullopt;
  std::vector<hsize_t> low(static_cast<std::size_t>(rank));
  std::vector<hsize_t> high(low.size());
  const hssize_t points = H5Sget_select_npoints(space);
  if (points <= 0 || H5Sget_select_bounds(space, low.data(), high.data()) < 0) return std::nullopt;
  Box box;
  hsize_t volume = 1;
  for (std::size_t i = 0; i < low.size(); ++i) {
    if (high[i] < low[i] || high[i] >> 62 != 0 || __builtin_mul_overflow(volume, high[i] - low[i] + 1, &volume))
      return std::nullopt;
    box.offset.push_back(static_cast<std::int64_t>(low[i]));
    box.shape.push_back(static_cast<std::int64_t>(high[i] - low[i] + 1));
  }
  if (volume != static_cast<hsize_t>(points)) return std::nullopt;
  return box;
}

template <class F> std::string name_from(F get) {
  const ssize_t size = get(nullptr, std::size_t{0});
  if (size <= 0 || static_cast<std::size_t>(size) > kMaxLinkName) return "";
  std::string name(static_cast<std::size_t>(size) + 1, '\0');
  if (get(name.data(), name.size()) != size) return "";
  name.resize(static_cast<std::size_t>(size));
  return name;
}

SpaceId selected(std::span<const std::int64_t> extent, const Dims& offset, const Dims& shape) {
  SpaceId space = make_space(extent);
  const std::vector<hsize_t> start(offset.begin(), offset.end());
  const std::vector<hsize_t> size(shape.begin(), shape.end());
  H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr);
  return space;
}

}  // namespace

void File::write_virtual(const std::string& name, DType dtype, std::span<const std::int64_t> shape,
                         std::span<const Piece> pieces) {
  const Lock lock;
  MMT_CHECK(!shape.empty() && pieces.size() <= kMaxPieces, "{}: {} pieces of {}", name, pieces.size(),
            describe(dtype, shape));
  std::vector<Box> boxes;
  for (const Piece& piece : pieces) boxes.push_back(piece.box);
  check_exact_cover(shape, boxes, impl_->path + ": " + name);
  const PropertyId properties(H5Pcreate(H5P_DATASET_CREATE));
  for (const Piece& piece : pieces) {
    if (count(piece.box.shape) == 0) continue;
    files::join_inside(impl_->folder, piece.file);
    const Dims offset = piece.source_offset.empty() ? Dims(shape.size(), 0) : piece.source_offset;
    const Dims& extent = piece.source_shape.empty() ? piece.box.shape : piece.source_shape;
    check_inside({offset, piece.box.shape}, extent, impl_->path + ": " + name + ": " + piece.dataset);
    const SpaceId target = selected(shape, piece.box.offset, piece.box.shape);
    const SpaceId source = selected(extent, offset, piece.box.shape);
    impl_->check(H5Pset_virtual(properties, target, piece.file.c_str(), piece.dataset.c_str(), source), name,
                 "map a piece");
  }
  // A tensor without elements has no pieces: a plain dataset.
  const DatasetId dataset = impl_->create(name, file_type(dtype), shape, properties);
  if (count(shape) == 0)
    impl_->put_attribute(
        dataset, name, kChecksum,
        impl_->hash(name, dataset, {dtype, Dims(shape.begin(), shape.end()), false}, [](const Box&, const void*) {}));
}

std::vector<Piece> File::Impl::pieces(hid_t dataset, const Info& info, const std::string& name) const {
  const PropertyId properties(check(H5Dget_create_plist(dataset), name, "read the properties"));
  std::size_t num = 0;
  check(H5Pget_virtual_count(properties, &num), name, "read the mapping");
  if (num > kMaxPieces) fail(name, fmt::format("is made of more than {} pieces", kMaxPieces));
  std::vector<Piece> result;
  std::vector<Box> boxes;
  for (std::size_t i = 0; i < num; ++i) {
    Piece piece;
    piece.file =
        name_from([&](char* out, std::size_t size) { return H5Pget_virtual_filename(properties, i, out, size); });
    piece.dataset =
        name_from([&](char* out, std::size_t size) { return H5Pget_virtual_dsetname(properties, i, out, size); });
    if (piece.file.empty() || piece.dataset.empty()) fail(name, "the mapping of a piece cannot be read");
    try {
      files::join_inside(folder, piece.file);
    } catch (const Error& e) {
      fail(name, e.what());
    }
    const SpaceId target(check(H5Pget_virtual_vspace(properties, i), name, "read the mapping"));
    const SpaceId from(check(H5Pget_virtual_srcspace(properties, i), name, "read the mapping"));
    const auto box = box_of(target, info.shape);
    const auto source_box = box ? box_of(from, box->shape) : std::nullopt;
    if (!box || !source_box || box->shape != source_box->shape || box->shape.size() != info.shape.size()) {
      fail(name, fmt::format("the piece from {} is not a box", piece.file));
    }
    piece.box = *box;
    piece.source_offset = source_box->offset;
    boxes.push_back(piece.box);
    result.push_back(std::move(piece));
  }
  try {
    check_exact_cover(info.shape, boxes, name);
  } catch (const std::logic_error&) {
    fail(name, "its pieces do not cover it exactly once");
  }
  for (Piece& piece : result) {
    const File& from = source(piece.file, name);
    try {
      const Info found = from.impl_->info(from.impl_->open_dataset(piece.dataset), piece.dataset);
      if (found.is_virtual) fail(name, fmt::format("the piece {} of {} is virtual itself", piece.dataset, piece.file));
      // The library keeps the selection in the source, not its shape: any that holds the piece will do.
      piece.source_shape = found.shape;
      bool inside = found.dtype == info.dtype && found.shape.size() == piece.box.shape.size();
      for (std::size_t i = 0; inside && i < found.shape.size(); ++i)
        inside = piece.source_offset[i] + piece.box.shape[i] <= found.shape[i];
      if (!inside) {
        fail(name, fmt::format("the piece {} of {} is {} and does not hold {} at [{}]", piece.dataset, piece.file,
                               describe(found.dtype, found.shape), describe(info.dtype, piece.box.shape),
                               fmt::join(piece.source_offset, ",")));
      }
    } catch (const std::logic_error& e) {
      fail(name, e.what());
    }
  }
  return result;
}

std::vector<Piece> File::pieces(const std::string& name) const {
  const Lock lock;
  const DatasetId dataset = impl_->open_dataset(name);
  const Info info = impl_->info(dataset, name);
  if (!info.is_virtual) impl_->fail(name, "is not a virtual dataset");
  return impl_->pieces(dataset, info, name);
}

const File& File::Impl::source(const std::string& name, const std::string& object) const {
  const auto found = sources.find(name);
  if (found != sources.end()) return found->second;
  if (sources.size() >= kMaxOpen) sources.clear();
  try {
    return sources.emplace(name, File::open(files::join_inside(folder, name))).first->second;
  } catch (const Error& e) {
    fail(object, e.what());
  }
}

}  // namespace mmt::h5
