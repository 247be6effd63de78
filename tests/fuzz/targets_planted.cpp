// Bugs on purpose: the driver must find and report them.
#include <cstdlib>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "tests/fuzz/target.h"

namespace mmt::fuzz {
namespace {

/// A parser of "LEN" and as many bytes, which believes the length.
bool planted_parse(std::string_view text, std::size_t& length) {
  if (!text.starts_with("LEN")) throw DataError(DataFault::bad_record, "fuzz", "no length");
  if (text.size() < 4) throw DataError(DataFault::bad_record, "fuzz", "cut off");
  length = static_cast<unsigned char>(text[3]);
  return length > text.size() - 4;
}

}  // namespace

namespace planted_exception {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<char> bytes(data, data + size);
  std::size_t length = 0;
  try {
    if (planted_parse({bytes.data(), bytes.size()}, length)) bytes.at(4 + length);
  } catch (const Error&) {
  }
  return 0;
}
const Registration kRegistered(
    {"planted_exception", LLVMFuzzerTestOneInput, {"fuzz/corpus/planted.txt"}, {}, nullptr, true});
}  // namespace planted_exception

namespace planted_crash {
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::size_t length = 0;
  try {
    if (planted_parse({reinterpret_cast<const char*>(data), size}, length)) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
const Registration kRegistered(
    {"planted_crash", LLVMFuzzerTestOneInput, {"fuzz/corpus/planted.txt"}, {}, nullptr, true});
}  // namespace planted_crash

namespace planted_none {
/// Without the bug the same input is passed: what is reported is the bug, not the corpus.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::size_t length = 0;
  try {
    planted_parse({reinterpret_cast<const char*>(data), size}, length);
  } catch (const Error&) {
  }
  return 0;
}
const Registration kRegistered(
    {"planted_none", LLVMFuzzerTestOneInput, {"fuzz/corpus/planted.txt"}, {}, nullptr, true});
}  // namespace planted_none

}  // namespace mmt::fuzz
