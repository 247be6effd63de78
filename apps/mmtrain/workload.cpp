#include "apps/mmtrain/workload.h"

#include "models/spec.h"

#include <algorithm>

namespace mmt::app {
namespace {

constexpr int kSteps = 8;

void add(plan::BlockSize& sum, const plan::BlockSize& size) {
  sum.rows += size.rows;
  sum.supervised += size.supervised;
  sum.source += size.source;
  sum.out += size.out;
  sum.tiles += size.tiles;
}

plan::BlockSize mean(const plan::BlockSize& sum, std::int64_t count) {
  const auto part = [&](std::int64_t x) { return (x + count / 2) / count; };
  return {part(sum.rows), part(sum.supervised), part(sum.source), part(sum.out), part(sum.tiles)};
}

}  // namespace

plan::EncoderRows encoder_rows_of(const EncoderConfig& e) {
  const bool drops_class = e.spec.modality == "image" && e.spec.class_token && e.spec.select == "patch";
  return {.name = e.spec.name,
          .leading_rows = drops_class ? 1 : 0,
          .merge = e.spec.merge,
          .pool = e.spec.pool,
          .grid = e.spec.rope_theta > 0,
          .tile_side = models::tile_side(e.spec)};
}

plan::LlmRows llm_rows_of(const Config& c) {
  return {.num_encoders = static_cast<int>(c.encoders.size()),
          .windows = models::mask_windows(c.llm.spec),
          .bidirectional_media = c.llm.bidirectional_media,
          .num_positions = models::num_positions(c.llm.spec)};
}

Workload workload_of(const Config& c, const data::Sampler& sampler, const std::vector<data::DatasetIndex>& indexes,
                     const RowCaps& caps, const data::Preparation& preparation) {
  Workload w;
  w.caps = caps;
  const std::size_t encoders = c.encoders.size();
  std::vector<plan::BlockSize> sums(encoders + 1);
  std::int64_t blocks = 0, cursor = 0;
  std::vector<int> counts;
  const plan::LlmRows llm_rows = llm_rows_of(c);
  for (int step = 0; step < kSteps && (!c.train.steps || step < *c.train.steps); ++step) {
    std::vector<plan::SampleMeta> metas;
    for (const data::Draw& d : sampler.batch(cursor, c.train.global_batch_size, c.train.epochs.has_value())) {
      const data::DatasetIndex& index = indexes[static_cast<std::size_t>(d.set)];
      metas.push_back(
          sample_meta(index.entry(index.usable()[static_cast<std::size_t>(d.sample)]), d.place, preparation));
    }
    if (metas.empty()) break;
    cursor += static_cast<std::int64_t>(metas.size());
    const plan::Assignment assignment =
        plan::assign(metas, {.lanes = c.parallel.meshes.front().dp,
                             .block_rows = c.train.tokens_per_microbatch,
                             .min_blocks = static_cast<int>(c.train.microbatches.value_or(1))});
    counts.push_back(assignment.num_blocks);
    for (const auto& lane : assignment.samples) {
      for (const std::vector<std::int32_t>& block : lane) {
        ++blocks;
        for (std::size_t e = 0; e < encoders; ++e)
          add(sums[e], plan::encoder_rows(metas, block, static_cast<int>(e), encoder_rows_of(c.encoders[e])).size);
        add(sums.back(), plan::llm_rows(metas, block, llm_rows).size);
      }
    }
  }
  w.steps = static_cast<int>(counts.size());
  for (const plan::BlockSize& sum : sums) w.block.push_back(mean(sum, std::max<std::int64_t>(blocks, 1)));
  std::ranges::sort(counts);
  if (counts.empty()) return w;
  w.num_blocks = counts[counts.size() / 2];
  w.least_blocks = counts.front();
  w.most_blocks = counts.back();
  return w;
}

Workload workload_of(const std::vector<plan::BlockSize>& sizes, int num_blocks) {
  Workload w;
  w.block = sizes;
  w.num_blocks = w.least_blocks = w.most_blocks = num_blocks;
  w.caps.llm = sizes.back();
  w.caps.encoders.assign(sizes.begin(), sizes.end() - 1);
  w.caps.encoder_items.assign(w.caps.encoders.size(), 1);
  w.caps.blocks = num_blocks;
  return w;
}

}  // namespace mmt::app
