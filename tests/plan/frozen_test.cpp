#include "parallel/plan/frozen.h"
#include "parallel/plan/timing.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::plan;

namespace {

constexpr std::int64_t kF = 100, kBd = 30, kBw = 7;

Linear flops(std::int64_t n) { return {.constant = n}; }

/// A flow_layer with parameter `param` that reads `predecessors`.
FlowNode flow_layer(std::vector<int> predecessors, int param) {
  return {std::move(predecessors), flops(kF), flops(kBd), {{param, flops(kBw)}}};
}

std::int64_t time_of(const Flow& f) {
  return f.cost.forward({}) + f.cost.backward_input({}) + f.cost.backward_weight({});
}

/// encoder layers 0, 1, projector 2, LLM layers 3, 4, 5; parameter = flow_layer.
std::vector<Flow> one_encoder(const std::vector<bool>& trainable) {
  std::vector<FlowNode> nodes;
  for (int i = 0; i < 6; ++i) nodes.push_back(flow_layer(i == 0 ? std::vector<int>{} : std::vector<int>{i - 1}, i));
  return frozen_flow(nodes, trainable);
}

}  // namespace

TEST_CASE("frozen encoder and LLM with a trainable projector: F; F + Bw; F + Bd") {
  const auto flow = one_encoder({false, false, true, false, false, false});
  REQUIRE((time_of(flow[0]) == kF && time_of(flow[1]) == kF));
  REQUIRE_FALSE(flow[1].needs_backward());
  REQUIRE_FALSE(flow[1].output_grad());
  REQUIRE(time_of(flow[2]) == kF + kBw);
  REQUIRE((flow[2].needs_backward() && !flow[2].input_grad && flow[2].trains));
  for (int i = 3; i < 6; ++i) {
    REQUIRE(time_of(flow[static_cast<std::size_t>(i)]) == kF + kBd);
    REQUIRE_FALSE(flow[static_cast<std::size_t>(i)].trains);
  }
}

TEST_CASE("everything trainable: the first flow_layer computes no input gradient") {
  const auto flow = one_encoder(std::vector<bool>(6, true));
  REQUIRE(time_of(flow[0]) == kF + kBw);
  for (std::size_t i = 1; i < 6; ++i) REQUIRE(time_of(flow[i]) == kF + kBw + kBd);
}

TEST_CASE("everything frozen: no backward anywhere") {
  for (const Flow& f : one_encoder(std::vector<bool>(6, false))) REQUIRE(!f.needs_backward());
}

TEST_CASE("a trainable text embedding makes the LLM return gradients behind frozen encoders") {
  // 0 encoder, 1 projector, 2 embedding, 3 first LLM flow_layer (reads both), 4 next.
  const std::vector<FlowNode> nodes{flow_layer({}, 0), flow_layer({0}, 1), flow_layer({}, 2), flow_layer({1, 2}, 3),
                                    flow_layer({3}, 4)};
  auto flow = frozen_flow(nodes, {false, false, true, false, false});
  REQUIRE((flow[3].input_grad && flow[4].input_grad));
  REQUIRE_FALSE(flow[1].output_grad());  // and still nothing returns to the encoder
  REQUIRE(time_of(flow[2]) == kF + kBw);
  flow = frozen_flow(nodes, {false, false, false, false, false});
  REQUIRE_FALSE(flow[3].input_grad);
}

TEST_CASE("of two encoders the frozen one runs no backward while the LLM returns gradients to the other") {
  // 0 vision, 1 its projector, 2 audio, 3 its projector, 4 and 5 LLM.
  const std::vector<FlowNode> nodes{flow_layer({}, 0),  flow_layer({0}, 1),    flow_layer({}, 2),
                                    flow_layer({2}, 3), flow_layer({1, 3}, 4), flow_layer({4}, 5)};
  const auto flow = frozen_flow(nodes, {false, false, false, true, false, false});
  REQUIRE((flow[4].input_grad && flow[5].input_grad));
  REQUIRE_FALSE(flow[0].needs_backward());
  REQUIRE_FALSE(flow[1].needs_backward());
  REQUIRE_FALSE(flow[1].output_grad());
  REQUIRE((flow[3].output_grad() && !flow[2].output_grad()));
}

TEST_CASE("LoRA on q alone needs the input gradient of what is computed behind q and nothing of what is before it") {
  // First flow_layer of a frozen decoder: 0 norm, 1 q, 2 LoRA's A, 3 its B, 4 k, 5 v, 6 attention, 7 o, 8 up, 9 down.
  const auto op = [](std::vector<int> predecessors, std::int64_t bd, std::vector<ParamUse> params) {
    return FlowNode{std::move(predecessors), flops(10), flops(bd), std::move(params)};
  };
  const auto one = [](int p, std::int64_t bw) { return std::vector<ParamUse>{{p, flops(bw)}}; };
  const std::vector<FlowNode> ops{op({}, 1, one(0, 1000)),   op({0}, 2, one(1, 2000)),   op({0}, 4, one(2, 3)),
                                  op({2}, 8, one(3, 5)),     op({0}, 16, one(4, 4000)),  op({0}, 32, one(5, 8000)),
                                  op({1, 3, 4, 5}, 64, {}),  op({6}, 128, one(6, 9000)), op({7}, 256, one(7, 9000)),
                                  op({8}, 512, one(8, 9000))};
  const auto flow = frozen_flow(ops, {false, false, true, true, false, false, false, false, false});
  const Flow flow_layer = joined(flow);
  REQUIRE(flow_layer.cost.backward_input({}) == 8 + 64 + 128 + 256 + 512);
  REQUIRE(flow_layer.cost.backward_weight({}) == 3 + 5);
  REQUIRE(flow_layer.cost.forward({}) == 100);
  REQUIRE((flow_layer.trains && flow_layer.needs_backward()));
  REQUIRE_FALSE((flow[1].input_grad || flow[4].input_grad || flow[5].input_grad));
}

TEST_CASE("a tied parameter is one parameter with two uses") {
  // 0 embedding and 2 head share parameter 0; 1 is a frozen flow_layer.
  const std::vector<FlowNode> nodes{flow_layer({}, 0), flow_layer({0}, 1), flow_layer({1}, 0)};
  auto flow = frozen_flow(nodes, {true, false});
  REQUIRE((time_of(flow[0]) == kF + kBw && time_of(flow[1]) == kF + kBd && time_of(flow[2]) == kF + kBw + kBd));
  flow = frozen_flow(nodes, {false, true});
  REQUIRE((time_of(flow[0]) == kF && time_of(flow[1]) == kF + kBw && time_of(flow[2]) == kF + kBd));
}

TEST_CASE("graphs that are none are refused") {
  REQUIRE_THROWS_AS(frozen_flow(std::vector{flow_layer({0}, 0)}, {true}), std::logic_error);
  REQUIRE_THROWS_AS(frozen_flow(std::vector{flow_layer({}, 1)}, {true}), std::logic_error);
}

TEST_CASE("time of a flow_layer is F + Bd + Bw and F again where it is recomputed and any backward runs") {
  const CostModel model({.forward = 1'000, .backward_input = 2'000, .backward_weight = 4'000});
  LayerInfo l;
  l.cost = {{.constant = 5, .per_row = 1'000'000'000}, {.per_row = 500'000'000}, {.per_tile = 250'000'000}};
  const BlockSize size{.rows = 3, .tiles = 8};
  LayerTime t = model.time_of(l, size);
  REQUIRE(t == LayerTime{3'000, 3'000, 8'000, 0});
  REQUIRE(t.total() == 14'000);
  l.recompute = true;
  REQUIRE(model.time_of(l, size).total() == 14'000);  // frozen and nothing before it trains: never recomputed
  l.backward = true;
  REQUIRE(model.time_of(l, size).total() == 17'000);
}

TEST_CASE("measured times of a kind of flow_layer replace the rates") {
  LayerInfo l;
  l.kind = "block";
  l.backward = l.recompute = true;
  l.cost = {{.per_row = 100}, {.per_row = 100}, {.per_row = 50}};
  const auto measured = [](std::int64_t rows, LayerTime t) {
    return MeasuredLayer{"block", {100 * rows, 100 * rows, 50 * rows}, t};
  };
  const CostModel model({1, 1, 1}, {measured(30, {500, 900, 300, 450}),
                                    measured(10, {200, 300, 100, 150}),
                                    measured(10, {220, 280, 100, 150}),
                                    {"other", {1, 1, 1}, {9, 9, 9, 9}}});
  REQUIRE((model.has_measured("block") && model.has_measured("other") && !model.has_measured("none")));
  const auto at = [&](std::int64_t rows) { return model.time_of(l, {.rows = rows}); };
  REQUIRE(at(10) == LayerTime{200, 280, 100, 150});  // the faster of two measurements of one size
  REQUIRE(at(30) == LayerTime{500, 900, 300, 450});
  REQUIRE(at(20) == LayerTime{350, 590, 200, 300});   // between: on the line
  REQUIRE(at(5) == LayerTime{100, 140, 50, 75});      // below: in proportion
  REQUIRE(at(40) == LayerTime{650, 1210, 400, 600});  // above: along the last line
  REQUIRE(at(0) == LayerTime{});
  // Without Bw (frozen) nothing is booked for it.
  l.cost.backward_weight = {};
  REQUIRE(at(20) == LayerTime{350, 590, 0, 300});
  l.kind = "unknown";
  REQUIRE(at(20'000'000).forward == 2);
}

TEST_CASE("links take their latency and their bytes") {
  const Link link{.overlapped = false, .latency = 7, .bytes_per_us = 12'000};
  REQUIRE(link.time(0) == 7);
  REQUIRE(link.time(24'000) == 2'007);
  REQUIRE(link.time(std::int64_t{1} << 50) == 7 + 93'824'992'236'885);
  REQUIRE(Link{}.time(1 << 30) == 0);
}
