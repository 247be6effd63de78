// `mmtrain profile`: measures what planning goes by, on this machine, and writes it down.
#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/profile.h"
#include "apps/mmtrain/signals.h"
#include "core/log.h"
#include "kernels/backend.h"

#include <algorithm>
#include <iostream>

namespace mmt::app {
namespace {

/// The first usable samples that fill a microbatch.
std::vector<plan::SampleMeta> microbatch_of(const Config& c, const data::DatasetIndex& index,
                                            const data::Preparation& preparation) {
  std::vector<plan::SampleMeta> metas;
  std::int64_t rows = 0;
  for (const std::int64_t sample : index.usable()) {
    plan::SampleMeta meta = sample_meta(index.entry(sample), sample, preparation);
    if (rows + meta.rows > c.train.tokens_per_microbatch && !metas.empty()) break;
    rows += meta.rows;
    metas.push_back(std::move(meta));
  }
  return metas;
}

std::string table_of(const Profile& profile) {
  const auto ms = [](plan::Ns ns) { return ns > 0 ? fmt::format("{:.3f}", 1e-6 * static_cast<double>(ns)) : "-"; };
  std::size_t module = 6, kind = 4;
  for (const ProfiledLayer& l : profile.layers) {
    module = std::max(module, l.module.size());
    kind = std::max(kind, l.measured.kind.size());
  }
  std::string text = fmt::format("{:<{}}  {:<{}}  {:>7}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}\n", "module", module, "kind",
                                 kind, "rows", "GFLOP F", "F ms", "Bd ms", "Bw ms", "R ms");
  for (const ProfiledLayer& l : profile.layers) {
    const plan::MeasuredLayer& m = l.measured;
    text += fmt::format("{:<{}}  {:<{}}  {:>7}  {:>9.3f}  {:>9}  {:>9}  {:>9}  {:>9}\n", l.module, module, m.kind, kind,
                        l.rows, 1e-9 * static_cast<double>(m.flops.forward), ms(m.time.forward),
                        ms(m.time.backward_input), ms(m.time.backward_weight), ms(m.time.recompute));
  }
  const auto link = [](const plan::Link& l) {
    return fmt::format("{:.2f} GB/s and {} a copy", 1e-3 * static_cast<double>(l.bytes_per_us),
                       plan::duration_text(l.latency));
  };
  return text + fmt::format("within a rank {}; between ranks, at each end, {}\n", link(profile.costs.local),
                            link(profile.costs.intra));
}

}  // namespace

int run_profile(Job& job, const Arguments& a) {
  Config c = job.read_for(a.config, a.overrides, 0);
  job.report();
  std::unique_ptr<Preparer> preparer;
  in_agreement(job.world(), [&] { preparer = std::make_unique<Preparer>(c); });
  set_vocabulary(c, preparer->tokenizer());
  const std::vector<data::DatasetIndex> indexes =
      open_indexes(c, c.data.sets, *preparer, job.world(), &stop_requested(), true);
  std::vector<std::vector<plan::SampleMeta>> sets;
  std::vector<const data::DatasetIndex*> views;
  for (const data::DatasetIndex& index : indexes) {
    sets.push_back(microbatch_of(c, index, preparer->preparation()));
    views.push_back(&index);
  }
  const Profile profile = make_profile(c, sets, row_caps(c, views), job.world(), cpu_stream());
  if (job.rank() != 0) return kDone;
  const std::string path = a.out.empty() ? "costs.json" : a.out;
  write_cost_file(path, profile.costs);
  std::cout << table_of(profile);
  log::info("{} measurements in {}; plan with them: cluster: {{costs: {}}}", profile.costs.layers.size(), path, path);
  return kDone;
}

}  // namespace mmt::app
