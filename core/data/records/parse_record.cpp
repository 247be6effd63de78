#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/data/json_guard.h"
#include "core/data/records/record_file.h"
#include "core/error.h"

namespace mmt::data {
namespace {

using nlohmann::json;

constexpr std::array kModalities = {Modality::image, Modality::audio};
constexpr std::size_t kMaxTurns = 10000, kMaxMedia = 4096;

const json* find(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

/// What `{"url": ...}` or `{"path": ...}` holds; anything else itself.
const json& path_in(const json& file) {
  for (const char* key : {"url", "path"}) {
    const json* path = file.is_object() ? find(file, key) : nullptr;
    if (path != nullptr) return *path;
  }
  return file;
}

class Parser {
 public:
  Parser(std::string where, const ImpliedMedia& implied) : where_(std::move(where)), implied_(implied) {}

  Record parse(const json& source) {
    if (!source.is_object()) refuse(fmt::format("a sample is an object, not {}", source.type_name()));
    if (const json* id = find(source, "id")) {
      if (!id->is_string() && !id->is_number()) refuse("\"id\" is neither text nor a number");
      record_.id = id->is_string() ? id->get<std::string>() : id->dump();
      where_ = with_id(where_, record_.id);
    }
    for (const char* key : {"video", "videos", "tools"}) {
      const json* v = find(source, key);
      const bool none = v == nullptr || v->empty() || *v == "" || *v == "[]";
      if (!none) refuse(fmt::format("\"{}\" is not supported", key));
    }
    for (const Modality m : kModalities) read_files(source, m);
    if (const json* system = find(source, "system")) {
      if (!system->is_string()) refuse("\"system\" is not text");
      if (!system->get_ref<const std::string&>().empty())
        record_.turns.push_back({Role::system, {{*system, -1}}, true});
    }
    read_turns(source);
    check_counts();
    return std::move(record_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what, DataFault fault = DataFault::bad_record) const {
    throw DataError(fault, where_, what);
  }

  void read_files(const json& source, Modality modality) {
    const std::string one(name_of(modality)), many = one + "s";
    const json *single = find(source, one.c_str()), *list = find(source, many.c_str());
    if (single != nullptr && list != nullptr) refuse(fmt::format("both \"{}\" and \"{}\" are given", one, many));
    const json* files = single != nullptr ? single : list;
    auto& paths = files_[static_cast<std::size_t>(modality)];
    if (files == nullptr) {
      const auto& implied = modality == Modality::image ? implied_.images : implied_.audios;
      if (!implied.empty()) paths = implied;
      return;
    }
    listed_[static_cast<std::size_t>(modality)] = true;
    paths.emplace();
    const auto add = [&](const json& file) {
      const json& path = path_in(file);
      if (!path.is_string()) refuse(fmt::format("\"{}\" holds {}, where a path is expected", many, path.type_name()));
      if (paths->size() == kMaxMedia) refuse(fmt::format("more than {} {}", kMaxMedia, many));
      paths->push_back(path.get<std::string>());
    };
    if (files->is_array()) {
      for (const json& path : *files) add(path);
    } else {
      add(*files);
    }
  }

  Role role_of(const json& turn, std::size_t number) const {
    const json* name = find(turn, "from");
    if (name == nullptr) name = find(turn, "role");
    if (name == nullptr || !name->is_string()) refuse(fmt::format("turn {}: \"from\" or \"role\" is missing", number));
    const std::string& text = name->get_ref<const std::string&>();
    struct Name {
      const char* name;
      Role role;
    };
    constexpr Name names[] = {
        {"human", Role::user},          {"user", Role::user},       {"gpt", Role::assistant},
        {"assistant", Role::assistant}, {"system", Role::system},   {"function_call", Role::assistant},
        {"observation", Role::tool},    {"tool", Role::tool},       {"tool_call", Role::assistant},
        {"tool_response", Role::tool},  {"developer", Role::system}};
    for (const Name& n : names) {
      if (text == n.name) return n.role;
    }
    refuse(fmt::format("turn {}: role {:?} is not known (human, gpt, user, assistant, system, tool, ...)", number,
                       text.substr(0, 40)));
  }

  void read_turns(const json& source) {
    const json *conversations = find(source, "conversations"), *messages = find(source, "messages");
    if ((conversations == nullptr) == (messages == nullptr)) {
      refuse(conversations == nullptr ? "neither \"conversations\" nor \"messages\" is given"
                                      : "both \"conversations\" and \"messages\" are given");
    }
    const json& turns = conversations != nullptr ? *conversations : *messages;
    if (!turns.is_array() || turns.empty()) refuse("the dialogue is not a list of turns");
    if (turns.size() > kMaxTurns) refuse(fmt::format("{} turns, more than {}", turns.size(), kMaxTurns));
    std::size_t number = 0;
    for (const json& source_turn : turns) {
      const std::size_t n = number++;
      if (!source_turn.is_object()) refuse(fmt::format("turn {} is not an object", n));
      Turn turn;
      turn.role = role_of(source_turn, n);
      if (turn.role == Role::system && !record_.turns.empty()) {
        refuse(fmt::format("turn {}: a system turn is the first or none", n));
      }
      // As LLaVA does: a dialogue that begins with an answer loses it.
      const bool begins = record_.turns.empty() || record_.turns.back().role == Role::system;
      if (turn.role == Role::assistant && begins && conversations != nullptr && n + 1 < turns.size()) continue;
      if (const json* loss = find(source_turn, "loss")) {
        if (!loss->is_boolean()) refuse(fmt::format("turn {}: \"loss\" is true or false", n));
        turn.loss = loss->get<bool>();
      }
      const json* content = find(source_turn, "value");
      if (content == nullptr) content = find(source_turn, "content");
      if (content == nullptr) refuse(fmt::format("turn {}: \"value\" or \"content\" is missing", n));
      if (content->is_string()) {
        read_text(content->get_ref<const std::string&>(), turn);
      } else if (content->is_array()) {
        for (const json& part : *content) read_part(part, turn, n);
      } else {
        refuse(fmt::format("turn {}: the content is {}, not text", n, content->type_name()));
      }
      record_.turns.push_back(std::move(turn));
    }
  }

  static void add_text(Turn& turn, std::string_view text) {
    if (text.empty()) return;
    if (turn.parts.empty() || turn.parts.back().media >= 0) turn.parts.push_back({});
    turn.parts.back().text += text;
  }

  /// A slot for the next listed file of the modality; counted also when there is none left.
  void add_slot(Turn& turn, Modality modality) {
    const auto m = static_cast<std::size_t>(modality);
    const std::size_t number = slots_[m]++;
    if (!files_[m] || number >= files_[m]->size()) return;
    turn.parts.push_back({"", static_cast<std::int32_t>(record_.media.size())});
    record_.media.push_back({modality, (*files_[m])[number]});
  }

  void read_text(std::string_view text, Turn& turn) {
    while (turn.role != Role::assistant) {
      std::size_t at = std::string_view::npos;
      Modality modality = Modality::image;
      for (const Modality m : kModalities) {
        if (!files_[static_cast<std::size_t>(m)]) continue;  // without files the word is text
        const std::size_t found = text.find(m == Modality::image ? "<image>" : "<audio>");
        if (found < at) {
          at = found;
          modality = m;
        }
      }
      if (at == std::string_view::npos) break;
      add_text(turn, text.substr(0, at));
      add_slot(turn, modality);
      text.remove_prefix(at + std::string_view("<image>").size());
    }
    add_text(turn, text);
  }

  void read_part(const json& part, Turn& turn, std::size_t number) {
    const json* type = part.is_object() ? find(part, "type") : nullptr;
    if (type == nullptr || !type->is_string()) refuse(fmt::format("turn {}: a content part has no \"type\"", number));
    const std::string& name = type->get_ref<const std::string&>();
    if (name == "text") {
      const json* text = find(part, "text");
      if (text == nullptr || !text->is_string()) refuse(fmt::format("turn {}: a text part without \"text\"", number));
      return add_text(turn, text->get_ref<const std::string&>());
    }
    const bool image = name == "image" || name == "image_url", encoded = name == "input_audio";
    if (!image && !encoded && name != "audio" && name != "audio_url") {
      refuse(fmt::format("turn {}: content of type {:?} is not supported", number, name.substr(0, 40)));
    }
    if (turn.role == Role::assistant) refuse(fmt::format("turn {}: media in an assistant turn", number));
    const Modality modality = image ? Modality::image : Modality::audio;
    const json* path = find(part, name.c_str());
    if (encoded) {
      const json* bytes = path != nullptr && path->is_object() ? find(*path, "data") : nullptr;
      if (bytes == nullptr || !bytes->is_string()) {
        refuse(fmt::format("turn {}: an input_audio part without \"data\"", number));
      }
      const std::string& text = bytes->get_ref<const std::string&>();
      return add_named(turn, modality, text.starts_with("data:") ? text : "data:audio;base64," + text);
    }
    for (const char* key : {"url", "path"}) {
      if (path == nullptr) path = find(part, key);
    }
    if (path == nullptr) {
      inline_slots_ = true;
      return add_slot(turn, modality);
    }
    path = &path_in(*path);
    if (!path->is_string())
      refuse(fmt::format("turn {}: the path of a {} part is not text", number, name_of(modality)));
    add_named(turn, modality, path->get<std::string>());
  }

  /// A slot with its own file, not one of the listed.
  void add_named(Turn& turn, Modality modality, std::string path) {
    if (record_.media.size() >= kMaxMedia) refuse(fmt::format("more than {} media", kMaxMedia));
    turn.parts.push_back({"", static_cast<std::int32_t>(record_.media.size())});
    record_.media.push_back({modality, std::move(path)});
    named_[static_cast<std::size_t>(modality)] = true;
  }

  void check_counts() const {
    for (const Modality m : kModalities) {
      const auto at = static_cast<std::size_t>(m);
      const std::size_t files = files_[at] ? files_[at]->size() : 0;
      if (slots_[at] == files) continue;
      if (!listed_[at] && named_[at] && slots_[at] == 0) continue;  // its parts name what they want themselves
      refuse(fmt::format("{} {} placeholder{} in the text, {} {} file{}", slots_[at],
                         inline_slots_ ? fmt::format("{} part or", name_of(m)) : fmt::format("<{}>", name_of(m)),
                         slots_[at] == 1 ? "" : "s", files, name_of(m), files == 1 ? "" : "s"),
             DataFault::placeholder_count);
    }
  }

  std::string where_;
  const ImpliedMedia& implied_;
  Record record_;
  std::array<std::optional<std::vector<std::string>>, 2> files_;  // listed files, by modality; none: no such key
  std::array<std::size_t, 2> slots_{};                            // slots met for them
  std::array<bool, 2> listed_{}, named_{};                        // the record's own list; parts with a path
  bool inline_slots_ = false;
};

}  // namespace

Record parse_record(std::string_view text, const std::string& where, const ImpliedMedia& implied) {
  if (static_cast<std::int64_t>(text.size()) > kMaxRecordBytes) {
    throw DataError(DataFault::bad_record, where, fmt::format("a record of {} bytes is not accepted", text.size()));
  }
  std::string error;
  const json source = parse_json(text, kMaxJsonDepth, error);
  if (!error.empty()) throw DataError(DataFault::bad_record, where, "not JSON: at " + error + " of the record");
  try {
    return Parser(where, implied).parse(source);
  } catch (const json::exception& e) {
    throw DataError(DataFault::bad_record, where, e.what());
  }
}

}  // namespace mmt::data
