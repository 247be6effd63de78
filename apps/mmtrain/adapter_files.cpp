#include "apps/mmtrain/adapter_files.h"

#include "core/data/weights/safetensors_writer.h"
#include "core/files.h"
#include "parallel/run/checkpoint_pieces.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

namespace mmt::app {
namespace {

constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight", kWeight = ".weight";

const LoraConfig& settings_of(const Config& c, const std::string& module) {
  if (module == c.llm.spec.name) return *c.llm.lora;
  for (const EncoderConfig& e : c.encoders) {
    if (module == e.spec.name) return *e.lora;
    if (module == e.spec.name + ".projector") return *e.projector_lora;
  }
  throw std::logic_error("no module " + module);
}

}  // namespace

std::vector<float> read_parameter(const run::CheckpointReader& checkpoint, const run::ParamSpec& p) {
  const std::int64_t n = run::num_elements(p.shape);
  std::vector<float> values(static_cast<std::size_t>(n));
  checkpoint.read({.name = "model/" + canonical_name(p),
                   .shape = p.shape,
                   .box = {std::vector<std::int64_t>(p.shape.size(), 0), p.shape},
                   .data = Tensor(values.data(), DType::f32, {n})});
  return values;
}

AdapterFiles::AdapterFiles(const Model& model, const Config& config) : config_(config) {
  const AdapterRules rules(config);
  for (const run::Stage& stage : model.stages) {
    for (const auto& unit : stage.units) {
      for (const run::ParamSpec& p : unit->plan().params) {
        const std::string name = canonical_name(p);
        const bool a = name.ends_with(kA);
        if (!a && !name.ends_with(kB)) continue;
        Adapter& adapter = adapters_[name.substr(0, name.size() - kA.size())];
        (a ? adapter.a : adapter.b) = &p;
      }
    }
  }
  for (auto& [layer, adapter] : adapters_) adapter.spec = rules.find(layer).value();
}

std::vector<std::string> AdapterFiles::modules() const {
  std::set<std::string> names;
  for (const auto& [layer, adapter] : adapters_) names.insert(adapter.a->module);
  return {names.begin(), names.end()};
}

void AdapterFiles::merge_into(const run::ParamSpec& p, const run::CheckpointReader& checkpoint,
                              std::vector<float>& values) const {
  const std::string name = canonical_name(p);
  if (!name.ends_with(kWeight)) return;
  const auto found = adapters_.find(name.substr(0, name.size() - kWeight.size()));
  if (found == adapters_.end()) return;
  const Adapter& adapter = found->second;
  const std::vector<float> a = read_parameter(checkpoint, *adapter.a), b = read_parameter(checkpoint, *adapter.b);
  const auto rank = static_cast<std::size_t>(adapter.spec.rank);
  const std::size_t out = b.size() / rank, in = a.size() / rank;
  MMT_CHECK(out * in == values.size(), "{}: {} values for ({}, {})", name, values.size(), out, in);
  std::vector<double> sum(in);
  for (std::size_t o = 0; o < out; ++o) {
    std::ranges::fill(sum, 0.0);
    for (std::size_t r = 0; r < rank; ++r) {
      const double factor = adapter.spec.scale * static_cast<double>(b[o * rank + r]);
      const float* row = a.data() + r * in;
      for (std::size_t i = 0; i < in; ++i) sum[i] += factor * static_cast<double>(row[i]);
    }
    float* w = values.data() + o * in;
    for (std::size_t i = 0; i < in; ++i) w[i] = static_cast<float>(static_cast<double>(w[i]) + sum[i]);
  }
}

void AdapterFiles::write_peft(const std::string& folder, const std::string& module, const std::string& base,
                              const std::string& prefix, const run::CheckpointReader& checkpoint) const {
  data::SafeTensors tensors;
  std::map<std::string, const run::ParamSpec*> by_name;
  std::set<std::string> targets;
  const std::string before = module + "/";
  for (const auto& [layer, adapter] : adapters_) {
    if (!layer.starts_with(before)) continue;
    std::string name = layer.substr(before.size());
    constexpr std::string_view kLlm = "model.";
    if (!prefix.empty() && name.starts_with(kLlm)) name.erase(0, kLlm.size());
    name.insert(0, prefix);
    targets.insert(name);
    for (const auto& [ending, p] : {std::pair(kA, adapter.a), std::pair(kB, adapter.b)}) {
      data::SafeTensor t{"base_model.model." + name + std::string(ending), "F32", p->shape, 0, 0};
      by_name[t.name] = p;
      tensors.push_back(std::move(t));
    }
  }
  data::SafetensorsWriter writer((std::filesystem::path(folder) / "adapter_model.safetensors").string(), tensors,
                                 {{"format", "pt"}});
  for (const data::SafeTensor& t : tensors) {
    const std::vector<float> values = read_parameter(checkpoint, *by_name.at(t.name));
    writer.write(t.name, std::as_bytes(std::span(values)));
  }
  writer.commit();
  const LoraConfig& lora = settings_of(config_, module);
  const nlohmann::ordered_json j = {
      {"peft_type", "LORA"},
      {"base_model_name_or_path", base},
      {"r", lora.rank},
      {"lora_alpha", lora.alpha},
      {"lora_dropout", lora.dropout},
      {"use_rslora", lora.rslora},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"task_type", module == config_.llm.spec.name && prefix.empty() ? nlohmann::ordered_json("CAUSAL_LM")
                                                                      : nlohmann::ordered_json(nullptr)},
      {"target_modules", targets}};
  files::write_atomic((std::filesystem::path(folder) / "adapter_config.json").string(), j.dump(2) + "\n");
}

}  // namespace mmt::app
