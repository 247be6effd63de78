// The work lists of a tile plan. Every cut is a function of one sample's own tiles, so that neither the number of
// threads nor the rest of the pack changes the order of a sum.
#include "core/at.h"
#include "core/mask/tile_sweep.h"

#include <algorithm>
#include <map>

namespace mmt {
namespace {

// A query block is cut when it reads more key rows than this and than its share of its sample (one query block over a
// long cache, short query lists of context parallelism); else whole blocks are work enough.
constexpr std::int64_t kMinItemKeyRows = 4096;
constexpr std::int64_t kItemsPerSample = 64;
// Key blocks of a long sample are dealt to several threads, each with a dQ of its own.
constexpr std::int64_t kKeyRowsPerSlot = 1024;
constexpr std::int32_t kMaxSlots = 4;

/// Rows of the other side under the non-empty tiles of a block.
std::int64_t rows_under(const std::vector<TileRun>& runs, std::int32_t first, std::int32_t last,
                        const std::vector<std::int32_t>& start) {
  std::int64_t rows = 0;
  for (std::int32_t r = first; r < last; ++r) rows += start[at(runs[at(r)].last)] - start[at(runs[at(r)].first)];
  return rows;
}

void make_forward(TilePlan& plan, const MaskSide& queries) {
  std::vector<std::int64_t> key_rows(at(plan.query_blocks()));
  std::map<std::uint32_t, std::int64_t> of_sample;
  const auto sample = [&](std::int32_t b) { return sample_of(queries.words[at(plan.query_start[at(b)])]); };
  for (std::int32_t b = 0; b < plan.query_blocks(); ++b) {
    key_rows[at(b)] =
        rows_under(plan.query_runs, plan.query_first_run[at(b)], plan.query_first_run[at(b) + 1], plan.key_start);
    of_sample[sample(b)] += key_rows[at(b)];
  }
  for (std::int32_t b = 0; b < plan.query_blocks(); ++b) {
    const std::int64_t limit =
        std::max(kMinItemKeyRows, (of_sample[sample(b)] + kItemsPerSample - 1) / kItemsPerSample);
    const std::int64_t query_rows = plan.query_start[at(b) + 1] - plan.query_start[at(b)];
    ForwardItem item{.query_block = b};
    const std::int32_t first_partial = plan.num_partials;
    const bool cut = key_rows[at(b)] > limit;
    std::int64_t rows = 0;
    const auto close = [&] {
      item.cost = rows * query_rows;
      if (cut) item.partial = plan.num_partials++;
      plan.forward.push_back(item);
      item.first = item.last;
      rows = 0;
    };
    for (std::int32_t r = plan.query_first_run[at(b)]; r < plan.query_first_run[at(b) + 1]; ++r) {
      const TileRun& run = plan.query_runs[at(r)];
      if (!cut) {
        item.last += run.last - run.first;
        rows += plan.key_start[at(run.last)] - plan.key_start[at(run.first)];
        continue;
      }
      for (std::int32_t k = run.first; k < run.last; ++k) {
        if (rows >= limit) close();
        ++item.last;
        rows += plan.key_start[at(k) + 1] - plan.key_start[at(k)];
      }
    }
    close();
    if (cut)
      plan.merges.push_back(
          {.query_block = b, .first_partial = first_partial, .count = plan.num_partials - first_partial});
  }
  std::stable_sort(plan.forward.begin(), plan.forward.end(),
                   [](const ForwardItem& a, const ForwardItem& b) { return a.cost > b.cost; });
}

/// Finds the items that are alone with their rows, and lists the blocks of all others.
void mark_own(TilePlan& plan, const MaskSide& queries, const std::map<std::uint32_t, std::int32_t>& slots) {
  const auto sample = [&](std::int32_t b) { return sample_of(queries.words[at(plan.query_start[at(b)])]); };
  std::vector<bool> own_query(at(plan.query_blocks()), false), own_key(at(plan.key_blocks()), false);
  for (BackwardItem& item : plan.backward) {
    std::int32_t first = plan.query_blocks(), last = 0;
    bool one_run = true;
    for (std::int32_t i = item.first; i < item.last; ++i) {
      const std::int32_t k = plan.backward_keys[at(i)];
      one_run = one_run && (i == item.first || plan.backward_keys[at(i - 1)] + 1 == k);
      const std::int32_t from = plan.key_first_run[at(k)], to = plan.key_first_run[at(k) + 1];
      if (from == to) continue;
      first = std::min(first, plan.key_runs[at(from)].first);
      last = std::max(last, plan.key_runs[at(to - 1)].last);
    }
    first = std::min(first, last);
    for (std::int32_t b = first; b < last; ++b) one_run = one_run && sample(b) == sample(first);
    const auto rows = [](const std::vector<std::int32_t>& start, std::int32_t a, std::int32_t b) {
      return start[at(b)] - start[at(a)];
    };
    const std::int32_t first_key = plan.backward_keys[at(item.first)];
    const std::int32_t last_key = first_key + item.last - item.first;
    item.own = one_run && (first == last || slots.at(sample(first)) == 1) &&
               rows(plan.query_start, first, last) <= kOwnRows && rows(plan.key_start, first_key, last_key) <= kOwnRows;
    if (!item.own) continue;
    item.first_query = first;
    item.last_query = last;
    for (std::int32_t b = first; b < last; ++b) own_query[at(b)] = true;
    for (std::int32_t k = first_key; k < last_key; ++k) own_key[at(k)] = true;
  }
  for (std::int32_t b = 0; b < plan.query_blocks(); ++b)
    if (!own_query[at(b)]) plan.shared_query_blocks.push_back(b);
  for (std::int32_t k = 0; k < plan.key_blocks(); ++k)
    if (!own_key[at(k)]) plan.shared_key_blocks.push_back(k);
}

void make_backward(TilePlan& plan, const MaskSide& queries, const MaskSide& keys) {
  const auto sample = [&](std::int32_t k) { return sample_of(keys.words[at(plan.key_start[at(k)])]); };
  const auto rows_of = [&](std::int32_t k) { return plan.key_start[at(k) + 1] - plan.key_start[at(k)]; };
  for (std::int32_t k = 0; k < plan.key_blocks(); ++k) plan.backward_keys.push_back(k);
  std::stable_sort(plan.backward_keys.begin(), plan.backward_keys.end(),
                   [&](std::int32_t a, std::int32_t b) { return sample(a) < sample(b); });

  std::map<std::uint32_t, std::int32_t> slots;
  const auto num_keys = static_cast<std::int32_t>(plan.backward_keys.size());
  for (std::int32_t first = 0; first < num_keys;) {
    const std::uint32_t s = sample(plan.backward_keys[at(first)]);
    std::vector<std::int64_t> cost;
    std::int64_t total = 0, rows = 0;
    std::int32_t last = first;
    for (; last < num_keys && sample(plan.backward_keys[at(last)]) == s; ++last) {
      const std::int32_t k = plan.backward_keys[at(last)];
      cost.push_back(rows_of(k) * rows_under(plan.key_runs, plan.key_first_run[at(k)], plan.key_first_run[at(k) + 1],
                                             plan.query_start));
      total += cost.back();
      rows += rows_of(k);
    }
    const std::int64_t wanted = s == 0 ? 1 : std::clamp<std::int64_t>(rows / kKeyRowsPerSlot, 1, kMaxSlots);
    std::int32_t used = 0;
    std::int64_t before = 0;
    for (std::int32_t i = first; i < last;) {
      BackwardItem item{.first = i, .last = i, .slot = used++};
      const auto share_of = [&](std::int64_t done) {
        return total == 0 ? 0 : std::min(done * wanted / total, wanted - 1);
      };
      const std::int64_t share = share_of(before);
      while (i < last && share_of(before) == share) {
        item.cost += cost[at(i - first)];
        before += cost[at(i - first)];
        item.last = ++i;
      }
      plan.backward.push_back(item);
    }
    slots[s] = used;
    first = last;
  }
  for (std::int32_t b = 0; b < plan.query_blocks(); ++b) {
    const bool seen = plan.query_first_run[at(b)] < plan.query_first_run[at(b) + 1];
    plan.query_slots.push_back(seen ? slots[sample_of(queries.words[at(plan.query_start[at(b)])])] : 0);
    plan.num_slots = std::max(plan.num_slots, plan.query_slots.back());
  }
  mark_own(plan, queries, slots);
  std::stable_sort(plan.backward.begin(), plan.backward.end(),
                   [](const BackwardItem& a, const BackwardItem& b) { return a.cost > b.cost; });
}

}  // namespace

void make_work_lists(TilePlan& plan, const MaskSide& queries, const MaskSide& keys) {
  make_forward(plan, queries);
  make_backward(plan, queries, keys);
}

std::int64_t max_forward_partials(std::int64_t key_rows) {
  // A sample is cut only when it has more than kMinItemKeyRows key rows; a cut block with r key rows has at most
  // r / limit + 1 <= 2 r / limit items (every item but the last reaches the limit), all of a sample 2 kItemsPerSample.
  return key_rows / kMinItemKeyRows * 2 * kItemsPerSample;
}

std::int32_t max_backward_slots(std::int64_t key_rows) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(key_rows / kKeyRowsPerSlot, 1, kMaxSlots));
}

}  // namespace mmt
