#include "parallel/plan/timeline_files.h"

#include "core/at.h"
#include "core/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace mmt::plan {
namespace {

/// Length of the UTF-8 sequence at the front of `text`, 0 when it is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) -> unsigned { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xc2 && first < 0xe0 ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, above U+10FFFF.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0) || (first == 0xf0 && byte(1) < 0x90) ||
      (first == 0xf4 && byte(1) >= 0x90)) {
    return 0;
  }
  return length;
}

/// What an action is called and coloured by.
const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::load: return "LOAD";
    case Kind::forward: return "F";
    case Kind::recompute: return "R";
    case Kind::backward_input: return "I";
    case Kind::backward_weight: return "W";
    case Kind::backward: return "B";
    case Kind::send: return "SEND";
    case Kind::recv: return "RECV";
    case Kind::tie: return "TIE";
    case Kind::reduce: return "RED";
    case Kind::optimize: return "OPT";
  }
  return "?";
}
constexpr int kNumKinds = static_cast<int>(Kind::optimize) + 1;

template <class... Args> void add(std::string& text, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
}

/// Appends f(item) for all items with commas between.
template <class Items, class F> void list(std::string& text, const Items& items, const F& f) {
  bool first = true;
  for (const auto& item : items) {
    if (!first) text += ',';
    first = false;
    f(item);
  }
}

void rank_json(std::string& text, const RankTimeline& r) {
  add(text, R"({{"rank":{},"busy":{},"transfer":{},"wait":{},"peak":{},"rows":[)", r.rank, r.busy, r.transfer, r.wait,
      r.peak);
  list(text, r.rows, [&](const TimelineRow& row) {
    add(text, R"([{},"{}",{},{},{}])", static_cast<int>(row.action.kind), to_string(row.action), row.start, row.end,
        row.action.stage);
  });
  text += R"(],"memory":[)";
  list(text, r.memory, [&](const MemoryPoint& m) { add(text, "[{},{}]", m.at, m.bytes); });
  text += "]}";
}

void timeline_object(std::string& text, const NamedTimeline& named) {
  MMT_CHECK(named.timeline != nullptr, "timeline {} is none", named.name);
  const Timeline& t = *named.timeline;
  add(text, R"({{"name":{},"makespan":{},"bubble":{:.6f},"ranks":[)", json_string(named.name), t.makespan, t.bubble());
  list(text, t.ranks, [&](const RankTimeline& r) { rank_json(text, r); });
  text += R"(],"critical":[)";
  list(text, t.critical, [&](const CriticalStep& step) {
    const auto r = std::ranges::find(t.ranks, step.rank, &RankTimeline::rank) - t.ranks.begin();
    add(text, "[{},{}]", r, step.row);
  });
  text += "]}";
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text[0];
    if (length == 0) {
      out += "\\ufffd";
    } else if (length > 1) {
      out += text.substr(0, length);
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == '<' || c == '>' || c == '&' || c == 0x7f) {
      add(out, "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out + '"';
}

std::string chrome_trace(const TimelinePage& page) {
  const auto us = [](Ns time) { return fmt::format("{}.{:03}", time / 1000, time % 1000); };
  std::string text = R"({"displayTimeUnit":"ms","traceEvents":[)";
  bool first = true;
  const auto begin = [&] {
    text += first ? "\n" : ",\n";
    first = false;
  };
  for (std::size_t p = 0; p < page.timelines.size(); ++p) {
    MMT_CHECK(page.timelines[p].timeline != nullptr, "timeline {} is none", page.timelines[p].name);
    begin();
    add(text, R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})", p,
        json_string(page.timelines[p].name));
    const std::vector<RankTimeline>& ranks = page.timelines[p].timeline->ranks;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const RankTimeline& r = ranks[i];
      begin();
      add(text, R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"rank {}"}}}})", p, r.rank,
          r.rank);
      for (std::size_t k = 0; k < r.rows.size(); ++k) {
        const TimelineRow& row = r.rows[k];
        const auto stage = at(row.action.stage);
        begin();
        add(text, R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{"stage":{})",
            to_string(row.action), name_of(row.action.kind), p, r.rank, us(row.start), us(row.end - row.start),
            json_string(stage < page.stage_names.size() ? page.stage_names[stage] : std::to_string(stage)));
        if (page.timelines[p].cpu != nullptr) {
          add(text, R"(,"cpu_us":{})", us(std::max<Ns>(page.timelines[p].cpu->at(i).at(k), 0)));
        }
        text += "}}";
      }
      for (const MemoryPoint& m : r.memory) {
        begin();
        add(text, R"({{"ph":"C","name":"memory of rank {}","pid":{},"ts":{},"args":{{"bytes":{}}}}})", r.rank, p,
            us(m.at), m.bytes);
      }
    }
  }
  return text + "\n]}\n";
}

std::string timeline_json(const TimelinePage& page) {
  std::string text;
  add(text, R"({{"title":{},"notes":[)", json_string(page.title));
  list(text, page.notes, [&](const std::string& note) { text += json_string(note); });
  text += R"(],"stages":[)";
  list(text, page.stage_names, [&](const std::string& name) { text += json_string(name); });
  text += R"(],"kinds":[)";
  for (int k = 0; k < kNumKinds; ++k) add(text, "{}\"{}\"", k == 0 ? "" : ",", name_of(static_cast<Kind>(k)));
  text += R"(],"timelines":[)";
  list(text, page.timelines, [&](const NamedTimeline& t) { timeline_object(text, t); });
  text += R"(],"errors":[)";
  list(text, page.errors, [&](const ActionError& e) {
    add(text, R"({{"kind":{},"stage":{},"count":{},"predicted":{},"measured":{},"worst":{}}})",
        static_cast<int>(e.kind), e.stage, e.count, e.predicted, e.measured, e.worst);
  });
  return text + "]}";
}

}  // namespace mmt::plan
