// Communicator: what a group of ranks can do together. One of the few virtual seams: self, threads, MPI, NCCL, tracing.
//
// Rules of every implementation
//   * All ranks of a communicator call the same collectives in the same order. Order and sizes come from the plan,
//     never from what a rank happens to hold; a rank without rows takes part with zero rows.
//   * Counts come from the tensors and are checked; all tensors are contiguous. An absent tensor has zero elements.
//   * Sums run in rank order, `((r0 + r1) + r2) + ...`, so they do not depend on timing or on the implementation: f32
//   and
//     f64 are added in their own type; bf16 is added in f32 and rounded once; integers wrap. max and min propagate NaN.
//   * A send never blocks: the data is copied out before it returns. Messages between two ranks of one communicator
//     arrive in the order of the sends; point-to-point messages and collectives do not disturb each other.
//   * Every wait tests, yields and times out. PeerError names the communicator, the operation, its number and the ranks
//     that it waits for. After `abort` on one rank all waits of all ranks of the world throw PeerError with that cause.
//   * One thread per rank calls (the main thread).
//   * Work on device tensors is ordered by `stream`; host implementations return when the result is there.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mmt::comm {

enum class ReduceOp : std::uint8_t { sum, max, min };

/// Memory of one rank that its whole communicator can address: reductions of tensors inside it copy nothing.
/// 64-byte aligned, zeroed, valid as long as the owner (or the communicator's world) lives.
struct SharedBlock {
  std::shared_ptr<void> owner;
  void* data = nullptr;
  std::size_t bytes = 0;
  explicit operator bool() const { return data != nullptr; }
};

class Communicator {
 public:
  explicit Communicator(std::string name) : name_(std::move(name)) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  const std::string& name() const { return name_; }  ///< for messages: "world", "llm.dp"

  /// data, in place, on every rank: the reduction over all ranks' data. Any dtype.
  void all_reduce(const Tensor& data, ReduceOp op, const Stream& stream = {});
  /// output[i] = reduction over ranks of their input[rank() * n + i]; input has size() * n elements, output n.
  /// output may be this rank's part of input.
  void reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op, const Stream& stream = {});
  /// The same with a part per rank: inputs[r] is this rank's contribution to rank r; output is as large as
  /// inputs[rank()] and may be it. inputs[r] has the same size on every rank.
  void reduce_scatter_v(std::span<const Tensor> inputs, const Tensor& output, ReduceOp op, const Stream& stream = {});
  /// output[r * n + i] = rank r's input[i]. input may be this rank's part of output.
  void all_gather(const Tensor& input, const Tensor& output, const Stream& stream = {});
  /// outputs[r] = rank r's input, sizes equal on all ranks for each r. input may be outputs[rank()].
  void all_gather_v(const Tensor& input, std::span<const Tensor> outputs, const Stream& stream = {});
  void broadcast(const Tensor& data, int root, const Stream& stream = {});
  /// sends[r] goes to rank r, recvs[r] comes from rank r; sends[r] here is as large as recvs[rank()] there. No
  /// aliasing.
  void all_to_all_v(std::span<const Tensor> sends, std::span<const Tensor> recvs, const Stream& stream = {});
  /// Returns at once. The receiver's tensor has as many bytes.
  void send(const Tensor& data, int to, const Stream& stream = {});
  void recv(const Tensor& data, int from, const Stream& stream = {});
  void barrier();

  /// Between begin and end, sends and receives may be held back and issued together (NCCL needs it; hosts do nothing).
  virtual void group_begin() {}
  virtual void group_end() {}

  /// Collective. Ranks of equal color form a communicator, ordered by (key, rank here); a negative color takes part and
  /// gets null. Made at start only, in one order on all ranks.
  std::unique_ptr<Communicator> split(int color, int key, std::string_view name);
  /// Collective; `bytes` may differ by rank. Empty on every rank when the ranks do not share memory (other nodes, or a
  /// shared file system that is too small).
  virtual SharedBlock shared_alloc(std::size_t bytes) = 0;
  /// Collective: room for `bytes` of sent and not yet received data per rank. With more under way the rest waits in
  /// the sender's own memory until that rank enters the communicator again.
  virtual void reserve_sends(std::size_t bytes) = 0;
  /// Moves what waits to be sent; called between actions and row chunks.
  virtual void poll() {}

  /// What this rank is busy with, for the messages of its waits on any communicator of the world; empty: no more. It is
  /// asked only when a wait ends in an error.
  virtual void set_doing(std::function<std::string()> doing) = 0;

  /// Makes the waits of all ranks throw PeerError with this cause. Callable from any rank's main thread, more than once
  /// (the first cause stays), also while an exception is in flight.
  virtual void abort(std::string_view cause) noexcept = 0;

 protected:
  virtual void do_all_reduce(const Tensor& data, ReduceOp op, const Stream& stream) = 0;
  virtual void do_reduce_scatter_v(std::span<const Tensor> inputs, const Tensor& output, ReduceOp op,
                                   const Stream& stream) = 0;
  virtual void do_all_gather_v(const Tensor& input, std::span<const Tensor> outputs, const Stream& stream) = 0;
  virtual void do_broadcast(const Tensor& data, int root, const Stream& stream) = 0;
  virtual void do_all_to_all_v(std::span<const Tensor> sends, std::span<const Tensor> recvs, const Stream& stream) = 0;
  virtual void do_send(const Tensor& data, int to, const Stream& stream) = 0;
  virtual void do_recv(const Tensor& data, int from, const Stream& stream) = 0;
  virtual void do_barrier() = 0;
  virtual std::unique_ptr<Communicator> do_split(int color, int key, std::string name) = 0;

 private:
  std::string name_;
};

/// Begin and end of a group as a scope. `end()` issues it; leaving the scope by an exception does not.
class Group {
 public:
  explicit Group(Communicator& comm) : comm_(comm) { comm_.group_begin(); }
  void end() { comm_.group_end(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

 private:
  Communicator& comm_;
};

}  // namespace mmt::comm
