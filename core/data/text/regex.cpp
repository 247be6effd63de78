#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/data/text/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include "core/error.h"

namespace mmt::data {
namespace {

// PCRE2's own \s holds U+180E, which is no white space since Unicode 6.3.
std::string with_unicode_space(std::string_view pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out.push_back(pattern[i]);
      continue;
    }
    const char c = pattern[++i];
    if (c == 's') {
      out += "\\p{White_Space}";
    } else if (c == 'S') {
      out += "\\P{White_Space}";
    } else {
      out.push_back('\\');
      out.push_back(c);
    }
  }
  return out;
}

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  std::string message;
  for (const PCRE2_UCHAR* c = text; *c != 0; ++c) message.push_back(static_cast<char>(*c));
  return message;
}

const unsigned char* units(std::string_view text) {
  return static_cast<const unsigned char*>(static_cast<const void*>(text.data()));
}

/// What one thread needs to match: results of one group, the limits, the stack of the compiled code.
struct Workspace {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(std::size_t{32} << 10, std::size_t{4} << 20, nullptr);

  Workspace() {
    if (data == nullptr || context == nullptr || stack == nullptr) throw std::bad_alloc();
    pcre2_set_match_limit(context, 50'000'000);
    pcre2_set_heap_limit(context, 64 << 10);  // KiB
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

}  // namespace

Regex::Regex(std::string_view pattern, const std::string& where) : pattern_(pattern) {
  if (pattern.size() > (std::size_t{1} << 16)) {
    throw ConfigError(fmt::format("{}: a pattern of {} bytes is not accepted", where, pattern.size()));
  }
  const std::string text = with_unicode_space(pattern);
  int error = 0;
  std::size_t at = 0;
  pcre2_code* code =
      pcre2_compile(units(text), text.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (code == nullptr) {
    throw ConfigError(fmt::format("{}: pattern {:?}: {} near byte {}", where, text, message_of(error), at));
  }
  code_ = std::shared_ptr<const void>(code, [code](const void*) { pcre2_code_free(code); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without JIT support matching is interpreted, with the same results
}

Regex::Match Regex::next(std::string_view text, std::size_t from) const {
  thread_local Workspace workspace;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const int found =
      pcre2_match(code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK, workspace.data, workspace.context);
  if (found == PCRE2_ERROR_NOMATCH) return {text.size(), text.size(), false};
  if (found < 0) {
    throw DataError(
        DataFault::bad_record, "tokenizer",
        fmt::format("the pattern {:?} gave up on a text of {} bytes: {}", pattern_, text.size(), message_of(found)));
  }
  const std::size_t* ends = pcre2_get_ovector_pointer(workspace.data);
  return {ends[0], ends[1] < ends[0] ? ends[0] : ends[1], true};  // \K in a look-ahead may set the start behind the end
}

}  // namespace mmt::data
