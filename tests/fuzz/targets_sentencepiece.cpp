// SentencePiece's tokenizer.model: our check of the file, then the library, which trusts what it is given.
#include "core/data/text/sentencepiece_model.h"
#include "core/error.h"
#include "tests/fuzz/target.h"

#include <stdexcept>
#include <string_view>

namespace mmt::fuzz {
namespace sentencepiece {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    data::SentencePieceFile file =
        data::SentencePieceFile::parse({reinterpret_cast<const char*>(data), size}, "tokenizer.model");
    const data::SentencePieceModel model(std::move(file), "tokenizer.model");
    const auto pieces = static_cast<std::int64_t>(model.file().pieces.size());
    std::vector<std::int32_t> ids;
    for (const std::string_view text :
         {"Hello  world's 123 \xc3\xa9t\xc3\xa9\n\n", " <s>", "\xe2\x96\x81\xef\xbc\xa1"}) {
      for (const bool begins : {true, false}) model.encode(text, begins, ids);
    }
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= pieces) throw std::logic_error("an id that no piece has");
    }
    (void)model.bos();
    (void)model.eos();
    accepted();
  } catch (const Error&) {
  }
  return 0;
}
const Registration kRegistered({"sentencepiece",
                                LLVMFuzzerTestOneInput,
                                {"data/tokenizer/llama2/tokenizer.model", "data/tokenizer/unigram/tokenizer.model"},
                                {std::string("\x1a\x02\x18\x00", 4), "\x12\x02\x18\x01", "\x12\x02\x18\x02", "\x28\x06",
                                 "<0x00>", "<unk>", "</s>", "\xe2\x96\x81", std::string("\x00\x00\xc0\x7f", 4),
                                 "\xff\xff\xff\xff\x0f"}});

}  // namespace sentencepiece
}  // namespace mmt::fuzz
