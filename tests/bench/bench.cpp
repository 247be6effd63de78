#include "bench/bench.h"

#include "core/error.h"
#include "kernels/backend.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace mmt::bench {
namespace {

constexpr double kShortestSeconds = 2e-3;  // of one timing: below it the clock and the start of threads show

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class F> double seconds_of(const F& call, int times) {
  const double start = now();
  for (int n = 0; n < times; ++n) call();
  return std::max(now() - start, 1e-9) / times;
}

int calls_a_timing(double once) { return std::max(1, static_cast<int>(std::ceil(kShortestSeconds / once))); }

Seconds summary(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  return {seconds.front(), seconds[seconds.size() / 2]};
}

}  // namespace

double unit_scale(const std::string& unit) {
  if (unit == "GF/s" || unit == "GB/s" || unit == "G/s" || unit == "GB") return 1e9;
  if (unit == "MB/s") return 1e6;
  return 1.0;
}

Seconds Bench::time(const std::function<void()>& call) const {
  call();
  const double once = seconds_of(call, 1);
  const int inner = calls_a_timing(once);
  std::vector<double> seconds;
  if (inner == 1) seconds.push_back(once);
  while (std::ssize(seconds) < repeats_) seconds.push_back(seconds_of(call, inner));
  return summary(seconds);
}

void Bench::memory_rate(const std::string& name, double bytes, const std::function<void()>& call, Traffic traffic) {
  constexpr double kMostTouched = 512 << 20;  // far beyond any cache
  const double touched = traffic == Traffic::in_place ? bytes / 2 : bytes;
  const MemoryPass pass(traffic, static_cast<std::int64_t>(std::min(touched, kMostTouched)));
  call();
  pass();
  const int calls = calls_a_timing(seconds_of(call, 1)), passes = calls_a_timing(seconds_of(pass, 1));
  std::vector<double> seconds, limit;
  for (int i = 0; i < repeats_; ++i) {
    seconds.push_back(seconds_of(call, calls));
    limit.push_back(seconds_of(pass, passes));
  }
  rate(name, "GB/s", bytes, summary(seconds), traffic == Traffic::in_place ? "in-place beside it" : "copy beside it",
       pass.moved() / summary(limit).best);
}

void Bench::rate(const std::string& name, const std::string& unit, double amount, Seconds seconds,
                 const std::string& limit_name, double limit) {
  const double scale = unit_scale(unit);
  add({name, unit, amount / seconds.best / scale, amount / seconds.median / scale, limit_name, limit / scale});
}

void print_table(const Row& r) {
  fmt::print("{:<52}{:>10.2f} {:<9}", r.name, r.best, r.unit);
  if (r.limit > 0.0) fmt::print("{:>5.0f} % of {:.2f} ({})", 100 * r.best / r.limit, r.limit, r.limit_name);
  fmt::print("; median {:.2f}\n", r.median);
}

void print_json(const Row& r) {
  nlohmann::ordered_json j = {{"name", r.name}, {"figure", r.best}, {"unit", r.unit}};
  j["limit"] = r.limit > 0.0 ? nlohmann::ordered_json(r.limit) : nlohmann::ordered_json(nullptr);
  j["share"] = r.limit > 0.0 ? nlohmann::ordered_json(r.best / r.limit) : nlohmann::ordered_json(nullptr);
  j["best"] = r.best;
  j["median"] = r.median;
  j["limit_name"] = r.limit_name;
  fmt::print("{}\n", j.dump());
}

OwnedTensor filled(DType dtype, std::initializer_list<std::int64_t> shape) {
  constexpr std::int64_t kPeriod = 2001;
  OwnedTensor t(dtype, shape);
  const std::int64_t count = t->numel(), first = std::min(count, kPeriod);
  visit_float(dtype, [&]<class T>() {
    T* const x = t->as<T>();
    for (std::int64_t i = 0; i < first; ++i) x[i] = T(static_cast<float>(i * 7919 % kPeriod) / 1000.0f - 1.0f);
    for (std::int64_t done = first; done < count; done += std::min(done, count - done))
      std::copy_n(x, std::min(done, count - done), x + done);
  });
  return t;
}

}  // namespace mmt::bench
