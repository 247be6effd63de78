// Learning rates as pure functions of the update number: a resumed run needs nothing but the number.
#pragma once

#include <cstdint>
#include <string_view>

namespace mmt::run {

enum class ScheduleKind : std::uint8_t { constant, linear, cosine, wsd, inverse_sqrt };
enum class DecayShape : std::uint8_t { linear, cosine, one_minus_sqrt };

struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double lr = 0;      ///< the peak
  double min_lr = 0;  ///< where linear, cosine and wsd end; the floor of inverse_sqrt
  std::int64_t warmup_updates = 0;
  std::int64_t total_updates = 0;         ///< of the run; needed by linear, cosine and wsd
  std::int64_t decay_updates = 0;         ///< wsd: length of the decay at the end
  DecayShape decay = DecayShape::linear;  ///< wsd
};

/// Throws ConfigError on values that make no schedule (negative, min_lr above lr, warm-up longer than the run).
void check_schedule(const Schedule& schedule);

/// Rate of update u = 1, 2, ... (update u uses it). With w = warmup_updates, n = total_updates:
///   u <= w: lr * u / w (update w has the peak; the first one is not wasted on a rate of 0), in every kind.
///   linear, cosine: p = (u - w) / (n - w); lr + (min_lr - lr) * p; min_lr + (lr - min_lr) * (1 + cos(pi p)) / 2.
///   wsd (warm-up, stable, decay; Hu et al. 2024): lr until n - decay_updates, then q in (0, 1] of the decay:
///     linear, cosine as above in q, or min_lr + (lr - min_lr) * (1 - sqrt(q)) (Haegele et al. 2024).
///   inverse_sqrt (Vaswani et al. 2017): max(min_lr, lr * sqrt(max(w, 1) / u)).
/// After update n: the last value.
double learning_rate(const Schedule& schedule, std::int64_t update);

}  // namespace mmt::run
