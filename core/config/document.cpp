#include "core/config/scalars.h"
#include "core/config/session.h"
#include "core/error.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace mmt::config {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find('.', at), path.size());
    parts.emplace_back(path.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::optional<std::size_t> list_index(const std::string& text) {
  std::size_t i = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), i);
  if (text.empty() || result.ec != std::errc{} || result.ptr != text.data() + text.size()) return std::nullopt;
  return i;
}

// The node at a dotted path, or the deepest one on the way to it.
const Node& nearest_node(const Node& root, const std::string& path) {
  const Node* at = &root;
  for (const std::string& part : split(path)) {
    const auto index = at->kind == Kind::list ? list_index(part) : std::nullopt;
    const Node* next = index && *index < at->children.size() ? &at->children[*index]
                       : at->kind == Kind::map               ? at->find(part)
                                                             : nullptr;
    if (next == nullptr) break;
    at = next;
  }
  return *at;
}

void flatten(const Node& node, const std::string& path, std::vector<std::pair<std::string, std::string>>& out) {
  if (node.children.empty()) {
    const bool container = node.kind == Kind::map || node.kind == Kind::list;
    out.emplace_back(path, container ? (node.kind == Kind::map ? "{}" : "[]") : node.text);
    return;
  }
  for (std::size_t i = 0; i < node.children.size(); ++i) {
    const std::string part = node.kind == Kind::list ? std::to_string(i) : node.children[i].key;
    flatten(node.children[i], path.empty() ? part : path + "." + part, out);
  }
}

}  // namespace

void lay_over(Node& base, Node&& over) {
  if (base.kind != Kind::map || over.kind != Kind::map) {
    base = std::move(over);
    return;
  }
  base.place = over.place;
  base.key_place = over.key_place;
  for (Node& child : over.children) {
    Node* found = base.find(child.key);
    if (found == nullptr) {
      base.children.push_back(std::move(child));
    } else if (child.kind == Kind::empty) {
      base.children.erase(base.children.begin() + (found - base.children.data()));
    } else {
      lay_over(*found, std::move(child));
    }
  }
}

void apply_override(Node& root, const std::string& text, std::vector<Problem>& problems) {
  const auto refuse = [&](const std::string& key, const std::string& message) {
    problems.push_back({Place{}, key, message});
  };
  const std::size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  if (equals == std::string::npos || equals == 0)
    return refuse("", fmt::format("`{}` is not of the form key=value", text));
  if (equals + 1 == text.size()) return refuse(key, "no value (null removes a key, '' is an empty text)");
  Node value =
      parse_yaml(std::string_view(text).substr(equals + 1), "command line: " + key, Place::kCommandLine, problems);
  // A comment sign or a stray quote would cut the value without a word.
  if (value.kind == Kind::scalar && !value.quoted && value.text != text.substr(equals + 1)) {
    return refuse(key, fmt::format("the value reads as `{}`; put it in quotes", shown(value.text)));
  }
  const std::vector<std::string> parts = split(key);
  if (parts.size() > Limits::kDepth) return refuse(key, fmt::format("nested more than {} deep", Limits::kDepth));
  if (parts.front() == "extends") return refuse(key, "can be set in files only");
  Node* at = &root;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    if (parts[i].empty()) return refuse(key, "has an empty name between dots");
    if (at->kind == Kind::empty) at->kind = Kind::map;
    if (at->kind != Kind::map && at->kind != Kind::list) {
      return refuse(key, fmt::format("`{}` is a single value, not a map", i == 0 ? "the document" : parts[i - 1]));
    }
    Node* next = nullptr;
    if (at->kind == Kind::list) {
      const auto index = list_index(parts[i]);
      if (!index || *index > at->children.size()) {
        return refuse(key, fmt::format("`{}` is no index into a list of {}", parts[i], at->children.size()));
      }
      if (*index == at->children.size() && !(last && value.kind == Kind::empty)) at->children.emplace_back();
      next = *index < at->children.size() ? &at->children[*index] : nullptr;
    } else {
      next = at->find(parts[i]);
      if (next == nullptr && !(last && value.kind == Kind::empty)) {
        next = &at->children.emplace_back();
        next->key = parts[i];
      }
    }
    if (last && value.kind == Kind::empty) {
      if (next == nullptr) return refuse(key, "there is nothing to remove");
      at->children.erase(at->children.begin() + (next - at->children.data()));
    } else if (last) {
      value.key = next->key;
      *next = std::move(value);
    } else {
      at = next;
    }
  }
}

Document::Document(Sources sources) : session_(std::make_unique<Session>()) {
  MMT_CHECK(!sources.files.empty(), "a document without a file");
  session_->sources = std::move(sources);
  const auto& files = session_->sources.files;
  auto& problems = session_->document_problems;
  for (std::size_t i = files.size(); i-- > 0;) {
    Node root = parse_yaml(files[i].text, files[i].name, static_cast<int>(i), problems);
    // The last file of the chain extends nothing, unless the text did not come from `gather`.
    if (!take_extends(root, problems).empty() && i + 1 == files.size()) {
      problems.push_back({root.place, "extends", "can be used in files only"});
    }
    if (root.kind != Kind::map && root.kind != Kind::empty) {
      problems.push_back({root.place, "", "the document must be a map of keys and values"});
      root.kind = Kind::empty;
      root.children.clear();
    }
    if (root.kind == Kind::empty) root.kind = Kind::map;
    if (i + 1 == files.size()) {
      session_->root = std::move(root);
    } else {
      lay_over(session_->root, std::move(root));
    }
  }
  for (const std::string& text : session_->sources.overrides) apply_override(session_->root, text, problems);
}

Document Document::from_text(std::string text, std::string name, std::string directory,
                             std::vector<std::string> overrides) {
  Sources sources;
  collect_environment(text, sources.environment);
  for (const std::string& o : overrides) collect_environment(o, sources.environment);
  sources.files.push_back({std::move(name), fs::absolute(directory).lexically_normal().string(), std::move(text)});
  sources.overrides = std::move(overrides);
  sources.working_directory = fs::current_path().string();
  return Document(std::move(sources));
}

Document::Document(Document&&) noexcept = default;
Document& Document::operator=(Document&&) noexcept = default;
Document::~Document() = default;

void Document::read(const std::function<void(Reader&)>& bind) {
  Session& session = *session_;
  session.problems = session.document_problems;
  session.unknown.clear();
  session.known_paths.clear();
  session.resolved = {};
  Reader reader(session, &session.root, "", session.root.place);
  bind(reader);
  session.resolved = reader.finish();
  // A key that is known in another map: the path says where it belongs.
  for (const auto& [index, key] : session.unknown) {
    for (const std::string& path : session.known_paths) {
      if (!path.ends_with("." + key) && path != key) continue;
      session.problems[index].message = fmt::format("unknown key (did you mean \"{}\"?)", path);
      break;
    }
  }
  session.throw_problems();
}

std::string Document::resolved() const { return emit_yaml(session_->resolved); }
const Sources& Document::sources() const { return session_->sources; }
void Document::throw_problems() const { session_->throw_problems(); }

void Document::problem(const std::string& path, std::string message) {
  session_->add(nearest_node(session_->root, path).place, path, std::move(message));
}

std::string Document::where(const std::string& path) const {
  return session_->where(nearest_node(session_->root, path).place);
}

void Session::add(Place place, std::string key, std::string message) {
  if (problems.size() < Limits::kNodes) problems.push_back({place, std::move(key), std::move(message)});
}

std::string Session::where(Place place) const {
  if (place.file == Place::kCommandLine) return "command line";
  const std::string& name = sources.files[static_cast<std::size_t>(place.file)].name;
  return place.line <= 0 ? name : fmt::format("{}:{}:{}", name, place.line, place.column);
}

const std::string& Session::directory(Place place) const {
  return place.file == Place::kCommandLine ? sources.working_directory
                                           : sources.files[static_cast<std::size_t>(place.file)].directory;
}

void Session::throw_problems() const {
  if (problems.empty()) return;
  std::vector<const Problem*> sorted;
  for (const Problem& p : problems) sorted.push_back(&p);
  std::ranges::stable_sort(sorted, [](const Problem* a, const Problem* b) { return a->place < b->place; });
  std::string text;
  for (std::size_t i = 0; i < sorted.size() && i < Limits::kProblems; ++i) {
    const Problem& p = *sorted[i];
    text += fmt::format("{}{}: {}{}", i > 0 ? "\n" : "", where(p.place), p.key.empty() ? "" : p.key + ": ", p.message);
  }
  if (sorted.size() > Limits::kProblems) text += fmt::format("\n... and {} more", sorted.size() - Limits::kProblems);
  throw ConfigError(text);
}

std::vector<Change> diff(std::string_view before, std::string_view after) {
  std::vector<std::pair<std::string, std::string>> old_values;
  std::vector<std::pair<std::string, std::string>> new_values;
  std::vector<Problem> ignored;
  flatten(parse_yaml(before, "the earlier config", 0, ignored), "", old_values);
  flatten(parse_yaml(after, "the new config", 0, ignored), "", new_values);
  const std::map<std::string, std::string> now(new_values.begin(), new_values.end());
  const std::map<std::string, std::string> then(old_values.begin(), old_values.end());
  std::vector<Change> changes;
  for (const auto& [key, value] : old_values) {
    const auto found = now.find(key);
    if (found == now.end()) {
      changes.push_back({key, value, ""});
    } else if (found->second != value) {
      changes.push_back({key, value, found->second});
    }
  }
  for (const auto& [key, value] : new_values) {
    if (!then.contains(key)) changes.push_back({key, "", value});
  }
  return changes;
}

std::string to_string(const Change& change) {
  const auto side = [](const std::string& text) { return text.empty() ? std::string("(not set)") : text; };
  return fmt::format("{}: {} -> {}", change.key, side(change.before), side(change.after));
}

}  // namespace mmt::config
