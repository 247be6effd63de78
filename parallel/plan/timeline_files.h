// Timelines as files: Chrome's trace format (Perfetto, chrome://tracing) and a page that needs nothing but a browser.
#pragma once

#include "parallel/plan/timeline.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::plan {

struct NamedTimeline {
  std::string name;  ///< "predicted", "measured"
  const Timeline* timeline = nullptr;
  /// By rank and row: CPU time of the action, where it was recorded; stands in the trace for read_chrome_trace.
  const std::vector<std::vector<Ns>>* cpu = nullptr;
};

/// What both files show. Names are UTF-8; anything in them is shown as it is, never interpreted.
struct TimelinePage {
  std::string title;
  std::vector<std::string> notes;        ///< lines under the title: the layout, why the schedule was chosen
  std::vector<NamedTimeline> timelines;  ///< one under the other, on one time axis
  std::vector<std::string> stage_names;  ///< by stage, shown with each action: "eyes 0-11"; may be shorter
  std::vector<ActionError> errors;       ///< a table, where predicted and measured are compared
};

/// Trace event format: a process per timeline, a thread per rank, an X event per action in microseconds with three
/// decimals (exact nanoseconds), a counter per rank for its memory.
std::string chrome_trace(const TimelinePage& page);

/// What a trace of ours recorded: each rank's program and the time of each of its actions. Transfers are kModelled: a
/// recorded one includes waiting.
struct RecordedTrace {
  std::vector<Program> programs;       ///< ascending by rank
  std::vector<std::vector<Ns>> times;  ///< for replay(): CPU time where recorded, else the action's length
};
/// The timeline of that name in a file that chrome_trace wrote, or that any tool wrote with such X events. `file` names
/// it in errors. Throws ConfigError when the text is no such trace, with the event and what is wrong with it.
RecordedTrace read_chrome_trace(std::string_view text, std::string_view timeline, const std::string& file);

/// The page's data as JSON: {"title", "notes", "stages", "kinds", "timelines": [{"name", "makespan", "bubble", "ranks":
/// [{"rank", "busy", "transfer", "wait", "peak", "rows": [[kind, "0F0", start, end, stage], ...], "memory": [[at,
/// bytes], ...]}], "critical": [[index of the rank, row], ...]}], "errors": [...]}, times in ns.
std::string timeline_json(const TimelinePage& page);

/// One lane a rank, colours by kind, hover text, zoom and pan, memory curves, critical path. The data stands in
/// <script type="application/json" id="data">.
std::string timeline_html(const TimelinePage& page);

/// `text` as a JSON string that may stand in a script element; bytes that are no UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

}  // namespace mmt::plan
