#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/generator.h"
#include "apps/mmtrain/inference.h"
#include "apps/mmtrain/signals.h"
#include "core/log.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <iostream>

namespace mmt::app {
namespace {

/// The command line's user turn: `<image>`, `<audio>` and `<video>` in it are the places of the files, in order;
/// without any, the files come first. Only the command line's own text is read this way, never a data file's.
data::Record prompt_record(const Arguments& a) {
  data::Record record;
  record.id = "prompt";
  data::Turn turn;
  struct Files {
    data::Modality modality;
    std::string place;
    const std::vector<std::string>& paths;
    std::size_t used = 0;
  };
  Files kinds[] = {{data::Modality::image, "<image>", a.images},
                   {data::Modality::audio, "<audio>", a.audios},
                   {data::Modality::video, "<video>", a.videos}};
  const auto add = [&](Files& files) {
    const std::string& path = files.paths[files.used++];
    record.media.push_back({files.modality, path, std::filesystem::absolute(path)});
    turn.parts.push_back({"", static_cast<std::int32_t>(record.media.size()) - 1});
  };
  std::string rest = a.prompt;
  const bool placed =
      std::ranges::any_of(kinds, [&](const Files& f) { return rest.find(f.place) != std::string::npos; });
  for (Files& files : kinds) {
    while (!placed && files.used < files.paths.size()) add(files);
  }
  while (placed && !rest.empty()) {
    Files& next = *std::ranges::min_element(kinds, {}, [&](const Files& f) { return rest.find(f.place); });
    const std::size_t at = rest.find(next.place);
    if (at > 0) turn.parts.push_back({rest.substr(0, at), -1});
    if (at == std::string::npos) break;
    if (next.used == next.paths.size())
      throw Agreed(kUsage, fmt::format("the prompt has more {} than files were given", next.place));
    add(next);
    rest.erase(0, at + next.place.size());
  }
  if (std::ranges::any_of(kinds, [](const Files& f) { return f.used < f.paths.size(); }))
    throw Agreed(kUsage, "more files were given than the prompt has places for");
  if (!placed && !a.prompt.empty()) turn.parts.push_back({rest, -1});
  record.turns.push_back(std::move(turn));
  return record;
}

void print(const Arguments& a, const std::string& set, const data::Record& record, const Answer& answer) {
  const auto [prompt, reference] = dialogue_text(record);
  if (a.json) {
    nlohmann::json line = {
        {"prompt", prompt}, {"answer", answer.text}, {"ended", answer.ended}, {"tokens", answer.ids.size()}};
    if (!set.empty()) line["set"] = set;
    if (!record.id.empty()) line["id"] = record.id;
    if (!reference.empty()) line["reference"] = reference;
    std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return;
  }
  std::cout << (set.empty() ? "" : fmt::format("[{}] ", set)) << prompt << "\nanswer: " << answer.text
            << (answer.ended ? "" : " ...") << "\n";
  if (!reference.empty()) std::cout << "reference: " << reference << "\n";
  std::cout << "\n";
}

}  // namespace

int run_generate(Job& job, const Arguments& a) {
  if (a.json) log::set_level(log::Level::warning);
  const Config config = job.read(a.config, a.overrides, Job::Needs::nothing);
  // Mistakes of the command line come before the ranks part.
  const bool prompted = !a.prompt.empty() || !a.images.empty() || !a.audios.empty() || !a.videos.empty();
  if (!prompted && config.eval.sets.empty()) throw Agreed(kUsage, "give --prompt, or eval.sets in the config");
  const data::Record record = prompted ? prompt_record(a) : data::Record();
  Inference inference = load_inference(job, config, a.checkpoint, true);
  if (job.rank() != 0) return kDone;  // answers are one rank's work
  GenerateOptions options;
  options.max_new_tokens = a.max_new_tokens > 0 ? a.max_new_tokens : config.eval.max_new_tokens;
  options.sampling.temperature = a.temperature;
  options.sampling.top_p = a.top_p;
  options.seed = a.seed.value_or(config.run.seed);
  options.stop = &stop_requested();
  Generator generator(inference.config, *inference.model, *inference.preparer, inference.stream);
  if (prompted) {
    print(a, "", record, generator.answer(record, 0, options));
    return kDone;
  }
  const std::int64_t count = a.samples > 0 ? a.samples : config.eval.generate > 0 ? config.eval.generate : 4;
  for (const SetConfig& set : config.eval.sets) {
    const auto records = data::open_records(set_spec(config, set));
    for (std::int64_t i = 0; i < std::min(count, records->size()) && !stop_requested(); ++i) {
      const std::string where = fmt::format("{}: sample {}", set.name, i);
      try {
        const data::Record sample = records->read(i);
        print(a, set.name, sample, generator.answer(sample, static_cast<std::uint64_t>(i), options));
      } catch (const DataError& e) {
        log::warning("{}: {}", where, e.what());
      }
    }
  }
  return stop_requested() ? kRequeue : kDone;
}

}  // namespace mmt::app
