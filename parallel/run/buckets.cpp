#include "parallel/run/buckets.h"

#include "core/philox.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "parallel/comm/values.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mmt::run {

namespace {

constexpr std::int64_t kAlign = 16;  // elements: every gradient starts on a cache line

// Where [first, last) of the arena ends a bucket: when it is full, or with the last item.
struct Layout {
  std::vector<std::int64_t> starts;
  std::vector<int> bucket_of;
  std::vector<std::int64_t> ends;  // of each bucket
};

Layout lay_out(std::span<const BucketItem> items, std::int64_t element, std::int64_t max_bytes) {
  Layout layout;
  std::int64_t total = 0;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    layout.starts.push_back(total);
    layout.bucket_of.push_back(static_cast<int>(layout.ends.size()));
    total += (items[i].count + kAlign - 1) / kAlign * kAlign;
    if ((total - begin) * element < max_bytes && i + 1 < items.size()) continue;
    layout.ends.push_back(total);
    begin = total;
  }
  return layout;
}

// Throws on every lane when the lanes list other buckets.
void compare_lanes(const std::string& name, comm::Communicator& data, std::span<const BucketItem> items,
                   const Layout& layout, DType dtype) {
  std::vector<std::uint64_t> hashes(layout.ends.size());
  std::uint64_t hash = static_cast<std::uint64_t>(dtype);
  for (std::size_t i = 0; i < items.size(); ++i) {
    hash = hash64(hash, hash64(hash64(items[i].name), static_cast<std::uint64_t>(items[i].count)));
    hashes[static_cast<std::size_t>(layout.bucket_of[i])] = hash;
  }
  const std::string packed(reinterpret_cast<const char*>(hashes.data()), hashes.size() * sizeof(std::uint64_t));
  const std::vector<std::string> all = comm::all_gather(data, packed);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    const auto differs = std::ranges::mismatch(all[r], all[0]).in1 - all[r].begin();
    const int bucket = static_cast<int>(differs / 8);
    const auto first = std::ranges::find(layout.bucket_of, bucket) - layout.bucket_of.begin();
    std::string here = fmt::format("{} buckets", hashes.size());
    if (first < std::ssize(items))
      here += fmt::format(", this one begins with {} ({} of {})", items[static_cast<std::size_t>(first)].name,
                          items[static_cast<std::size_t>(first)].count, name_of(dtype));
    throw Error(fmt::format("{}: bucket {} of the gradients differs between data lanes 0 and {}; here: {}", name,
                            bucket, r, here));
  }
}

}  // namespace

GradientBuckets::GradientBuckets(std::string name, std::span<const BucketItem> items, DType dtype,
                                 std::int64_t max_bytes, comm::Communicator* data, const Stream& stream)
    : name_(std::move(name)), data_(data), stream_(stream) {
  const Layout layout = lay_out(items, size_of(dtype), max_bytes);
  const std::int64_t total = layout.ends.empty() ? 0 : layout.ends.back();
  const auto bytes = static_cast<std::size_t>(total * size_of(dtype));
  if (data_ != nullptr) {
    compare_lanes(name_, *data_, items, layout, dtype);
    shared_ = data_->shared_alloc(bytes);
  }
  if (!shared_) own_ = Buffer(bytes);
  const Tensor all(shared_ ? shared_.data : own_.data(), dtype, {total});
  ops::fill(stream_, all, 0.0);  // the gaps between gradients are summed, too
  bucket_of_ = layout.bucket_of;
  for (std::size_t i = 0; i < items.size(); ++i) grads_.push_back(all.row_range(layout.starts[i], items[i].count));
  std::int64_t begin = 0;
  for (const std::int64_t end : layout.ends) {
    buckets_.push_back(all.row_range(begin, end - begin));
    begin = end;
  }
}

void GradientBuckets::reduce(int b) {
  if (data_ != nullptr) data_->all_reduce(bucket(b), comm::ReduceOp::sum, stream_);
}

void check_replicas(comm::Communicator& replicas, std::span<const Replica> tensors, const Stream& stream) {
  struct Print {
    std::uint64_t hash = 0;
    double norm = 0;
  };
  std::vector<Print> mine;
  for (const Replica& t : tensors) {
    MMT_CHECK(t.values.contiguous(), "{}: {}", t.name, t.values.describe());
    Print p{XXH3_64bits_withSeed(t.values.data, static_cast<std::size_t>(t.values.bytes()), hash64(t.name)), 0};
    ops::sum_of_squares(stream, Tensor(&p.norm, DType::f64, {1}), t.values);
    p.norm = std::sqrt(p.norm);
    mine.push_back(p);
  }
  const std::string packed(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Print));
  const std::vector<std::string> all = comm::all_gather(replicas, packed);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r].size() != all[0].size())
      throw Error(fmt::format("{}: rank {} lists other replicas than rank 0", replicas.name(), r));
  }
  for (std::size_t i = 0; i < mine.size(); ++i) {
    Print first;
    std::memcpy(&first, all[0].data() + i * sizeof(Print), sizeof(Print));
    for (std::size_t r = 1; r < all.size(); ++r) {
      if (all[r].size() != packed.size())
        throw Error(fmt::format("{}: rank {} lists other replicas than rank 0", replicas.name(), r));
      Print other;
      std::memcpy(&other, all[r].data() + i * sizeof(Print), sizeof(Print));
      if (other.hash == first.hash) continue;
      throw Error(
          fmt::format("{}: {} differs between rank 0 and rank {}: norms {:.9g} and {:.9g}, relative error {:.3g}",
                      replicas.name(), tensors[i].name, r, first.norm, other.norm,
                      std::abs(other.norm - first.norm) / std::max(std::abs(first.norm), 1e-300)));
    }
  }
}

}  // namespace mmt::run
