#include "core/mask/tile_sweep.h"

#include "core/at.h"
#include "core/error.h"

#include <algorithm>

namespace mmt {
namespace {
constexpr std::int64_t kUnbound = std::int64_t{1} << 40;  // beyond any difference of two places
}  // namespace

std::vector<Segment> segments_of(const MaskSide& side) {
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < side.words.size(); ++i) {
    const std::uint64_t word = side.words[i];
    const bool padding = sample_of(word) == 0;
    if (!segments.empty()) {
      Segment& last = segments.back();
      const bool joins = padding ? sample_of(last.word) == 0
                                 : last.word == word && std::int64_t{last.order} + last.rows == side.order[i];
      if (joins) {
        ++last.rows;
        continue;
      }
    }
    segments.push_back({.word = padding ? 0 : word,
                        .order = padding ? 0 : side.order[i],
                        .first = static_cast<std::int32_t>(i),
                        .rows = 1});
  }
  return segments;
}

namespace tile_sweep {

std::int32_t Side::block_of(std::int32_t row) const {
  return static_cast<std::int32_t>(std::upper_bound(start.begin(), start.end(), row) - start.begin()) - 1;
}

std::span<const std::int32_t> Side::segments_of_sample(std::uint32_t sample) const {
  const auto found = std::lower_bound(samples.begin(), samples.end(), sample);
  if (found == samples.end() || *found != sample) return {};
  const auto s = static_cast<std::size_t>(found - samples.begin());
  return std::span(by_sample).subspan(at(sample_first[s]), at(sample_first[s + 1] - sample_first[s]));
}

void Side::parts_of(std::int32_t block, std::vector<Segment>& parts) const {
  parts.clear();
  const std::int32_t begin = start[at(block)], end = start[at(block) + 1];
  for (std::size_t s = at(first_part[at(block)]); s < segments.size() && segments[s].first < end; ++s) {
    const Segment& whole = segments[s];
    const std::int32_t first = std::max(whole.first, begin);
    const std::int32_t last = std::min(whole.first + whole.rows, end);
    if (whole.word == 0 || first >= last) continue;
    parts.push_back(
        {.word = whole.word, .order = whole.order + (first - whole.first), .first = first, .rows = last - first});
  }
}

Side make_side(const MaskSide& side, std::int32_t block_rows, bool cut_at_samples) {
  MMT_CHECK(side.words.size() == side.order.size(), "attention mask: {} words, {} places", side.words.size(),
            side.order.size());
  MMT_CHECK(side.words.size() < std::size_t{1} << 30, "attention mask: {} rows", side.words.size());
  Side s;
  s.segments = segments_of(side);
  // Blocks: at most block_rows rows, from the start of each run of one sample (or of the whole list).
  for (std::size_t i = 0; i < s.segments.size();) {
    const std::int32_t begin = s.segments[i].first;
    std::int32_t end = begin;
    const std::uint32_t sample = sample_of(s.segments[i].word);
    while (i < s.segments.size() && (!cut_at_samples || sample_of(s.segments[i].word) == sample)) {
      end = s.segments[i].first + s.segments[i].rows;
      ++i;
    }
    for (std::int32_t row = begin; row < end; row += block_rows) s.start.push_back(row);
  }
  s.start.push_back(static_cast<std::int32_t>(side.words.size()));

  std::int32_t segment = 0;
  for (std::int32_t b = 0; b < s.blocks(); ++b) {
    while (s.segments[at(segment)].first + s.segments[at(segment)].rows <= s.start[at(b)]) ++segment;
    s.first_part.push_back(segment);
  }
  for (std::size_t i = 0; i < s.segments.size(); ++i)
    if (s.segments[i].word != 0) s.by_sample.push_back(static_cast<std::int32_t>(i));
  std::stable_sort(s.by_sample.begin(), s.by_sample.end(), [&](std::int32_t a, std::int32_t b) {
    return sample_of(s.segments[at(a)].word) < sample_of(s.segments[at(b)].word);
  });
  for (std::size_t i = 0; i < s.by_sample.size(); ++i) {
    const std::uint32_t sample = sample_of(s.segments[at(s.by_sample[i])].word);
    if (!s.samples.empty() && s.samples.back() == sample) continue;
    s.samples.push_back(sample);
    s.sample_first.push_back(static_cast<std::int32_t>(i));
  }
  s.sample_first.push_back(static_cast<std::int32_t>(s.by_sample.size()));
  return s;
}

Pairing pairing(const Segment& query, const Segment& key, std::int32_t window) {
  if (sample_of(query.word) == 0 || sample_of(query.word) != sample_of(key.word)) return {};
  if (group_of(query.word) != 0 && group_of(query.word) == group_of(key.word)) return {.relation = Relation::all};
  if ((classes_of(query.word) & classes_of(key.word)) == 0) return {};
  const bool unbound = window == 0 || (classes_of(key.word) & row_class::kSink) != 0;
  return {.relation = Relation::band, .window = unbound ? kUnbound : window};
}

namespace {

/// Pairs (i, j) with a <= i < a + n, c <= j < c + m and j <= i - shift.
std::int64_t pairs_below(std::int64_t a, std::int64_t n, std::int64_t c, std::int64_t m, std::int64_t shift) {
  const auto sum_to = [m](std::int64_t x) {  // of clamp(u, 0, m) over u <= x
    if (x <= 0) return std::int64_t{0};
    if (x <= m) return x * (x + 1) / 2;
    return m * (m + 1) / 2 + (x - m) * m;
  };
  const std::int64_t first = a - shift - c + 1;
  return sum_to(first + n - 1) - sum_to(first - 1);
}

std::int64_t band_pairs(const Segment& query, const Segment& key, std::int64_t window) {
  return pairs_below(query.order, query.rows, key.order, key.rows, 0) -
         pairs_below(query.order, query.rows, key.order, key.rows, window);
}

struct Places {
  std::int64_t first, last;  ///< inclusive
};

/// Places of the other side that at least one, or that every, place of [first, last] is paired with.
Places some_of(std::int64_t first, std::int64_t last, std::int64_t window, bool along_keys) {
  return along_keys ? Places{first - window + 1, last} : Places{first, last + window - 1};
}
Places every_of(std::int64_t first, std::int64_t last, std::int64_t window, bool along_keys) {
  return along_keys ? Places{last - window + 1, first} : Places{last, first + window - 1};
}

}  // namespace

Sweep::Sweep(const Side& own, const Side& other, std::int32_t window, bool along_keys)
    : own_(own), other_(other), window_(window), along_keys_(along_keys) {}

void Sweep::touch(std::int32_t first, std::int32_t last) {
  changes_.push_back({.block = other_.block_of(first), .touch = 1});
  changes_.push_back({.block = other_.block_of(last - 1) + 1, .touch = -1});
}

void Sweep::cover(std::int32_t first, std::int32_t last, std::int64_t own_rows) {
  // Rows of the other side at the two ends that cover a part of a block only, then the whole blocks between.
  while (first < last) {
    const std::int32_t block = other_.block_of(first);
    const std::int32_t begin = other_.start[at(block)], end = other_.start[at(block) + 1];
    if (first == begin && end <= last) {
      std::int32_t past = other_.block_of(last - 1);
      if (other_.start[at(past) + 1] <= last) ++past;
      changes_.push_back({.block = block, .cover = own_rows});
      changes_.push_back({.block = past, .cover = -own_rows});
      first = other_.start[at(past)];
    } else {
      const std::int64_t inside = own_rows * (std::min(end, last) - first);
      changes_.push_back({.block = block, .inside = inside});
      changes_.push_back({.block = block + 1, .inside = -inside});
      first = std::min(end, last);
    }
  }
}

void Sweep::add(const Segment& part, const Segment& other) {
  const Pairing p = along_keys_ ? pairing(part, other, window_) : pairing(other, part, window_);
  if (p.relation == Relation::none) return;
  if (p.relation == Relation::all) {
    touch(other.first, other.first + other.rows);
    cover(other.first, other.first + other.rows, part.rows);
    pairs_ += std::int64_t{part.rows} * other.rows;
    return;
  }
  const auto rows_in = [&](const Places& places, auto&& use) {
    const std::int64_t first = std::max<std::int64_t>(places.first, other.order);
    const std::int64_t last = std::min<std::int64_t>(places.last, std::int64_t{other.order} + other.rows - 1);
    if (first > last) return;
    const std::int64_t shift = std::int64_t{other.first} - other.order;
    use(static_cast<std::int32_t>(first + shift), static_cast<std::int32_t>(last + shift + 1));
  };
  const std::int64_t first = part.order, last = std::int64_t{part.order} + part.rows - 1;
  rows_in(some_of(first, last, p.window, along_keys_), [&](std::int32_t a, std::int32_t b) { touch(a, b); });
  rows_in(every_of(first, last, p.window, along_keys_),
          [&](std::int32_t a, std::int32_t b) { cover(a, b, part.rows); });
  pairs_ += along_keys_ ? band_pairs(part, other, p.window) : band_pairs(other, part, p.window);
}

TileCounts Sweep::run(std::int32_t block, std::vector<TileRun>& runs) {
  own_.parts_of(block, parts_);
  changes_.clear();
  pairs_ = 0;
  for (const Segment& part : parts_)
    for (const std::int32_t s : other_.segments_of_sample(sample_of(part.word))) add(part, other_.segments[at(s)]);
  std::sort(changes_.begin(), changes_.end(), [](const Change& a, const Change& b) { return a.block < b.block; });

  TileCounts counts;
  counts.pairs = pairs_;
  const std::int64_t own_rows = own_.rows_of(block);
  const std::size_t first_run = runs.size();
  Change now;
  for (std::size_t i = 0; i < changes_.size();) {
    const std::int32_t from = changes_[i].block;
    for (; i < changes_.size() && changes_[i].block == from; ++i) {
      now.touch += changes_[i].touch;
      now.cover += changes_[i].cover;
      now.inside += changes_[i].inside;
    }
    if (now.touch == 0 || i == changes_.size()) continue;
    const std::int32_t to = changes_[i].block;
    // Where rows cover a part of a tile, the stretch is that one tile.
    const std::int64_t rows = other_.rows_of(from);
    const bool full = now.cover * rows + now.inside == own_rows * rows;
    (full ? counts.full : counts.partial) += to - from;
    counts.area += own_rows * (other_.start[at(to)] - other_.start[at(from)]);
    const TileClass kind = full ? TileClass::full : TileClass::partial;
    if (runs.size() > first_run && runs.back().last == from && runs.back().kind == kind)
      runs.back().last = to;
    else
      runs.push_back({.first = from, .last = to, .kind = kind});
  }
  counts.empty = other_.blocks() - counts.tiles();
  return counts;
}

void tile_bits(const std::vector<Segment>& queries, std::int32_t query_start, const std::vector<Segment>& keys,
               std::int32_t key_start, std::int32_t window, std::span<std::uint64_t> words) {
  std::fill(words.begin(), words.end(), 0);
  const auto set = [&](std::int32_t key, std::int64_t first, std::int64_t last) {  // query rows of the tile
    const std::uint64_t to_last = last >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << last) - 1;
    words[at(key)] |= to_last & ~((std::uint64_t{1} << first) - 1);
  };
  for (const Segment& q : queries) {
    const std::int64_t row = q.first - query_start;
    for (const Segment& k : keys) {
      const Pairing p = pairing(q, k, window);
      if (p.relation == Relation::none) continue;
      for (std::int32_t j = 0; j < k.rows; ++j) {
        const std::int32_t key = k.first - key_start + j;
        if (p.relation == Relation::all) {
          set(key, row, row + q.rows);
          continue;
        }
        const std::int64_t place = std::int64_t{k.order} + j;
        const std::int64_t first = std::max<std::int64_t>(place - q.order, 0);
        const std::int64_t last = std::min<std::int64_t>(place + p.window - q.order, q.rows);
        if (first < last) set(key, row + first, row + last);
      }
    }
  }
}

}  // namespace tile_sweep
}  // namespace mmt
