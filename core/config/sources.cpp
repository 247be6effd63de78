#include "core/config/scalars.h"
#include "core/config/session.h"
#include "core/error.h"
#include "core/files.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace mmt::config {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPackMagic = "mmtrain-config-1\n";
constexpr std::size_t kMaxExpanded = 64 * 1024;

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

const std::string* from_process(const std::string& name) {
  thread_local std::string value;
  const char* found = std::getenv(name.c_str());
  if (found == nullptr) return nullptr;
  value = found;
  return &value;
}

void put(std::string& out, std::string_view text) {
  const std::uint64_t size = text.size();
  char bytes[sizeof size];
  std::memcpy(bytes, &size, sizeof size);
  out.append(bytes, sizeof bytes);
  out.append(text);
}

std::string take(std::string_view& in) {
  std::uint64_t size = 0;
  if (in.size() >= sizeof size) std::memcpy(&size, in.data(), sizeof size);
  if (in.size() < sizeof size || size > in.size() - sizeof size) throw ConfigError("the packed config is damaged");
  std::string text(in.substr(sizeof size, size));
  in.remove_prefix(sizeof size + size);
  return text;
}

void put(std::string& out, const std::vector<std::string>& texts) {
  put(out, std::to_string(texts.size()));
  for (const std::string& text : texts) put(out, text);
}

std::vector<std::string> take_all(std::string_view& in) {
  const auto count = parse_uint(take(in));
  // Each text takes at least the bytes of its size.
  if (count.fault != NumberFault::none || count.value > in.size() / sizeof(std::uint64_t))
    throw ConfigError("the packed config is damaged");
  std::vector<std::string> texts;
  for (std::uint64_t i = 0; i < count.value; ++i) texts.push_back(take(in));
  return texts;
}

}  // namespace

void collect_environment(std::string_view text, std::map<std::string, std::string>& environment) {
  for (std::size_t at = text.find("${"); at != std::string_view::npos; at = text.find("${", at + 2)) {
    std::size_t end = at + 2;
    while (end < text.size() && is_name_char(text[end])) ++end;
    const std::string name(text.substr(at + 2, end - at - 2));
    if (const std::string* value = from_process(name); value != nullptr) environment[name] = *value;
  }
}

// Taken out of the tree: the reader never sees it. Returns "" when there is none or when it is wrong.
std::string take_extends(Node& root, std::vector<Problem>& problems) {
  const auto found = std::ranges::find_if(root.children, [](const Node& n) { return n.key == "extends"; });
  if (root.kind != Kind::map || found == root.children.end()) return "";
  const Node node = std::move(*found);
  root.children.erase(found);
  if (node.kind != Kind::scalar || node.text.empty()) {
    problems.push_back({node.key_place, "extends", "expected the path of one YAML file"});
    return "";
  }
  try {
    return expand_variables(node.text, from_process);
  } catch (const std::string& mistake) {
    problems.push_back({node.place, "extends", mistake});
    return "";
  }
}

std::string expand_variables(std::string_view text,
                             const std::function<const std::string*(const std::string&)>& lookup) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] != '$') {
      out += text[i++];
      continue;
    }
    const std::size_t run = std::min(text.find_first_not_of('$', i), text.size()) - i;
    const std::size_t open = i + run;
    if (open == text.size() || text[open] != '{') {
      out.append(run, '$');
      i = open;
      continue;
    }
    if (run > 1) {
      out.append(run - 1, '$');
      out += '{';
      i = open + 1;
      continue;
    }
    std::size_t end = open + 1;
    while (end < text.size() && is_name_char(text[end])) ++end;
    const std::string name(text.substr(open + 1, end - open - 1));
    if (name.empty() || end == text.size() || text[end] != '}') {
      throw std::string(
          "`${` must be followed by the name of an environment variable and `}` (write `$${` for the text itself)");
    }
    const std::string* value = lookup(name);
    if (value == nullptr) throw fmt::format("the environment variable {} is not set", name);
    out += *value;
    if (out.size() > kMaxExpanded)
      throw fmt::format("the value has more than {} bytes after ${{{}}} is put in", kMaxExpanded, name);
    i = end + 1;
  }
  return out;
}

Sources gather(const std::string& path, const std::vector<std::string>& overrides) {
  Sources sources;
  sources.overrides = overrides;
  sources.working_directory = fs::current_path().string();
  std::vector<fs::path> seen;
  std::string next = path;
  std::string from;  // "train.yaml: extends: "
  while (!next.empty()) {
    std::error_code error;
    const fs::path real = fs::canonical(next, error);
    if (!error && std::ranges::find(seen, real) != seen.end()) {
      throw ConfigError(fmt::format("{}{} is extended by itself", from, next));
    }
    if (sources.files.size() == Limits::kFiles)
      throw ConfigError(fmt::format("{}more than {} files in a chain", from, Limits::kFiles));
    seen.push_back(real);
    Sources::File file;
    file.name = next;
    try {
      file.text = files::read(next, Limits::kBytes);
    } catch (const Error& e) {
      throw ConfigError(from + e.what());
    }
    file.directory = fs::absolute(next).parent_path().lexically_normal().string();
    collect_environment(file.text, sources.environment);
    // Parsed here for `extends` alone; its mistakes are reported when the document is made.
    std::vector<Problem> ignored;
    Node root = parse_yaml(file.text, file.name, static_cast<int>(sources.files.size()), ignored);
    const std::string base = take_extends(root, ignored);
    from = fmt::format("{}: extends: ", next);
    next = base.empty()          ? ""
           : base.front() == '/' ? base
                                 : (fs::path(next).parent_path() / base).lexically_normal().string();
    sources.files.push_back(std::move(file));
  }
  for (const std::string& text : overrides) collect_environment(text, sources.environment);
  return sources;
}

std::string Sources::pack() const {
  std::string out(kPackMagic);
  std::vector<std::string> texts;
  for (const File& file : files) texts.insert(texts.end(), {file.name, file.directory, file.text});
  put(out, texts);
  put(out, overrides);
  texts.clear();
  for (const auto& [name, value] : environment) texts.insert(texts.end(), {name, value});
  put(out, texts);
  put(out, working_directory);
  return out;
}

Sources Sources::unpack(std::string_view in) {
  if (!in.starts_with(kPackMagic)) throw ConfigError("the packed config is damaged");
  in.remove_prefix(kPackMagic.size());
  Sources sources;
  const auto texts = take_all(in);
  sources.overrides = take_all(in);
  const auto variables = take_all(in);
  sources.working_directory = take(in);
  if (!in.empty() || texts.empty() || texts.size() % 3 != 0 || variables.size() % 2 != 0)
    throw ConfigError("the packed config is damaged");
  for (std::size_t i = 0; i < texts.size(); i += 3) sources.files.push_back({texts[i], texts[i + 1], texts[i + 2]});
  for (std::size_t i = 0; i < variables.size(); i += 2) sources.environment[variables[i]] = variables[i + 1];
  return sources;
}

}  // namespace mmt::config
