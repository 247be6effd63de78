// Gradients of one stage in a flat arena, in buckets that are summed over the data lanes as they become complete.
#pragma once

#include "core/arena.h"
#include "core/stream.h"
#include "parallel/comm/communicator.h"

#include <span>
#include <string>
#include <vector>

namespace mmt::run {

/// A parameter's gradient: master dtype, 1-D.
struct BucketItem {
  std::string name;
  std::int64_t count = 0;
  std::int64_t room = 0;  ///< elements that buckets count for it, where that is more
};

/// The ranks that buckets are summed over, first `partial`, then `data`. Null: one rank.
struct BucketComms {
  comm::Communicator* partial = nullptr;  ///< ranks of a lane that each hold a partial sum
  comm::Communicator* data = nullptr;     ///< the data lanes
};

struct BucketOptions {
  std::int64_t max_bytes = std::int64_t{32} << 20;
  std::int64_t align = 16;  ///< every gradient starts at a multiple of so many elements
  /// Each data lane keeps one of equal parts of every bucket: reductions scatter.
  bool scatter = false;
};

class GradientBuckets {
 public:
  /// `items` in the order in which the backward completes them (the reverse of the forward). A bucket is closed when it
  /// has `max_bytes`; a parameter is never cut. Collective over the communicators, whose ranks must list the same
  /// items: a hash of names, counts and dtype is compared bucket by bucket, and Error names the first bucket that
  /// differs. Gradients lie in memory that the lanes share where they can (reductions copy nothing then).
  GradientBuckets(std::string name, std::span<const BucketItem> items, DType dtype, const BucketOptions& options,
                  const BucketComms& comms, const Stream& stream);

  const Tensor& grad(std::size_t item) const { return grads_[item]; }  ///< whole
  int num_buckets() const { return static_cast<int>(buckets_.size()); }
  int bucket_of(std::size_t item) const { return bucket_of_[item]; }
  const Tensor& bucket(int b) const { return buckets_[static_cast<std::size_t>(b)]; }
  std::int64_t numel() const { return numel_; }  ///< of all buckets together, gaps included

  /// A run of elements.
  struct Range {
    std::int64_t first = 0, count = 0;
  };
  Range of_item(std::size_t item) const { return items_[item]; }  ///< within all buckets
  /// Within the item: what this lane keeps of its reduced gradient (all of it without `scatter`).
  Range kept(std::size_t item) const;
  /// Within all buckets: this lane's part of bucket `b`.
  Range part(int b) const;

  /// Sums over the partial group and the lanes, each in rank order. With `scatter`, only part(b) is complete then.
  void reduce(int bucket);
  /// Fills all lanes' parts of bucket `b` in `all`, which is laid out as the gradients are (another dtype may be).
  void gather(int bucket, const Tensor& all) const;

 private:
  int num_parts() const;
  BucketComms comms_;
  Stream stream_;
  bool scatter_ = false;
  comm::SharedBlock shared_;
  Buffer own_;
  std::int64_t numel_ = 0;
  std::vector<Range> items_, ranges_;  ///< ranges_: of each bucket
  std::vector<Tensor> grads_;
  std::vector<int> bucket_of_;
  std::vector<Tensor> buckets_;
};

struct Replica {
  std::string name;
  Tensor values;
  int group = 0;  ///< consecutive ranks that must agree; 0: all
};
/// Compares what must be equal bit for bit on ranks of `replicas` (weights after an update, reduced gradients).
/// Collective; every rank lists the same names. Throws Error on all ranks, naming the tensor, the first rank that
/// differs from the first of its group, and the difference of their norms relative to that one's.
void check_replicas(comm::Communicator& replicas, std::span<const Replica> tensors, const Stream& stream);

}  // namespace mmt::run
