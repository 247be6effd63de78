#include "parallel/plan/recompute.h"

#include "core/at.h"
#include "core/error.h"

#include <algorithm>
#include <array>

namespace mmt::plan {
namespace {

/// One layer of a place with less recompute.
struct Saving {
  int layer = 0;
  std::uint8_t level = 0;
  Ns saved = 0;
  std::int64_t bytes = 0;  ///< more for each block in flight
};

/// Whether `a` saves more time for its memory; equal: the earlier layer, then the smaller step.
bool better(const Saving& a, const Saving& b) {
  __extension__ using Wide = __int128;
  const Wide left = static_cast<Wide>(a.saved) * std::max<std::int64_t>(b.bytes, 1),
             right = static_cast<Wide>(b.saved) * std::max<std::int64_t>(a.bytes, 1);
  if (left != right) return left > right;
  return a.layer != b.layer ? a.layer < b.layer : a.level > b.level;
}

/// Gives recompute up where the memory of place `p` allows it.
void refine(std::span<const Chain> variants, RecomputeChoice& choice, std::size_t p, std::span<const int> first,
            const CutOptions& options) {
  const PlaceCost& place = choice.cut.places[p];
  std::vector<Saving> steps;
  for (int l = place.first; l < place.first + place.count; ++l) {
    const PlannedLayer& now = choice.chain.layers[at(l)];
    for (std::uint8_t v = 0; v < choice.level[at(l)]; ++v) {
      const PlannedLayer& less = variants[v].layers[at(l)];
      const Ns saved = now.time.total() - less.time.total();
      if (saved > 0) steps.push_back({l, v, saved, less.kept + less.held - now.kept - now.held});
    }
  }
  std::ranges::sort(steps, better);
  for (const Saving& step : steps) {
    if (step.level >= choice.level[at(step.layer)]) continue;
    PlannedLayer& layer = choice.chain.layers[at(step.layer)];
    const PlannedLayer before = layer;
    layer = variants[step.level].layers[at(step.layer)];
    Cut cut = cost_of_cut(choice.chain, first, options);
    if (options.memory > 0 && cut.places[p].memory > options.memory) {
      layer = before;
      continue;
    }
    choice.level[at(step.layer)] = step.level;
    choice.cut = std::move(cut);
  }
}

}  // namespace

RecomputeChoice choose_recompute(std::span<const Chain> variants, int places, const CutOptions& options) {
  MMT_CHECK(!variants.empty(), "there is nothing to choose from");
  for (const Chain& v : variants) {
    MMT_CHECK(v.layers.size() == variants[0].layers.size(), "variants of {} and {} layers", v.layers.size(),
              variants[0].layers.size());
  }
  RecomputeChoice best;
  std::string without;  // what none of it leads to
  for (std::size_t v = 0; v < variants.size(); ++v) {
    RecomputeChoice choice;
    try {
      choice.cut = cut_chain(variants[v], places, options);
    } catch (const ConfigError& e) {
      if (v == 0) without = e.what();
      if (v + 1 == variants.size() && best.level.empty()) throw;
      continue;
    }
    choice.chain = variants[v];
    choice.level.assign(variants[v].layers.size(), static_cast<std::uint8_t>(v));
    std::vector<int> first;
    for (const PlaceCost& p : choice.cut.places) first.push_back(p.first);
    for (std::size_t p = 0; p < first.size(); ++p) refine(variants, choice, p, first, options);
    if (v == 0) without = fmt::format("without, the slowest place takes {}", duration_text(choice.cut.bottleneck));
    if (best.level.empty() || choice.cut.bottleneck < best.cut.bottleneck) best = std::move(choice);
  }
  const auto again = std::ranges::count_if(best.level, [](std::uint8_t l) { return l > 0; });
  best.reason = again == 0 ? "nothing is recomputed"
                           : fmt::format("{} of {} layers recompute, the slowest place takes {}; {}", again,
                                         best.level.size(), duration_text(best.cut.bottleneck), without);
  return best;
}

}  // namespace mmt::plan
