// The machines that a run is planned for: what stands in `cluster` of the configuration or in the file that it names.
#pragma once

#include "core/config/reader.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace mmt::app {

/// As written; what is absent is decided by machine_of (machine.h).
struct ClusterConfig {
  std::string file;  ///< absolute; empty: everything stands in the configuration
  std::optional<std::int64_t> ranks_per_node;
  std::optional<std::int64_t> memory_per_rank, memory_per_node;  ///< bytes; at most one of them
  struct Link {
    std::optional<bool> overlapped;
    std::optional<double> latency_us, gb_per_s;
  };
  std::array<Link, 3> links;         ///< local, intra, inter
  std::optional<double> gflops;      ///< of a rank, for layers that were not measured
  std::optional<std::string> costs;  ///< a cost file, absolute
};

/// `cluster: FILE`, or a map of a cluster file's keys, which may have `file` among them: then its keys win.
void read_cluster(config::Value& value, ClusterConfig& cluster);
/// Of the configuration that lies in `sources`, without looking at anything else in it; empty: none.
std::string cluster_file_of(const config::Sources& sources);
/// The keys of a cluster file are laid under those that the configuration has. Throws ConfigError with every mistake.
void read_cluster_file(const config::Sources& sources, ClusterConfig& cluster);

}  // namespace mmt::app
