#include "parallel/run/rows.h"

#include <algorithm>
#include <cstring>

namespace mmt::run {
namespace {

std::size_t bytes_for(DType dtype, std::int64_t rows, std::int64_t cols) {
  return Arena::footprint(static_cast<std::size_t>(rows * cols * size_of(dtype)));
}

template <class T> Tensor mirror(Arena& arena, DType dtype, std::span<const T> values, std::int64_t cols = 0) {
  const auto n = static_cast<std::int64_t>(values.size());
  const Tensor t = cols == 0 ? arena.take(dtype, {n}) : arena.take(dtype, {n / cols, cols});
  std::ranges::copy(values, t.as<T>());
  return t;
}

/// Rows::address of the rows that `span_of` gives for each item and sample.
template <class F> Tensor make_addresses(Arena& arena, const plan::RowsPlan& plan, std::int64_t rows, F&& span_of) {
  constexpr std::int64_t kItemRows = std::int64_t{1} << 20;
  const Tensor t = arena.take(DType::i64, {rows, 2});
  std::ranges::fill(t.span<std::int64_t>(), -1);
  const auto put = [&](std::int64_t sample, const plan::RowSpan& span, std::int64_t first) {
    for (std::int64_t i = 0; i < span.count; ++i) {
      std::int64_t* at = t.row<std::int64_t>(span.first + i);
      at[0] = sample;
      at[1] = first + i;
    }
  };
  for (const plan::ItemPlan& item : plan.items) {
    MMT_CHECK(span_of(item).count <= kItemRows, "an item of {} rows", span_of(item).count);
    put(item.sample, span_of(item), item.ordinal * kItemRows);
  }
  if constexpr (requires { span_of(plan.samples.front()); }) {
    for (const plan::SamplePlan& sample : plan.samples) put(sample.sample, sample.rows, 0);
  }
  return t;
}

}  // namespace

std::int64_t RowsCapacity::bytes() const {
  const plan::BlockSize& s = size;
  std::size_t sum = bytes_for(DType::i32, s.rows, 1) + bytes_for(DType::i32, s.rows, num_positions);
  sum +=
      static_cast<std::size_t>(num_masks) * (2 * bytes_for(DType::u64, s.rows, 1) + bytes_for(DType::i32, s.rows, 1));
  sum += 3 * bytes_for(DType::i32, s.supervised, 1) + 2 * bytes_for(master, s.supervised, 1) +
         2 * bytes_for(DType::i32, s.out, 1) + bytes_for(DType::i64, s.rows, 2) + bytes_for(DType::i64, s.out, 2);
  sum += bytes_for(master, s.source, source_cols) + 2 * bytes_for(DType::i32, items, 2);
  sum += 2 * bytes_for(master, s.rows, rotary_pairs);
  for (const std::int64_t rows : port_rows) sum += bytes_for(DType::i32, rows, 1);
  return static_cast<std::int64_t>(sum);
}

RowsMemory::RowsMemory(const RowsCapacity& capacity)
    : capacity_(capacity), arena_("rows", static_cast<std::size_t>(capacity.bytes())) {
  from_port_.reserve(static_cast<std::size_t>(capacity.size.rows));
}

void RowsMemory::reset(const plan::RowsPlan& plan, std::span<const int> port_edges, const Stage& stage,
                       const Stream& stream) {
  arena_.release_to(0);
  rows_ = Rows();
  rows_.plan = &plan;
  rows_.size = plan.size;
  const plan::BlockSize& size = plan.size;
  const plan::BlockSize& cap = capacity_.size;
  MMT_CHECK(
      size.rows <= cap.rows && size.supervised <= cap.supervised && size.source <= cap.source && size.out <= cap.out,
      "a block of {} rows, {} supervised, {} media and {} outgoing rows, caps {}, {}, {}, {}", size.rows,
      size.supervised, size.source, size.out, cap.rows, cap.supervised, cap.source, cap.out);
  MMT_CHECK(
      plan.masks.size() == static_cast<std::size_t>(capacity_.num_masks) && plan.tiles.size() == plan.masks.size(),
      "{} masks and {} tile plans for {} masks", plan.masks.size(), plan.tiles.size(), capacity_.num_masks);

  rows_.ids = arena_.take(DType::i32, {size.rows});
  std::ranges::fill(rows_.ids.span<std::int32_t>(), -1);
  rows_.positions = mirror<std::int32_t>(arena_, DType::i32, plan.positions, plan.num_positions);
  for (std::size_t m = 0; m < plan.masks.size(); ++m) {
    MaskRows mask;
    mask.tiles = &plan.tiles[m];
    mask.query_words = mirror<std::uint64_t>(arena_, DType::u64, plan.masks[m].query);
    mask.key_words = mirror<std::uint64_t>(arena_, DType::u64, plan.masks[m].key);
    mask.query_order = mask.key_order = mirror<std::int32_t>(arena_, DType::i32, plan.masks[m].order);
    rows_.masks.push_back(mask);
  }
  rows_.supervised_rows = mirror<std::int32_t>(arena_, DType::i32, plan.supervised_rows);
  rows_.labels = arena_.take(DType::i32, {size.supervised});
  std::ranges::fill(rows_.labels.span<std::int32_t>(), -1);
  rows_.weights = arena_.take(capacity_.master, {size.supervised});
  std::memset(rows_.weights.data, 0, static_cast<std::size_t>(rows_.weights.bytes()));
  rows_.loss = arena_.take(capacity_.master, {size.supervised});
  rows_.predicted = arena_.take(DType::i32, {size.supervised});
  rows_.out_rows = mirror<std::int32_t>(arena_, DType::i32, plan.out_rows);
  std::vector<std::int32_t> newlines;
  for (std::size_t i = 0; i < plan.out_rows.size(); ++i) {
    if (plan.out_rows[i] < 0) newlines.push_back(static_cast<std::int32_t>(i));
  }
  rows_.newline_rows = mirror<std::int32_t>(arena_, DType::i32, newlines);
  rows_.address = make_addresses(arena_, plan, size.rows, [](const auto& part) { return part.rows; });
  rows_.out_address = make_addresses(arena_, plan, size.out, [](const plan::ItemPlan& item) { return item.out; });
  if (capacity_.source_cols > 0) {
    rows_.source = arena_.take(capacity_.master, {size.source, capacity_.source_cols});
    std::memset(rows_.source.data, 0, static_cast<std::size_t>(rows_.source.bytes()));
  }
  if (!plan.items.empty() || capacity_.items > 0) {
    const auto items = static_cast<std::int64_t>(plan.items.size());
    rows_.source_spans = arena_.take(DType::i32, {items, 2});
    rows_.halved_spans = arena_.take(DType::i32, {items, 2});
    for (std::int64_t i = 0; i < items; ++i) {
      const plan::ItemPlan& item = plan.items[static_cast<std::size_t>(i)];
      std::int32_t* const span = rows_.source_spans.row<std::int32_t>(i);
      std::int32_t* const halved = rows_.halved_spans.row<std::int32_t>(i);
      span[0] = halved[0] = static_cast<std::int32_t>(item.source.first);
      span[1] = static_cast<std::int32_t>(item.source.count);
      halved[1] = static_cast<std::int32_t>(std::min(item.source.count, 2 * item.rows.count));
    }
  }
  from_port_.assign(static_cast<std::size_t>(size.rows), 0);
  for (const plan::PortRows& port : plan.ports) {
    for (const std::int32_t row : port.dst) from_port_.at(static_cast<std::size_t>(row)) = 1;
  }
  if (stage.rotary) rows_.rotary = make_rotary_rows(stream, *stage.rotary, capacity_.master, rows_.positions, arena_);
  for (const int edge : port_edges) {
    const auto found = std::ranges::find(plan.ports, edge, &plan::PortRows::edge);
    const std::span<const std::int32_t> dst =
        found == plan.ports.end() ? std::span<const std::int32_t>() : std::span(found->dst);
    rows_.port_dst.push_back(mirror<std::int32_t>(arena_, DType::i32, dst));
  }
}

void RowsMemory::copy_ids(const plan::SamplePlan& sample, std::span<const std::int32_t> ids) {
  auto* const out = rows_.ids.as<std::int32_t>() + sample.rows.first;
  const std::uint8_t* const from_port = from_port_.data() + sample.rows.first;
  for (std::size_t i = 0; i < ids.size(); ++i) out[i] = from_port[i] != 0 ? -1 : ids[i];
}

void RowsMemory::set_sample(std::size_t index, std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                            std::span<const float> weights) {
  const plan::SamplePlan& sample = rows_.plan->samples.at(index);
  const auto count = static_cast<std::size_t>(sample.rows.count);
  MMT_CHECK(ids.size() == count && labels.size() == count && weights.size() == count,
            "sample {}: {} ids, {} labels and {} weights for {} planned rows", sample.sample, ids.size(), labels.size(),
            weights.size(), count);
  copy_ids(sample, ids);
  std::int64_t at = sample.supervised.first;
  const std::int64_t end = at + sample.supervised.count;
  for (std::size_t i = 1; i < count; ++i) {
    if (labels[i] < 0) continue;
    MMT_CHECK(at < end && rows_.plan->supervised_rows[static_cast<std::size_t>(at)] ==
                              sample.rows.first + static_cast<std::int64_t>(i) - 1,
              "sample {}: label {} is not where the plan has it", sample.sample, i);
    rows_.labels.as<std::int32_t>()[at] = labels[i];
    set_weight(at, weights[i]);
    ++at;
  }
  MMT_CHECK(at == end, "sample {}: {} labels fewer than planned", sample.sample, end - at);
}

void RowsMemory::set_ids(std::size_t index, std::span<const std::int32_t> ids) {
  const plan::SamplePlan& sample = rows_.plan->samples.at(index);
  MMT_CHECK(ids.size() == static_cast<std::size_t>(sample.rows.count), "sample {}: {} ids for {} rows", sample.sample,
            ids.size(), sample.rows.count);
  copy_ids(sample, ids);
  for (std::int64_t i = 0; i < sample.supervised.count; ++i) {
    rows_.labels.as<std::int32_t>()[sample.supervised.first + i] = 0;
    set_weight(sample.supervised.first + i, 0.0F);
  }
}

void RowsMemory::set_weight(std::int64_t at, float weight) {
  if (capacity_.master == DType::f64) {
    rows_.weights.as<double>()[at] = weight;
  } else {
    rows_.weights.as<float>()[at] = weight;
  }
}

Tensor RowsMemory::source_of(std::size_t index) const {
  const plan::ItemPlan& item = rows_.plan->items.at(index);
  return rows_.source.row_range(item.source.first, item.source.count);
}

}  // namespace mmt::run
