// A tiny multimodal run in a folder that vanishes: pictures, sounds, text, a tokenizer of bytes and a config whose
// steps take milliseconds.
#pragma once

#include "tests/apps/process.h"
#include "tests/support/temp_folder.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mmt::app_test {

using mmt::test::TempFolder;

/// Values of `--set`.
using Set = std::vector<std::string>;
Set with(Set set, const Set& more);

inline constexpr int kFailed = 1, kUsage = 2;  ///< exit codes
void require_code(const Outcome& o, int code);
Outcome require_done(Outcome o);
/// The code, and the message in what was printed.
void require_outcome(const Outcome& o, int code, const std::string& message);

std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

/// A grey picture of one of four kinds (which half is bright), with noise of its own.
void write_picture(const std::filesystem::path& path, int kind, int number, int width = 28, int height = 28);
/// 8 kHz mono, 16 bit, of one of four pitches; `number` gives length and loudness.
void write_sound(const std::filesystem::path& path, int kind, int number);
/// 256 bytes and the special tokens of the chatml template.
void write_tokenizer(const std::filesystem::path& path);

/// Names of the four kinds of picture and of sound.
inline const std::vector<std::string> kPictures = {"left", "right", "top", "bottom"};
inline const std::vector<std::string> kSounds = {"one", "two", "three", "four"};

/// Data sets pictures.json (LLaVA), sounds.jsonl, both.jsonl (messages) and text.json (LLaVA), 12 samples each, and
/// eval.jsonl of 12 samples that mixes all kinds; tokenizer.json; config.yaml with output_dir `run`.
class TinyRun {
 public:
  TinyRun();

  const std::filesystem::path& folder() const { return folder_.path(); }
  std::string config() const { return (folder() / "config.yaml").string(); }
  std::filesystem::path run_folder() const { return folder() / "run"; }
  std::filesystem::path checkpoint(std::int64_t step, const std::string& run = "run") const;

  /// `mmtrain COMMAND config.yaml --set SET... MORE...`
  std::vector<std::string> arguments(const std::string& command, const Set& set = {},
                                     const std::vector<std::string>& more = {}) const;
  Outcome run(const std::string& command, const Set& set = {}, const Launch& launch = {},
              const std::vector<std::string>& more = {}) const;
  /// Replaces the text `from`, which must be there, in config.yaml.
  void edit_config(const std::string& from, const std::string& to) const;
  /// Pictures of several sizes, eyes that take them as they are (qwen2_vl), and three positions a row in the LLM.
  void use_pictures_of_any_size() const;

 private:
  TempFolder folder_;
};

/// metrics.jsonl by step; lines of the same step (an evaluation beside the step's own) are merged.
std::map<std::int64_t, nlohmann::json> read_metrics(const std::filesystem::path& run_folder);

}  // namespace mmt::app_test
