#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/inference.h"
#include "core/data/text/tokenizer.h"
#include "core/data/weights/safetensors.h"
#include "core/error.h"
#include "core/log.h"
#include "core/metrics/metrics.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <iostream>

namespace mmt::app {
namespace {

/// Weights of a model as it was published.
int inspect_weights(const std::string& path, bool json) {
  const data::SafetensorsModel model = data::SafetensorsModel::open(path);
  if (json) {
    nlohmann::json out = {{"path", path}, {"metadata", model.metadata()}, {"tensors", nlohmann::json::array()}};
    for (const std::string& name : model.names()) {
      const data::SafeTensor& t = model.tensor(name);
      out["tensors"].push_back({{"name", name}, {"dtype", t.dtype}, {"shape", t.shape}, {"file", model.file_of(name)}});
    }
    std::cout << out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return kDone;
  }
  double bytes = 0, elements = 0;
  for (const std::string& name : model.names()) {
    const data::SafeTensor& t = model.tensor(name);
    bytes += static_cast<double>(t.bytes);
    elements += static_cast<double>(t.numel());
    std::cout << fmt::format("{:<72} {:>5} [{}] {}\n", name, t.dtype, fmt::join(t.shape, ","),
                             format_value(static_cast<double>(t.bytes), Unit::bytes));
  }
  std::cout << fmt::format("\n{}: {} tensors, {:.0f} elements, {}\n", path, model.names().size(), elements,
                           format_value(bytes, Unit::bytes));
  for (const auto& [key, value] : model.metadata()) std::cout << fmt::format("{}: {}\n", key, value);
  return kDone;
}

bool is_tokenizer(const std::filesystem::path& path) {
  return path.filename() == "tokenizer.json" || path.extension() == ".model";
}

/// How many tokens there are and which are special; or the ids of texts, a JSON list a line.
int inspect_tokenizer(const std::string& path, const std::string& texts, bool special) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(path);
  if (texts.empty()) {
    std::cout << fmt::format("{}: {} ids, bos {}, eos {}\n", data::Tokenizer::file_of(path).string(),
                             tokenizer.vocab_size(), tokenizer.bos_token(), tokenizer.eos_token());
    for (data::TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      if (tokenizer.is_special(id)) std::cout << fmt::format("{:>8} {}\n", id, tokenizer.bytes_of(id));
    }
    return kDone;
  }
  std::ifstream in(texts);
  if (!in) throw ConfigError(fmt::format("{}: cannot be read", texts));
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    const auto text = nlohmann::json::parse(line, nullptr, false);
    if (!text.is_string()) throw ConfigError(fmt::format("{}:{}: a JSON string is expected", texts, number));
    const std::string& value = text.get_ref<const std::string&>();
    const auto ids = special ? tokenizer.encode_with_special(value) : tokenizer.encode(value);
    std::cout << fmt::format("[{}]\n", fmt::join(ids, ","));
  }
  return kDone;
}

}  // namespace

int run_inspect(Job& job, const Arguments& a) {
  std::string path = a.checkpoint;
  if (!a.text.empty() || is_tokenizer(path)) {
    return job.rank() == 0 ? inspect_tokenizer(path, a.text, a.special) : kDone;
  }
  if (data::SafetensorsModel::looks_like(path)) return job.rank() == 0 ? inspect_weights(path, a.json) : kDone;
  if (std::filesystem::is_regular_file(path)) {  // a config: the newest checkpoint of its run
    log::set_level(log::Level::warning);
    path = job.read(path, {}, Job::Needs::nothing).run.output_dir;
  }
  const std::string folder = resolve_checkpoint(job, path);
  const auto reader = open_checkpoint(job, folder);
  if (job.rank() != 0) return kDone;
  const run::TrainingState& s = reader->state();
  const std::vector<run::CheckpointReader::Item> items = reader->tensors();
  if (a.json) {
    nlohmann::json out = {{"path", folder},
                          {"step", s.step},
                          {"updates", s.updates},
                          {"samples", s.samples},
                          {"seed", s.seed},
                          {"config", s.config},
                          {"instruction_set", s.instruction_set},
                          {"metrics", s.metrics}};
    for (const auto& item : items) {
      out["tensors"].push_back(
          {{"name", item.name}, {"dtype", name_of(item.dtype)}, {"shape", item.shape}, {"frozen", item.frozen}});
    }
    std::cout << out.dump(2) << "\n";
    return kDone;
  }
  std::int64_t bytes = 0;
  for (const auto& item : items) {
    std::int64_t n = size_of(item.dtype);
    for (const std::int64_t d : item.shape) n *= d;
    bytes += n;
    std::cout << fmt::format("{:<72} {:>5} [{}]{} {}\n", item.name, name_of(item.dtype), fmt::join(item.shape, ","),
                             item.frozen ? " frozen" : "", format_value(static_cast<double>(n), Unit::bytes));
  }
  std::cout << fmt::format("\n{}: step {}, {} updates, {} samples drawn, seed {}, instruction set {}; {} tensors, {}\n",
                           folder, s.step, s.updates, s.samples, s.seed, s.instruction_set, items.size(),
                           format_value(static_cast<double>(bytes), Unit::bytes));
  for (const auto& [name, value] : s.metrics) std::cout << fmt::format("{}: {}\n", name, value);
  std::cout << "\nconfig:\n" << s.config;
  return kDone;
}

}  // namespace mmt::app
