#include "kernels/sample.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace mmt::ops {
namespace {

struct Candidate {
  double value;  // logit, then probability up to a factor
  std::int32_t id;
};

bool before(const Candidate& a, const Candidate& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

std::vector<Candidate> finite_logits(const Tensor& logits) {
  std::vector<Candidate> list;
  list.reserve(static_cast<std::size_t>(logits.numel()));
  visit_float(logits.dtype, [&]<class T>() {
    const std::span<T> values = logits.span<T>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double value = values[i];
      MMT_CHECK(!std::isnan(value), "sample: logit {} is NaN", i);
      if (std::isfinite(value)) list.push_back({value, static_cast<std::int32_t>(i)});
    }
  });
  MMT_CHECK(!list.empty(), "sample: none of {} logits is finite", logits.numel());
  return list;
}

}  // namespace

std::int32_t sample_token(const Tensor& logits, const SampleOptions& options, double uniform) {
  MMT_CHECK(options.temperature >= 0 && options.top_p > 0 && options.top_p <= 1 && options.top_k >= 0,
            "sample: temperature {}, top_p {}, top_k {}", options.temperature, options.top_p, options.top_k);
  MMT_CHECK(uniform >= 0 && uniform < 1, "sample: uniform number {}", uniform);
  std::vector<Candidate> list = finite_logits(logits);
  if (options.temperature == 0) return std::ranges::min_element(list, before)->id;

  std::ranges::sort(list, before);
  if (options.top_k > 0) list.resize(std::min(list.size(), static_cast<std::size_t>(options.top_k)));
  const double largest = list.front().value;
  double total = 0;
  for (Candidate& c : list) total += c.value = std::exp((c.value - largest) / options.temperature);
  std::size_t kept = 0;
  double mass = 0;
  while (kept < list.size() && (kept == 0 || mass < options.top_p * total)) mass += list[kept++].value;

  double rest = uniform * mass;
  for (std::size_t i = 0; i < kept; ++i) {
    if (rest < list[i].value) return list[i].id;
    rest -= list[i].value;
  }
  return list[kept - 1].id;  // rounding used up the last bit of the mass
}

}  // namespace mmt::ops
