#include "bodies.h"
#include "parallel/comm/self.h"
#include "parallel/comm/threads.h"
#include "parallel/comm/tracing.h"
#include "parallel/comm/values.h"
#include "tests/support/message_of.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using namespace mmt;
using namespace mmt::comm;
using mmt::test::message_of;

namespace {

// Every body on every kind of communicator: one rank, several, tensors read in place, staged, messages only.
void everywhere(const std::function<void(Communicator&)>& body) {
  const auto self = make_self();
  body(*self);
  std::uint64_t seed = 0;
  for (const int ranks : {1, 2, 3, 5}) {
    for (const int kind : {0, 1, 2, 3}) {  // read in place, staged, messages, two nodes
      ThreadOptions options;
      options.direct = kind == 0;
      options.pairwise = kind >= 2;
      options.nodes = kind == 3 ? 2 : 0;
      options.seed = seed++ % 2 == 0 ? 0 : seed;
      options.staging_bytes = kind == 0 ? 256 << 10 : 4 << 10;
      options.outbox_bytes = kind == 0 ? 1 << 20 : 16 << 10;
      run_threads(ranks, body, options);
    }
  }
}

double seconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("reductions run in rank order on every communicator") { everywhere(bodies::reductions); }
TEST_CASE("reduce_scatter and all_gather with equal and own sizes") { everywhere(bodies::gathers_and_scatters); }
TEST_CASE("broadcast from every rank") { everywhere(bodies::broadcasts); }
TEST_CASE("all_to_all with sizes of their own") { everywhere(bodies::all_to_all); }
TEST_CASE("messages keep their order and sends never block") { everywhere(bodies::messages); }
TEST_CASE("split makes groups in key order") { everywhere(bodies::splits); }
TEST_CASE("shared blocks are reduced in place") { everywhere(bodies::shared_memory); }
TEST_CASE("small values are agreed") { everywhere(bodies::values); }

TEST_CASE("a reduction has the same bits in every implementation") {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    std::vector<std::uint64_t> prints;
    for (const int nodes : {-2, -1, 0, 2, 3}) {  // read in place, staged, messages, nodes
      ThreadOptions options;
      options.direct = nodes == -2;
      options.pairwise = nodes >= 0;
      options.nodes = std::max(nodes, 0);
      std::atomic<std::uint64_t> print = 0;
      run_threads(
          ranks,
          [&](Communicator& comm) {
            const std::uint64_t mine = bodies::fingerprint(comm);
            if (comm.rank() == 0) print = mine;
          },
          options);
      prints.push_back(print);
    }
    for (const std::uint64_t p : prints) CHECK(p == prints[0]);
  }
}

TEST_CASE("a rank that fails ends all and its cause is thrown") {
  for (const int fail_at : {0, 1, 5, 17}) {
    for (const bool pairwise : {false, true}) {
      ThreadOptions options;
      options.fail_rank = 2;
      options.fail_at = fail_at;
      options.pairwise = pairwise;
      options.seed = static_cast<std::uint64_t>(fail_at) + 1;
      std::string text;
      const double seconds = seconds_of([&] {
        text = message_of([&] {
          run_threads(
              4,
              [](Communicator& comm) {
                for (int i = 0; i < 10; ++i) {
                  bodies::reductions(comm);
                  bodies::messages(comm);
                }
              },
              options);
        });
      });
      CHECK(text == fmt::format("rank 2: injected failure in operation {}", fail_at));
      CHECK(seconds < 10);
    }
  }
}

TEST_CASE("the other ranks are told who failed and why") {
  std::atomic<int> told = 0;
  const auto body = [&](Communicator& comm) {
    if (comm.rank() == 1) throw ConfigError("learning rate is negative");
    try {
      comm.barrier();
    } catch (const PeerError& e) {
      if (std::string(e.what()) == "rank 1 failed: learning rate is negative") ++told;
      throw;
    }
  };
  CHECK_THROWS_AS(run_threads(3, body), ConfigError);
  CHECK(told == 2);
  CHECK(message_of([&] { run_threads(3, body); }) == "rank 1: learning rate is negative");
}

TEST_CASE("abort ends the waits of other groups too") {
  CHECK(message_of([] {
          run_threads(4, [](Communicator& comm) {
            const auto pair = comm.split(comm.rank() / 2, 0, "pair");
            if (comm.rank() == 3) {
              comm.abort("no more data");
              return;
            }
            std::vector<float> v(1000);
            for (;;) pair->all_reduce(Tensor(v.data(), DType::f32, {1000}), ReduceOp::sum);
          });
        }).find("rank 3 failed: no more data") != std::string::npos);
}

TEST_CASE("a wait that is not answered names the ranks that are missing") {
  ThreadOptions options;
  options.timeout_seconds = 0.4;
  const std::string collective = message_of([&] {
    run_threads(
        3,
        [](Communicator& comm) {
          const auto group = comm.split(0, 0, "llm.dp");
          std::vector<float> v(4);
          group->barrier();
          if (comm.rank() != 2) group->all_reduce(Tensor(v.data(), DType::f32, {4}), ReduceOp::sum);
          if (comm.rank() == 2) group->recv(Tensor(v.data(), DType::f32, {4}), 0);
        },
        options);
  });
  INFO(collective);
  const bool waits =
      collective.find("llm.dp") != std::string::npos && collective.find("no answer for 0.4 s") != std::string::npos;
  CHECK(waits);
  const bool names =
      collective.find(
          "call number 2, all_reduce (sum of f32) of 16 bytes, for rank 2 (its last call: number 1, barrier)") !=
          std::string::npos ||
      collective.find("rank 2 waits for a message of 16 bytes (0 have come) from rank 0") != std::string::npos;
  CHECK(names);
}

TEST_CASE("a wait that is not answered says what the rank was doing") {
  ThreadOptions options;
  options.timeout_seconds = 0.3;
  const auto run = [&](bool cleared) {
    return message_of([&] {
      run_threads(
          2,
          [&](Communicator& comm) {
            const auto group = comm.split(0, 0, "edge 3");
            std::string action = "1RECV2@e3";
            comm.set_doing([&] { return action; });
            action = "1RECV4@e3";  // asked when the wait ends
            if (cleared) comm.set_doing({});
            float v = 0;
            if (comm.rank() == 1) group->recv(Tensor(&v, DType::f32, {1}), 0);
            comm.set_doing({});
          },
          options);
    });
  };
  const std::string text = run(false);
  INFO(text);
  CHECK(text.find("no answer for 0.3 s: edge 3: rank 1 waits for a message of 4 bytes (0 have come) from rank 0 "
                  "(in 1RECV4@e3)") != std::string::npos);
  CHECK(run(true).find("(in ") == std::string::npos);
}

TEST_CASE("ranks whose calls differ are told which") {
  const std::string text = message_of([] {
    run_threads(2, [](Communicator& comm) {
      std::vector<float> v(8);
      const Tensor t(v.data(), DType::f32, {8});
      comm.barrier();
      if (comm.rank() == 0) comm.all_reduce(t, ReduceOp::sum);
      if (comm.rank() == 1) comm.all_reduce(t.row_range(0, 2), ReduceOp::sum);
    });
  });
  INFO(text);
  CHECK(text.find("the ranks have come apart at call number 2") != std::string::npos);
  CHECK(text.find("of 32 bytes") != std::string::npos);
  CHECK(text.find("of 8 bytes") != std::string::npos);
  CHECK_THROWS_AS(run_threads(2,
                              [](Communicator& comm) {
                                std::vector<float> v(8);
                                const Tensor t(v.data(), DType::f32, {8});
                                if (comm.rank() == 0) comm.send(t, 1);
                                if (comm.rank() == 1) comm.recv(t.row_range(0, 4), 0);
                                comm.barrier();
                              }),
                  std::logic_error);
}

TEST_CASE("arguments are checked") {
  const auto self = make_self();
  std::vector<float> v(8);
  const Tensor t(v.data(), DType::f32, {4, 2});
  CHECK_THROWS_AS(self->all_reduce(t.col_range(0, 1), ReduceOp::sum), std::logic_error);
  CHECK_THROWS_AS(self->broadcast(t, 1), std::logic_error);
  CHECK_THROWS_AS(self->send(t, -1), std::logic_error);
  CHECK_THROWS_AS(self->reduce_scatter(t, t.row_range(0, 2), ReduceOp::sum), std::logic_error);
  CHECK_THROWS_AS(self->all_gather_v(t, {}), std::logic_error);
  CHECK_THROWS_AS(self->all_reduce(Tensor(nullptr, DType::f32, {4}), ReduceOp::sum), std::logic_error);
}

TEST_CASE("a trace has the order and the bytes") {
  run_threads(2, [](Communicator& inner) {
    CommTrace trace;
    const auto comm = make_tracing(inner, trace);
    const auto group = comm->split(0, 0, "dp");
    std::vector<float> v(100);
    const Tensor t(v.data(), DType::f32, {100});
    group->all_reduce(t, ReduceOp::sum);
    group->reduce_scatter(t, t.row_range(comm->rank() * 50, 50), ReduceOp::sum);
    group->all_gather(t.row_range(comm->rank() * 50, 50), t);
    comm->send(t.row_range(0, 3), 1 - comm->rank());
    comm->recv(t.row_range(0, 3), 1 - comm->rank());
    comm->broadcast(t, 1);
    comm->barrier();
    const int peer = 1 - comm->rank();
    const std::vector<CommEvent> expected = {{"all_reduce", "dp", 400, -1}, {"reduce_scatter", "dp", 400, -1},
                                             {"all_gather", "dp", 400, -1}, {"send", "world", 12, peer},
                                             {"recv", "world", 12, peer},   {"broadcast", "world", 400, 1},
                                             {"barrier", "world", 0, -1}};
    MMT_CHECK(trace.events == expected, "{} events", trace.events.size());
    MMT_CHECK(trace.bytes("send") == 12 && trace.bytes("send", "dp") == 0, "bytes");
  });
}

TEST_CASE("a sender goes on while the receiver is away") {
  // The receiver sleeps 200 ms before it receives; the sender is through at once.
  std::atomic<bool> quick = false;
  run_threads(2, [&](Communicator& comm) {
    comm.reserve_sends(4 << 20);
    std::vector<float> v(200000, 1.0f);
    const Tensor t(v.data(), DType::f32, {200000});
    if (comm.rank() == 0) {
      const double seconds = seconds_of([&] {
        for (int i = 0; i < 4; ++i) comm.send(t, 1);
      });
      quick = seconds < 0.15;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      for (int i = 0; i < 4; ++i) comm.recv(t, 0);
    }
    comm.barrier();
  });
  CHECK(quick);
}
