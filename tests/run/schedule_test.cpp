#include "parallel/run/schedule.h"
#include "core/error.h"

#include <catch2/catch.hpp>

using namespace mmt;
using namespace mmt::run;

namespace {

Schedule example(ScheduleKind kind) {
  Schedule s;
  s.kind = kind;
  s.lr = 2e-5;
  s.min_lr = 2e-6;
  s.warmup_updates = 100;
  s.total_updates = 1000;
  s.decay_updates = 200;
  return s;
}

}  // namespace

// Values of the formulas in schedule.h, computed in Python.
TEST_CASE("learning rates by update number") {
  struct Row {
    std::int64_t update;
    double linear, cosine, wsd, wsd_sqrt, inverse_sqrt;
  };
  const Row rows[] = {
      {1, 2e-07, 2e-07, 2e-07, 2e-07, 2e-07},
      {50, 1e-05, 1e-05, 1e-05, 1e-05, 1e-05},
      {100, 2e-05, 2e-05, 2e-05, 2e-05, 2e-05},
      {101, 1.998e-05, 1.9999945168920116e-05, 2e-05, 2e-05, 1.9900743804199784e-05},
      {550, 1.1e-05, 1.1e-05, 2e-05, 2e-05, 8.528028654224418e-06},
      {900, 4e-06, 2.5427664129268253e-06, 1.1e-05, 7.272077938642144e-06, 6.666666666666667e-06},
      {999, 2.02e-06, 2.0000548310798865e-06, 2.09e-06, 2.045056391065998e-06, 6.327719971683327e-06},
      {1000, 2e-06, 2e-06, 2e-06, 2e-06, 6.324555320336759e-06},
      {1500, 2e-06, 2e-06, 2e-06, 2e-06, 5.163977794943223e-06},
  };
  Schedule sqrt_decay = example(ScheduleKind::wsd);
  sqrt_decay.decay = DecayShape::one_minus_sqrt;
  for (const Row& r : rows) {
    CAPTURE(r.update);
    CHECK(learning_rate(example(ScheduleKind::linear), r.update) == Approx(r.linear).epsilon(1e-12));
    CHECK(learning_rate(example(ScheduleKind::cosine), r.update) == Approx(r.cosine).epsilon(1e-12));
    CHECK(learning_rate(example(ScheduleKind::wsd), r.update) == Approx(r.wsd).epsilon(1e-12));
    CHECK(learning_rate(sqrt_decay, r.update) == Approx(r.wsd_sqrt).epsilon(1e-12));
    CHECK(learning_rate(example(ScheduleKind::inverse_sqrt), r.update) == Approx(r.inverse_sqrt).epsilon(1e-12));
    CHECK(learning_rate(example(ScheduleKind::constant), r.update) ==
          Approx(r.update < 100 ? 2e-7 * static_cast<double>(r.update) : 2e-5));
  }
  CHECK(learning_rate(example(ScheduleKind::inverse_sqrt), 20000) == 2e-6);  // the floor; the formula has 1.41e-6
  Schedule bare;
  bare.lr = 1e-3;
  CHECK(learning_rate(bare, 1) == 1e-3);
  bare.kind = ScheduleKind::inverse_sqrt;
  CHECK(learning_rate(bare, 4) == Approx(5e-4));
  bare.kind = ScheduleKind::cosine;
  bare.warmup_updates = bare.total_updates = 3;
  CHECK(learning_rate(bare, 3) == 1e-3);
  CHECK(learning_rate(bare, 4) == 1e-3);
}

TEST_CASE("impossible learning rates are refused") {
  const auto bad = [](auto change) {
    Schedule s = example(ScheduleKind::wsd);
    change(s);
    CHECK_THROWS_AS(check_schedule(s), ConfigError);
  };
  CHECK_NOTHROW(check_schedule(example(ScheduleKind::wsd)));
  bad([](Schedule& s) { s.lr = 0; });
  bad([](Schedule& s) { s.lr = -1; });
  bad([](Schedule& s) { s.min_lr = 1; });
  bad([](Schedule& s) { s.min_lr = -1; });
  bad([](Schedule& s) { s.warmup_updates = -1; });
  bad([](Schedule& s) { s.warmup_updates = 1001; });
  bad([](Schedule& s) { s.decay_updates = 901; });
  bad([](Schedule& s) { s.total_updates = 0; });
}
