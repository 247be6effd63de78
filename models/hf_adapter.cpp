#include "models/hf_adapter.h"

#include "core/data/json_guard.h"
#include "core/error.h"
#include "core/files.h"
#include "models/hf_json.h"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>
#include <set>

namespace mmt::models {
namespace {

constexpr std::uint64_t kMaxAdapterConfig = std::uint64_t{16} << 20;
constexpr int kMaxAdapterDepth = 16;
constexpr std::string_view kAdapterA = ".lora_A.weight";

/// A key that must be absent, null, false or empty.
void unused(const nlohmann::json& root, const HfJson& j, const char* key, const char* why) {
  const auto at = root.find(key);
  if (at == root.end() || at->is_null() || (at->is_boolean() && !at->get<bool>())) return;
  if ((at->is_object() || at->is_array() || at->is_string()) && at->empty()) return;
  j.refuse(key, why);
}

/// The layer as a pattern: what is no letter, digit or _ is quoted.
std::string pattern_of(std::string_view layer) {
  std::string pattern = "(/|\\.)";
  for (const char c : layer) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') pattern += '\\';
    pattern += c;
  }
  return pattern + "$";
}

}  // namespace

HfAdapter parse_hf_adapter(std::string_view json, const std::string& path) {
  const nlohmann::json root = data::parse_json_object(json, kMaxAdapterDepth, path, "adapter_config.json");
  std::vector<std::string> defaults;
  const HfJson j(root, path, "", defaults);
  if (j.text("peft_type", "LORA") != "LORA") j.refuse("peft_type", "only LORA is supported");
  HfAdapter a;
  a.rank = j.count("r", 8);
  a.alpha = j.real("lora_alpha", 8);
  a.dropout = j.real("lora_dropout", 0);
  a.rslora = j.flag("use_rslora", false);
  if (!(a.alpha > 0)) j.refuse("lora_alpha", "must be above 0");
  if (!(a.dropout >= 0 && a.dropout < 1)) j.refuse("lora_dropout", "must be in [0, 1)");
  if (j.text("bias", "none") != "none") j.refuse("bias", "trained biases are not supported");
  unused(root, j, "use_dora", "DoRA is not supported");
  unused(root, j, "lora_bias", "biases of adapters are not supported");
  unused(root, j, "rank_pattern", "ranks of single layers are not supported");
  unused(root, j, "alpha_pattern", "alphas of single layers are not supported");
  unused(root, j, "modules_to_save", "modules beside the adapters are not supported");
  unused(root, j, "fan_in_fan_out", "transposed weights are not supported");
  for (const char* key : {"trainable_token_indices", "layer_replication", "target_parameters",
                          "alora_invocation_tokens", "use_qalora", "use_bdlora"})
    unused(root, j, key, "is not supported");
  // Starts that change the base weights, too: the adapter alone is not what was trained.
  const auto start = root.find("init_lora_weights");
  if (start != root.end() && start->is_string() && *start != "gaussian" && *start != "eva" && *start != "orthogonal")
    j.refuse("init_lora_weights", "a start that changes the base weights is not supported");
  return a;
}

HfAdapter read_hf_adapter(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "adapter_config.json").string();
  std::string text;
  try {
    text = files::read(path, kMaxAdapterConfig);
  } catch (const Error& e) {
    throw ConfigError(fmt::format("{} (a folder as PEFT saves it is wanted)", e.what()));
  }
  return parse_hf_adapter(text, path);
}

std::vector<std::string> hf_adapter_layers(HfPart part, std::span<const std::string> names) {
  std::set<std::string> layers;
  for (const std::string& name : names) {
    if (!name.ends_with(kAdapterA)) continue;
    if (const auto stem = hf_stem(part, name))
      layers.insert(pattern_of(stem->substr(0, stem->size() - kAdapterA.size())));
  }
  return {layers.begin(), layers.end()};
}

}  // namespace mmt::models
