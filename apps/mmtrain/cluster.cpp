#include "apps/mmtrain/cluster.h"

#include "core/error.h"

namespace mmt::app {
namespace {

using config::between;
using config::Reader;
using config::Value;

constexpr const char* kLinks[] = {"local", "intra", "inter"};

/// What is absent stays so, in the resolved configuration, too.
void read_keys(Reader& r, ClusterConfig& c) {
  r.optional("ranks_per_node", c.ranks_per_node, between(1, 1 << 20));
  const auto memory = [&](const char* key, std::optional<std::int64_t>& out) {
    std::int64_t bytes = 0;
    if (r.has(key) && r.required(key, config::as_bytes(bytes), between(1 << 20, 1e16))) out = bytes;
  };
  r.at_most_one({"memory_per_rank", "memory_per_node"});
  memory("memory_per_rank", c.memory_per_rank);
  memory("memory_per_node", c.memory_per_node);
  r.map("links", [&](Reader& s) {
    for (std::size_t i = 0; i < c.links.size(); ++i) {
      s.map(kLinks[i], [&](Reader& l) {
        ClusterConfig::Link& link = c.links[i];
        bool overlapped = false;
        if (l.has("transfer") &&
            l.required("transfer", config::as_choice(overlapped, {{"inline", false}, {"overlapped", true}})))
          link.overlapped = overlapped;
        l.optional("latency_us", link.latency_us, between(0, 1e6));
        l.optional("gb_per_s", link.gb_per_s, between(1e-3, 1e6));
      });
    }
  });
  r.optional("gflops_per_rank", c.gflops, between(1e-3, 1e9));
  std::string costs;
  if (r.has("costs") && r.required("costs", config::as_path(costs))) c.costs = costs;
}

template <class T> void lay_under(std::optional<T>& own, const std::optional<T>& under) {
  if (!own) own = under;
}

}  // namespace

void read_cluster(Value& v, ClusterConfig& c) {
  c = ClusterConfig{};
  if (v.kind() == config::Kind::scalar) {
    v.read_path(c.file);
    return;
  }
  v.read_map([&](Reader& r) {
    if (r.has("file")) r.required("file", config::as_path(c.file));
    read_keys(r, c);
  });
}

std::string cluster_file_of(const config::Sources& sources) {
  ClusterConfig c;
  try {
    config::Document document(sources);
    document.read([&](Reader& r) {
      r.value("cluster", [&](Value& v) {
        read_cluster(v, c);
        return true;
      });
    });
  } catch (const ConfigError&) {
    // Keys of other sections, which nobody asked for here, and mistakes that read_config reports.
  }
  return c.file;
}

void read_cluster_file(const config::Sources& sources, ClusterConfig& c) {
  ClusterConfig file;
  config::Document document(sources);
  document.read([&](Reader& r) {
    file = ClusterConfig{};
    read_keys(r, file);
  });
  lay_under(c.ranks_per_node, file.ranks_per_node);
  if (!c.memory_per_rank && !c.memory_per_node) {
    c.memory_per_rank = file.memory_per_rank;
    c.memory_per_node = file.memory_per_node;
  }
  for (std::size_t i = 0; i < c.links.size(); ++i) {
    lay_under(c.links[i].overlapped, file.links[i].overlapped);
    lay_under(c.links[i].latency_us, file.links[i].latency_us);
    lay_under(c.links[i].gb_per_s, file.links[i].gb_per_s);
  }
  lay_under(c.gflops, file.gflops);
  lay_under(c.costs, file.costs);
}

}  // namespace mmt::app
