#include "core/config/reader.h"
#include "core/config/scalars.h"
#include "core/config/session.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace mmt::config {
namespace {

namespace fs = std::filesystem;

std::string described(const Node& node) {
  switch (node.kind) {
    case Kind::map: return "a map";
    case Kind::list: return "a list";
    case Kind::scalar:
      return node.quoted ? fmt::format("the text \"{}\"", shown(node.text)) : fmt::format("`{}`", shown(node.text));
    default: return "no value";
  }
}

Node scalar_node(std::string text, bool quoted) {
  Node node;
  node.kind = Kind::scalar;
  node.text = std::move(text);
  node.quoted = quoted;
  return node;
}

std::string absolute_path(const std::string& directory, const std::string& path) {
  return (fs::path(directory) / path).lexically_normal().string();
}

}  // namespace

std::string join_path(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

std::string shown(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, 60)) out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  return text.size() > 60 ? out + "..." : out;
}

Node show(bool value) { return scalar_node(value ? "true" : "false", false); }
Node show(std::int64_t value) { return scalar_node(std::to_string(value), false); }
Node show(std::uint64_t value) { return scalar_node(std::to_string(value), false); }
Node show(double value) { return scalar_node(fmt::format("{}", value), false); }
Node show(const std::string& value) { return scalar_node(value, true); }
Node show_word(std::string_view word) { return scalar_node(std::string(word), true); }
Node show_list(std::vector<Node> items) {
  Node node;
  node.kind = Kind::list;
  node.children = std::move(items);
  return node;
}

std::string resolve_default_path(const Value& v, const std::string& path) {
  return path.empty() ? path : v.default_path(path);
}

Value::Value(Session& session, const Node& node, std::string path, Place key_place)
    : session_(session), node_(node), path_(std::move(path)), key_place_(key_place) {
  out_.kind = Kind::absent;
}

Kind Value::kind() const { return node_.kind; }
// In a flow map a variable needs quotes; its value may be a number all the same.
bool Value::is_text() const { return node_.quoted && !expanded_; }
bool Value::is(std::string_view word) const { return node_.kind == Kind::scalar && node_.text == word; }
std::string Value::where() const { return session_.where(node_.place); }
std::string Value::default_path(const std::string& path) const {
  return absolute_path(session_.sources.files.front().directory, path);
}
void Value::problem(std::string message) {
  session_.add(node_.kind == Kind::empty ? key_place_ : node_.place, path_, std::move(message));
}
void Value::record(std::string text, bool quoted) { out_ = scalar_node(std::move(text), quoted); }

void Value::wrong_type(std::string_view expected) {
  problem(fmt::format("expected {}{}, got {}", expected, or_word_.empty() ? "" : fmt::format(" or `{}`", or_word_),
                      described(node_)));
}

std::optional<std::string> Value::scalar_text(std::string_view expected) {
  if (node_.kind != Kind::scalar) {
    wrong_type(expected);
    return std::nullopt;
  }
  if (node_.text.find('$') == std::string::npos) return node_.text;
  try {
    return expand_variables(node_.text, [&](const std::string& name) -> const std::string* {
      const auto found = session_.sources.environment.find(name);
      if (found == session_.sources.environment.end()) return nullptr;
      expanded_ = true;
      return &found->second;
    });
  } catch (const std::string& mistake) {
    problem(mistake);
    return std::nullopt;
  }
}

bool Value::in_bounds(double value, const Bounds& b) {
  const bool low = b.above_min ? value > b.min : value >= b.min;
  const bool high = b.below_max ? value < b.max : value <= b.max;
  if (low && high) return true;
  std::string wanted;
  if (std::isfinite(b.min)) wanted = fmt::format("{} {}", b.above_min ? "above" : "at least", b.min);
  if (std::isfinite(b.max))
    wanted += fmt::format("{}{} {}", wanted.empty() ? "" : " and ", b.below_max ? "below" : "at most", b.max);
  problem(fmt::format("must be {}, got {}", wanted, described(node_)));
  return false;
}

bool Value::read(bool& out, const Bounds&) {
  const auto text = scalar_text("true or false");
  if (!text) return false;
  if (is_text() || (*text != "true" && *text != "false")) {
    wrong_type("true or false");
    return false;
  }
  out = *text == "true";
  out_ = show(out);
  return true;
}

template <class T> bool Value::read_integer(T& out, const Bounds& bounds) {
  constexpr std::string_view kExpected = "a whole number";
  const auto text = scalar_text(kExpected);
  if (!text) return false;
  const auto number = [&] {
    if constexpr (std::is_unsigned_v<T>) {
      return parse_uint(*text);
    } else {
      return parse_int(*text);
    }
  }();
  if (is_text() || number.fault == NumberFault::not_a_number || number.fault == NumberFault::not_whole) {
    wrong_type(kExpected);
    return false;
  }
  if (number.fault == NumberFault::out_of_range || !std::in_range<T>(number.value)) {
    problem(fmt::format("must be between {} and {}, got {}", std::numeric_limits<T>::min(),
                        std::numeric_limits<T>::max(), described(node_)));
    return false;
  }
  if (!in_bounds(static_cast<double>(number.value), bounds)) return false;
  out = static_cast<T>(number.value);
  record(std::to_string(out), false);
  return true;
}

bool Value::read(std::int32_t& out, const Bounds& bounds) { return read_integer(out, bounds); }
bool Value::read(std::int64_t& out, const Bounds& bounds) { return read_integer(out, bounds); }
bool Value::read(std::uint64_t& out, const Bounds& bounds) { return read_integer(out, bounds); }

bool Value::read(double& out, const Bounds& bounds) {
  const auto text = scalar_text("a number");
  if (!text) return false;
  const auto number = parse_double(*text);
  if (is_text() || number.fault == NumberFault::not_a_number) {
    wrong_type("a number");
    return false;
  }
  if (number.fault == NumberFault::out_of_range) {
    problem(fmt::format("{} is out of the range of a number", described(node_)));
    return false;
  }
  if (!in_bounds(number.value, bounds)) return false;
  out = number.value;
  out_ = show(out);
  return true;
}

bool Value::read(float& out, const Bounds& bounds) {
  double wide = 0;
  if (!read(wide, bounds)) return false;
  if (std::abs(wide) > static_cast<double>(std::numeric_limits<float>::max())) {
    problem(fmt::format("{} is out of the range of a number", described(node_)));
    return false;
  }
  out = static_cast<float>(wide);
  return true;
}

bool Value::read(std::string& out, const Bounds&) {
  auto text = scalar_text("a text");
  if (!text) return false;
  out = std::move(*text);
  out_ = show(out);
  return true;
}

bool Value::read_bytes(std::int64_t& out, const Bounds& bounds) {
  constexpr std::string_view kExpected = "a size such as 512MiB, 4GiB or 1000000";
  const auto text = scalar_text(kExpected);
  if (!text) return false;
  const auto number = parse_bytes(*text);
  if (number.fault == NumberFault::not_a_number || number.fault == NumberFault::not_whole) {
    wrong_type(kExpected);
    return false;
  }
  if (number.fault == NumberFault::out_of_range) {
    problem(fmt::format("{} is out of the range of a size", described(node_)));
    return false;
  }
  if (!in_bounds(static_cast<double>(number.value), bounds)) return false;
  out = number.value;
  record(std::to_string(out), false);
  return true;
}

bool Value::read_path(std::string& out) {
  auto text = scalar_text("a path");
  if (!text) return false;
  if (text->empty()) {
    problem("expected a path, got an empty text");
    return false;
  }
  out = absolute_path(session_.directory(node_.place), *text);
  out_ = show(out);
  return true;
}

std::optional<std::size_t> Value::read_choice(std::span<const std::string> names,
                                              std::span<const std::string> not_yet) {
  const std::string expected = fmt::format("{}{}", names.size() == 1 ? "" : "one of ", fmt::join(names, ", "));
  const auto text = scalar_text(expected);
  if (!text) return std::nullopt;
  const auto found = std::ranges::find(names, *text);
  if (found != names.end()) {
    record(*text, true);
    return static_cast<std::size_t>(found - names.begin());
  }
  if (std::ranges::find(not_yet, *text) != not_yet.end()) {
    problem(fmt::format("`{}` is not supported yet; expected {}", *text, expected));
    return std::nullopt;
  }
  const std::string near = nearest(*text, {names.begin(), names.end()});
  problem(fmt::format("expected {}, got {}{}", expected, described(node_),
                      near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near)));
  return std::nullopt;
}

bool Value::read_word(std::string_view word) {
  if (is(word)) {
    record(std::string(word), true);
    return true;
  }
  or_word_ = word;
  return false;
}

bool Value::read_map(const std::function<void(Reader&)>& bind) {
  if (node_.kind != Kind::map) {
    wrong_type("a map");
    return false;
  }
  Reader reader(session_, &node_, path_, key_place_);
  bind(reader);
  out_ = reader.finish();
  return true;
}

bool Value::read_list(const std::function<void(Value&)>& item) {
  if (node_.kind != Kind::list) {
    wrong_type("a list");
    return false;
  }
  Node out;
  out.kind = Kind::list;
  for (std::size_t i = 0; i < node_.children.size(); ++i) {
    Value value(session_, node_.children[i], join_path(path_, std::to_string(i)), node_.children[i].place);
    item(value);
    out.children.push_back(value.out_.kind == Kind::absent ? node_.children[i] : std::move(value.out_));
  }
  out_ = std::move(out);
  return true;
}

bool Value::read_entries(const std::function<void(const std::string&, Value&)>& entry) {
  return read_map([&](Reader& reader) { reader.rest(entry); });
}

}  // namespace mmt::config
