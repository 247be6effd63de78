// How many messages of an edge must be able to wait for a schedule to end.
#include "core/at.h"
#include "core/error.h"
#include "parallel/plan/chunks.h"

#include <algorithm>

namespace mmt::plan {
namespace {

/// The links to other places over which a computation receives and sends.
struct LinksOf {
  std::vector<int> receives, sends;
};

/// Runs the orders with channels that hold `credits` messages: before a computation its messages are received, after it
/// its own are sent, one by one.
class CreditRun {
 public:
  CreditRun(const PipelineShape& shape, const std::vector<ComputeOrder>& orders, int credits)
      : orders_(orders), credits_(credits) {
    forward_.resize(shape.stages.size());
    back_.resize(shape.stages.size());
    for (std::size_t l = 0; l < shape.links.size(); ++l) {
      const PipelineShape::Link& link = shape.links[l];
      const auto id = static_cast<int>(l);
      if (shape.stages[at(link.producer)].place == shape.stages[at(link.consumer)].place) continue;
      forward_[at(link.consumer)].receives.push_back(id);
      forward_[at(link.producer)].sends.push_back(id);
      if (!link.needs_grad) continue;
      back_[at(link.producer)].receives.push_back(id);
      back_[at(link.consumer)].sends.push_back(id);
    }
    waiting_.assign(2, std::vector<int>(shape.links.size(), 0));
    next_.assign(orders.size(), 0);
    done_.assign(orders.size(), 0);
  }

  bool ends() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t p = 0; p < orders_.size(); ++p) {
        while (next_[p] < orders_[p].size() && advance(p)) moved = true;
      }
    }
    for (std::size_t p = 0; p < orders_.size(); ++p) {
      if (next_[p] < orders_[p].size()) return false;
    }
    return true;
  }

 private:
  /// One receive or one send of the place's current computation.
  bool advance(std::size_t p) {
    const Action& a = orders_[p][next_[p]];
    const bool forward = a.kind == Kind::forward;
    if (a.kind == Kind::recompute || a.kind == Kind::backward_weight) return ++next_[p], true;
    const LinksOf& links = (forward ? forward_ : back_)[at(a.stage)];
    std::vector<int>& waiting = waiting_[forward ? 0 : 1];
    const std::size_t step = done_[p];
    if (step < links.receives.size()) {
      int& messages = waiting[at(links.receives[step])];
      if (messages == 0) return false;
      --messages;
    } else if (step - links.receives.size() < links.sends.size()) {
      int& messages = waiting[at(links.sends[step - links.receives.size()])];
      if (messages == credits_) return false;
      ++messages;
    }
    if (++done_[p] >= links.receives.size() + links.sends.size()) {
      done_[p] = 0;
      ++next_[p];
    }
    return true;
  }

  const std::vector<ComputeOrder>& orders_;
  int credits_;
  std::vector<LinksOf> forward_, back_;    ///< by stage
  std::vector<std::vector<int>> waiting_;  ///< by direction and link
  std::vector<std::size_t> next_, done_;   ///< by place: computation; receives and sends of it that are done
};

}  // namespace

int credits_of(const PipelineShape& shape, const std::vector<ComputeOrder>& orders) {
  int credits = 2;
  while (credits <= std::max(2, shape.num_blocks)) {
    if (CreditRun(shape, orders, credits).ends()) return credits;
    ++credits;
  }
  throw ConfigError("the places of this layout wait for each other whatever their order: choose policy list");
}

}  // namespace mmt::plan
