// Tensor names of published models: the same family in several spellings, which differ in what stands before the names
// that a fresh `save_pretrained` of a module alone writes (and that our parameters have).
//
// A name of a file is stripped of known prefixes ("model.", "language_model.", "vision_tower.", ...) until none is
// left; so is a parameter's; what is equal then is the same tensor. What the prefixes say decides whose tensor it is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::models {

/// The parts that a published model can have.
enum class HfPart : std::uint8_t { llm, vision, audio, projector };

/// The name without prefixes, when it can belong to the part; else nothing.
std::optional<std::string> hf_stem(HfPart part, std::string_view name);

/// Where a parameter stands: rows [part, part + 1) of `parts` equal runs of rows of a tensor.
struct HfPlace {
  std::string name;
  int part = 0, parts = 1;
};

/// The names of one part of a model's files by stem.
class HfNames {
 public:
  /// Throws ConfigError for two names of one tensor; `path` is for the message.
  HfNames(HfPart part, std::span<const std::string> names, const std::string& path);

  /// The file's name for a parameter of ours ("model.layers.0.mlp.up_proj.weight"); null: the files lack it.
  const std::string* find(std::string_view parameter) const;
  /// The same for a parameter that files may hold fused with others (Qwen2-VL's tower: attn.qkv).
  std::optional<HfPlace> place(std::string_view parameter) const;
  /// All of the part: by stem, the file's name.
  const std::map<std::string, std::string, std::less<>>& all() const { return by_stem_; }

 private:
  HfPart part_;
  std::map<std::string, std::string, std::less<>> by_stem_;
};

/// What Qwen2-VL's own files call a parameter: of a whole model ("visual.blocks.0.attn.qkv.weight"), or of the tower with
/// its merger alone ("blocks.0.attn.qkv.weight").
HfPlace qwen2_vl_place(HfPart part, std::string_view parameter, bool whole);

/// Stems that files hold beside the parameters and that nothing is lost without: buffers of earlier versions.
bool is_hf_buffer(std::string_view stem);

}  // namespace mmt::models
