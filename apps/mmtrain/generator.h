// Answers: one sample at a time, prompt first, then token by token with a key/value cache.
#pragma once

#include "apps/mmtrain/dataset.h"
#include "apps/mmtrain/model.h"
#include "kernels/sample.h"
#include "parallel/run/rows.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace mmt::app {

struct GenerateOptions {
  std::int64_t max_new_tokens = 64;
  SampleOptions sampling;
  std::uint64_t seed = 1;
  const std::atomic<bool>* stop = nullptr;
};

struct Answer {
  std::string text;
  std::vector<std::int32_t> ids;
  bool ended = false;  ///< the model wrote the end of its turn; false: cut at max_new_tokens
};

/// Works on one rank by itself; the model's weights are all here.
class Generator {
 public:
  Generator(const Config& config, Model& model, const Preparer& preparer, const Stream& stream);
  ~Generator();

  /// Answers the record's last user turn (a trailing assistant turn is left out). Draws are addressed by `number`, so
  /// that an answer does not depend on what was generated before it. Throws DataError for media that cannot be used,
  /// ConfigError when prompt and answer do not fit the model's positions.
  Answer answer(const data::Record& record, std::uint64_t number, const GenerateOptions& options);

 private:
  struct Sequence;
  Tensor encode(std::size_t encoder, const data::Record& record, const data::Prepared& prompt,
                const plan::SampleMeta& meta, OwnedTensor& memory);
  void forward(std::size_t stage, run::Rows& rows, std::span<const Tensor> ports, const Tensor& out,
               Sequence* sequence);

  const Config& config_;
  Model& model_;
  const Preparer& preparer_;
  Stream stream_;
};

/// A record's dialogue up to its last answer, a line a turn, media by their file; and that answer, empty where there is
/// none.
struct DialogueText {
  std::string prompt, reference;
};
DialogueText dialogue_text(const data::Record& record);

}  // namespace mmt::app
