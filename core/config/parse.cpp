#include "core/config/tree.h"
#include "core/error.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

namespace mmt::config {
namespace {

[[noreturn]] void fail(const std::string& name, int line, int column, const std::string& message) {
  if (line <= 0) throw ConfigError(fmt::format("{}: {}", name, message));
  throw ConfigError(fmt::format("{}:{}:{}: {}", name, line, column, message));
}

std::size_t count_nodes(const Node& node) {
  std::size_t n = 1;
  for (const Node& child : node.children) n += count_nodes(child);
  return n;
}

// Turns the parser's events into a tree. Nothing is built beyond the limits: they are checked as events arrive.
class Builder final : public YAML::EventHandler {
 public:
  Builder(const std::string& name, int file, std::vector<Problem>& problems)
      : name_(name), file_(file), problems_(problems) {}

  Node take_root() { return std::move(root_); }
  bool has_root() const { return has_root_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    count(mark, 1);
    Node node;
    node.place = place(mark);
    attach(std::move(node), anchor, mark);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    count(mark, 1);
    check_tag(mark, tag);
    Node node;
    node.kind = Kind::scalar;
    node.text = value;
    node.quoted = tag == "!";
    node.place = place(mark);
    attach(std::move(node), anchor, mark);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) stop(mark, "this alias refers to a value that contains it");
    count(mark, found->second.second);
    Node node = found->second.first;
    attach(std::move(node), 0, mark);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Kind::list);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Kind::map);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override {
    merge(frames_.back());
    close();
  }

 private:
  struct Frame {
    Node node;
    YAML::anchor_t anchor = 0;
    YAML::Mark mark;
    bool has_key = false;
    std::string key;
    Place key_place;
    std::unordered_map<std::string, std::size_t> index;  // of a key among the children
  };

  Place place(const YAML::Mark& mark) const { return {file_, mark.line + 1, mark.column + 1}; }

  [[noreturn]] void stop(const YAML::Mark& mark, const std::string& message) const {
    fail(name_, file_ == Place::kCommandLine ? 0 : mark.line + 1, mark.column + 1, message);
  }

  void count(const YAML::Mark& mark, std::size_t nodes) {
    num_nodes_ += nodes;
    if (num_nodes_ > Limits::kNodes) {
      stop(mark, fmt::format("the document has more than {} values, aliases expanded", Limits::kNodes));
    }
  }

  void check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    problems_.push_back({place(mark), path(), fmt::format("tags ({}) are not supported", tag)});
  }

  std::string path() const {
    std::string text;
    for (const Frame& frame : frames_) {
      const std::string part =
          frame.node.kind == Kind::list ? fmt::format("{}", frame.node.children.size()) : frame.key;
      if (!part.empty()) text += (text.empty() ? "" : ".") + part;
    }
    return text;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Kind kind) {
    count(mark, 1);
    check_tag(mark, tag);
    if (frames_.size() >= Limits::kDepth)
      stop(mark, fmt::format("the document is nested more than {} deep", Limits::kDepth));
    Frame frame;
    frame.node.kind = kind;
    frame.node.place = place(mark);
    frame.anchor = anchor;
    frame.mark = mark;
    frames_.push_back(std::move(frame));
  }

  void close() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    attach(std::move(frame.node), frame.anchor, frame.mark);
  }

  void attach(Node&& node, YAML::anchor_t anchor, const YAML::Mark& mark) {
    if (anchor != 0) {
      // The copy kept for the aliases counts too, so that nested anchors cannot use up memory.
      const std::size_t nodes = count_nodes(node);
      count(mark, nodes);
      anchors_.insert_or_assign(anchor, std::pair(node, nodes));
    }
    if (frames_.empty()) {
      root_ = std::move(node);
      has_root_ = true;
      return;
    }
    Frame& frame = frames_.back();
    if (frame.node.kind == Kind::list) {
      frame.node.children.push_back(std::move(node));
      return;
    }
    if (!frame.has_key) {
      if (node.kind != Kind::scalar || node.text.empty()) stop(mark, "a key must be a name");
      frame.key = node.text;
      frame.key_place = node.place;
      frame.has_key = true;
      return;
    }
    frame.has_key = false;
    node.key = frame.key;
    node.key_place = frame.key_place;
    const auto [found, fresh] = frame.index.emplace(frame.key, frame.node.children.size());
    if (!fresh) {
      const Place first = frame.node.children[found->second].key_place;
      problems_.push_back(
          {frame.key_place, path(), fmt::format("duplicate key; it is set in line {} already", first.line)});
    } else {
      frame.node.children.push_back(std::move(node));
    }
    frame.key.clear();
  }

  // `<<: *base` or `<<: [*a, *b]`.
  void merge(Frame& frame) {
    const auto found = frame.index.find("<<");
    if (found == frame.index.end()) return;
    Node source = std::move(frame.node.children[found->second]);
    frame.node.children.erase(frame.node.children.begin() + static_cast<std::ptrdiff_t>(found->second));
    frame.index.erase(found);
    std::vector<Node> maps;
    if (source.kind == Kind::map) {
      maps.push_back(std::move(source));
    } else {
      maps = std::move(source.children);
    }
    for (Node& map : maps) {
      if (map.kind != Kind::map) {
        problems_.push_back({source.key_place, path(), "<< takes a map or a list of maps"});
        return;
      }
      for (Node& child : map.children) {
        if (frame.index.emplace(child.key, 0).second) frame.node.children.push_back(std::move(child));
      }
    }
    if (maps.empty()) problems_.push_back({source.key_place, path(), "<< takes a map or a list of maps"});
  }

  const std::string& name_;
  int file_;
  std::vector<Problem>& problems_;
  std::vector<Frame> frames_;
  std::map<YAML::anchor_t, std::pair<Node, std::size_t>> anchors_;
  std::size_t num_nodes_ = 0;
  Node root_;
  bool has_root_ = false;
};

// Bytes of the UTF-8 sequence at `at`, or 0 when it is none (overlong forms and surrogates included).
std::size_t utf8_length(std::string_view s, std::size_t at) {
  const auto byte = [&](std::size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u; };
  const unsigned a = byte(at);
  if (a < 0x80) return 1;
  const std::size_t length = a >= 0xC2 && a < 0xE0 ? 2 : a >= 0xE0 && a < 0xF0 ? 3 : a >= 0xF0 && a < 0xF5 ? 4 : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0u) != 0x80u) return 0;
  }
  const unsigned b = byte(at + 1);
  if ((a == 0xE0 && b < 0xA0) || (a == 0xED && b >= 0xA0) || (a == 0xF0 && b < 0x90) || (a == 0xF4 && b >= 0x90))
    return 0;
  return length;
}

void check_characters(std::string_view text, const std::string& name) {
  int line = 1;
  int column = 1;
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7f) {
      fail(name, line, column, fmt::format("the text has a control character (0x{:02x})", c));
    }
    const std::size_t length = utf8_length(text, i);
    if (length == 0) fail(name, line, column, "the text is not UTF-8");
    i += length;
    column = c == '\n' ? 1 : column + 1;
    line += c == '\n' ? 1 : 0;
  }
}

// yaml-cpp's own messages do not mention the most frequent cause.
std::string tab_hint(std::string_view text) {
  int line = 1;
  bool indent = true;
  for (const char c : text) {
    if (c == '\t' && indent) return fmt::format(" (line {} is indented with a tab; YAML takes spaces only)", line);
    if (c == '\n') ++line;
    indent = c == '\n' || (indent && c == ' ');
  }
  return "";
}

}  // namespace

const Node* Node::find(std::string_view name) const {
  for (const Node& child : children) {
    if (child.key == name) return &child;
  }
  return nullptr;
}

Node* Node::find(std::string_view name) {
  const auto found = std::ranges::find_if(children, [&](const Node& child) { return child.key == name; });
  return found == children.end() ? nullptr : &*found;
}

Node parse_yaml(std::string_view text, const std::string& name, int file, std::vector<Problem>& problems) {
  if (text.size() > Limits::kBytes)
    fail(name, 0, 0, fmt::format("the text has {} bytes; the limit is {}", text.size(), Limits::kBytes));
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  check_characters(text, name);
  Builder builder(name, file, problems);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(builder) && builder.has_root()) {
      Node root = builder.take_root();
      Builder rest(name, file, problems);
      if (parser.HandleNextDocument(rest) && rest.has_root())
        fail(name, 0, 0, "the text holds more than one YAML document");
      return root;
    }
  } catch (const ConfigError&) {
    throw;
  } catch (const YAML::Exception& e) {
    const bool known = !e.mark.is_null() && file != Place::kCommandLine;
    fail(name, known ? e.mark.line + 1 : 0, e.mark.column + 1,
         fmt::format("not valid YAML: {}{}", e.msg, tab_hint(text)));
  } catch (const std::exception& e) {
    fail(name, 0, 0, fmt::format("not valid YAML: {}", e.what()));
  }
  Node empty;
  empty.place = {file, 1, 1};
  return empty;
}

}  // namespace mmt::config
