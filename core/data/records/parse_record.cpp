#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/data/json_guard.h"
#include "core/data/records/record_file.h"
#include "core/error.h"

namespace mmt::data {
namespace {

using nlohmann::json;

constexpr std::array kModalities = {Modality::image, Modality::audio, Modality::video};
constexpr std::size_t kMaxTurns = 10000, kMaxMedia = 4096, kMaxFrames = 65536;

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

/// A file, or the pictures that are the frames of one video.
struct ListedMedium {
  std::string path;
  std::vector<std::string> frames{};
};

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
    const json* tools = find(source, "tools");
    const bool no_tools = tools == nullptr || tools->empty() || *tools == "" || *tools == "[]";
    if (!no_tools) refuse("\"tools\" is not supported");
    for (const Modality m : kModalities) read_files(source, m);
    for (const Modality m : kModalities) imply_files(m);
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
    if (files == nullptr) return;
    auto& listed = files_[static_cast<std::size_t>(modality)];
    listed_[static_cast<std::size_t>(modality)] = true;
    listed.emplace();
    const auto add = [&](const json& file) {
      if (listed->size() == kMaxMedia) refuse(fmt::format("more than {} {}", kMaxMedia, many));
      listed->push_back(read_medium(file, modality, fmt::format("\"{}\"", many)));
    };
    // `video: [a, b]` is one video of two frames, `videos: [a, b]` are two videos.
    const bool one_video = modality == Modality::video && files == single && files->is_array() && !files->empty() &&
                           std::ranges::none_of(*files, [](const json& f) { return f.is_array(); });
    if (files->is_array() && !one_video) {
      for (const json& file : *files) add(file);
    } else {
      add(*files);
    }
  }

  /// A path; of a video also a list of them.
  ListedMedium read_medium(const json& file, Modality modality, const std::string& what) {
    const auto text_of = [&](const json& path) {
      if (!path.is_string()) refuse(fmt::format("{} holds {}, where a path is expected", what, path.type_name()));
      claimed_.insert(implied_.name_of ? implied_.name_of(path.get<std::string>()) : path.get<std::string>());
      return path.get<std::string>();
    };
    ListedMedium medium;
    if (modality != Modality::video || !path_in(file).is_array()) {
      medium.path = text_of(path_in(file));
      return medium;
    }
    if (path_in(file).empty()) refuse(fmt::format("{} holds a video without frames", what), DataFault::empty_video);
    for (const json& frame : path_in(file)) {
      if (++frames_ > kMaxFrames)
        refuse(fmt::format("more than {} frames in a sample", kMaxFrames), DataFault::too_many_frames);
      medium.frames.push_back(text_of(path_in(frame)));
    }
    return medium;
  }

  /// Media of the sample that the record does not name.
  void imply_files(Modality modality) {
    const std::vector<std::string>* names[] = {&implied_.images, &implied_.audios, &implied_.videos};
    const auto m = static_cast<std::size_t>(modality);
    if (listed_[m]) return;
    for (const std::string& name : *names[m]) {
      if (claimed_.contains(name)) continue;
      if (!files_[m]) files_[m].emplace();
      files_[m]->push_back({name});
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
    push_medium(modality, (*files_[m])[number]);
  }

  void push_medium(Modality modality, ListedMedium medium) {
    record_.media.push_back({modality, std::move(medium.path), {}, std::move(medium.frames)});
  }

  void read_text(std::string_view text, Turn& turn) {
    while (turn.role != Role::assistant) {
      std::size_t at = std::string_view::npos;
      Modality modality = Modality::image;
      for (const Modality m : kModalities) {
        if (!files_[static_cast<std::size_t>(m)]) continue;  // without files the word is text
        const std::size_t found = text.find(fmt::format("<{}>", name_of(m)));
        if (found < at) {
          at = found;
          modality = m;
        }
      }
      if (at == std::string_view::npos) break;
      add_text(turn, text.substr(0, at));
      add_slot(turn, modality);
      text.remove_prefix(at + name_of(modality).size() + 2);
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
    const bool encoded = name == "input_audio";
    Modality modality = Modality::audio;
    bool known = encoded;
    for (const Modality m : kModalities) {
      if (name != name_of(m) && name != fmt::format("{}_url", name_of(m))) continue;
      modality = m;
      known = true;
    }
    if (!known) {
      refuse(fmt::format("turn {}: content of type {:?} is not supported", number, name.substr(0, 40)));
    }
    if (turn.role == Role::assistant) refuse(fmt::format("turn {}: media in an assistant turn", number));
    const json* path = find(part, name.c_str());
    if (encoded) {
      const json* bytes = path != nullptr && path->is_object() ? find(*path, "data") : nullptr;
      if (bytes == nullptr || !bytes->is_string()) {
        refuse(fmt::format("turn {}: an input_audio part without \"data\"", number));
      }
      const std::string& text = bytes->get_ref<const std::string&>();
      return add_named(turn, modality, {text.starts_with("data:") ? text : "data:audio;base64," + text});
    }
    for (const char* key : {"url", "path"}) {
      if (path == nullptr) path = find(part, key);
    }
    if (path == nullptr) {
      inline_slots_ = true;
      return add_slot(turn, modality);
    }
    add_named(turn, modality,
              read_medium(*path, modality, fmt::format("turn {}: a {} part", number, name_of(modality))));
  }

  /// A slot with its own file, not one of the listed.
  void add_named(Turn& turn, Modality modality, ListedMedium medium) {
    if (record_.media.size() >= kMaxMedia) refuse(fmt::format("more than {} media", kMaxMedia));
    turn.parts.push_back({"", static_cast<std::int32_t>(record_.media.size())});
    push_medium(modality, std::move(medium));
    named_[static_cast<std::size_t>(modality)] = true;
  }

  void check_counts() const {
    for (const Modality m : kModalities) {
      const auto at = static_cast<std::size_t>(m);
      std::size_t files = files_[at] ? files_[at]->size() : 0;
      if (files > 0 && !listed_[at]) {  // implied ones that no part has named since
        files = static_cast<std::size_t>(
            std::ranges::count_if(*files_[at], [&](const ListedMedium& f) { return !claimed_.contains(f.path); }));
      }
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
  template <class T> using ByModality = std::array<T, kNumModalities>;
  ByModality<std::optional<std::vector<ListedMedium>>> files_;  // listed files; none: no such key
  ByModality<std::size_t> slots_{};                             // slots met for them
  ByModality<bool> listed_{}, named_{};                         // the record's own list; parts with a path
  std::set<std::string> claimed_;                               // what the record names itself
  std::size_t frames_ = 0;                                      // in lists
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
