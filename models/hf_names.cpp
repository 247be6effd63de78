#include "models/hf_names.h"

#include "core/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace mmt::models {
namespace {

/// What stands before a part's names in some spelling. "base_model." is PEFT's.
std::span<const std::string_view> prefixes(HfPart part) {
  static constexpr std::array<std::string_view, 3> kLlm = {"base_model.", "model.", "language_model."};
  static constexpr std::array<std::string_view, 5> kVision = {"base_model.", "model.", "vision_tower.", "vision_model.",
                                                              "visual."};
  static constexpr std::array<std::string_view, 4> kAudio = {"base_model.", "model.", "audio_tower.", "encoder."};
  static constexpr std::array<std::string_view, 6> kProjector = {"base_model.",   "model.",  "multi_modal_projector.",
                                                                 "mm_projector.", "visual.", "merger."};
  switch (part) {
    case HfPart::llm: return kLlm;
    case HfPart::vision: return kVision;
    case HfPart::audio: return kAudio;
    case HfPart::projector: return kProjector;
  }
  return {};
}

/// Where one of these stands in front, the tensor belongs to that part (or to one that is not trained here). The
/// longest counts.
struct Marker {
  std::string_view prefix;
  std::optional<HfPart> part;
};
constexpr Marker kMarkers[] = {
    {"language_model.", HfPart::llm},
    {"lm_head.", HfPart::llm},
    {"vision_tower.", HfPart::vision},
    {"vision_model.", HfPart::vision},
    {"visual.", HfPart::vision},
    {"visual.merger.", HfPart::projector},
    {"merger.", HfPart::projector},
    {"audio_tower.", HfPart::audio},
    {"multi_modal_projector.", HfPart::projector},
    {"mm_projector.", HfPart::projector},
    {"text_model.", std::nullopt},
    {"decoder.", std::nullopt},
};

/// Where a file holds q, k and v as one tensor; other parameters have their own.
HfPlace fused_place(std::string_view parameter) {
  constexpr std::string_view kFused[] = {".attn.q.", ".attn.k.", ".attn.v."};
  for (int i = 0; i < 3; ++i) {
    const std::size_t at = parameter.find(kFused[i]);
    if (at == std::string_view::npos) continue;
    return {fmt::format("{}.attn.qkv.{}", parameter.substr(0, at), parameter.substr(at + kFused[i].size())), i, 3};
  }
  return {std::string(parameter)};
}

}  // namespace

std::optional<std::string> hf_stem(HfPart part, std::string_view name) {
  bool marked = false;
  for (bool stripped = true; stripped;) {
    stripped = false;
    const Marker* longest = nullptr;
    for (const Marker& m : kMarkers) {
      if (name.starts_with(m.prefix) && (longest == nullptr || m.prefix.size() > longest->prefix.size())) longest = &m;
    }
    if (longest != nullptr && longest->part != part) return std::nullopt;
    marked = marked || longest != nullptr;
    for (const std::string_view p : prefixes(part)) {
      if (!name.starts_with(p)) continue;
      name.remove_prefix(p.size());
      stripped = true;
      break;  // markers are looked for after each
    }
  }
  // A projector never stands alone without its prefix but in files of our own; LLaVA-NeXT's newline does.
  constexpr std::string_view kOwn[] = {"linear", "ln_q.", "mlp.", "image_newline"};
  if (part == HfPart::projector && !marked &&
      std::ranges::none_of(kOwn, [&](std::string_view start) { return name.starts_with(start); }))
    return std::nullopt;
  if (part == HfPart::projector) {
    // The original LLaVA: a Sequential of linear, activation, linear.
    for (const auto& [from, to] : {std::pair("0.", "linear_1."), std::pair("2.", "linear_2.")}) {
      if (name.starts_with(from)) return to + std::string(name.substr(2));
    }
  }
  return std::string(name);
}

HfNames::HfNames(HfPart part, std::span<const std::string> names, const std::string& path) : part_(part) {
  for (const std::string& name : names) {
    const std::optional<std::string> stem = hf_stem(part, name);
    if (!stem) continue;
    const auto [at, fresh] = by_stem_.emplace(*stem, name);
    if (!fresh) throw ConfigError(fmt::format("{}: {} and {} are two names of one tensor", path, at->second, name));
  }
}

const std::string* HfNames::find(std::string_view parameter) const {
  const std::optional<std::string> stem = hf_stem(part_, parameter);
  if (!stem) return nullptr;
  const auto at = by_stem_.find(*stem);
  return at == by_stem_.end() ? nullptr : &at->second;
}

std::optional<HfPlace> HfNames::place(std::string_view parameter) const {
  if (const std::string* name = find(parameter)) return HfPlace{*name};
  HfPlace place = fused_place(parameter);
  const std::string* name = place.parts > 1 ? find(place.name) : nullptr;
  if (name == nullptr) return std::nullopt;
  place.name = *name;
  return place;
}

HfPlace qwen2_vl_place(HfPart part, std::string_view parameter, bool whole) {
  HfPlace place = part == HfPart::vision ? fused_place(parameter) : HfPlace{std::string(parameter)};
  if (part == HfPart::projector) place.name.insert(0, "merger.");
  if (whole && part != HfPart::llm) place.name.insert(0, "visual.");
  return place;
}

bool is_hf_buffer(std::string_view stem) {
  constexpr std::string_view kEndings[] = {"rotary_emb.inv_freq", "position_ids", "masked_bias", "attn.bias"};
  return std::ranges::any_of(kEndings, [&](std::string_view e) { return stem.ends_with(e); });
}

}  // namespace mmt::models
