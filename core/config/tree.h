// The document tree that the reader works on: plain values, made by parse.cpp from YAML text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::config {

/// A place in one of the texts; lines and columns count from 1.
struct Place {
  static constexpr int kCommandLine = -1;
  int file = kCommandLine;  ///< index into Sources::files
  int line = 0;
  int column = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

enum class Kind { absent, empty, scalar, list, map };

struct Node {
  std::string key;  ///< of an entry of a map
  Place key_place;
  Kind kind = Kind::empty;
  bool quoted = false;  ///< a scalar that stood in quotes
  std::string text;     ///< of a scalar
  Place place;          ///< of the value
  std::vector<Node> children;

  const Node* find(std::string_view name) const;
  Node* find(std::string_view name);
};

/// Something wrong in the document; `key` is the dotted path.
struct Problem {
  Place place;
  std::string key;
  std::string message;
};

struct Limits {
  static constexpr std::size_t kBytes = std::size_t{1} << 20;  ///< of one text
  static constexpr std::size_t kNodes = 100'000;               ///< of one text, aliases expanded
  static constexpr std::size_t kDepth = 64;                    ///< of the tree
  static constexpr std::size_t kFiles = 16;                    ///< in a chain of `extends`
  static constexpr std::size_t kProblems = 100;                ///< reported
};

/// Reads one YAML document. Mistakes of syntax, and texts over the limits, throw ConfigError with `name:line:column`;
/// duplicate keys and the like are added to `problems` and reading goes on.
/// Anchors and aliases are expanded; `<<` merges maps (own keys win, then the earlier map); tags are refused.
Node parse_yaml(std::string_view text, const std::string& name, int file, std::vector<Problem>& problems);

/// Block style YAML that parse_yaml reads back to the same tree.
std::string emit_yaml(const Node& root);

}  // namespace mmt::config
