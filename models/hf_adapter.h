// adapter_config.json of a PEFT folder: what its low-rank adapters are.
#pragma once

#include "models/hf_names.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::models {

struct HfAdapter {
  std::int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;
  bool rslora = false;
};

/// Throws ConfigError naming the file and the key: what is wrong, and what has no counterpart here (DoRA, ranks of
/// single layers, trained biases, whole modules beside the adapters).
HfAdapter parse_hf_adapter(std::string_view json, const std::string& path);
HfAdapter read_hf_adapter(const std::string& folder);

/// The linear layers of a part that have adapters among `names`, as patterns for layer names. Sorted, each once.
std::vector<std::string> hf_adapter_layers(HfPart part, std::span<const std::string> names);

}  // namespace mmt::models
