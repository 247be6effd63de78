#include "parallel/plan/partition_modules.h"

#include "core/at.h"
#include "core/error.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace mmt::plan {
namespace {

void append(std::vector<PlannedLayer>& to, const std::vector<PlannedLayer>& layers, const std::string& module) {
  for (PlannedLayer l : layers) {
    l.module = module;
    to.push_back(std::move(l));
  }
}

int size(const std::vector<PlannedLayer>& layers) { return static_cast<int>(layers.size()); }

/// A join behind the last layer of `chain`; its bytes are that layer's.
Join join_behind(const Chain& chain, int to) {
  const PlannedLayer& last = chain.layers.back();
  return {size(chain.layers) - 1, to, last.out_bytes, last.grad_bytes, last.backward};
}

const std::vector<PlannedLayer>& at_reader_of(const ModuleLayers& m) {
  return m.projector_at_reader.empty() ? m.projector : m.projector_at_reader;
}

}  // namespace

Chain joined_chain(std::span<const ModuleLayers> modules) {
  MMT_CHECK(!modules.empty(), "there are no modules");
  const auto encoders = modules.first(modules.size() - 1);
  Chain chain;
  std::vector<int> ends;  // of what each encoder hands on
  const auto join = [&](int from, int to) {
    const PlannedLayer& l = chain.layers[at(from)];
    chain.joins.push_back({from, to, l.out_bytes, l.grad_bytes, l.backward});
  };
  for (const ModuleLayers& m : encoders) {
    MMT_CHECK(!m.layers.empty(), "module {} has no layers", m.name);
    append(chain.layers, m.layers, m.name);
    if (m.side != ProjectorSide::reader) {
      const int projector = size(chain.layers);
      append(chain.layers, m.projector, m.name);
      for (int l = projector; m.side == ProjectorSide::encoder && l < size(chain.layers); ++l)
        chain.layers[at(l)].with_previous = true;
    }
    ends.push_back(size(chain.layers) - 1);
  }
  const int front = size(chain.layers);
  for (std::size_t m = 0; m < encoders.size(); ++m) {
    if (encoders[m].side != ProjectorSide::reader || encoders[m].projector.empty()) continue;
    const int first = size(chain.layers);
    append(chain.layers, encoders[m].projector, encoders[m].name + ".projector");
    join(ends[m], first);
    ends[m] = size(chain.layers) - 1;
  }
  const ModuleLayers& last = modules.back();
  MMT_CHECK(!last.layers.empty(), "module {} has no layers", last.name);
  const int entry = size(chain.layers);
  append(chain.layers, last.layers, last.name);
  for (int l = front + 1; l <= entry; ++l) chain.layers[at(l)].with_previous = true;
  for (const int end : ends) join(end, entry);
  return chain;
}

std::vector<Chain> separate_chains(std::span<const ModuleLayers> modules, const std::vector<bool>& at_reader) {
  MMT_CHECK(!modules.empty() && at_reader.size() + 1 == modules.size(), "{} modules and sides of {} projectors",
            modules.size(), at_reader.size());
  std::vector<Chain> chains(modules.size());
  Chain& last = chains.back();
  int entry = 0;  // the last module's first own layer
  for (std::size_t m = 0; m + 1 < modules.size(); ++m) {
    if (at_reader[m]) entry += size(at_reader_of(modules[m]));
  }
  for (std::size_t m = 0; m + 1 < modules.size(); ++m) {
    Chain& own = chains[m];
    append(own.layers, modules[m].layers, modules[m].name);
    if (!at_reader[m]) append(own.layers, modules[m].projector, modules[m].name);
    MMT_CHECK(!own.layers.empty(), "module {} has no layers", modules[m].name);
    own.joins.push_back(join_behind(own, -1));
    const int first = size(last.layers);
    if (at_reader[m]) append(last.layers, at_reader_of(modules[m]), modules[m].name + ".projector");
    const bool projects = size(last.layers) > first;
    last.joins.push_back(
        {-1, projects ? first : entry, own.joins[0].bytes, own.joins[0].grad_bytes, own.joins[0].needs_grad});
    if (projects) last.joins.push_back(join_behind(last, entry));
  }
  append(last.layers, modules.back().layers, modules.back().name);
  return chains;
}

std::string ModuleCuts::text(std::span<const ModuleLayers> modules) const {
  std::string text;
  for (std::size_t m = 0; m < cuts.size(); ++m) {
    text += fmt::format("{}{} {}", m == 0 ? "" : ", ", modules[m].name, cuts[m].places.size());
  }
  text += " places";
  for (std::size_t m = 0; m < projector_at_reader.size(); ++m) {
    if (projector_at_reader[m]) text += fmt::format(", projector of {} at {}", modules[m].name, modules.back().name);
  }
  return text;
}

namespace {

struct Candidate {
  Ns bottleneck = 0;
  std::vector<int> places;
  std::vector<bool> at_reader;
  int ranks = 0;
};

/// The divisions of `ranks` for one choice of the projectors' sides.
class Division {
 public:
  Division(std::span<const ModuleLayers> modules, const std::vector<bool>& at_reader, int ranks,
           const CutOptions& options)
      : modules_(modules), at_reader_(at_reader), ranks_(ranks), chains_(separate_chains(modules, at_reader)) {
    for (const Chain& chain : chains_) partitions_.emplace_back(chain, options);
  }

  void candidates(std::vector<Candidate>& all) {
    const std::size_t last = modules_.size() - 1;
    const auto own = bottlenecks(last, 0);
    std::vector<std::vector<Ns>> others(last);
    for (int places = modules_[last].min_places; places <= static_cast<int>(own.size()); ++places) {
      const Ns bottleneck = own[at(places - 1)];
      const int left = ranks_ - places * modules_[last].ranks_per_place;
      if (left < 0) break;
      if (bottleneck == kNoCut) continue;
      std::vector<Ns> taus{bottleneck};
      for (std::size_t m = 0; m < last; ++m) {
        if (others[m].empty() || partitions_[m].depends_on_behind()) others[m] = bottlenecks(m, places);
        for (const Ns beta : others[m]) {
          if (beta != kNoCut && beta > bottleneck) taus.push_back(beta);
        }
      }
      std::ranges::sort(taus);
      const auto tau =
          std::ranges::partition_point(taus, [&](Ns t) { return ranks_for(others, t).value_or(ranks_ + 1) > left; });
      if (tau == taus.end()) continue;
      Candidate c{*tau, {}, at_reader_, ranks_ - left + ranks_for(others, *tau).value()};
      for (std::size_t m = 0; m < last; ++m) c.places.push_back(places_for(m, others[m], *tau).value());
      c.places.push_back(places);
      all.push_back(std::move(c));
    }
  }

  ModuleCuts cuts(const Candidate& c) const {
    ModuleCuts all{c.at_reader, {}, 0, c.ranks};
    for (std::size_t m = 0; m < modules_.size(); ++m) {
      const bool is_last = m + 1 == modules_.size();
      all.cuts.push_back(partitions_[m].cut(c.places[m], is_last ? 0 : c.places.back()));
      all.bottleneck = std::max(all.bottleneck, all.cuts.back().bottleneck);
    }
    return all;
  }
  int num_layers(std::size_t m) const { return size(chains_[m].layers); }

 private:
  std::vector<Ns> bottlenecks(std::size_t m, int behind) const {
    int most = modules_[m].max_places > 0 ? modules_[m].max_places : num_layers(m);
    most = std::min(most, ranks_ / modules_[m].ranks_per_place);
    return partitions_[m].bottlenecks(most, behind);
  }
  std::optional<int> places_for(std::size_t m, const std::vector<Ns>& betas, Ns tau) const {
    for (int k = modules_[m].min_places; k <= static_cast<int>(betas.size()); ++k) {
      if (betas[at(k - 1)] <= tau) return k;
    }
    return std::nullopt;
  }
  std::optional<int> ranks_for(const std::vector<std::vector<Ns>>& betas, Ns tau) const {
    int sum = 0;
    for (std::size_t m = 0; m < betas.size(); ++m) {
      const auto places = places_for(m, betas[m], tau);
      if (!places) return std::nullopt;
      sum += *places * modules_[m].ranks_per_place;
    }
    return sum;
  }

  std::span<const ModuleLayers> modules_;
  std::vector<bool> at_reader_;
  int ranks_;
  std::vector<Chain> chains_;
  std::vector<Partition> partitions_;
};

/// All choices of sides, encoder side first.
std::vector<std::vector<bool>> side_choices(std::span<const ModuleLayers> modules) {
  std::vector<std::vector<bool>> all{{}};
  for (std::size_t m = 0; m + 1 < modules.size(); ++m) {
    std::vector<std::vector<bool>> longer;
    const ModuleLayers& module = modules[m];
    for (const auto& choice : all) {
      for (const bool reader : {false, true}) {
        const bool has = !module.projector.empty();
        if (reader ? !has || module.side == ProjectorSide::encoder : has && module.side == ProjectorSide::reader) {
          continue;
        }
        longer.push_back(choice);
        longer.back().push_back(reader);
      }
    }
    all = std::move(longer);
    MMT_CHECK(all.size() <= 64, "{} projectors are free to stand on either side", m + 1);
  }
  return all;
}

void check_budget(std::span<const ModuleLayers> modules, int ranks) {
  int least = 0;
  std::string parts;
  for (const ModuleLayers& m : modules) {
    MMT_CHECK(m.ranks_per_place >= 1 && m.min_places >= 1, "module {}: {} ranks a place, at least {} places", m.name,
              m.ranks_per_place, m.min_places);
    const int layers = size(m.layers) + size(m.projector);
    if (m.min_places > layers) {
      throw ConfigError(
          fmt::format("{} has {} layers: 1 to {} stages are possible, not {}", m.name, layers, layers, m.min_places));
    }
    least += m.min_places * m.ranks_per_place;
    parts += fmt::format("{}{} {} x {}", parts.empty() ? "" : ", ", m.name, m.min_places, m.ranks_per_place);
  }
  if (least > ranks) {
    throw ConfigError(fmt::format("{} ranks a replica are too few for modules on ranks of their own: at least {} ({})",
                                  ranks, least, parts));
  }
}

}  // namespace

std::vector<ModuleCuts> partition_modules(std::span<const ModuleLayers> modules, int ranks, const CutOptions& options,
                                          int count) {
  MMT_CHECK(!modules.empty(), "there are no modules");
  check_budget(modules, ranks);
  std::vector<Candidate> all;
  std::vector<Division> divisions;
  const auto choices = side_choices(modules);
  divisions.reserve(choices.size());
  for (const auto& choice : choices) divisions.emplace_back(modules, choice, ranks, options).candidates(all);
  if (all.empty()) {
    // Names the module and what it lacks, where one alone cannot have its places.
    const auto chains = separate_chains(modules, choices[0]);
    for (std::size_t m = 0; m < modules.size(); ++m) {
      const int most = std::min(ranks / modules[m].ranks_per_place, size(chains[m].layers));
      const int behind = m + 1 == modules.size() ? 0 : modules.back().min_places;
      try {
        Partition(chains[m], options).cut(most, behind);
      } catch (const ConfigError& e) {
        throw ConfigError(fmt::format("{}: {}", modules[m].name, e.what()));
      }
    }
    throw ConfigError(
        fmt::format("{} ranks a replica are too few: no division of them among the modules fits the memory", ranks));
  }
  std::ranges::stable_sort(all, [](const Candidate& a, const Candidate& b) {
    if (a.bottleneck != b.bottleneck) return a.bottleneck < b.bottleneck;
    if (a.places.back() != b.places.back()) return a.places.back() > b.places.back();
    return a.places < b.places;
  });
  if (static_cast<int>(all.size()) > count) all.resize(at(std::max(count, 1)));
  std::vector<ModuleCuts> best;
  for (const Candidate& c : all) {
    const auto choice = std::ranges::find(choices, c.at_reader) - choices.begin();
    best.push_back(divisions[at(choice)].cuts(c));
  }
  return best;
}

namespace {

/// Adds up stages, edges and bytes.
class Builder {
 public:
  explicit Builder(int num_blocks) : num_blocks_(num_blocks) {}

  /// A stage of `place` = rank, from these layers.
  int stage(int place, std::span<const PlannedLayer> layers) {
    StageInfo info;
    info.id = static_cast<int>(p_.graph.stages.size());
    info.module = layers[0].module;
    info.ranks = {place};
    info.num_blocks = num_blocks_;
    PlannedLayer sum;
    sum.module = info.module;
    BlockBytes bytes;
    for (const PlannedLayer& l : layers) {
      sum.time += l.time;
      sum.step += l.step;
      sum.parameters += l.parameters;
      sum.fixed_bytes += l.fixed_bytes;
      sum.kept += l.kept;
      sum.held += l.held;
      sum.stash += l.stash;
      sum.work = std::max(sum.work, l.work + l.stash);
      sum.backward |= l.backward;
      sum.trains |= l.trains;
    }
    info.needs_backward = sum.backward;
    info.has_weight_grads = sum.trains;
    bytes = {.kept = sum.kept, .held = sum.held, .stash = sum.stash, .restored = 0, .ports = 0, .work = sum.work};
    p_.graph.stages.push_back(info);
    p_.places.push_back(place);
    p_.times.push_back({.blocks = {sum.time}, .load = 0, .reduce = sum.step, .optimize = 0});
    p_.simulate.block_bytes.push_back(bytes);
    auto& fixed = p_.simulate.fixed_bytes;
    if (fixed.size() <= at(place)) fixed.resize(at(place) + 1, 0);
    fixed[at(place)] += sum.fixed_bytes;
    p_.sums.push_back(std::move(sum));
    return info.id;
  }

  void edge(int producer, int consumer, const std::string& port, std::int64_t bytes, std::int64_t grad_bytes,
            bool needs_grad) {
    StageGraph& g = p_.graph;
    const auto id = static_cast<int>(g.edges.size());
    g.edges.push_back({id, producer, consumer, port, needs_grad});
    g.producers_of.emplace_back();
    g.routes.emplace_back();
    for (int m = 0; m < num_blocks_; ++m) {
      g.producers_of.back().push_back({m});
      g.routes.back().push_back({id, m, {{p_.places[at(producer)], m, 0, p_.places[at(consumer)], 0, 1, 0}}});
    }
    p_.simulate.transfers.row_bytes.push_back(bytes);
    p_.simulate.transfers.grad_bytes.push_back(grad_bytes);
    for (const int s : {producer, consumer}) p_.simulate.block_bytes[at(s)].ports += bytes + grad_bytes;
  }

  PlannedPipeline take() { return std::move(p_); }

 private:
  int num_blocks_;
  PlannedPipeline p_;
};

/// Stages of one chain whose places begin at `first_place` and go round after `num_places`; by layer, its stage.
std::vector<int> add_chain(Builder& builder, const Chain& chain, const Cut& cut, int first_place, int num_places) {
  std::vector<int> stage_of;
  for (std::size_t p = 0; p < cut.places.size(); ++p) {
    const int end = cut.places[p].first + cut.places[p].count;
    for (int i = cut.places[p].first; i < end;) {
      int j = i + 1;
      while (j < end && chain.layers[at(j)].module == chain.layers[at(i)].module) ++j;
      const auto layers = std::span(chain.layers).subspan(at(i), at(j - i));
      const int id = builder.stage(first_place + static_cast<int>(p) % num_places, layers);
      stage_of.resize(at(j), id);
      if (i > 0 && chain.layers[at(i - 1)].module == chain.layers[at(i)].module) {
        const PlannedLayer& before = chain.layers[at(i - 1)];
        builder.edge(stage_of[at(i - 1)], id, "x", before.out_bytes, before.grad_bytes, before.backward);
      }
      i = j;
    }
  }
  for (const Join& join : chain.joins) {
    if (join.from < 0 || join.to < 0) continue;
    builder.edge(stage_of[at(join.from)], stage_of[at(join.to)], chain.layers[at(join.from)].module, join.bytes,
                 join.grad_bytes, join.needs_grad);
  }
  return stage_of;
}

}  // namespace

PlannedPipeline pipeline_of(const Chain& chain, const Cut& cut, int num_blocks, int num_places) {
  Builder builder(num_blocks);
  add_chain(builder, chain, cut, 0, num_places > 0 ? num_places : static_cast<int>(cut.places.size()));
  return builder.take();
}

PlannedPipeline pipeline_of(std::span<const ModuleLayers> modules, const ModuleCuts& cuts, int num_blocks) {
  Builder builder(num_blocks);
  const auto chains = separate_chains(modules, cuts.projector_at_reader);
  std::vector<int> ends;
  int place = 0;
  for (std::size_t m = 0; m < chains.size(); ++m) {
    const auto own = static_cast<int>(cuts.cuts[m].places.size());
    const std::vector<int> stage_of = add_chain(builder, chains[m], cuts.cuts[m], place, own);
    place += own;
    ends.push_back(stage_of.back());
    if (m + 1 < chains.size()) continue;
    std::size_t encoder = 0;  // joins from outside stand in encoder order
    for (const Join& join : chains[m].joins) {
      if (join.from >= 0) continue;
      builder.edge(ends[encoder], stage_of[at(join.to)], modules[encoder].name, join.bytes, join.grad_bytes,
                   join.needs_grad);
      ++encoder;
    }
  }
  return builder.take();
}

ScheduleProblem problem_of(const PlannedPipeline& pipeline) {
  ScheduleProblem problem;
  problem.graph = &pipeline.graph;
  problem.places = pipeline.places;
  problem.times = pipeline.times;
  problem.simulate = pipeline.simulate;
  for (const StageInfo& s : pipeline.graph.stages) problem.end.buckets.push_back(s.has_weight_grads ? 1 : 0);
  return problem;
}

Settled settle(std::size_t candidates, const std::function<Ns(std::size_t)>& makespan) {
  MMT_CHECK(candidates > 0, "there is nothing to choose from");
  Settled settled;
  for (std::size_t c = 0; c < candidates; ++c) {
    settled.makespans.push_back(makespan(c));
    if (settled.makespans[c] < settled.makespans[settled.best]) settled.best = c;
  }
  return settled;
}

}  // namespace mmt::plan
