#include "apps/mmtrain/shared_loading.h"

#include <algorithm>

namespace mmt::app {
namespace {

comm::Communicator* tp_group(const Model& model) { return model.comm(model.own.front(), plan::Axis::tp); }

template <class T> void bring(comm::Communicator& group, std::vector<T>& values, std::int64_t count) {
  values.resize(static_cast<std::size_t>(count));
  group.broadcast(Tensor(values.data(), dtype_of<T>, {count}), 0);
}

}  // namespace

bool reads_samples(const Model& model) { return model.leads(model.own.front()); }

std::vector<data::Wanted> wanted_here(const Model& model, const PlannedStep& step) {
  return reads_samples(model) ? step.wanted : std::vector<data::Wanted>();
}

void share_loaded(const Config& c, const Model& model, const PlannedStep& step, const std::vector<std::int32_t>& faults,
                  std::vector<data::LoadedSample>& loaded) {
  comm::Communicator* group = tp_group(model);
  if (group == nullptr) return;
  const bool reads = reads_samples(model);
  if (!reads) loaded.assign(step.wanted.size(), {});
  for (std::size_t i = 0; i < step.wanted.size(); ++i) {
    const data::Wanted& wanted = step.wanted[i];
    const auto at = static_cast<std::size_t>(step.own[i]);
    const plan::SampleMeta& meta = step.metas[at];
    data::LoadedSample& sample = loaded[i];
    if (!reads) {
      sample.set = wanted.set;
      sample.sample = wanted.sample;
      sample.failed = faults[at] >= 0;
      for (const std::int32_t item : wanted.items) sample.items.push_back({item, {}, {}});
    }
    if (wanted.text) {
      bring(*group, sample.input_ids, meta.rows);
      bring(*group, sample.labels, meta.rows);
      bring(*group, sample.weights, meta.rows);
    }
    for (const std::int32_t number : wanted.items) {
      data::LoadedItem& item = *std::ranges::find(sample.items, number, &data::LoadedItem::item);
      const plan::ItemMeta& shape = meta.items[static_cast<std::size_t>(item.item)];
      const EncoderConfig& encoder = c.encoders[static_cast<std::size_t>(shape.encoder)];
      bring(*group, item.values, shape.source_rows * source_cols(encoder));
    }
  }
}

}  // namespace mmt::app
