#include "parallel/run/trace.h"

#include "parallel/comm/threads.h"

#include <catch2/catch.hpp>

#include <cmath>

using namespace mmt;
using namespace mmt::run;

TEST_CASE("a measured timeline puts all ranks on rank 0's clock with the error it states") {
  // Rank r's clock is off by this; its run starts r ms after rank 0's by the true time.
  const std::vector<double> skew = {0.0, 5.0, -3.25};
  MeasuredTrace trace;
  std::vector<std::vector<plan::Ns>> errors(3);
  comm::run_threads(3, [&](comm::Communicator& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    const Clock clock = [&] { return monotonic_seconds() + skew[r]; };
    double origin = monotonic_seconds();
    world.broadcast(Tensor(&origin, DType::f64, {1}), 0);
    std::vector<TraceRow> rows;
    for (int i = 0; i <= world.rank(); ++i) {
      TraceRow row;
      row.action = plan::parse_action(fmt::format("{}F{}", world.rank(), i));
      row.start = 0.002 * i;
      row.end = row.start + 0.001;
      row.thread_seconds = 0.0005 + 0.0001 * i;
      rows.push_back(row);
    }
    if (world.rank() == 2) rows.back().action = plan::parse_action("1RECV0@e0");
    MeasuredTrace mine = gather_trace(world, rows, origin + 0.001 * world.rank() + skew[r], 100 + world.rank(),
                                      200 + world.rank(), clock);
    errors[r] = mine.clock_error;
    if (world.rank() == 0) trace = std::move(mine);
  });
  REQUIRE(trace.timeline.ranks.size() == 3);
  CHECK(trace.clock_error[0] == 0);
  for (std::size_t r = 0; r < 3; ++r) {
    const plan::RankTimeline& line = trace.timeline.ranks[r];
    INFO("rank " << r << ", error " << trace.clock_error[r] << " ns");
    CHECK(errors[r] == trace.clock_error);
    CHECK(line.peak == 100 + static_cast<std::int64_t>(r));
    CHECK(line.arenas == 200 + static_cast<std::int64_t>(r));
    REQUIRE(line.rows.size() == r + 1);
    REQUIRE(trace.cpu[r].size() == r + 1);
    for (std::size_t i = 0; i <= r; ++i) {
      const auto expected = static_cast<plan::Ns>(1'000'000 * r + 2'000'000 * i);
      // One more microsecond: the clocks' seconds are doubles near 1e5.
      CHECK(std::abs(line.rows[i].start - expected) <= trace.clock_error[r] + 1000);
      CHECK(std::abs(line.rows[i].end - line.rows[i].start - 1'000'000) <= 1);
      CHECK(trace.cpu[r][i] == static_cast<plan::Ns>(500'000 + 100'000 * i));
    }
    CHECK(trace.clock_error[r] < 2'000'000'000);  // not the skew
  }
  CHECK(to_string(trace.timeline.ranks[2].rows[1].action) == "2F1");
  // Rank 2 ends last: 2 ms after rank 0 began, and 5 ms of its own.
  CHECK(std::abs(trace.timeline.makespan - 7'000'000) <= trace.clock_error[2] + 1000);
  CHECK(std::abs(trace.timeline.ranks[2].transfer - 1'000'000) <= 2);
}

TEST_CASE("clocks that agree are left alone") {
  MeasuredTrace trace;
  comm::run_threads(2, [&](comm::Communicator& world) {
    double origin = 1000.0;
    TraceRow row;
    row.action = plan::parse_action("0F0");
    row.end = 0.5;
    MeasuredTrace mine = gather_trace(world, std::span(&row, 1), origin, 0, 0);
    if (world.rank() == 0) trace = std::move(mine);
  });
  CHECK(trace.timeline.ranks[1].rows[0].start == 0);
  CHECK(trace.timeline.makespan == 500'000'000);
}
