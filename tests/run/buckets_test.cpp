#include "parallel/run/buckets.h"
#include "core/philox.h"
#include "kernels/backend.h"
#include "parallel/comm/threads.h"
#include "parallel/comm/tracing.h"
#include "tests/support/message_of.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::run;
using mmt::test::message_of;

namespace {

const std::vector<BucketItem> kBucketItems = {
    {"llm/head", 100}, {"llm/norm", 7}, {"llm/up", 500}, {"llm/down", 3}, {"llm/embed", 1}};

float value(int rank, std::size_t item, std::int64_t i) {
  return static_cast<float>(random_normal(9, item, static_cast<std::uint32_t>(rank), static_cast<std::uint64_t>(i)));
}

}  // namespace

TEST_CASE("buckets hold whole gradients in order and are summed over the lanes") {
  for (const int lanes : {1, 2, 3}) {
    comm::run_threads(lanes, [&](comm::Communicator& inner) {
      comm::CommTrace trace;
      const auto data = make_tracing(inner, trace);
      GradientBuckets buckets("llm", kBucketItems, DType::f32, {.max_bytes = 1024}, {.data = data.get()}, cpu_stream());
      // 112 + 16 + 512 elements of 4 bytes reach 1024 bytes with the third; the rest is the second bucket.
      MMT_CHECK(buckets.num_buckets() == 2, "{}", buckets.num_buckets());
      const std::vector<int> expected = {0, 0, 0, 1, 1};
      for (std::size_t i = 0; i < kBucketItems.size(); ++i) {
        MMT_CHECK(buckets.bucket_of(i) == expected[i] && buckets.grad(i).numel() == kBucketItems[i].count, "item {}",
                  i);
        MMT_CHECK(reinterpret_cast<std::uintptr_t>(buckets.grad(i).data) % 64 == 0, "item {}", i);
        for (std::int64_t k = 0; k < kBucketItems[i].count; ++k)
          buckets.grad(i).as<float>()[k] = value(inner.rank(), i, k);
      }
      trace.events.clear();
      for (int b = 0; b < buckets.num_buckets(); ++b) buckets.reduce(b);
      MMT_CHECK(trace.events.size() == 2 && trace.bytes("all_reduce") == (112 + 16 + 512 + 16 + 16) * 4, "{} bytes",
                trace.bytes("all_reduce"));
      for (std::size_t i = 0; i < kBucketItems.size(); ++i) {
        for (std::int64_t k = 0; k < kBucketItems[i].count; ++k) {
          float sum = value(0, i, k);
          for (int r = 1; r < lanes; ++r) sum += value(r, i, k);
          MMT_CHECK(buckets.grad(i).as<float>()[k] == sum, "item {} element {}", i, k);
        }
      }
    });
  }
  GradientBuckets alone("llm", kBucketItems, DType::f64, {.max_bytes = 1 << 20}, {}, cpu_stream());
  CHECK(alone.num_buckets() == 1);
  alone.reduce(0);
  GradientBuckets none("frozen", {}, DType::f32, {}, {}, cpu_stream());
  CHECK(none.num_buckets() == 0);
}

TEST_CASE("lanes with other buckets are told which differs") {
  const std::string text = message_of([] {
    comm::run_threads(3, [](comm::Communicator& data) {
      std::vector<BucketItem> items = kBucketItems;
      if (data.rank() == 2) items[3].count = 4;
      GradientBuckets buckets("llm", items, DType::f32, {.max_bytes = 1024}, {.data = &data}, cpu_stream());
    });
  });
  INFO(text);
  CHECK(text.find("llm: bucket 1 of the gradients differs between data lanes 0 and 2") != std::string::npos);
  CHECK(text.find("llm/down") != std::string::npos);
  CHECK(message_of([] {
          comm::run_threads(2, [](comm::Communicator& data) {
            GradientBuckets buckets("llm", std::span(kBucketItems).first(data.rank() == 0 ? 5 : 3), DType::f32,
                                    {.max_bytes = 1024}, {.data = &data}, cpu_stream());
          });
        }).find("bucket 1") != std::string::npos);
}

TEST_CASE("replicas that drift apart are named") {
  const auto run = [](int bad_rank, float change) {
    return message_of([&] {
      comm::run_threads(3, [&](comm::Communicator& comm) {
        std::vector<float> a(100, 1.0f), b(50, 2.0f);
        if (comm.rank() == bad_rank) b[20] += change;
        const Replica list[] = {{"llm/a", Tensor(a.data(), DType::f32, {100})},
                                {"llm/b", Tensor(b.data(), DType::f32, {50})}};
        check_replicas(comm, list, cpu_stream());
      });
    });
  };
  CHECK(run(-1, 0) == "");
  const std::string text = run(2, 0.5f);
  INFO(text);
  CHECK(text.find("llm/b differs between rank 0 and rank 2") != std::string::npos);
  CHECK(text.find("relative error 0.0056") != std::string::npos);   // sqrt(49 * 4 + 2.5^2) / sqrt(50 * 4) - 1
  CHECK(run(1, 2e-7f).find("llm/b differs") != std::string::npos);  // one bit
}
