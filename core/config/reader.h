// The one way into a YAML config: typed values bound by plain functions, every mistake reported, all of them at once,
// as `file:line:column: key: message (did you mean "x"?)` in one ConfigError.
//
//   struct Train { std::int64_t steps = 0; Precision precision = Precision::fp32; };
//   void bind(Reader& r, Train& t) {
//     r.required("steps", t.steps, at_least(1));
//     r.optional("precision", as_choice(t.precision, {{"fp32", Precision::fp32}, {"bf16", Precision::bf16}}));
//   }
//   Document document = Document::load("train.yaml", {"train.steps=10"});
//   document.read([&](Reader& r) { r.section("train", [&](Reader& t) { bind(t, config.train); }); });
//
// Rules. Unknown and duplicate keys are mistakes. Numbers are read by us: `1e5` is a whole number, `010` is ten, bytes
// take units. Truth values are `true` and `false` alone. A key without a value is a mistake. `${NAME}` in a value is
// replaced by the environment's, `$${` stands for `${`. Relative paths are relative to the file they stand in, those
// of the command line to the current folder. `extends: other.yaml` at the top takes that file first and lays this one
// over it: maps merge, anything else is replaced, `key: null` removes what was inherited. `--set a.b=c` replaces the
// value at a.b afterwards (`sets.0.path=x` for lists, one past the end appends, null removes).
#pragma once

#include "core/config/tree.h"

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mmt::config {

/// Everything a config is made of, gathered once (by rank 0) and sent to the others as one text, so that all ranks see
/// the same files and the same environment.
struct Sources {
  struct File {
    std::string name;       ///< as it appears in messages
    std::string directory;  ///< absolute: what its relative paths are relative to
    std::string text;
  };
  std::vector<File> files;  ///< the config, what it extends, what that extends, ...
  std::vector<std::string> overrides;
  std::map<std::string, std::string> environment;  ///< the variables that are used and set
  std::string working_directory;

  std::string pack() const;
  static Sources unpack(std::string_view bytes);  ///< throws ConfigError when damaged
};

/// Reads the file and those it extends. Throws ConfigError: missing, unreadable, too large, not YAML, a cycle.
Sources gather(const std::string& path, const std::vector<std::string>& overrides = {});

/// Limits of a number; compared as f64.
struct Bounds {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  ///< the minimum itself is out of range
  bool below_max = false;
};
inline Bounds at_least(double min) { return {.min = min}; }
inline Bounds at_most(double max) { return {.max = max}; }
inline Bounds between(double min, double max) { return {.min = min, .max = max}; }
inline Bounds above(double min) { return {.min = min, .above_min = true}; }

class Reader;
struct Session;

/// One value of the document, with its place. The `read` functions return false after a mistake was reported.
class Value {
 public:
  Value(Session& session, const Node& node, std::string path, Place key_place);

  Kind kind() const;
  bool is(std::string_view word) const;  ///< a scalar with this text
  const std::string& path() const { return path_; }
  std::string where() const;                                ///< "train.yaml:12:9"
  std::string default_path(const std::string& path) const;  ///< relative to the config file
  void problem(std::string message);

  bool read(bool& out, const Bounds& bounds = {});
  bool read(std::int32_t& out, const Bounds& bounds = {});
  bool read(std::int64_t& out, const Bounds& bounds = {});
  bool read(std::uint64_t& out, const Bounds& bounds = {});
  bool read(float& out, const Bounds& bounds = {});
  bool read(double& out, const Bounds& bounds = {});
  bool read(std::string& out, const Bounds& bounds = {});
  bool read_bytes(std::int64_t& out, const Bounds& bounds = {});
  bool read_path(std::string& out);  ///< made absolute; must not be empty
  /// The place of the text among `names`; those in `not_yet` are refused as not supported yet.
  std::optional<std::size_t> read_choice(std::span<const std::string> names, std::span<const std::string> not_yet);
  bool read_map(const std::function<void(Reader&)>& bind);
  bool read_list(const std::function<void(Value&)>& item);
  /// A map whose keys are names that the user chose; the name is never empty and never holds a dot.
  bool read_entries(const std::function<void(const std::string& name, Value&)>& entry);
  /// For a value that is `word` or something else: true when it is the word. Mistakes then mention the word too.
  bool read_word(std::string_view word);
  Node& resolved() { return out_; }

 private:
  friend class Reader;
  bool is_text() const;
  std::optional<std::string> scalar_text(std::string_view expected);
  void wrong_type(std::string_view expected);
  bool in_bounds(double value, const Bounds& bounds);
  template <class T> bool read_integer(T& out, const Bounds& bounds);
  void record(std::string text, bool quoted);

  Session& session_;
  const Node& node_;
  std::string path_;
  Place key_place_;
  std::string or_word_;
  bool expanded_ = false;  // a variable was put in
  Node out_;
};

// What a value is bound to. `bind_value` reads it, `default_node` shows what stays when the key is absent
// (Kind::absent: nothing to show). Overload both for a type of your own.

template <class T> struct PathTarget { T& value; };
template <class T> PathTarget<T> as_path(T& value) { return {value}; }

struct BytesTarget {
  std::int64_t& value;
};
inline BytesTarget as_bytes(std::int64_t& value) { return {value}; }

template <class E> struct ChoiceTarget {
  E& value;
  std::vector<std::string> names;
  std::vector<E> values;
  std::vector<std::string> not_yet;
};
template <class E> ChoiceTarget<E> as_choice(E& value, std::initializer_list<std::pair<std::string_view, E>> choices,
                                             std::initializer_list<std::string_view> not_yet = {}) {
  ChoiceTarget<E> target{value, {}, {}, {not_yet.begin(), not_yet.end()}};
  for (const auto& [name, e] : choices) {
    target.names.emplace_back(name);
    target.values.push_back(e);
  }
  return target;
}

/// `word` (`auto`, `none`) or a value; the word makes it empty.
template <class T> struct WordTarget {
  std::string_view word;
  std::optional<T>& value;
};
template <class T> WordTarget<T> or_word(std::string_view word, std::optional<T>& value) { return {word, value}; }

Node show(bool value);
Node show(std::int64_t value);
Node show(std::uint64_t value);
Node show(double value);
Node show(const std::string& value);
Node show_word(std::string_view word);
Node show_list(std::vector<Node> items);

template <class T>
concept Plain = std::is_same_v<T, bool> || std::is_same_v<T, std::int32_t> || std::is_same_v<T, std::int64_t> ||
    std::is_same_v<T, std::uint64_t> || std::is_same_v<T, float> || std::is_same_v<T, double> ||
    std::is_same_v<T, std::string>;

template <Plain T> bool bind_value(Value& v, T& out, const Bounds& bounds) { return v.read(out, bounds); }
template <Plain T> Node default_node(const T& value, const Value&) {
  if constexpr (std::is_same_v<T, std::int32_t>) {
    return show(static_cast<std::int64_t>(value));
  } else if constexpr (std::is_same_v<T, float>) {
    return show(static_cast<double>(value));
  } else {
    return show(value);
  }
}

template <class T> bool bind_value(Value& v, std::vector<T>& out, const Bounds& bounds) {
  std::vector<T> items;
  bool good = true;
  good = v.read_list([&](Value& item) {
    T t{};
    good = bind_value(item, t, bounds) && good;
    items.push_back(std::move(t));
  }) && good;
  if (good) out = std::move(items);
  return good;
}
template <class T> Node default_node(const std::vector<T>& value, const Value& v) {
  std::vector<Node> items;
  for (const T& t : value) items.push_back(default_node(t, v));
  return show_list(std::move(items));
}

template <class T, std::size_t N> bool bind_value(Value& v, std::array<T, N>& out, const Bounds& bounds) {
  std::vector<T> items;
  if (!bind_value(v, items, bounds)) return false;
  if (items.size() != N) {
    v.problem("expected " + std::to_string(N) + " values, got " + std::to_string(items.size()));
    return false;
  }
  std::move(items.begin(), items.end(), out.begin());
  return true;
}
template <class T, std::size_t N> Node default_node(const std::array<T, N>& value, const Value& v) {
  return default_node(std::vector<T>(value.begin(), value.end()), v);
}

template <class T> bool bind_value(Value& v, std::optional<T>& out, const Bounds& bounds) {
  T t{};
  if (!bind_value(v, t, bounds)) return false;
  out = std::move(t);
  return true;
}
template <class T> Node default_node(const std::optional<T>& value, const Value& v) {
  if (value) return default_node(*value, v);
  Node none;
  none.kind = Kind::absent;
  return none;
}

template <class T> bool bind_value(Value& v, PathTarget<T>& out, const Bounds&) {
  if constexpr (std::is_same_v<T, std::string>) {
    return v.read_path(out.value);
  } else if constexpr (requires { out.value.push_back(std::string()); }) {
    T items;
    bool good = true;
    good = v.read_list([&](Value& item) { good = item.read_path(items.emplace_back()) && good; }) && good;
    if (good) out.value = std::move(items);
    return good;
  } else {
    std::string text;
    if (!v.read_path(text)) return false;
    out.value = std::move(text);
    return true;
  }
}
/// A relative default is relative to the config file, as a written one is.
std::string resolve_default_path(const Value& v, const std::string& path);
template <class T> Node default_node(PathTarget<T>& target, const Value& v) {
  if constexpr (std::is_same_v<T, std::string>) {
    target.value = resolve_default_path(v, target.value);
    if (target.value.empty()) return default_node(std::optional<std::string>(), v);  // no path: nothing to show
  }
  return default_node(target.value, v);
}

inline bool bind_value(Value& v, BytesTarget& out, const Bounds& bounds) { return v.read_bytes(out.value, bounds); }
inline Node default_node(const BytesTarget& target, const Value&) { return show(target.value); }

template <class E> bool bind_value(Value& v, ChoiceTarget<E>& out, const Bounds&) {
  const auto i = v.read_choice(out.names, out.not_yet);
  if (i) out.value = out.values[*i];
  return i.has_value();
}
template <class E> Node default_node(const ChoiceTarget<E>& target, const Value&) {
  for (std::size_t i = 0; i < target.names.size(); ++i) {
    if (target.values[i] == target.value) return show_word(target.names[i]);
  }
  return show_word("");
}

template <class T> bool bind_value(Value& v, WordTarget<T>& out, const Bounds& bounds) {
  if (v.read_word(out.word)) {
    out.value.reset();
    return true;
  }
  return bind_value(v, out.value, bounds);
}
template <class T> Node default_node(const WordTarget<T>& target, const Value& v) {
  return target.value ? default_node(*target.value, v) : show_word(target.word);
}

/// One map while it is being bound. Every key asked for, present or not, is a known key of the map; when the binding
/// function returns, all others are reported.
class Reader {
 public:
  Reader(Session& session, const Node* node, std::string path, Place place);

  const std::string& path() const { return path_; }
  Kind kind(std::string_view key);  ///< Kind::absent when it is not there
  bool has(std::string_view key) { return kind(key) != Kind::absent; }
  bool is(std::string_view key, std::string_view word);  ///< a scalar with this text
  std::string where(std::string_view key) const;         ///< place of the key, or of the map when it is absent

  /// Returns true when the key is there and its value is good; `target` then holds it. Else `target` keeps its value.
  template <class T> bool required(std::string_view key, T&& target, const Bounds& bounds = {}) {
    if (!has(key)) {
      missing(key);
      return false;
    }
    return value(key, [&](Value& v) { return bind_value(v, target, bounds); });
  }
  /// As `required`, but an absent key is fine: the value of `target` is the default, and is recorded as such.
  template <class T> bool optional(std::string_view key, T&& target, const Bounds& bounds = {}) {
    if (has(key)) return value(key, [&](Value& v) { return bind_value(v, target, bounds); });
    record(key, default_node(target, absent()));
    return false;
  }

  /// A map that may be absent: it is bound all the same, so that its defaults are known and its required keys missed.
  void section(std::string_view key, const std::function<void(Reader&)>& bind);
  /// A map, a list, a map of free names that may be absent: returns whether it is there.
  bool map(std::string_view key, const std::function<void(Reader&)>& bind);
  bool list(std::string_view key, const std::function<void(Value&)>& item);
  bool entries(std::string_view key, const std::function<void(const std::string&, Value&)>& entry);
  /// Free names in this map itself, beside its known keys: call it after those.
  void rest(const std::function<void(const std::string&, Value&)>& entry);
  /// Any form at all: `read` looks at the value's kind. Returns what `read` returns; false when absent.
  bool value(std::string_view key, const std::function<bool(Value&)>& read);

  /// Refuses a key that the design knows and this version does not: "not supported yet: <why>".
  void unsupported(std::string_view key, std::string_view why);
  void missing(std::string_view key);
  void exactly_one(std::initializer_list<std::string_view> keys);
  void at_most_one(std::initializer_list<std::string_view> keys);
  /// A mistake in the value of a key (or in the map, when the key is absent).
  void problem(std::string_view key, std::string message);
  /// Whether any mistake was reported so far: later checks that need good values may be left out.
  bool failed() const;

 private:
  friend class Document;
  friend class Value;
  const Node* known(std::string_view key);
  std::string path_of(std::string_view key) const;
  void record(std::string_view key, Node node);
  Value absent() const;
  Node finish();  // reports unknown keys

  Session& session_;
  const Node* node_;  // null: the map is absent
  std::string path_;
  Place place_;
  std::vector<std::string> known_;
  Node out_;
};

/// A config ready to be bound.
class Document {
 public:
  explicit Document(Sources sources);
  static Document load(const std::string& path, const std::vector<std::string>& overrides = {}) {
    return Document(gather(path, overrides));
  }
  /// `name` appears in messages; relative paths are relative to `directory`. `extends` is refused here.
  static Document from_text(std::string text, std::string name = "text", std::string directory = ".",
                            std::vector<std::string> overrides = {});
  Document(Document&&) noexcept;
  Document& operator=(Document&&) noexcept;
  ~Document();

  /// Binds the document and throws ConfigError when anything was wrong with it. May be called again (with the same
  /// result): each call starts anew.
  void read(const std::function<void(Reader&)>& bind);

  /// After `read`: every bound key with its final value, defaults filled in, paths absolute, as YAML in binding order.
  /// Reading it again gives the same values.
  std::string resolved() const;

  /// For checks across keys after `read`: adds mistakes, `throw_problems` throws them all. `where` is the place of the
  /// key or of the nearest map around it: "train.yaml:12:9".
  void problem(const std::string& path, std::string message);
  void throw_problems() const;
  std::string where(const std::string& path) const;

  const Sources& sources() const;

 private:
  std::unique_ptr<Session> session_;
};

/// One difference of two resolved configs; an empty side means that the key is not there.
struct Change {
  std::string key;
  std::string before;
  std::string after;
};
std::vector<Change> diff(std::string_view before, std::string_view after);
std::string to_string(const Change& change);  ///< "train.steps: 10 -> 20"

}  // namespace mmt::config
