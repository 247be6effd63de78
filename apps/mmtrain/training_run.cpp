// Trainer::run: the loop around the steps. Resume, figures, evaluation, checkpoints, the end.
#include "apps/mmtrain/generator.h"
#include "apps/mmtrain/memory.h"
#include "apps/mmtrain/signals.h"
#include "apps/mmtrain/state.h"
#include "apps/mmtrain/trainer.h"
#include "core/files.h"
#include "core/log.h"
#include "kernels/cpu/isa.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>

namespace mmt::app {
namespace {

std::string job_name() {
  for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"}) {
    if (const char* value = std::getenv(name)) return fmt::format("{} {}", name, value);
  }
  return {};
}

std::string report_text(const data::DataReport& report) {
  std::string text;
  for (const std::int64_t v : report.values()) text += fmt::format("{}{}", text.empty() ? "" : ",", v);
  return text;
}

data::DataReport parse_report(std::string_view text) {
  std::vector<std::int64_t> values;
  while (!text.empty()) {
    std::int64_t v = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
    if (error != std::errc()) break;
    values.push_back(v);
    text.remove_prefix(std::min(text.size(), static_cast<std::size_t>(end - text.data()) + 1));
  }
  // A report of another version counts from here on.
  return values.size() == data::DataReport().values().size() ? data::DataReport::from_values(values)
                                                             : data::DataReport();
}

}  // namespace

void Trainer::check_config_change(const std::string& before) {
  std::string changed, refused;
  using Kind = run::ScheduleKind;
  const bool rate_follows_length =
      schedule_.kind == Kind::linear || schedule_.kind == Kind::cosine || schedule_.kind == Kind::wsd;
  for (const config::Change& c : config::diff(before, config_.resolved)) {
    changed += "\n  " + to_string(c);
    const bool length = c.key == "train.steps" || c.key == "train.epochs";
    if (changes_mathematics(c.key) || (length && rate_follows_length)) refused += "\n  " + to_string(c);
  }
  if (!changed.empty()) log::info("the configuration changed since the checkpoint:{}", changed);
  if (!refused.empty()) {
    throw Agreed(
        kUsage,
        fmt::format("these changes would make the resumed run another one:{}\nTake them back, or start a new run "
                    "(another run.output_dir) with modules.*.init: {{checkpoint: ...}}",
                    refused));
  }
}

/// Files may have moved, but what they hold must be what the checkpoint's place in the data order means.
void Trainer::check_data(const run::TrainingState& before) {
  const auto note = before.notes.find("data_identity");
  if (note == before.notes.end() || note->second == data_identity_) return;
  throw Agreed(
      kUsage,
      "data.sets or data.tokenizer hold other samples, lengths or tokens than when the checkpoint was made: the "
      "resumed run would be another one. Bring the data back, or start a new run (another run.output_dir) with "
      "modules.*.init: {checkpoint: ...}");
}

void Trainer::resume_from(const std::string& path) {
  const auto reader = open_checkpoint(job_, path);
  const run::TrainingState& s = reader->state();
  check_config_change(s.config);
  check_data(s);
  if (s.instruction_set != name_of(cpu_isa())) {
    log::warning("the checkpoint was made with instruction set {}, this run uses {}: it goes on, but not bit for bit",
                 s.instruction_set, name_of(cpu_isa()));
  }
  load_training(job_, *reader, *model_, *optimizer_, stream_);
  optimizer_->set_updates(s.updates);
  progress_.step = s.step;
  progress_.updates = s.updates;
  progress_.cursor = s.samples;
  if (const auto note = s.notes.find("data_report"); note != s.notes.end())
    progress_.report = parse_report(note->second);
  drawn_ = s.samples;
  planned_steps_ = s.step;
  saved_step_ = s.step;
  log::info("resumed from {} (step {})", path, s.step);
}

void Trainer::start_or_resume() {
  const std::string folder = checkpoint_folder(config_);
  in_agreement(job_.world(), [&] {
    if (job_.rank() == 0) std::filesystem::create_directories(folder);
  });
  lock_ = std::make_unique<run::RunLock>(job_.world(), config_.run.output_dir, run::RunLockOptions{.job = job_name()});
  const std::optional<std::string> newest = run::find_checkpoint(job_.world(), folder);
  bool resumed = false;
  if (config_.resume == "none") {
    if (newest) {
      throw Agreed(kUsage, fmt::format("resume: none, but {} holds checkpoints of an earlier run: choose another "
                                       "run.output_dir, or resume: auto",
                                       folder));
    }
  } else if (config_.resume != "auto" && !newest) {
    resume_from(config_.resume);  // a run folder with checkpoints of its own is further on
    resumed = true;
  } else if (newest) {
    resume_from(*newest);
    resumed = true;
  }
  if (!resumed) load_initial(job_, config_, *model_, stream_);
  if (job_.rank() == 0) files::write_atomic(config_.run.output_dir + "/config.resolved.yaml", config_.resolved);
  run::CheckpointOptions options;
  options.folder = folder;
  options.retention.keep_last = static_cast<int>(config_.checkpoint.keep_last);
  options.retention.keep_every = config_.checkpoint.keep_every;
  options.retention.keep_best = config_.checkpoint.keep_best;
  options.retention.best_is_highest = config_.checkpoint.keep_best != "loss";
  options.async = config_.checkpoint.async;
  options.embed_frozen = config_.checkpoint.embed_frozen;
  writer_ = std::make_unique<run::CheckpointWriter>(job_.world(), options);
  if (job_.rank() == 0) open_sinks(resumed);
}

void Trainer::open_sinks(bool resumed) {
  const std::optional<std::int64_t> step = resumed ? std::optional(progress_.step) : std::nullopt;
  TerminalOptions terminal;
  terminal.columns = {{"loss", "loss", Unit::number},
                      {"eval/loss", "eval loss", Unit::number},
                      {"eval/answer_accuracy", "answers", Unit::percent},
                      {"eval/token_accuracy", "tokens", Unit::percent},
                      {"grad_norm", "grad", Unit::number},
                      {"lr", "lr", Unit::number},
                      {"rows_per_second", "rows/s", Unit::count},
                      {"tokens_per_second", "tokens/s", Unit::count},
                      {"flops_per_second", "flop/s", Unit::count},
                      {"step_seconds", "step", Unit::seconds},
                      {"time/load", "load", Unit::percent},
                      {"time/encoders", "enc", Unit::percent},
                      {"time/llm", "llm", Unit::percent},
                      {"time/loss", "loss", Unit::percent},
                      {"time/reduction", "red", Unit::percent},
                      {"time/optimizer", "opt", Unit::percent},
                      {"imbalance", "imbalance", Unit::percent},
                      {"memory_bytes", "mem", Unit::bytes}};
  terminal.total_steps = total_steps();
  sinks_.push_back(terminal_sink(std::move(terminal)));
  sinks_.push_back(json_lines_sink(config_.run.output_dir + "/metrics.jsonl", step));
  if (config_.log.tensorboard) sinks_.push_back(tensorboard_sink(config_.run.output_dir + "/tensorboard", step));
}

void Trainer::report_step(const StepFigures& f) {
  if (job_.rank() != 0) return;
  Metrics m;
  m.step = progress_.step;
  m.set("loss", f.loss);
  m.set("grad_norm", f.grad_norm);
  m.set("lr", f.lr);
  m.set("weight", f.weight);
  m.set("rows_per_second", f.rows / f.seconds);
  m.set("tokens_per_second", f.weight / f.seconds);
  m.set("flops_per_second", f.flops / f.seconds);
  m.set("step_seconds", f.seconds);
  // Shares of the step, as fractions.
  m.set("time/load", f.waited / f.seconds);
  m.set("time/encoders", f.times.encoders / f.seconds);
  m.set("time/llm", f.times.llm / f.seconds);
  m.set("time/loss", f.times.loss / f.seconds);
  m.set("time/transfers", f.times.transfers / f.seconds);
  m.set("time/reduction", f.times.reduction / f.seconds);
  m.set("time/optimizer", f.times.optimizer / f.seconds);
  m.set("imbalance", f.imbalance);
  m.set("failed_samples", static_cast<double>(f.failed));
  m.set("memory_bytes", static_cast<double>(resident_bytes()));
  for (const auto& sink : sinks_) sink->write(m);
}

/// The estimate is what was asked for: weights, gradients, moments, block arenas, rows. The rest of what the process
/// grew by is the loader's media, the matrix library's own buffers and the C++ heap.
void Trainer::report_memory() {
  memory_expected_ = expected_bytes(*model_, *engine_, stream_) + loader_->peak_bytes();
  const auto grown = static_cast<double>(peak_resident_bytes() - memory_before_);
  log::info("memory of this rank: {} before the model, peak {} above that; estimate {} ({:+.1f}%)",
            format_value(static_cast<double>(memory_before_), Unit::bytes), format_value(grown, Unit::bytes),
            format_value(static_cast<double>(memory_expected_), Unit::bytes),
            100.0 * (grown / static_cast<double>(memory_expected_) - 1.0));
}

/// What loading costs and whether the steps waited for it: says if `data.workers` is enough.
void Trainer::report_loading(double train_seconds, double waited) {
  const data::Loader::Work work = loader_->work_done();
  if (work.samples == 0 || train_seconds <= 0.0) return;
  const double rate = static_cast<double>(work.samples) / train_seconds;
  const double cost = work.seconds / static_cast<double>(work.samples);
  log::info(
      "data: {:.1f} samples/s loaded by this rank at {:.2f} ms of processor time each ({} worker{} can bring "
      "{:.0f}/s); the steps waited for data {:.2f}% of their time",
      rate, 1e3 * cost, config_.data.workers, config_.data.workers == 1 ? "" : "s",
      static_cast<double>(config_.data.workers) / std::max(cost, 1e-9), 100.0 * waited / train_seconds);
}

void Trainer::evaluate_now() {
  const std::vector<EvalResult> results =
      evaluate(config_, job_, *model_, *engine_, *preparer_, eval_indexes_, stop_requested());
  if (results.size() < eval_indexes_.size()) return;  // stopped
  evaluated_step_ = progress_.step;
  const EvalResult all = combined(results);
  eval_metrics_ = {
      {"loss", all.loss}, {"token_accuracy", all.token_accuracy()}, {"answer_accuracy", all.answer_accuracy()}};
  if (job_.rank() != 0) return;
  Metrics m;
  m.step = progress_.step;
  for (const EvalResult& r : results) {
    log::info("step {}: {}: loss {:.4f}, tokens {:.2f}%, answers {:.2f}% of {}{}", progress_.step, r.set, r.loss,
              100 * r.token_accuracy(), 100 * r.answer_accuracy(), r.answers,
              r.failed > 0 ? fmt::format(", {} samples failed", r.failed) : "");
    m.set(fmt::format("eval/{}/loss", r.set), r.loss);
    m.set(fmt::format("eval/{}/token_accuracy", r.set), r.token_accuracy());
    m.set(fmt::format("eval/{}/answer_accuracy", r.set), r.answer_accuracy());
  }
  for (const auto& [name, value] : eval_metrics_) m.set("eval/" + name, value);
  for (const auto& sink : sinks_) sink->write(m);
  show_answers();
}

/// Rank 0 alone; the others wait for it at the next step. What cannot be answered is said and costs nothing else.
void Trainer::show_answers() {
  if (config_.eval.generate == 0) return;
  if (!model_->whole()) {
    log::info("no answers are shown: a rank holds a part of the model; `mmtrain generate` without mpirun shows them");
    return;
  }
  Generator generator(config_, *model_, *preparer_, stream_);
  GenerateOptions options;
  options.max_new_tokens = config_.eval.max_new_tokens;
  options.seed = config_.run.seed;
  options.stop = &stop_requested();
  for (const data::DatasetIndex& index : eval_indexes_) {
    const auto count = std::min<std::int64_t>(config_.eval.generate, static_cast<std::int64_t>(index.usable().size()));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t sample = index.usable()[static_cast<std::size_t>(i)];
      try {
        const data::Record record = index.records().read(sample);
        const Answer answer = generator.answer(record, static_cast<std::uint64_t>(sample), options);
        const DialogueText text = dialogue_text(record);
        log::info("{} sample {}: {}\n  answer: {}{}\n  reference: {}", index.spec().name, sample, text.prompt,
                  answer.text, answer.ended ? "" : " ...", text.reference);
      } catch (const Error& e) {
        log::warning("no answer shown: {}", e.what());
      }
    }
  }
}

run::TrainingState Trainer::state() const {
  run::TrainingState s;
  s.step = progress_.step;
  s.updates = progress_.updates;
  s.samples = progress_.cursor;
  s.seed = config_.run.seed;
  s.config = config_.resolved;
  s.instruction_set = name_of(cpu_isa());
  // Only an evaluation of these very weights: keep_best must not take a later checkpoint for the one evaluated.
  if (evaluated_step_ == progress_.step) s.metrics = eval_metrics_;
  s.notes["data_identity"] = data_identity_;
  s.notes["data_report"] = report_text(progress_.report);
  return s;
}

void Trainer::save() {
  if (saved_step_ == progress_.step) return;
  writer_->save(run::saved_parts(model_->placed(), model_->uses, optimizer_.get()), state());
  saved_step_ = progress_.step;
}

int Trainer::run() {
  start_or_resume();
  const std::int64_t steps = total_steps();
  log::info("{} steps of {} samples on {} rank{}, from step {}", steps, config_.train.global_batch_size, job_.size(),
            job_.size() == 1 ? "" : "s", progress_.step);
  bool stopped = false;
  const std::int64_t first = progress_.step;
  double train_seconds = 0.0, waited = 0.0;
  while (progress_.step < steps && !stopped) {
    const StepFigures f = step();
    stopped = !f.begun;
    if (stopped) break;
    const std::int64_t at = progress_.step;
    train_seconds += f.seconds;
    waited += f.waited;
    if (at == steps || at % config_.log.every_steps == 0) report_step(f);
    if (at == first + 3) report_memory();
    if (config_.log.trace && at >= (*config_.log.trace)[0] && at <= (*config_.log.trace)[1])
      tracer_->write(*last_, *engine_, at);
    const auto due = [&](std::int64_t every) { return every > 0 && at % every == 0; };
    const bool keeps_best = !config_.checkpoint.keep_best.empty();
    if (due(config_.eval.every_steps) || (keeps_best && at == steps)) evaluate_now();
    if (due(config_.checkpoint.every_steps) || (keeps_best && evaluated_step_ == at)) save();
    writer_->poll();
    if (const auto every = config_.train.consistency_every; due(every)) check_replicas_now();
  }
  if (!stopped && !eval_indexes_.empty() && evaluated_step_ != progress_.step) {
    evaluate_now();
    stopped = evaluated_step_ != progress_.step;
  }
  save();
  writer_->finish();
  if (stopped) {
    log::info("asked to stop: saved step {} in {}; start the same command again to go on", progress_.step,
              checkpoint_folder(config_));
    return kRequeue;
  }
  log::info("done: {} steps; checkpoint in {}", steps, checkpoint_folder(config_));
  std::string left_out;
  for (const data::DatasetIndex& index : indexes_) {
    const std::string counts = fault_counts(index.faults());
    if (!counts.empty()) left_out += fmt::format("left out of {} from the start: {}\n", index.spec().name, counts);
  }
  report_loading(train_seconds, waited);
  log::info("data of this run:\n{}{}", progress_.report.text(), left_out);
  return kDone;
}

void Trainer::check_replicas_now() {
  if (job_.size() == 1) return;
  for (const int s : model_->own) {
    run::check_copies(*model_->stores[static_cast<std::size_t>(s)],
                      {model_->comm(s, plan::Axis::dp), model_->comm(s, plan::Axis::tp)}, stream_);
  }
}

}  // namespace mmt::app
