// Collectives made of messages between pairs of ranks: what runs where ranks share no memory (between nodes).
#pragma once

#include "parallel/comm/communicator.h"
#include "parallel/comm/mailbox.h"
#include "parallel/comm/shm.h"

#include <optional>

namespace mmt::comm {

/// How the ranks of a communicator lie on nodes, when each node's are neighbours in rank order.
struct Nodes {
  ShmCommunicator* local = nullptr;  ///< the ranks of this node
  int index = 0;                     ///< this node
  std::vector<int> first;            ///< by node: its first rank
  int slices = 1;                    ///< ranks of the smallest node
  int largest = 1;                   ///< ranks of the largest
};
/// Nothing when the ranks of a node are not neighbours. `node_of`: by rank.
std::optional<Nodes> find_nodes(std::span<const int> node_of, int rank, ShmCommunicator* local);

/// How a pair of ranks passes a message. The contract is Mailbox's: post never waits, take waits for the next message
/// of (from, lane) and checks its size.
class Post {
 public:
  virtual ~Post() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual World& world() = 0;
  virtual void post(int to, Mailbox::Lane lane, const void* data, std::size_t bytes) = 0;
  virtual void take(int from, Mailbox::Lane lane, void* data, std::size_t bytes, std::string_view comm_name) = 0;
  virtual void reserve(std::size_t bytes) = 0;
  /// Null: shared memory within nodes cannot be used.
  virtual const Nodes* nodes() const { return nullptr; }
  /// Collective; null for a negative color.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;
};

/// The same results, bit for bit, as ShmCommunicator: sums run in rank order.
/// all_reduce: within a node through shared memory; from node to node a chain of open sums, one per local rank, each
/// for a slice of the data; the end of the chain hands the results back. Every link carries the data once each way. For
/// little data, and where nodes cannot be told, every rank gets its slice from all others, reduces it, and hands it
/// round.
class PairwiseCommunicator final : public Communicator {
 public:
  PairwiseCommunicator(std::string name, std::unique_ptr<Post> post)
      : Communicator(std::move(name)), post_(std::move(post)) {}

  int rank() const override { return post_->rank(); }
  int size() const override { return post_->size(); }
  SharedBlock shared_alloc(std::size_t) override { return {}; }
  void reserve_sends(std::size_t bytes) override { post_->reserve(bytes); }
  void poll() override { post_->world().poll(); }
  void set_doing(std::function<std::string()> doing) override { post_->world().doing = std::move(doing); }
  void abort(std::string_view cause) noexcept override { post_->world().abort->raise(post_->world().rank, cause); }

 protected:
  void do_all_reduce(const Tensor& data, ReduceOp op, const Stream& stream) override;
  void do_reduce_scatter_v(std::span<const Tensor> inputs, const Tensor& output, ReduceOp op, const Stream&) override;
  void do_all_gather_v(const Tensor& input, std::span<const Tensor> outputs, const Stream& stream) override;
  void do_broadcast(const Tensor& data, int root, const Stream& stream) override;
  void do_all_to_all_v(std::span<const Tensor> sends, std::span<const Tensor> recvs, const Stream& stream) override;
  void do_send(const Tensor& data, int to, const Stream& stream) override;
  void do_recv(const Tensor& data, int from, const Stream& stream) override;
  void do_barrier() override;
  std::unique_ptr<Communicator> do_split(int color, int key, std::string name) override;

 private:
  void start();
  void chain(const Nodes& nodes, const Tensor& data, ReduceOp op);
  void exchange(std::span<const Tensor> sends, std::span<const Tensor> recvs);

  std::unique_ptr<Post> post_;
  std::vector<char> scratch_;  // grows to the largest reduction
};

/// Messages through the shared memory of one group whose ranks act as several nodes (tests of the collectives above).
class ShmPost final : public Post {
 public:
  /// Collective. num_nodes 0: nodes are not used.
  ShmPost(std::unique_ptr<Communicator> comm, int num_nodes);
  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }
  World& world() override { return shm().world(); }
  void post(int to, Mailbox::Lane lane, const void* data, std::size_t bytes) override {
    shm().mailbox().post(to, lane, data, bytes);
  }
  void take(int from, Mailbox::Lane lane, void* data, std::size_t bytes, std::string_view comm_name) override {
    shm().mailbox().take(from, lane, data, bytes, comm_name);
  }
  void reserve(std::size_t bytes) override { shm().reserve_sends(bytes); }
  const Nodes* nodes() const override { return nodes_ ? &*nodes_ : nullptr; }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;

 private:
  ShmCommunicator& shm() { return static_cast<ShmCommunicator&>(*comm_); }
  std::unique_ptr<Communicator> comm_;
  int num_nodes_;
  std::unique_ptr<Communicator> local_;
  std::optional<Nodes> nodes_;
};

}  // namespace mmt::comm
