#include "parallel/comm/pairwise.h"

#include "parallel/comm/reduce.h"

#include <cstring>

namespace mmt::comm {

namespace {

std::size_t usize(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace

void PairwiseCommunicator::start() {
  World& world = post_->world();
  if (world.before_operation) world.before_operation();
  world.check_abort();
}

// sends and recvs of equal positions; this rank's own are not touched.
void PairwiseCommunicator::exchange(std::span<const Tensor> sends, std::span<const Tensor> recvs) {
  const int n = size();
  for (int i = 1; i < n; ++i) {
    const int to = (rank() + i) % n;
    post_->post(to, Mailbox::kCollective, sends[usize(to)].data, usize(sends[usize(to)].bytes()));
  }
  for (int i = 1; i < n; ++i) {
    const int from = (rank() + n - i) % n;
    post_->take(from, Mailbox::kCollective, recvs[usize(from)].data, usize(recvs[usize(from)].bytes()), name());
  }
}

void PairwiseCommunicator::do_all_to_all_v(std::span<const Tensor> sends, std::span<const Tensor> recvs,
                                           const Stream&) {
  start();
  const Tensor& own = sends[usize(rank())];
  if (own.bytes() > 0) std::memcpy(recvs[usize(rank())].data, own.data, usize(own.bytes()));
  exchange(sends, recvs);
}

void PairwiseCommunicator::do_reduce_scatter_v(std::span<const Tensor> inputs, const Tensor& output, ReduceOp op,
                                               const Stream&) {
  start();
  const int n = size();
  scratch_.resize(usize(output.bytes()) * usize(n));
  std::vector<Tensor> arrived(usize(n), output);
  std::vector<const void*> sources(usize(n));
  for (int r = 0; r < n; ++r) {
    if (output.defined()) arrived[usize(r)].data = scratch_.data() + usize(r) * usize(output.bytes());
    sources[usize(r)] = r == rank() ? inputs[usize(r)].data : arrived[usize(r)].data;
  }
  exchange(inputs, arrived);
  void* const to_me[] = {output.data};
  if (output.numel() > 0) reduce_in_rank_order(op, output.dtype, sources, to_me, output.numel());
}

void PairwiseCommunicator::do_all_gather_v(const Tensor& input, std::span<const Tensor> outputs, const Stream&) {
  start();
  const Tensor& own = outputs[usize(rank())];
  if (own.data != input.data && input.bytes() > 0) std::memmove(own.data, input.data, usize(input.bytes()));
  exchange(std::vector<Tensor>(usize(size()), input), outputs);
}

void PairwiseCommunicator::do_all_reduce(const Tensor& data, ReduceOp op, const Stream& stream) {
  const int n = size();
  std::vector<Tensor> slices;
  for (int r = 0; r < n; ++r) {
    const std::int64_t first = data.numel() * r / n;
    slices.emplace_back(static_cast<char*>(data.data) + first * size_of(data.dtype), data.dtype,
                        std::initializer_list<std::int64_t>{data.numel() * (r + 1) / n - first});
  }
  const Tensor& mine = slices[usize(rank())];
  do_reduce_scatter_v(slices, mine, op, stream);
  exchange(std::vector<Tensor>(usize(n), mine), slices);
}

void PairwiseCommunicator::do_broadcast(const Tensor& data, int root, const Stream&) {
  start();
  // A binomial tree over ranks counted from the root: in round k the first 2^k ranks send to the next 2^k.
  const int n = size();
  const int me = (rank() - root + n) % n;
  const auto real = [&](int r) { return (r + root) % n; };
  for (int span = 1; span < n; span *= 2) {
    if (me < span && me + span < n) {
      post_->post(real(me + span), Mailbox::kCollective, data.data, usize(data.bytes()));
    } else if (me >= span && me < 2 * span) {
      post_->take(real(me - span), Mailbox::kCollective, data.data, usize(data.bytes()), name());
    }
  }
}

void PairwiseCommunicator::do_send(const Tensor& data, int to, const Stream&) {
  start();
  post_->post(to, Mailbox::kUser, data.data, usize(data.bytes()));
}

void PairwiseCommunicator::do_recv(const Tensor& data, int from, const Stream&) {
  start();
  post_->take(from, Mailbox::kUser, data.data, usize(data.bytes()), name());
}

void PairwiseCommunicator::do_barrier() {
  start();
  const int n = size();
  for (int span = 1; span < n; span *= 2) {
    post_->post((rank() + span) % n, Mailbox::kCollective, nullptr, 0);
    post_->take((rank() + n - span) % n, Mailbox::kCollective, nullptr, 0, name());
  }
}

std::unique_ptr<Communicator> PairwiseCommunicator::do_split(int color, int key, std::string name) {
  return post_->split(color, key, name);
}

}  // namespace mmt::comm
