#include "core/config/tree.h"

#include <fmt/core.h>

#include <algorithm>

namespace mmt::config {
namespace {

bool safe_plain(const std::string& text) {
  if (text.empty() || text == "null" || text == "Null" || text == "NULL" || text == "~" || text[0] == '-') return false;
  // A text that looks like a number or a truth value is quoted for the people who read it.
  if (text == "true" || text == "false" || (text[0] >= '0' && text[0] <= '9') || text[0] == '.' || text[0] == '+')
    return false;
  return std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == '/' || c == '+';
  });
}

std::string quote(const std::string& text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (u < 0x20 || u == 0x7f) {
      out += fmt::format("\\x{:02x}", u);
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Values are final: what looks like a variable is text and must not be expanded when the file is read again.
// A run of `$` before `{` is written with one more.
std::string escape_variables(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool run_starts = text[i] == '$' && (i == 0 || text[i - 1] != '$');
    const std::size_t end = run_starts ? text.find_first_not_of('$', i) : std::string::npos;
    if (end != std::string::npos && text[end] == '{') out += '$';
    out += text[i];
  }
  return out;
}

std::string scalar(const Node& node) {
  if (node.kind == Kind::empty) return "null";
  if (!node.quoted) return node.text;
  return safe_plain(node.text) ? node.text : quote(escape_variables(node.text));
}

bool is_leaf(const Node& node) { return node.kind == Kind::scalar || node.kind == Kind::empty; }

std::string key_text(const std::string& key) { return safe_plain(key) && key.size() < 128 ? key : quote(key); }

void emit(const Node& node, std::size_t indent, std::string& out);

// What follows "key:" or "-".
void emit_value(const Node& node, std::size_t indent, std::string& out) {
  if (is_leaf(node)) {
    out += " " + scalar(node) + "\n";
  } else if (node.children.empty()) {
    out += node.kind == Kind::map ? " {}\n" : " []\n";
  } else if (node.kind == Kind::list && std::ranges::all_of(node.children, is_leaf)) {
    out += " [";
    for (std::size_t i = 0; i < node.children.size(); ++i) out += (i > 0 ? ", " : "") + scalar(node.children[i]);
    out += "]\n";
  } else {
    out += "\n";
    emit(node, indent, out);
  }
}

void emit(const Node& node, std::size_t indent, std::string& out) {
  for (const Node& child : node.children) {
    out += std::string(indent, ' ') + (node.kind == Kind::map ? key_text(child.key) + ":" : "-");
    emit_value(child, indent + 2, out);
  }
}

}  // namespace

std::string emit_yaml(const Node& root) {
  std::string out;
  if (root.children.empty()) {
    emit_value(root, 0, out);
    return out.substr(1);
  }
  emit(root, 0, out);
  return out;
}

}  // namespace mmt::config
