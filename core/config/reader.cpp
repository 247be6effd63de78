#include "core/config/reader.h"

#include "core/config/scalars.h"
#include "core/config/session.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace mmt::config {

Reader::Reader(Session& session, const Node* node, std::string path, Place place)
    : session_(session), node_(node), path_(std::move(path)), place_(place) {
  out_.kind = Kind::map;
}

std::string Reader::path_of(std::string_view key) const { return join_path(path_, key); }
bool Reader::failed() const { return !session_.problems.empty(); }

const Node* Reader::known(std::string_view key) {
  if (std::ranges::find(known_, key) == known_.end()) {
    known_.emplace_back(key);
    session_.known_paths.insert(path_of(key));
  }
  return node_ == nullptr ? nullptr : node_->find(key);
}

Kind Reader::kind(std::string_view key) {
  const Node* node = known(key);
  return node == nullptr ? Kind::absent : node->kind;
}

bool Reader::is(std::string_view key, std::string_view word) {
  const Node* node = known(key);
  return node != nullptr && node->kind == Kind::scalar && node->text == word;
}

std::string Reader::where(std::string_view key) const {
  const Node* node = node_ == nullptr ? nullptr : node_->find(key);
  return session_.where(node == nullptr ? place_ : node->key_place);
}

Value Reader::absent() const {
  static const Node kNone;
  return Value(session_, kNone, path_, place_);
}

void Reader::record(std::string_view key, Node node) {
  if (node.kind == Kind::absent) return;
  node.key = key;
  if (Node* found = out_.find(key); found != nullptr) {
    *found = std::move(node);
  } else {
    out_.children.push_back(std::move(node));
  }
}

bool Reader::value(std::string_view key, const std::function<bool(Value&)>& read) {
  const Node* node = known(key);
  if (node == nullptr) return false;
  Value value(session_, *node, path_of(key), node->key_place);
  if (node->kind == Kind::empty) {
    value.problem("the key has no value; give one or remove the key");
    return false;
  }
  const bool good = read(value);
  record(key, good && value.out_.kind == Kind::absent ? *node : std::move(value.out_));
  return good;
}

void Reader::section(std::string_view key, const std::function<void(Reader&)>& bind) {
  if (has(key)) {
    value(key, [&](Value& v) { return v.read_map(bind); });
    return;
  }
  Reader reader(session_, nullptr, path_of(key), place_);
  bind(reader);
  record(key, reader.finish());
}

bool Reader::map(std::string_view key, const std::function<void(Reader&)>& bind) {
  return value(key, [&](Value& v) { return v.read_map(bind); });
}
bool Reader::list(std::string_view key, const std::function<void(Value&)>& item) {
  return value(key, [&](Value& v) { return v.read_list(item); });
}
bool Reader::entries(std::string_view key, const std::function<void(const std::string&, Value&)>& entry) {
  return value(key, [&](Value& v) { return v.read_entries(entry); });
}

void Reader::rest(const std::function<void(const std::string&, Value&)>& entry) {
  if (node_ == nullptr) return;
  for (const Node& child : node_->children) {
    if (std::ranges::find(known_, child.key) != known_.end()) continue;
    known_.push_back(child.key);
    if (child.key.find('.') != std::string::npos) {
      session_.add(child.key_place, path_of(child.key), "a name must not hold a dot");
      continue;
    }
    value(child.key, [&](Value& v) {
      entry(child.key, v);
      return true;
    });
  }
}

void Reader::unsupported(std::string_view key, std::string_view why) {
  if (const Node* node = known(key); node != nullptr) {
    session_.add(node->key_place, path_of(key), fmt::format("not supported yet: {}", why));
  }
}

void Reader::missing(std::string_view key) { session_.add(place_, path_of(key), "missing"); }

void Reader::problem(std::string_view key, std::string message) {
  const Node* node = node_ == nullptr ? nullptr : node_->find(key);
  const Place place = node == nullptr ? place_ : node->kind == Kind::empty ? node->key_place : node->place;
  session_.add(place, path_of(key), std::move(message));
}

void Reader::exactly_one(std::initializer_list<std::string_view> keys) {
  const auto set = std::ranges::count_if(keys, [&](std::string_view key) { return has(key); });
  if (set == 0)
    session_.add(place_, path_, fmt::format("exactly one of {} must be set; none is", fmt::join(keys, ", ")));
  if (set > 1) at_most_one(keys);
}

void Reader::at_most_one(std::initializer_list<std::string_view> keys) {
  std::string_view first;
  for (const std::string_view key : keys) {
    if (!has(key)) continue;
    if (first.empty()) {
      first = key;
    } else {
      problem(key,
              fmt::format("only one of {} may be set; {} is set too ({})", fmt::join(keys, ", "), first, where(first)));
    }
  }
}

Node Reader::finish() {
  if (node_ == nullptr) return std::move(out_);
  for (const Node& child : node_->children) {
    if (std::ranges::find(known_, child.key) != known_.end()) continue;
    const std::string near = nearest(child.key, known_);
    if (near.empty()) session_.unknown.push_back({session_.problems.size(), child.key});
    std::string message = near.empty() ? "unknown key" : fmt::format("unknown key (did you mean \"{}\"?)", near);
    if (near.empty() && !known_.empty() && known_.size() <= 20)
      message += fmt::format(" (the keys here are {})", fmt::join(known_, ", "));
    session_.add(child.key_place, path_of(shown(child.key)), std::move(message));
  }
  return std::move(out_);
}

}  // namespace mmt::config
