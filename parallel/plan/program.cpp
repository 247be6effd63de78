#include "parallel/plan/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>
#include <utility>

namespace mmt::plan {
namespace {

constexpr std::array<std::pair<Kind, std::string_view>, 11> kNames = {{
    {Kind::load, "LOAD"},
    {Kind::forward, "F"},
    {Kind::recompute, "R"},
    {Kind::backward_input, "I"},
    {Kind::backward_weight, "W"},
    {Kind::backward, "B"},
    {Kind::send, "SEND"},
    {Kind::recv, "RECV"},
    {Kind::tie, "TIE"},
    {Kind::reduce, "RED"},
    {Kind::optimize, "OPT"},
}};

constexpr bool is_transfer(Kind kind) { return kind == Kind::send || kind == Kind::recv; }
constexpr bool names_bucket(Kind kind) { return kind == Kind::tie || kind == Kind::reduce; }

/// Reads an integer from the front of `text`; throws through `bad` when there is none or it does not fit.
template <class T, class Bad> T take_number(std::string_view& text, const Bad& bad) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) bad();
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string to_string(const Action& a) {
  const auto name = std::ranges::find(kNames, a.kind, &std::pair<Kind, std::string_view>::first)->second;
  std::string text = fmt::format("{}{}", a.stage, name);
  if (names_bucket(a.kind)) {
    text += fmt::format(":b{}", a.block);
  } else if (a.kind != Kind::optimize) {
    text += fmt::format("{}", a.block);
  }
  if (is_transfer(a.kind)) text += fmt::format("@{}e{}", a.transposed ? "-" : "", a.edge);
  if (a.step_ahead != 0) text += fmt::format("+{}", a.step_ahead);
  return text;
}

Action parse_action(std::string_view text) {
  const std::string whole(text);
  const auto bad = [&] { throw std::invalid_argument(fmt::format("\"{}\" is not an action", whole)); };
  Action a;
  a.stage = take_number<std::int16_t>(text, bad);
  const std::size_t letters = std::min(text.size(), text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ"));
  const auto name = std::ranges::find(kNames, text.substr(0, letters), &std::pair<Kind, std::string_view>::second);
  if (name == kNames.end()) bad();
  a.kind = name->first;
  text.remove_prefix(letters);
  if (names_bucket(a.kind) && !take(text, ":b")) bad();
  if (a.kind != Kind::optimize) a.block = take_number<std::int32_t>(text, bad);
  if (is_transfer(a.kind)) {
    if (!take(text, "@")) bad();
    a.transposed = take(text, "-");
    if (!take(text, "e")) bad();
    a.edge = take_number<std::int16_t>(text, bad);
  }
  if (take(text, "+")) a.step_ahead = take_number<std::int8_t>(text, bad);
  if (!text.empty()) bad();
  return a;
}

std::string to_string(const Program& program) {
  std::string text = fmt::format("rank {}:", program.rank);
  for (const Action& a : program.actions) text += " " + to_string(a);
  return text;
}

Program parse_program(std::string_view text) {
  const std::string whole(text);
  const auto bad = [&] { throw std::invalid_argument(fmt::format("\"{}\" is not a program", whole)); };
  Program program;
  if (!take(text, "rank ")) bad();
  program.rank = take_number<int>(text, bad);
  if (!take(text, ":")) bad();
  while (!text.empty()) {
    const std::size_t start = text.find_first_not_of(" \n");
    if (start == std::string_view::npos) break;
    text.remove_prefix(start);
    const std::size_t end = std::min(text.size(), text.find_first_of(" \n"));
    program.actions.push_back(parse_action(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return program;
}

std::vector<int> StageGraph::consumers_of(int edge, int producer_block) const {
  std::vector<int> consumers;
  const auto& table = producers_of[static_cast<std::size_t>(edge)];
  for (std::size_t m = 0; m < table.size(); ++m) {
    if (std::ranges::find(table[m], producer_block) != table[m].end()) consumers.push_back(static_cast<int>(m));
  }
  return consumers;
}

}  // namespace mmt::plan
