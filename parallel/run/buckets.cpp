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

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

struct Layout {
  std::vector<GradientBuckets::Range> items, buckets;
  std::vector<int> bucket_of;
};

// A bucket ends when it is full, or with the last item, at a multiple of `parts` equal, aligned parts.
Layout lay_out(std::span<const BucketItem> items, std::int64_t element, const BucketOptions& o, int parts) {
  Layout layout;
  std::int64_t total = 0, begin = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    layout.items.push_back({total, items[i].count});
    layout.bucket_of.push_back(static_cast<int>(layout.buckets.size()));
    total += round_up(std::max(items[i].count, items[i].room), o.align);
    if ((total - begin) * element < o.max_bytes && i + 1 < items.size()) continue;
    total = begin + round_up(total - begin, o.align * parts);
    layout.buckets.push_back({begin, total - begin});
    begin = total;
  }
  return layout;
}

// Throws on every rank when ranks list other buckets.
void compare_ranks(const std::string& name, comm::Communicator& ranks, const char* what,
                   std::span<const BucketItem> items, const Layout& layout, DType dtype) {
  std::vector<std::uint64_t> hashes(layout.buckets.size());
  std::uint64_t hash = static_cast<std::uint64_t>(dtype);
  for (std::size_t i = 0; i < items.size(); ++i) {
    hash = hash64(hash, hash64(hash64(items[i].name), static_cast<std::uint64_t>(items[i].count)));
    hashes[static_cast<std::size_t>(layout.bucket_of[i])] = hash;
  }
  const std::string packed(reinterpret_cast<const char*>(hashes.data()), hashes.size() * sizeof(std::uint64_t));
  const std::vector<std::string> all = comm::all_gather(ranks, packed);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    const auto differs = std::ranges::mismatch(all[r], all[0]).in1 - all[r].begin();
    const int bucket = static_cast<int>(differs / 8);
    const auto first = std::ranges::find(layout.bucket_of, bucket) - layout.bucket_of.begin();
    std::string here = fmt::format("{} buckets", hashes.size());
    if (first < std::ssize(items))
      here += fmt::format(", this one begins with {} ({} of {})", items[static_cast<std::size_t>(first)].name,
                          items[static_cast<std::size_t>(first)].count, name_of(dtype));
    throw Error(fmt::format("{}: bucket {} of the gradients differs between {} 0 and {}; here: {}", name, bucket, what,
                            r, here));
  }
}

}  // namespace

GradientBuckets::GradientBuckets(std::string name, std::span<const BucketItem> items, DType dtype,
                                 const BucketOptions& options, const BucketComms& comms, const Stream& stream)
    : comms_(comms), stream_(stream), scatter_(options.scatter) {
  Layout layout = lay_out(items, size_of(dtype), options, num_parts());
  for (const Range& b : layout.buckets) numel_ += b.count;
  const auto bytes = static_cast<std::size_t>(numel_ * size_of(dtype));
  if (comms_.partial != nullptr) compare_ranks(name, *comms_.partial, "tensor-parallel ranks", items, layout, dtype);
  if (comms_.data != nullptr) compare_ranks(name, *comms_.data, "data lanes", items, layout, dtype);
  if (comm::Communicator* wide = comms_.data != nullptr ? comms_.data : comms_.partial; wide != nullptr)
    shared_ = wide->shared_alloc(bytes);
  if (!shared_) own_ = Buffer(bytes);
  const Tensor all(shared_ ? shared_.data : own_.data(), dtype, {numel_});
  ops::fill(stream_, all, 0.0);  // the gaps between gradients are summed, too
  for (const Range& i : layout.items) grads_.push_back(all.row_range(i.first, i.count));
  for (const Range& b : layout.buckets) buckets_.push_back(all.row_range(b.first, b.count));
  items_ = std::move(layout.items);
  ranges_ = std::move(layout.buckets);
  bucket_of_ = std::move(layout.bucket_of);
}

int GradientBuckets::num_parts() const { return scatter_ && comms_.data != nullptr ? comms_.data->size() : 1; }

GradientBuckets::Range GradientBuckets::part(int b) const {
  const Range& all = ranges_[static_cast<std::size_t>(b)];
  const std::int64_t share = all.count / num_parts();
  return {all.first + (num_parts() == 1 ? 0 : share * comms_.data->rank()), share};
}

GradientBuckets::Range GradientBuckets::kept(std::size_t item) const {
  const Range& whole = items_[item];
  const Range mine = part(bucket_of_[item]);
  const std::int64_t first = std::clamp(mine.first, whole.first, whole.first + whole.count);
  const std::int64_t last = std::clamp(mine.first + mine.count, whole.first, whole.first + whole.count);
  return {first - whole.first, last - first};
}

void GradientBuckets::reduce(int b) {
  if (comms_.partial != nullptr) comms_.partial->all_reduce(bucket(b), comm::ReduceOp::sum, stream_);
  if (comms_.data == nullptr) return;
  if (!scatter_) return comms_.data->all_reduce(bucket(b), comm::ReduceOp::sum, stream_);
  const Range mine = part(b);
  const std::int64_t begin = ranges_[static_cast<std::size_t>(b)].first;
  comms_.data->reduce_scatter(bucket(b), bucket(b).row_range(mine.first - begin, mine.count), comm::ReduceOp::sum,
                              stream_);
}

void GradientBuckets::gather(int b, const Tensor& all) const {
  if (num_parts() == 1) return;
  const Range whole = ranges_[static_cast<std::size_t>(b)], mine = part(b);
  comms_.data->all_gather(all.row_range(mine.first, mine.count), all.row_range(whole.first, whole.count), stream_);
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
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].size() != packed.size())
        throw Error(fmt::format("{}: rank {} lists other replicas than rank 0", replicas.name(), r));
      Print other;
      std::memcpy(&other, all[r].data() + i * sizeof(Print), sizeof(Print));
      const std::size_t group = tensors[i].group == 0 ? all.size() : static_cast<std::size_t>(tensors[i].group);
      if (r % group == 0) first = other;
      if (other.hash == first.hash) continue;
      throw Error(
          fmt::format("{}: {} differs between rank {} and rank {}: norms {:.9g} and {:.9g}, relative error {:.3g}",
                      replicas.name(), tensors[i].name, r / group * group, r, first.norm, other.norm,
                      std::abs(other.norm - first.norm) / std::max(std::abs(first.norm), 1e-300)));
    }
  }
}

}  // namespace mmt::run
