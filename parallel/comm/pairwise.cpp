#include "parallel/comm/pairwise.h"

#include "core/at.h"
#include "parallel/comm/reduce.h"

#include <algorithm>
#include <cstring>

namespace mmt::comm {

namespace {

constexpr std::int64_t kChainBytes = 4096;
constexpr std::int64_t kPiece = 256 << 10;

}  // namespace

std::optional<Nodes> find_nodes(std::span<const int> node_of, int rank, ShmCommunicator* local) {
  Nodes nodes;
  nodes.local = local;
  std::vector<int> seen;
  for (std::size_t r = 0; r < node_of.size(); ++r) {
    if (r > 0 && node_of[r] == node_of[r - 1]) continue;
    if (std::ranges::find(seen, node_of[r]) != seen.end()) return std::nullopt;
    seen.push_back(node_of[r]);
    nodes.first.push_back(static_cast<int>(r));
  }
  if (seen.size() < 2 || local == nullptr) return std::nullopt;
  nodes.index = static_cast<int>(std::ranges::find(seen, node_of[usize(rank)]) - seen.begin());
  nodes.slices = static_cast<int>(node_of.size());
  for (std::size_t k = 0; k < nodes.first.size(); ++k) {
    const int end = k + 1 < nodes.first.size() ? nodes.first[k + 1] : static_cast<int>(node_of.size());
    nodes.slices = std::min(nodes.slices, end - nodes.first[k]);
    nodes.largest = std::max(nodes.largest, end - nodes.first[k]);
  }
  return nodes;
}

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
  if (const Nodes* nodes = post_->nodes(); nodes != nullptr && data.bytes() >= kChainBytes)
    return chain(*nodes, data, op);
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

void PairwiseCommunicator::chain(const Nodes& nodes, const Tensor& data, ReduceOp op) {
  start();
  const int local = nodes.local->rank();
  const int last = static_cast<int>(nodes.first.size()) - 1;
  const int before = nodes.index > 0 ? nodes.first[usize(nodes.index - 1)] + local : -1;
  const int after = nodes.index < last ? nodes.first[usize(nodes.index + 1)] + local : -1;
  const std::int64_t element = size_of(data.dtype);
  const std::int64_t open = size_of(accumulator_of(data.dtype));
  std::vector<Tensor> slices;
  for (int j = 0; j < nodes.local->size(); ++j) {
    const int from = std::min(j, nodes.slices);
    const int to = std::min(j + 1, nodes.slices);
    const std::int64_t first = data.numel() * from / nodes.slices;
    slices.emplace_back(static_cast<char*>(data.data) + first * element, data.dtype,
                        std::initializer_list<std::int64_t>{data.numel() * to / nodes.slices - first});
  }
  char* const mine = static_cast<char*>(slices[usize(local)].data);
  nodes.local->visit_parts(slices, op, nodes.largest,
                           [&](std::span<const void* const> sources, std::int64_t first, std::int64_t count) {
                             scratch_.resize(std::max(scratch_.size(), usize(count * open)));
                             char* const acc = scratch_.data();
                             if (before >= 0)
                               post_->take(before, Mailbox::kCollective, acc, usize(count * open), name());
                             reduce_onward(op, data.dtype, before >= 0 ? acc : nullptr, sources, acc, count);
                             if (after >= 0) {
                               post_->post(after, Mailbox::kCollective, acc, usize(count * open));
                             } else {
                               round_accumulators(data.dtype, acc, mine + first * element, count);
                             }
                           });
  // The results come back along the chain, piece by piece, so that several links work at once.
  const std::int64_t bytes = slices[usize(local)].bytes();
  for (std::int64_t done = 0; done < bytes; done += kPiece) {
    const std::size_t now = usize(std::min(kPiece, bytes - done));
    if (after >= 0) post_->take(after, Mailbox::kCollective, mine + done, now, name());
    if (before >= 0) post_->post(before, Mailbox::kCollective, mine + done, now);
  }
  nodes.local->all_gather_v(slices[usize(local)], slices);
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

ShmPost::ShmPost(std::unique_ptr<Communicator> comm, int num_nodes) : comm_(std::move(comm)), num_nodes_(num_nodes) {
  if (num_nodes_ == 0) return;
  std::vector<int> node_of;
  for (int r = 0; r < size(); ++r) node_of.push_back(shm().world_rank(r) * num_nodes_ / world().size);
  local_ = comm_->split(node_of[usize(rank())], rank(), "node");
  nodes_ = find_nodes(node_of, rank(), static_cast<ShmCommunicator*>(local_.get()));
}

std::unique_ptr<Communicator> ShmPost::split(int color, int key, const std::string& name) {
  std::unique_ptr<Communicator> part = comm_->split(color, key, name);
  if (part == nullptr) return nullptr;
  return std::make_unique<PairwiseCommunicator>(name, std::make_unique<ShmPost>(std::move(part), num_nodes_));
}

}  // namespace mmt::comm
