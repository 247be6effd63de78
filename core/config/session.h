// What one document's readers share.
#pragma once

#include "core/config/reader.h"

#include <set>

namespace mmt::config {

struct Session {
  Sources sources;
  Node root;
  std::vector<Problem> document_problems;  // found while the texts were parsed and laid over one another
  std::vector<Problem> problems;           // found since `read` began
  struct Unknown {
    std::size_t problem;
    std::string key;
  };
  std::vector<Unknown> unknown;       // without a suggestion from their own map
  std::set<std::string> known_paths;  // of all keys asked for
  Node resolved;

  void add(Place place, std::string key, std::string message);
  std::string where(Place place) const;
  const std::string& directory(Place place) const;
  void throw_problems() const;
};

std::string join_path(const std::string& path, std::string_view key);
/// Text of the document as messages show it: short and on one line.
std::string shown(const std::string& text);

/// Replaces `${NAME}`; throws std::string with the mistake.
std::string expand_variables(std::string_view text,
                             const std::function<const std::string*(const std::string&)>& lookup);

/// Adds the values of all `${NAME}` in the text that are set in this process.
void collect_environment(std::string_view text, std::map<std::string, std::string>& environment);

/// Takes `extends` out of a document; "" when there is none or when it is wrong (then a problem is added).
std::string take_extends(Node& root, std::vector<Problem>& problems);

/// Lays `over` over `base`: maps merge, all else is replaced, an empty value removes.
void lay_over(Node& base, Node&& over);

/// One `--set key=value`.
void apply_override(Node& root, const std::string& text, std::vector<Problem>& problems);

}  // namespace mmt::config
