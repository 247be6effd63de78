// Figures of a step, and where they go: the terminal, a file of JSON lines, TensorBoard event files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mmt {

/// Figures in the order in which they are to be shown. Names are free (`loss`, `grad_norm`, `eval/loss`).
struct Metrics {
  std::int64_t step = 0;
  std::vector<std::pair<std::string, double>> values;

  void set(std::string_view name, double value);  ///< replaces the value of a name that is there
  std::optional<double> find(std::string_view name) const;
};

class Sink {
 public:
  virtual ~Sink() = default;
  /// Never throws for a disk that is full or gone: a training run does not end for its figures. The first failure is
  /// logged as a warning, and so is the end of the trouble.
  virtual void write(const Metrics& metrics) = 0;
};

enum class Unit { number, count, percent, seconds, bytes };

/// One figure of the line on the terminal.
struct Column {
  std::string name;  ///< of the metric; steps that lack it leave it out
  std::string label;
  Unit unit = Unit::number;
};

struct TerminalOptions {
  std::vector<Column> columns;    ///< empty: all metrics as plain numbers
  std::int64_t total_steps = 0;   ///< 0: not known, then neither bar nor remaining time
  std::function<double()> clock;  ///< seconds; empty: the steady clock
};
/// One line a step through core/log.h; on a terminal also a progress bar below it, with the time that remains.
std::unique_ptr<Sink> terminal_sink(TerminalOptions options);

/// Appends one JSON object a line: {"step":12,"loss":2.5,...}; what is not finite is null. `resumed_step` (the last
/// step that the run continues from): lines of later steps and torn lines are removed first. Without it a file that
/// exists is kept under another name. Throws mmt::Error when the file cannot be opened.
std::unique_ptr<Sink> json_lines_sink(const std::string& path, std::optional<std::int64_t> resumed_step = std::nullopt);

/// A new event file in `folder` (made when missing). A resumed run tells TensorBoard to drop what it knows of later
/// steps. `clock`: seconds since 1970; empty: the system's.
std::unique_ptr<Sink> tensorboard_sink(const std::string& folder,
                                       std::optional<std::int64_t> resumed_step = std::nullopt,
                                       std::function<double()> clock = {});

std::string format_value(double value, Unit unit);  ///< "2.341", "12.3k", "41.2%", "3.5ms", "1.5GiB"
std::string format_duration(double seconds);        ///< "45s", "12m03s", "3h07m", "2d04h"

/// One record of an event file: length, masked CRC-32C, an Event message, masked CRC-32C. For tests.
std::string event_record(const Metrics& metrics, double wall_time);
std::uint32_t crc32c(std::string_view bytes);

}  // namespace mmt
