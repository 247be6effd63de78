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
};

class GradientBuckets {
 public:
  /// `items` in the order in which the backward completes them (the reverse of the forward). A bucket is closed when it
  /// has `max_bytes`; a parameter is never cut. Collective over `data` (null: one lane), which must list the same items
  /// on all lanes: a hash of names, counts and dtype is compared bucket by bucket, and Error names the first bucket
  /// that differs. Gradients lie in memory that the lanes share where they can (reductions copy nothing then).
  GradientBuckets(std::string name, std::span<const BucketItem> items, DType dtype, std::int64_t max_bytes,
                  comm::Communicator* data, const Stream& stream);

  const Tensor& grad(std::size_t item) const { return grads_[item]; }
  int num_buckets() const { return static_cast<int>(buckets_.size()); }
  int bucket_of(std::size_t item) const { return bucket_of_[item]; }
  const Tensor& bucket(int b) const { return buckets_[static_cast<std::size_t>(b)]; }
  /// Sums over the lanes, in lane order.
  void reduce(int bucket);

 private:
  std::string name_;
  comm::Communicator* data_;
  Stream stream_;
  comm::SharedBlock shared_;
  Buffer own_;
  std::vector<Tensor> grads_;
  std::vector<int> bucket_of_;
  std::vector<Tensor> buckets_;
};

struct Replica {
  std::string name;
  Tensor values;
};
/// Compares what must be equal bit for bit on all ranks of `replicas` (weights after an update, reduced gradients).
/// Collective; every rank lists the same names. Throws Error on all ranks, naming the tensor, the first rank that
/// differs from rank 0, and the difference of their norms relative to rank 0's.
void check_replicas(comm::Communicator& replicas, std::span<const Replica> tensors, const Stream& stream);

}  // namespace mmt::run
