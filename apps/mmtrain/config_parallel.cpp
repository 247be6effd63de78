// The `parallel` section: which ranks run which parts of which module.
#include "apps/mmtrain/config_read.h"

#include "models/build.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <set>

namespace mmt::app {
namespace {

using config::as_choice;
using config::at_least;
using config::between;
using config::Reader;
using config::Value;

constexpr int kMaxRanks = 1 << 20;

/// "3", "0-3", "0,2-5".
bool parse_ranks(std::string_view text, std::vector<std::int32_t>& ranks, std::string& problem) {
  const auto number = [&](std::string_view part, std::int32_t& out) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), out);
    return error == std::errc() && end == part.data() + part.size() && out >= 0 && out < kMaxRanks;
  };
  std::set<std::int32_t> seen;
  while (true) {
    const std::size_t comma = text.find(',');
    std::string_view part = text.substr(0, comma);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    const std::size_t dash = part.find('-');
    std::int32_t first = 0, last = 0;
    const bool good = dash == std::string_view::npos
                          ? number(part, first) && number(part, last)
                          : number(part.substr(0, dash), first) && number(part.substr(dash + 1), last) && first <= last;
    if (!good) {
      problem = fmt::format("\"{}\" is no set of ranks such as 3, 0-3 or 0,2-5", part);
      return false;
    }
    for (std::int32_t r = first; r <= last; ++r) {
      if (!seen.insert(r).second) {
        problem = fmt::format("rank {} is named twice", r);
        return false;
      }
      ranks.push_back(r);
    }
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> list;
  for (std::int64_t d = 1; d <= n && list.size() < 64; ++d) {
    if (n % d == 0) list.push_back(d);
  }
  return list;
}

/// A mesh as it is written: what is absent is derived by `complete`.
struct MeshText {
  std::optional<std::string> ranks;
  std::optional<std::int32_t> tp, cp, pp, dp;
  std::optional<std::vector<std::int64_t>> counts;  ///< per module: layers of each stage
  MeshConfig mesh;
};

void read_part(Value& v, MeshConfig& mesh) {
  v.read_map([&](Reader& m) {
    auto& parts = mesh.stages.emplace_back();
    m.rest([&](const std::string& module, Value& units) {
      MeshConfig::Part part{module, ""};
      if (units.read(part.units)) parts.push_back(part);
    });
    if (parts.empty()) m.problem("", "a stage runs layers of at least one module");
  });
}

void read_mesh(Reader& r, MeshText& text, bool shared) {
  r.optional("ranks", text.ranks);
  r.optional("tp", text.tp, between(1, kMaxRanks));
  r.optional("cp", text.cp, between(1, kMaxRanks));
  r.optional("dp", text.dp, between(1, kMaxRanks));
  r.optional("pp", text.pp, between(1, kMaxRanks));
  if (text.cp.value_or(1) != 1) r.problem("cp", "context parallelism is not supported yet");
  r.unsupported("order", "another order of the axes");
  if (r.optional("sequence_parallel", text.mesh.sequence_parallel) && text.mesh.sequence_parallel &&
      text.tp.value_or(1) == 1)
    r.problem("sequence_parallel", "shares the rows over tp ranks, and tp is 1: give tp, or leave it out");
  r.value("stages", [&](Value& v) {
    if (v.read_word("auto")) return true;
    if (shared) return v.read_list([&](Value& item) { read_part(item, text.mesh); });
    std::vector<std::int64_t> counts;
    if (!bind_value(v, counts, at_least(0))) return false;
    text.counts = std::move(counts);
    return true;
  });
}

/// Fills in what was left out, for a job of `ranks` (0: as many as the mesh needs). Reports what does not fit.
void complete(Reader& r, MeshText& text, int ranks) {
  MeshConfig& mesh = text.mesh;
  mesh.tp = text.tp.value_or(1);
  mesh.cp = text.cp.value_or(1);
  mesh.pp = text.pp.value_or(1);
  const std::int64_t cell = std::int64_t{mesh.tp} * mesh.cp * mesh.pp;
  std::string problem;
  if (text.ranks) {
    if (!parse_ranks(*text.ranks, mesh.ranks, problem)) return r.problem("ranks", problem);
    for (const std::int32_t rank : mesh.ranks) {
      if (ranks > 0 && rank >= ranks)
        return r.problem("ranks", fmt::format("rank {} does not exist: {} rank{}", rank, ranks,
                                              ranks == 1 ? " runs" : "s run (0 to " + std::to_string(ranks - 1) + ")"));
    }
  } else {
    const std::int64_t count = ranks > 0 ? ranks : cell * text.dp.value_or(1);
    mesh.ranks.resize(static_cast<std::size_t>(std::min<std::int64_t>(count, kMaxRanks)));
    std::iota(mesh.ranks.begin(), mesh.ranks.end(), 0);
  }
  const auto count = static_cast<std::int64_t>(mesh.ranks.size());
  if (text.dp ? cell * *text.dp != count : count % cell != 0) {
    const std::string product = text.dp ? fmt::format("tp {} x cp {} x dp {} x pp {} = {}", mesh.tp, mesh.cp, *text.dp,
                                                      mesh.pp, cell * *text.dp)
                                        : fmt::format("tp {} x cp {} x pp {} = {}", mesh.tp, mesh.cp, mesh.pp, cell);
    const std::string legal =
        text.dp || count == 0
            ? fmt::format("start {} ranks (mpirun -np {})", cell * text.dp.value_or(1), cell * text.dp.value_or(1))
            : fmt::format("it must divide them: legal products are {}", fmt::join(divisors(count), ", "));
    return r.problem(text.dp   ? "dp"
                     : text.pp ? "pp"
                               : "tp",
                     fmt::format("{}, but there {} {} rank{}: {}", product, count == 1 ? "is" : "are", count,
                                 count == 1 ? "" : "s", legal));
  }
  mesh.dp = static_cast<std::int32_t>(count / cell);
}

std::size_t num_modules(const Config& c) { return c.encoders.size() + 1; }

std::optional<std::size_t> module_index(const Config& c, const std::string& name) {
  for (std::size_t m = 0; m < num_modules(c); ++m) {
    if (module_name(c, m) == name) return m;
  }
  return std::nullopt;
}

std::string module_names(const Config& c) {
  std::vector<std::string> names;
  for (std::size_t m = 0; m < num_modules(c); ++m) names.push_back(module_name(c, m));
  return fmt::format("{}", fmt::join(names, ", "));
}

/// "a-b" by unit names.
plan::UnitSpan parse_span(const Config& c, const MeshConfig::Part& part) {
  const auto module = module_index(c, part.module);
  if (!module) throw ConfigError(fmt::format("there is no module \"{}\": {}", part.module, module_names(c)));
  const std::vector<std::string> names = unit_names(c, *module);
  const auto find = [&](std::string_view name) {
    const auto at = std::ranges::find(names, name);
    if (at == names.end()) {
      throw ConfigError(fmt::format("{}: \"{}\" names no layer; there are embed, 0 to {}, {}", part.module, name,
                                    names.size() - (names.back() == "projector" ? 4 : 3),
                                    names.back() == "projector" ? "exit, projector" : names.back()));
    }
    return static_cast<int>(at - names.begin());
  };
  const std::size_t dash = part.units.find('-');
  const int first = find(std::string_view(part.units).substr(0, dash));
  const int last = dash == std::string::npos ? first : find(std::string_view(part.units).substr(dash + 1));
  if (last < first) throw ConfigError(fmt::format("{}: \"{}\" runs backwards", part.module, part.units));
  return {static_cast<int>(*module), first, last + 1};
}

/// The place of a projector, as its module asks for it, against stages as they are written.
void check_projectors(const Config& c, const std::vector<std::vector<plan::UnitSpan>>& runs) {
  const auto run_of = [&](std::size_t module, int unit) {
    for (std::size_t r = 0; r < runs.size(); ++r) {
      for (const plan::UnitSpan& span : runs[r]) {
        if (span.module == static_cast<int>(module) && span.first <= unit && unit < span.last) return r;
      }
    }
    return runs.size();
  };
  for (std::size_t m = 0; m < c.encoders.size(); ++m) {
    const ProjectorPlace place = c.encoders[m].projector_place;
    const int projector = whole_module(c, m).last - 1;
    const std::size_t at = run_of(m, projector);
    if (place == ProjectorPlace::automatic || at == runs.size() || c.encoders[m].spec.projector.kind == "none")
      continue;
    const bool reader = place == ProjectorPlace::llm;
    const std::size_t wanted = reader ? run_of(c.encoders.size(), 0) : run_of(m, projector - 1);
    if (at != wanted && wanted != runs.size()) {
      throw ConfigError(fmt::format(
          "{}: its projector is in stage {}, but modules.{}.projector.place: {} wants it in stage {}, with {}; give it "
          "there ({}: \"projector\"), or use place: auto",
          module_name(c, m), at, module_name(c, m), reader ? "llm" : "encoder", wanted,
          reader ? "the first layers of the LLM" : "the last ones of the encoder", module_name(c, m)));
    }
  }
}

}  // namespace

int ParallelConfig::num_ranks() const {
  std::size_t n = 0;
  for (const MeshConfig& mesh : meshes) n += mesh.ranks.size();
  return static_cast<int>(n);
}

int ParallelConfig::cut_over(std::size_t module) const {
  if (module >= mesh_of.size() || (module < replicate_tp.size() && replicate_tp[module])) return 1;
  return meshes[static_cast<std::size_t>(mesh_of[module])].tp;
}

bool ParallelConfig::shares_rows(std::size_t module) const {
  return cut_over(module) > 1 && meshes[static_cast<std::size_t>(mesh_of[module])].sequence_parallel;
}

const std::string& module_name(const Config& c, std::size_t module) {
  return module < c.encoders.size() ? c.encoders[module].spec.name : c.llm.spec.name;
}

std::vector<std::string> unit_names(const Config& c, std::size_t module) {
  const bool llm = module == c.encoders.size();
  const int blocks = llm ? c.llm.spec.layers : models::num_blocks(c.encoders[module].spec);
  std::vector<std::string> names{"embed"};
  for (int i = 0; i < blocks; ++i) names.push_back(std::to_string(i));
  names.emplace_back(llm ? "head" : "exit");
  if (!llm && c.encoders[module].spec.projector.kind != "none") names.emplace_back("projector");
  return names;
}

bool projector_moves(const Config& c, std::size_t module) {
  return module < c.encoders.size() && !c.parallel.mesh_of.empty() &&
         c.encoders[module].spec.projector.kind != "none" &&
         c.encoders[module].projector_place == ProjectorPlace::llm &&
         c.parallel.mesh_of[module] != c.parallel.mesh_of.back();
}

plan::UnitSpan units_on(const Config& c, std::size_t module, std::size_t mesh) {
  plan::UnitSpan units = whole_module(c, module);
  const bool home = c.parallel.mesh_of[module] == static_cast<int>(mesh);
  const bool moves = projector_moves(c, module);
  if (moves && home) return {units.module, 0, units.last - 1};
  if (moves && c.parallel.mesh_of.back() == static_cast<int>(mesh)) return {units.module, units.last - 1, units.last};
  return home ? units : plan::UnitSpan{units.module, 0, 0};
}

plan::UnitSpan whole_module(const Config& c, std::size_t module) {
  return {static_cast<int>(module), 0, static_cast<int>(unit_names(c, module).size())};
}

std::vector<std::vector<plan::UnitSpan>> stage_spans(const Config& c, const MeshConfig& mesh) {
  std::vector<std::vector<plan::UnitSpan>> runs;
  for (const auto& parts : mesh.stages) {
    auto& run = runs.emplace_back();
    for (const MeshConfig::Part& part : parts) run.push_back(parse_span(c, part));
    std::ranges::sort(run, {}, &plan::UnitSpan::module);
  }
  // Units without a name in the list go with their neighbours: a stem with what follows, the others with what is
  // before.
  for (std::size_t m = 0; m < num_modules(c); ++m) {
    std::vector<plan::UnitSpan*> own;
    for (auto& run : runs) {
      for (plan::UnitSpan& span : run) {
        if (span.module == static_cast<int>(m)) own.push_back(&span);
      }
    }
    if (own.empty()) continue;
    const std::vector<std::string> names = unit_names(c, m);
    const auto is_layer = [&](int unit) {
      return unit > 0 && unit < static_cast<int>(names.size()) &&
             names[static_cast<std::size_t>(unit)].find_first_not_of("0123456789") == std::string::npos;
    };
    if (own.front()->first == 1) own.front()->first = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      const int all = static_cast<int>(names.size()) - (projector_moves(c, m) ? 1 : 0);
      const int end = i + 1 < own.size() ? own[i + 1]->first : all;
      while (own[i]->last < end && !is_layer(own[i]->last)) ++own[i]->last;
      if (own[i]->last != end) {
        throw ConfigError(fmt::format("{}: the stages must hold every layer once and in order, but after {} comes {}",
                                      module_name(c, m), names[static_cast<std::size_t>(own[i]->last) - 1],
                                      i + 1 < own.size() ? names[static_cast<std::size_t>(end)] : "nothing"));
      }
    }
    if (own.front()->first != 0) throw ConfigError(fmt::format("{}: no stage holds layer 0", module_name(c, m)));
  }
  return runs;
}

void read_parallel(Reader& r, Config& c, int ranks) {
  ParallelConfig& p = c.parallel;
  p = ParallelConfig{};
  const std::size_t modules = num_modules(c);
  p.mesh_of.assign(modules, 0);
  p.zero.assign(modules, false);
  p.replicate_tp.assign(modules, false);
  std::vector<MeshText> own(modules);  // per module
  MeshText all;
  std::set<std::size_t> named;
  r.section("parallel", [&](Reader& s) {
    s.value("layout", [&](Value& v) {
      if (v.kind() == config::Kind::scalar) {
        v.problem("\"auto\" is not supported yet: give `all` or ranks of every module");
        return false;
      }
      return v.read_map([&](Reader& l) {
        const bool shared = l.has("all");
        if (shared) {
          l.map("all", [&](Reader& m) {
            read_mesh(m, all, true);
            complete(m, all, ranks);
          });
        }
        l.rest([&](const std::string& name, Value& m) {
          const auto module = module_index(c, name);
          if (!module) return m.problem(fmt::format("there is no such module: {}", module_names(c)));
          if (shared) return m.problem("beside `all` no module has a layout of its own");
          named.insert(*module);
          m.read_map([&](Reader& mesh) {
            read_mesh(mesh, own[*module], false);
            complete(mesh, own[*module], ranks);
          });
        });
        if (!shared && named.empty()) l.problem("", "expected `all`, or ranks for every module");
        for (std::size_t m = 0; m < modules && !shared && !named.empty(); ++m) {
          if (!named.contains(m))
            l.problem("", fmt::format("{} has no ranks: give them for every module, or use `all`", module_name(c, m)));
        }
      });
    });
    s.section("schedule", [&](Reader& q) {
      const auto word = [](const char* w) { return std::pair<std::string_view, std::string>(w, w); };
      q.optional("policy", as_choice(p.policy,
                                     {word("auto"), word("gpipe"), word("1f1b"), word("interleaved"),
                                      word("zero-bubble"), word("list")},
                                     {"three-phase", "nested", "bubble-first"}));
      const bool interleaved = p.policy == "interleaved";
      p.chunks = interleaved ? 2 : 1;
      if (q.optional("chunks", p.chunks, between(interleaved ? 2 : 1, 64)) && !interleaved && p.chunks != 1)
        q.problem("chunks", "only the policy interleaved has chunks");
      q.optional("memory", as_choice(p.memory_h2, {{"h1", false}, {"h2", true}}));
      q.unsupported("window", "encoder windows");
      q.unsupported("microbatches", "use train.microbatches");
    });
    s.section("zero", [&](Reader& z) {
      z.rest([&](const std::string& name, Value& v) {
        const auto module = module_index(c, name);
        if (!module) return v.problem(fmt::format("there is no such module: {}", module_names(c)));
        std::int32_t stage = 0;
        if (!v.read(stage, between(0, 3))) return;
        if (stage > 1) v.problem("stages 2 and 3 are not supported yet");
        p.zero[*module] = stage == 1;
      });
    });
    s.section("replicate_tp", [&](Reader& z) {
      z.rest([&](const std::string& name, Value& v) {
        const auto module = module_index(c, name);
        if (!module) return v.problem(fmt::format("there is no such module: {}", module_names(c)));
        bool replicated = false;
        if (v.read(replicated)) p.replicate_tp[*module] = replicated;
      });
    });
    s.unsupported("balance", "balancing encoders by themselves");
    s.unsupported("context", "context parallelism");
    s.unsupported("offload", "offloading");
  });
  p.meshes.clear();
  if (named.empty()) {
    if (all.mesh.ranks.empty()) {
      all.mesh.dp = std::max(ranks, 1);
      all.mesh.ranks.resize(static_cast<std::size_t>(all.mesh.dp));
      std::iota(all.mesh.ranks.begin(), all.mesh.ranks.end(), 0);
    }
    p.meshes.push_back(std::move(all.mesh));
    return;
  }
  for (std::size_t m = 0; m < modules; ++m) {
    p.mesh_of[m] = static_cast<int>(m);
    MeshConfig& mesh = own[m].mesh;
    if (own[m].counts) {
      int next = 0;
      for (const std::int64_t count : *own[m].counts) {
        const std::string units = count == 0 ? "embed" : fmt::format("{}-{}", next, next + count - 1);
        mesh.stages.push_back({{module_name(c, m), units}});
        next += static_cast<int>(std::min<std::int64_t>(count, 1 << 20));
      }
    }
    p.meshes.push_back(std::move(mesh));
  }
}

void check_parallel(config::Document& document, Config& c, int ranks) {
  const ParallelConfig& p = c.parallel;
  const bool shared = p.meshes.size() == 1 && p.mesh_of.size() >= 1 && p.mesh_of.back() == 0;
  const auto key_of = [&](std::size_t mesh) {
    return "parallel.layout." + (shared ? std::string("all") : module_name(c, mesh));
  };
  // Modules on ranks of their own.
  std::map<std::int32_t, std::size_t> owner;
  for (std::size_t m = 0; m < p.meshes.size(); ++m) {
    for (const std::int32_t rank : p.meshes[m].ranks) {
      const auto [at, fresh] = owner.try_emplace(rank, m);
      if (fresh || at->second == m) continue;
      document.problem(key_of(m) + ".ranks",
                       fmt::format("{} and {} share rank {}: modules that overlap are not supported yet; give disjoint "
                                   "ranks, or one grid for all (`all`)",
                                   module_name(c, at->second), module_name(c, m), rank));
      break;
    }
    if (p.meshes[m].dp != p.meshes.front().dp) {
      document.problem(key_of(m) + ".dp",
                       fmt::format("{} has dp {} and {} has dp {}: unequal dp is not supported yet", module_name(c, 0),
                                   p.meshes.front().dp, module_name(c, m), p.meshes[m].dp));
    }
  }
  const std::int32_t count = ranks > 0 ? ranks : owner.empty() ? 0 : owner.rbegin()->first + 1;
  for (std::int32_t r = 0; r < count; ++r) {
    if (owner.contains(r)) continue;
    document.problem("parallel.layout", fmt::format("rank {} of {} runs no module", r, count));
    break;
  }
  for (std::size_t m = 0; m < p.meshes.size(); ++m) {
    const MeshConfig& mesh = p.meshes[m];
    const int runs = mesh.pp * p.chunks;
    std::int64_t layers = 0;
    for (std::size_t k = 0; k < num_modules(c); ++k) {
      if (p.mesh_of[k] != static_cast<int>(m)) continue;
      layers += k < c.encoders.size() ? models::num_blocks(c.encoders[k].spec) : c.llm.spec.layers;
    }
    if (runs > layers && layers > 0) {
      document.problem(key_of(m) + ".pp", fmt::format("{} stages for {} layers: at most {}", runs, layers, layers));
      continue;
    }
    for (std::size_t k = 0; k < num_modules(c); ++k) {
      if (p.mesh_of[k] != static_cast<int>(m)) continue;
      const auto problems = k < c.encoders.size() ? models::validate_tp(c.encoders[k].spec, p.cut_over(k))
                                                  : models::validate_tp(c.llm.spec, p.cut_over(k));
      for (const models::SpecProblem& problem : problems)
        document.problem(key_of(m) + "." + problem.field,
                         fmt::format("{}: {}; or parallel.replicate_tp.{}: true, and every rank computes all of it",
                                     module_name(c, k), problem.message, module_name(c, k)));
    }
    if (mesh.stages.empty()) continue;
    if (static_cast<int>(mesh.stages.size()) != runs) {
      document.problem(key_of(m) + ".stages",
                       fmt::format("{} listed, pp {}{} needs {}", mesh.stages.size(), mesh.pp,
                                   p.chunks > 1 ? fmt::format(" with {} chunks", p.chunks) : "", runs));
      continue;
    }
    try {
      const auto spans = stage_spans(c, mesh);
      for (std::size_t k = 0; k < num_modules(c); ++k) {
        if (p.mesh_of[k] != static_cast<int>(m)) continue;
        const bool held = std::ranges::any_of(mesh.stages, [&](const auto& parts) {
          return std::ranges::any_of(parts, [&](const auto& part) { return part.module == module_name(c, k); });
        });
        if (!held) throw ConfigError(fmt::format("no stage holds layers of {}", module_name(c, k)));
      }
      check_projectors(c, spans);
    } catch (const ConfigError& e) {
      document.problem(key_of(m) + ".stages", e.what());
    }
  }
}

}  // namespace mmt::app
