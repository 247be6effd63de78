#include "parallel/plan/timing.h"

#include "core/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace mmt::plan {
namespace {

/// round(a * b / c) for non-negative a, b and positive c, in 128 bits; throws when it does not fit.
std::int64_t scaled(std::int64_t a, std::int64_t b, std::int64_t c) {
  __extension__ using Wide = __int128;
  const Wide value = (static_cast<Wide>(a) * b + c / 2) / c;
  MMT_CHECK(value <= std::numeric_limits<std::int64_t>::max(), "{} * {} / {} does not fit", a, b, c);
  return static_cast<std::int64_t>(value);
}

}  // namespace

LayerTime& LayerTime::operator+=(const LayerTime& o) {
  forward += o.forward;
  backward_input += o.backward_input;
  backward_weight += o.backward_weight;
  recompute += o.recompute;
  return *this;
}

LayerFlops flops_of(const LayerCost& cost, const BlockSize& size) {
  return {cost.forward(size), cost.backward_input(size), cost.backward_weight(size)};
}

CostModel::CostModel(CostRates rates, std::vector<MeasuredLayer> measured) : rates_(rates) {
  std::ranges::stable_sort(measured, {}, &MeasuredLayer::kind);
  for (const MeasuredLayer& m : measured) {
    if (kinds_.empty() || kinds_.back().name != m.kind) kinds_.push_back({m.kind, {}, {}, {}, {}});
    Kind& kind = kinds_.back();
    const auto add = [](std::vector<Point>& points, std::int64_t flops, Ns time) {
      if (flops > 0 && time >= 0) points.push_back({flops, time});
    };
    add(kind.forward, m.flops.forward, m.time.forward);
    add(kind.backward_input, m.flops.backward_input, m.time.backward_input);
    add(kind.backward_weight, m.flops.backward_weight, m.time.backward_weight);
    if (m.time.recompute > 0) add(kind.recompute, m.flops.forward, m.time.recompute);
  }
  for (Kind& kind : kinds_) {
    for (auto* points : {&kind.forward, &kind.backward_input, &kind.backward_weight, &kind.recompute}) {
      std::ranges::stable_sort(*points, {}, &Point::flops);
      // Several measurements of one size: the fastest, as the others were disturbed.
      std::vector<Point> unique;
      for (const Point& p : *points) {
        if (!unique.empty() && unique.back().flops == p.flops) {
          unique.back().time = std::min(unique.back().time, p.time);
        } else {
          unique.push_back(p);
        }
      }
      *points = std::move(unique);
    }
  }
}

const CostModel::Kind* CostModel::find(std::string_view kind) const {
  const auto at = std::ranges::lower_bound(kinds_, kind, {}, &Kind::name);
  return at != kinds_.end() && at->name == kind ? &*at : nullptr;
}

bool CostModel::has_measured(std::string_view kind) const { return find(kind) != nullptr; }

Ns CostModel::read(std::span<const Point> points, std::int64_t flops) {
  const auto above = std::ranges::lower_bound(points, flops, {}, &Point::flops);
  if (above == points.begin() || points.size() == 1) return scaled(flops, points[0].time, points[0].flops);
  const auto high = above == points.end() ? above - 1 : above;
  const Point &a = *(high - 1), &b = *high;
  const Ns rise = b.time - a.time;
  if (rise >= 0) return a.time + scaled(flops - a.flops, rise, b.flops - a.flops);
  // Falling times are noise of the measurement; beyond the last point such a line would end below zero.
  if (above == points.end()) return scaled(flops, b.time, b.flops);
  return a.time - scaled(flops - a.flops, -rise, b.flops - a.flops);
}

LayerTime CostModel::time_of(const LayerInfo& layer, const BlockSize& size) const {
  const LayerFlops flops = flops_of(layer.cost, size);
  MMT_CHECK(flops.forward >= 0 && flops.backward_input >= 0 && flops.backward_weight >= 0,
            "{} has negative FLOPs for this block: {} {} {}", layer.name, flops.forward, flops.backward_input,
            flops.backward_weight);
  const Kind* kind = find(layer.kind);
  const auto part = [&](std::vector<Point> Kind::*points, std::int64_t f, Ns rate) -> Ns {
    if (f == 0) return 0;
    if (kind != nullptr && !(kind->*points).empty()) return read(kind->*points, f);
    return scaled(f, rate, 1'000'000'000);
  };
  LayerTime time;
  time.forward = part(&Kind::forward, flops.forward, rates_.forward);
  time.backward_input = part(&Kind::backward_input, flops.backward_input, rates_.backward_input);
  time.backward_weight = part(&Kind::backward_weight, flops.backward_weight, rates_.backward_weight);
  if (layer.recompute && layer.backward) {
    const bool measured = kind != nullptr && !kind->recompute.empty();
    time.recompute = measured ? part(&Kind::recompute, flops.forward, rates_.forward) : time.forward;
  }
  return time;
}

Ns Link::time(std::int64_t bytes) const {
  if (bytes_per_us <= 0) return latency;
  return latency + scaled(bytes, 1000, bytes_per_us);
}

std::string duration_text(Ns time) {
  const auto ns = static_cast<double>(time);
  if (time >= 10'000'000'000) return fmt::format("{:.1f} s", ns / 1e9);
  if (time >= 1'000'000'000) return fmt::format("{:.2f} s", ns / 1e9);
  if (time >= 10'000'000) return fmt::format("{:.0f} ms", ns / 1e6);
  if (time >= 1'000'000) return fmt::format("{:.2f} ms", ns / 1e6);
  if (time >= 1'000) return fmt::format("{:.1f} us", ns / 1e3);
  return fmt::format("{} ns", time);
}

std::string bytes_text(std::int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (bytes >= std::int64_t{1} << 30) return fmt::format("{:.1f} GiB", b / (1 << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", b / (1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{:.1f} KiB", b / (1 << 10));
  return fmt::format("{} B", bytes);
}

}  // namespace mmt::plan
