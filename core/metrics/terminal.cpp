#include "core/log.h"
#include "core/metrics/metrics.h"

#include <algorithm>
#include <chrono>

namespace mmt {
namespace {

class TerminalSink final : public Sink {
 public:
  explicit TerminalSink(TerminalOptions options) : options_(std::move(options)) {
    if (options_.clock) return;
    options_.clock = [] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    };
  }
  ~TerminalSink() override { log::status(""); }

  void write(const Metrics& metrics) override {
    learn_pace(metrics.step);
    const std::string figures = figures_of(metrics);
    const std::int64_t total = options_.total_steps;
    std::string line =
        total > 0 ? fmt::format("step {}/{}", metrics.step, total) : fmt::format("step {}", metrics.step);
    const std::string eta = seconds_a_step_ > 0 && total > metrics.step
                                ? format_duration(seconds_a_step_ * static_cast<double>(total - metrics.step))
                                : std::string();
    line += figures;
    if (!eta.empty()) line += "  eta " + eta;
    log::info("{}", line);
    if (total > 0) {
      constexpr std::int64_t kWidth = 24;
      const std::int64_t done = std::clamp<std::int64_t>(metrics.step, 0, total);
      const auto filled = static_cast<std::size_t>(kWidth * done / total);
      log::status(fmt::format("[{}{}] {}/{} {:.1f}%{}{}", std::string(filled, '='), std::string(kWidth - filled, ' '),
                              metrics.step, total, 100.0 * static_cast<double>(done) / static_cast<double>(total),
                              eta.empty() ? "" : "  eta " + eta, figures));
    }
  }

 private:
  std::string figures_of(const Metrics& metrics) const {
    std::string text;
    if (options_.columns.empty()) {
      for (const auto& [name, value] : metrics.values)
        text += fmt::format("  {} {}", name, format_value(value, Unit::number));
    }
    for (const Column& column : options_.columns) {
      if (const auto value = metrics.find(column.name))
        text += fmt::format("  {} {}", column.label, format_value(*value, column.unit));
    }
    return text;
  }

  // The first stretch is left out: it holds the warm-up.
  void learn_pace(std::int64_t step) {
    const double now = options_.clock();
    if (num_writes_ > 0 && step > last_step_) {
      const double pace = (now - last_time_) / static_cast<double>(step - last_step_);
      if (num_writes_ == 2) seconds_a_step_ = pace;
      if (num_writes_ > 2) seconds_a_step_ += 0.1 * (pace - seconds_a_step_);
    }
    if (num_writes_ == 0 || step > last_step_) {
      ++num_writes_;
      last_step_ = step;
      last_time_ = now;
    }
  }

  TerminalOptions options_;
  std::int64_t num_writes_ = 0;
  std::int64_t last_step_ = 0;
  double last_time_ = 0;
  double seconds_a_step_ = 0;
};

}  // namespace

std::unique_ptr<Sink> terminal_sink(TerminalOptions options) {
  return std::make_unique<TerminalSink>(std::move(options));
}

}  // namespace mmt
