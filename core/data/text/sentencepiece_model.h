// The SentencePiece library behind a small interface: text without added tokens to ids.
#pragma once

#include "core/data/text/sentencepiece_file.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mmt::data {

/// Immutable after construction; every const member may be called from any number of threads at once.
class SentencePieceModel {
 public:
  /// Throws ConfigError with the library's message.
  SentencePieceModel(SentencePieceFile file, const std::string& name);
  ~SentencePieceModel();
  SentencePieceModel(const SentencePieceModel&) = delete;
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;

  const SentencePieceFile& file() const { return file_; }
  std::string bos() const;  ///< empty: none
  std::string eos() const;
  /// Ids of valid UTF-8, appended. `begins`: with the dummy prefix where the model has one. Control pieces that occur
  /// in the text are plain text, user-defined ones are recognised.
  void encode(std::string_view text, bool begins, std::vector<std::int32_t>& ids) const;

 private:
  struct Processors;
  SentencePieceFile file_;  // its bytes are gone
  std::unique_ptr<const Processors> processors_;
};

}  // namespace mmt::data
