#include "core/data/text/chat_template.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "core/error.h"

namespace mmt::data {
namespace {

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

/// What looks like a special token but is none of the tokenizer's: "<|...|>", "<s>", "</s>".
std::string unknown_special(std::string_view text) {
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string_view::npos; ++at) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with("<s>")) return "<s>";
    if (rest.starts_with("</s>")) return "</s>";
    if (!rest.starts_with("<|")) continue;
    const std::size_t end = rest.find("|>");
    if (end != std::string_view::npos && rest.find_first_of(" \n") > end) return std::string(rest.substr(0, end + 2));
  }
  return {};
}

std::string special_or(const Tokenizer& tokenizer, const std::string& named, std::initializer_list<const char*> usual) {
  if (!named.empty()) return named;
  for (const char* token : usual) {
    const auto id = tokenizer.id_of(token);
    if (id && tokenizer.is_special(*id)) return token;
  }
  return {};
}

}  // namespace

/// Collects pieces; plain text waits until supervision or `fixed` changes, so that it is tokenised in one go.
class ChatTemplate::Builder {
 public:
  explicit Builder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void text(std::string_view text, bool supervised, bool fixed) {
    if (text.empty()) return;
    if (supervised != supervised_ || fixed != fixed_) flush();
    supervised_ = supervised;
    fixed_ = fixed;
    pending_ += text;
  }
  void id(TokenId id, bool supervised, bool fixed) {
    flush();
    push(id, supervised, fixed);
    place_ = TextPlace::section;
  }
  /// BOS before everything: what follows is the beginning of the text.
  void bos(TokenId id) {
    push(id, false, false);
    place_ = TextPlace::text;
  }
  void sections(std::span<const Tokenizer::Section> sections, bool supervised, bool fixed) {
    for (const auto& s : sections) s.special >= 0 ? id(s.special, supervised, fixed) : text(s.text, supervised, fixed);
  }
  void slot(TokenId token, std::int32_t media) {
    flush();
    result_.slots.push_back({static_cast<std::int32_t>(result_.ids.size()), media});
    push(token, false, true);
    place_ = TextPlace::section;
  }
  Dialogue finish() {
    flush();
    if (!result_.labels.empty()) result_.labels[0] = kIgnoreLabel;
    return std::move(result_);
  }

 private:
  void push(TokenId id, bool supervised, bool fixed) {
    result_.ids.push_back(id);
    result_.labels.push_back(supervised ? id : kIgnoreLabel);
    result_.fixed.push_back(fixed ? 1 : 0);
  }
  void flush() {
    if (pending_.empty()) return;
    scratch_.clear();
    tokenizer_.encode(pending_, scratch_, place_);
    for (const TokenId token : scratch_) push(token, supervised_, fixed_);
    pending_.clear();
    place_ = TextPlace::inside;
  }

  const Tokenizer& tokenizer_;
  Dialogue result_;
  std::string pending_;
  std::vector<TokenId> scratch_;
  bool supervised_ = false, fixed_ = false;
  TextPlace place_ = TextPlace::text;
};

ChatTemplate::ChatTemplate(TemplateSpec spec, const Tokenizer& tokenizer)
    : spec_(std::move(spec)), tokenizer_(&tokenizer) {
  bos_ = special_or(tokenizer, tokenizer.bos_token(), {"<s>", "<|begin_of_text|>"});
  eos_ = special_or(tokenizer, tokenizer.eos_token(), {"</s>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>"});
  start_ = resolve(spec_.start);
  const TurnFormat* turns[] = {&spec_.system, &spec_.user, &spec_.assistant, &spec_.tool};
  for (std::size_t r = 0; r < formats_.size(); ++r) {
    formats_[r] = {resolve(turns[r]->prefix), resolve(turns[r]->suffix), turns[r]->lead};
  }
  slots_ = {resolve(spec_.image), resolve(spec_.audio), resolve(spec_.video)};
  begins_with_bos_ = spec_.start.starts_with("{bos}") && !start_.empty() && start_.front().special >= 0;
  for (const Role role : {Role::user, Role::assistant}) {
    const Format& format = formats_[static_cast<std::size_t>(role)];
    const Sections& before = role == Role::user ? format.suffix : format.prefix;
    if (!before.empty()) answer_place_ = before.back().special >= 0 ? TextPlace::section : TextPlace::inside;
  }

  std::vector<TokenId> end;
  for (const auto& section : formats_[static_cast<std::size_t>(Role::assistant)].suffix) {
    if (section.special < 0) {
      tokenizer.encode(section.text, end, TextPlace::inside);
    } else {
      end.push_back(section.special);
      break;
    }
  }
  if (end.empty()) {
    throw ConfigError(
        fmt::format("template {}: an assistant turn has no end: its suffix is empty, so nothing would ever "
                    "stop a generated answer",
                    spec_.name));
  }
  stops_.push_back(std::move(end));
  if (const auto eos = tokenizer.id_of(eos_); eos && stops_[0] != std::vector<TokenId>{*eos}) stops_.push_back({*eos});
}

ChatTemplate::Sections ChatTemplate::resolve(const std::string& text) const {
  Sections sections;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t at = std::min(rest.find("{bos}"), rest.find("{eos}"));
    for (auto& section : tokenizer_->split_special(rest.substr(0, at))) {
      const std::string unknown = section.special < 0 ? unknown_special(section.text) : "";
      if (!unknown.empty()) {
        throw ConfigError(
            fmt::format("template {}: {} is not a special token of the tokenizer; take the template that the "
                        "tokenizer was made for, or add the token to its added_tokens",
                        spec_.name, unknown));
      }
      sections.push_back(std::move(section));
    }
    if (at == std::string_view::npos) break;
    const bool ends = rest.substr(at).starts_with("{eos}");
    const std::string& token = ends ? eos_ : bos_;
    const auto id = token.empty() ? std::nullopt : tokenizer_->id_of(token);
    if (!token.empty() && !id) {
      throw ConfigError(
          fmt::format("template {}: tokenizer_config.json names {} as {}, but the tokenizer has no such token",
                      spec_.name, token, ends ? "eos_token" : "bos_token"));
    }
    if (ends && !id) {
      throw ConfigError(
          fmt::format("template {}: the tokenizer names no end-of-text token (eos_token in "
                      "tokenizer_config.json, or one of </s>, <|end_of_text|>, <|endoftext|>, <|im_end|>)",
                      spec_.name));
    }
    if (id) sections.push_back({*id, token});  // a tokenizer without BOS has none to place
    rest.remove_prefix(at + 5);
  }
  return sections;
}

ChatTemplate::Slot ChatTemplate::resolve(const SlotFormat& format) const {
  Slot slot;
  slot.before = format.before;
  slot.token = tokenizer_->id_of(format.token).value_or(-1);
  try {
    resolve(replaced(format.before, "{n}", "1"));
    slot.after = resolve(format.after);
  } catch (const ConfigError& e) {
    slot.problem = e.what();
  }
  return slot;
}

void ChatTemplate::require(Modality modality) const {
  if (!slot(modality).problem.empty()) throw ConfigError(slot(modality).problem);
}

void ChatTemplate::write(Builder& builder, const Record& record, std::size_t num_turns,
                         const std::string& where) const {
  const auto refuse = [&](const std::string& what) -> void { throw DataError(DataFault::bad_record, where, what); };
  std::array<int, kNumModalities> numbers{};  // slots written so far, by modality
  if (begins_with_bos_) builder.bos(start_.front().special);
  builder.sections(std::span(start_).subspan(begins_with_bos_ ? 1 : 0), false, false);
  const bool has_system = num_turns > 0 && record.turns[0].role == Role::system;
  if (!has_system && !spec_.default_system.empty()) {
    const Format& format = formats_[static_cast<std::size_t>(Role::system)];
    builder.sections(format.prefix, false, false);
    builder.text(format.lead + spec_.default_system, false, false);
    builder.sections(format.suffix, false, false);
  }
  Role previous = Role::system;
  for (std::size_t t = 0; t < num_turns; ++t) {
    const Turn& turn = record.turns[t];
    const Format& format = formats_[static_cast<std::size_t>(turn.role)];
    const bool answers = turn.role == Role::assistant;
    if (turn.role == Role::system && t > 0) refuse(fmt::format("turn {}: a system turn is the first or none", t));
    if (answers && previous != Role::user && previous != Role::tool) {
      refuse(fmt::format("turn {}: an assistant turn follows a user or tool turn, not a turn of {}", t,
                         t == 0 ? "nobody" : name_of(previous)));
    }
    if (turn.role == Role::user && previous == Role::user) refuse(fmt::format("turn {}: two user turns in a row", t));
    if (turn.role == Role::tool && spec_.tool.prefix.empty()) {
      refuse(fmt::format("turn {}: the template {} has no tool turns", t, spec_.name));
    }
    previous = turn.role;

    std::vector<Part> parts = turn.parts;
    const auto is_slot = [](const Part& p) { return p.media >= 0; };
    if (spec_.media_first && std::count_if(parts.begin(), parts.end(), is_slot) == 1) {
      std::string rest;
      Part slot;
      for (const Part& p : parts) is_slot(p) ? void(slot = p) : void(rest += p.text);
      const std::string_view text = trimmed(rest);
      parts = {slot};
      if (!text.empty()) parts.push_back({"\n" + std::string(text), -1});
    } else if (spec_.trim && !parts.empty()) {
      if (!is_slot(parts.front())) {
        const std::size_t first = parts.front().text.find_first_not_of(" \t\r\n\v\f");
        parts.front().text.erase(0, std::min(first, parts.front().text.size()));
      }
      if (!is_slot(parts.back())) {
        parts.back().text.resize(parts.back().text.find_last_not_of(" \t\r\n\v\f") + 1);
      }
    }
    const bool learns = answers && turn.loss;
    const bool silent = !answers && !spec_.user_text;
    builder.sections(format.prefix, false, false);
    if (!silent) builder.text(format.lead, learns, false);
    for (const Part& part : parts) {
      if (!is_slot(part)) {
        if (!silent) builder.text(part.text, learns, false);
        continue;
      }
      const Modality modality = record.media[static_cast<std::size_t>(part.media)].modality;
      require(modality);
      const Slot& s = slot(modality);
      const int number = ++numbers[static_cast<std::size_t>(modality)];
      if (!s.before.empty()) builder.sections(resolve(replaced(s.before, "{n}", std::to_string(number))), false, true);
      builder.slot(s.token, part.media);
      builder.sections(s.after, false, true);
    }
    // Of the suffix, what ends the answer is learnt: up to its first special token, or all of it where there is none.
    bool ends = learns;
    for (const auto& section : format.suffix) {
      builder.sections(std::span(&section, 1), ends, false);
      if (section.special >= 0) ends = false;
    }
  }
}

Dialogue ChatTemplate::build(const Record& record, const std::string& where) const {
  Builder builder(*tokenizer_);
  write(builder, record, record.turns.size(), where);
  return builder.finish();
}

Dialogue ChatTemplate::prompt(const Record& record, const std::string& where) const {
  std::size_t num_turns = record.turns.size();
  if (num_turns > 0 && record.turns.back().role == Role::assistant) --num_turns;
  Builder builder(*tokenizer_);
  write(builder, record, num_turns, where);
  builder.sections(formats_[static_cast<std::size_t>(Role::assistant)].prefix, false, false);
  Dialogue result = builder.finish();
  std::fill(result.labels.begin(), result.labels.end(), kIgnoreLabel);
  return result;
}

std::string ChatTemplate::answer(std::span<const TokenId> ids) const {
  std::size_t end = ids.size();
  for (const auto& stop : stops_) {
    const auto at = std::search(ids.begin(), ids.end(), stop.begin(), stop.end());
    end = std::min(end, static_cast<std::size_t>(at - ids.begin()));
  }
  std::string text = tokenizer_->decode(ids.first(end), true, answer_place_);
  const std::string& lead = spec_.assistant.lead;
  if (!lead.empty() && text.starts_with(lead)) text.erase(0, lead.size());
  return spec_.trim ? std::string(trimmed(text)) : text;
}

std::uint64_t ChatTemplate::hash() const {
  std::string all;
  const auto add = [&all](const std::string& s) { all += fmt::format("{}:{}|", s.size(), s); };
  for (const std::string* s : {&bos_, &eos_, &spec_.start, &spec_.default_system}) add(*s);
  for (const TurnFormat* t : {&spec_.system, &spec_.user, &spec_.assistant, &spec_.tool}) {
    add(t->prefix);
    add(t->lead);
    add(t->suffix);
  }
  for (const SlotFormat* s : {&spec_.image, &spec_.audio, &spec_.video}) {
    add(s->before);
    add(s->token);
    add(s->after);
  }
  all += fmt::format("{}{}{}", spec_.media_first, spec_.user_text, spec_.trim);
  return XXH3_64bits_withSeed(all.data(), all.size(), tokenizer_->hash());
}

}  // namespace mmt::data
