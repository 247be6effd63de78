#include "parallel/run/trace.h"

#include "parallel/comm/values.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

namespace mmt::run {

namespace {

constexpr int kPings = 32;

/// What rank r's clock shows more than rank 0's, and how wrong that may be. Rank 0 knows both, others get zeros.
struct Offset {
  double seconds = 0;
  double error = 0;
};

Offset compare_clocks(comm::Communicator& world, int r, const Clock& clock) {
  double there = 0;
  const Tensor message(&there, DType::f64, {1});
  Offset best{0, std::numeric_limits<double>::infinity()};
  for (int i = 0; i < kPings; ++i) {
    if (world.rank() == r) {
      world.recv(message, 0);
      there = clock();
      world.send(message, 0);
    } else if (world.rank() == 0) {
      const double before = clock();
      world.send(message, r);
      world.recv(message, r);
      const double after = clock();
      if (after - before < 2 * best.error) best = {there - (before + after) / 2, (after - before) / 2};
    }
  }
  if (world.rank() != 0) return {};
  if (std::abs(best.seconds) <= best.error) best.seconds = 0;
  return best;
}

struct Header {
  double started = 0;
  std::int64_t peak = 0, capacity = 0, rows = 0;
};

plan::Ns nanoseconds(double seconds) { return static_cast<plan::Ns>(std::llround(seconds * 1e9)); }

}  // namespace

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

MeasuredTrace gather_trace(comm::Communicator& world, const Executor& executor) {
  return gather_trace(world, executor.trace(), executor.started(), executor.peak_bytes(), executor.capacity_bytes());
}

MeasuredTrace gather_trace(comm::Communicator& world, std::span<const TraceRow> rows, double started,
                           std::int64_t peak_bytes, std::int64_t capacity_bytes, const Clock& clock) {
  world.barrier();
  std::vector<Offset> offsets(static_cast<std::size_t>(world.size()));
  for (int r = 1; r < world.size(); ++r) offsets[static_cast<std::size_t>(r)] = compare_clocks(world, r, clock);
  MeasuredTrace trace;
  for (const Offset& o : offsets) trace.clock_error.push_back(nanoseconds(o.error));
  world.broadcast(Tensor(trace.clock_error.data(), DType::i64, {std::ssize(trace.clock_error)}), 0);

  static_assert(std::is_trivially_copyable_v<TraceRow> && sizeof(plan::Ns) == 8);
  const Header header{started, peak_bytes, capacity_bytes, std::ssize(rows)};
  std::string packed(sizeof(Header) + rows.size_bytes(), '\0');
  std::memcpy(packed.data(), &header, sizeof(Header));
  if (!rows.empty()) std::memcpy(packed.data() + sizeof(Header), rows.data(), rows.size_bytes());
  const std::vector<std::string> all = comm::all_gather(world, packed);
  if (world.rank() != 0) return trace;

  std::vector<double> starts;
  for (std::size_t r = 0; r < all.size(); ++r) {
    Header h;
    std::memcpy(&h, all[r].data(), sizeof(Header));
    starts.push_back(h.started - offsets[r].seconds);
  }
  const double first = *std::ranges::min_element(starts);
  for (std::size_t r = 0; r < all.size(); ++r) {
    Header h;
    std::memcpy(&h, all[r].data(), sizeof(Header));
    std::vector<TraceRow> theirs(static_cast<std::size_t>(h.rows));
    if (h.rows > 0) std::memcpy(theirs.data(), all[r].data() + sizeof(Header), theirs.size() * sizeof(TraceRow));
    plan::RankTimeline& line = trace.timeline.ranks.emplace_back();
    line.rank = static_cast<int>(r);
    line.peak = h.peak;
    line.arenas = h.capacity;
    std::vector<plan::Ns>& cpu = trace.cpu.emplace_back();
    for (const TraceRow& row : theirs) {
      const double at = starts[r] - first;
      line.rows.push_back({row.action, nanoseconds(at + row.start), nanoseconds(at + row.end)});
      cpu.push_back(nanoseconds(row.thread_seconds));
    }
  }
  summarise(trace.timeline);
  return trace;
}

}  // namespace mmt::run
