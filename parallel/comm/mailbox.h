// Point-to-point messages through shared memory. The sender copies into its outbox and goes on; the receiver copies
// out.
#pragma once

#include "parallel/comm/shm_group.h"

#include <deque>

namespace mmt::comm {

class Mailbox final : public Progress {
 public:
  /// Lanes are independent streams of messages between the same two ranks.
  enum Lane { kUser = 0, kCollective = 1, kLanes = 2 };

  /// Collective.
  Mailbox(ShmGroup& group, std::size_t outbox_bytes);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// False, on every rank: the memory could not be had.
  bool usable() const { return !control_.bases.empty() && !outbox_.bases.empty(); }
  /// Collective: an outbox of at least that size. Keeps the old one when the memory cannot be had.
  void reserve(std::size_t outbox_bytes);

  /// Never waits: what does not fit now is kept and moved by poll().
  void post(int to, Lane lane, const void* data, std::size_t bytes);
  /// Waits for the next message of (from, lane); throws std::logic_error when its size is not `bytes`.
  void take(int from, Lane lane, void* data, std::size_t bytes, std::string_view comm_name);
  void poll() override;
  bool idle() const { return num_waiting_ == 0; }

 private:
  struct Entry;
  struct Fifo;
  struct Block {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };
  struct Waiting {
    std::vector<char> data;  // what has not been posted
    std::size_t done = 0;    // of data
    std::size_t total = 0;   // of the whole message
    bool started = false;    // its first piece has been posted
  };

  Fifo& fifo(int from, int to, Lane lane) const;
  std::size_t slot(int to, Lane lane) const {
    return static_cast<std::size_t>(to) * kLanes + static_cast<std::size_t>(lane);
  }
  std::size_t post_pieces(int to, Lane lane, const char* data, std::size_t bytes, std::size_t total, bool& started);
  char* ring_space(std::size_t bytes);
  char* own_outbox() const { return outbox_.bases[static_cast<std::size_t>(group_.rank())]; }
  std::size_t num_channels() const { return waiting_.size(); }
  void free_front();

  ShmGroup& group_;
  ShmPieces control_;
  ShmPieces outbox_;
  std::size_t ring_bytes_ = 0;
  std::deque<Block>
      blocks_;  // of the ring, in the order taken; the space between the first's start and the last's end is in use
  std::vector<std::deque<Waiting>> waiting_;
  std::size_t num_waiting_ = 0;
  bool told_ = false;
};

}  // namespace mmt::comm
