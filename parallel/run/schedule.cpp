#include "parallel/run/schedule.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mmt::run {

namespace {

double fall(DecayShape shape, double high, double low, double p) {
  switch (shape) {
    case DecayShape::linear: return high + (low - high) * p;
    case DecayShape::cosine: return low + (high - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * p));
    case DecayShape::one_minus_sqrt: return low + (high - low) * (1.0 - std::sqrt(p));
  }
  return low;
}

}  // namespace

void check_schedule(const Schedule& s) {
  const bool ends = s.kind == ScheduleKind::linear || s.kind == ScheduleKind::cosine || s.kind == ScheduleKind::wsd;
  if (!(s.lr > 0) || !std::isfinite(s.lr)) throw ConfigError(fmt::format("learning rate {} is not positive", s.lr));
  if (!(s.min_lr >= 0) || s.min_lr > s.lr) {
    throw ConfigError(fmt::format("min_lr {} is not between 0 and the learning rate {}", s.min_lr, s.lr));
  }
  if (s.warmup_updates < 0) throw ConfigError(fmt::format("warmup_steps {} is negative", s.warmup_updates));
  if (!ends) return;
  if (s.total_updates < 1) throw ConfigError("this learning rate needs the length of the run");
  if (s.warmup_updates > s.total_updates) {
    throw ConfigError(
        fmt::format("warmup_steps {} is more than the run's {} steps", s.warmup_updates, s.total_updates));
  }
  if (s.kind == ScheduleKind::wsd && (s.decay_updates < 0 || s.warmup_updates + s.decay_updates > s.total_updates)) {
    throw ConfigError(fmt::format("{} steps of warm-up and {} of decay do not fit into {}", s.warmup_updates,
                                  s.decay_updates, s.total_updates));
  }
}

double learning_rate(const Schedule& s, std::int64_t update) {
  MMT_CHECK(update >= 1, "update {}", update);
  const auto ratio = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) / static_cast<double>(b); };
  if (update <= s.warmup_updates) return s.lr * ratio(update, s.warmup_updates);
  if (s.kind == ScheduleKind::constant) return s.lr;
  if (s.kind == ScheduleKind::inverse_sqrt) {
    return std::max(s.min_lr, s.lr * std::sqrt(ratio(std::max<std::int64_t>(s.warmup_updates, 1), update)));
  }
  const std::int64_t u = std::min(update, s.total_updates);
  if (s.kind == ScheduleKind::wsd) {
    const std::int64_t into = u - (s.total_updates - s.decay_updates);
    return into <= 0 ? s.lr : fall(s.decay, s.lr, s.min_lr, ratio(into, s.decay_updates));
  }
  if (u <= s.warmup_updates) return s.lr;  // the run is all warm-up
  const DecayShape shape = s.kind == ScheduleKind::cosine ? DecayShape::cosine : DecayShape::linear;
  return fall(shape, s.lr, s.min_lr, ratio(u - s.warmup_updates, s.total_updates - s.warmup_updates));
}

}  // namespace mmt::run
