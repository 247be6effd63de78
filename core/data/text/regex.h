// Regular expressions over UTF-8 (PCRE2 with UTF, UCP and JIT), with limits so that no pattern can run away.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace mmt::data {

/// Immutable after construction; `next` may be called from any number of threads.
class Regex {
 public:
  /// Throws ConfigError (`where`: the pattern, the position and the library's message). `\s` means \p{White_Space}, as
  /// in Unicode and in the engine that these patterns are written for.
  Regex(std::string_view pattern, const std::string& where);

  struct Match {
    std::size_t begin = 0, end = 0;
    bool found = false;
  };
  /// The first match at or after `from`; `text` must be valid UTF-8. Throws DataError(bad_record) at the match limit.
  Match next(std::string_view text, std::size_t from) const;

 private:
  std::string pattern_;
  std::shared_ptr<const void> code_;
};

}  // namespace mmt::data
