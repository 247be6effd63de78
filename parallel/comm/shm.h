// The communicator of ranks that share memory: threads of a process, or processes of a node over an MPI window.
#pragma once

#include "parallel/comm/communicator.h"
#include "parallel/comm/mailbox.h"

namespace mmt::comm {

struct ShmOptions {
  std::size_t staging_bytes = 256 << 10;
  std::size_t outbox_bytes = 1 << 20;
  bool direct = true;  ///< in one address space: read other ranks' tensors where they lie
};

/// Collectives run in phases. In a phase every rank writes down its call, announces its arrival and waits for all; the
/// first phase of a call compares the calls, so that ranks that have come apart are told so, by name and number.
/// Tensors inside shared blocks (or anywhere, between threads) are read and written where they lie; others go through a
/// staging buffer chunk by chunk. Two staging halves alternate, so that one phase separates the uses of a half.
class ShmCommunicator final : public Communicator {
 public:
  /// Collective. Check usable() before the first call.
  ShmCommunicator(std::string name, std::shared_ptr<ShmGroup> group, const ShmOptions& options);
  ~ShmCommunicator() override;

  /// False, on every rank: the shared memory could not be had.
  bool usable() const { return !staging_.bases.empty() && mailbox_.usable(); }
  Mailbox& mailbox() { return mailbox_; }
  World& world() { return group_->world(); }

  /// The first half of a reduction, for those who go on with it: calls visit(sources, first, count) with the elements
  /// [first, first + count) of all ranks' contributions to this rank's part, in rank order, run by run. What has been
  /// visited of inputs[rank()] may be overwritten. Runs are as long as in a group of `ranks` (at least the size of
  /// this).
  using Visit = std::function<void(std::span<const void* const> sources, std::int64_t first, std::int64_t count)>;
  void visit_parts(std::span<const Tensor> inputs, ReduceOp op, int ranks, const Visit& visit);

  int world_rank(int r) const { return group_->world_rank(r); }
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  SharedBlock shared_alloc(std::size_t bytes) override;
  void reserve_sends(std::size_t bytes) override { mailbox_.reserve(bytes); }
  void poll() override { group_->world().poll(); }
  void set_doing(std::function<std::string()> doing) override { group_->world().doing = std::move(doing); }
  void abort(std::string_view cause) noexcept override { group_->world().abort->raise(group_->world().rank, cause); }

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
  enum class Op : std::uint32_t { none, all_reduce, reduce_scatter, all_gather, broadcast, barrier };
  struct Place {  // of a tensor, as the other ranks can find it
    std::uint32_t block = 0;
    std::uint64_t offset = 0;
  };
  struct Call {
    Op op = Op::none;
    std::uint32_t detail = 0;  // reduction and dtype, or root: equal on all ranks
    std::uint64_t bytes = 0;   // equal on all ranks
    std::uint64_t part = 0;    // of this rank
    Place place{};
  };
  struct Slot;

  Slot& slot(int r) const;
  void begin(const Call& call);  // starts an operation: test hooks, its number, its first phase, the comparison
  void phase(const Call& call);
  Call call_of(int r) const;  // rank r's call of the current phase
  std::string describe(const Call& call) const;
  void compare(const Call& mine);
  std::string missing() const;
  // Between threads, a rank that leaves by an exception destroys its tensors: it waits for those that read them, and
  // nobody begins to read after it has left.
  void begin_reading();
  void end_reading();
  void leave() noexcept;

  Place place_of(const void* data, std::size_t bytes) const;
  char* block_of(int r, const Place& place) const;  // null for a tensor that is staged
  char* half(int r) const;                          // staging half of the current chunk
  std::size_t half_bytes() const { return options_.staging_bytes / 2; }
  void next_half() { ++chunk_; }

  std::shared_ptr<ShmGroup> group_;
  ShmOptions options_;
  Mailbox mailbox_;
  ShmPieces slots_;
  ShmPieces staging_;
  struct Shared {
    ShmPieces pieces;
    std::size_t bytes = 0;  // of this rank
  };
  std::vector<Shared> blocks_;
  std::uint64_t phases_ = 0;
  std::uint64_t calls_ = 0;
  std::uint64_t chunk_ = 0;
};

}  // namespace mmt::comm
