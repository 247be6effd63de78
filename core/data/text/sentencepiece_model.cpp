#include "core/data/text/sentencepiece_model.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <exception>

#include "core/error.h"

namespace mmt::data {

/// The dummy prefix is a property of a loaded model, so there are two: one for beginnings, one for what goes on.
struct SentencePieceModel::Processors {
  sentencepiece::SentencePieceProcessor begins, goes_on;
};

SentencePieceModel::SentencePieceModel(SentencePieceFile file, const std::string& name) : file_(std::move(file)) {
  const auto load = [&](sentencepiece::SentencePieceProcessor& processor, const std::string& bytes) {
    try {
      const auto status = processor.LoadFromSerializedProto(bytes);
      if (!status.ok()) throw ConfigError(fmt::format("{}: {}", name, status.message()));
    } catch (const ConfigError&) {
      throw;
    } catch (const std::exception& e) {
      throw ConfigError(fmt::format("{}: {}", name, e.what()));
    }
  };
  auto processors = std::make_unique<Processors>();
  load(processors->begins, file_.bytes);
  // Messages that follow each other merge, the later value counts: normalizer_spec (3) { add_dummy_prefix (3): false }.
  file_.bytes.append("\x1a\x02\x18\x00", 4);
  load(processors->goes_on, file_.bytes);
  file_.bytes = {};
  processors_ = std::move(processors);
}

SentencePieceModel::~SentencePieceModel() = default;

std::string SentencePieceModel::bos() const {
  const int id = processors_->begins.bos_id();
  return id < 0 ? std::string() : processors_->begins.IdToPiece(id);
}

std::string SentencePieceModel::eos() const {
  const int id = processors_->begins.eos_id();
  return id < 0 ? std::string() : processors_->begins.IdToPiece(id);
}

void SentencePieceModel::encode(std::string_view text, bool begins, std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  // A model that trims would lose the space before a word that goes on; its prefix is that space.
  const bool prefix = begins || (file_.trims && text.front() == ' ');
  std::vector<int> found;
  const auto status = (prefix ? processors_->begins : processors_->goes_on).Encode(text, &found);
  if (!status.ok()) {
    throw DataError(DataFault::bad_record, "tokenizer",
                    fmt::format("SentencePiece gave up on a text of {} bytes: {}", text.size(), status.message()));
  }
  ids.insert(ids.end(), found.begin(), found.end());
}

}  // namespace mmt::data
