// Log lines. Rank 0 writes people's lines to standard output; warnings and errors of every rank go to standard error
// with `[rank R host]`. The rank is set per thread, since tests run many ranks in one process.
#pragma once

#include <fmt/core.h>

#include <functional>
#include <string>
#include <string_view>

namespace mmt::log {

enum class Level { debug, info, warning, error };

void set_rank(int rank, int ranks);  ///< for the calling thread
void set_level(Level lowest);
/// Also writes every line of this process to a file (appended; the folder must exist).
void open_file(const std::string& path);
/// Redirects all lines of this process (tests); an empty function restores the streams.
void set_sink(std::function<void(Level, int rank, std::string_view)> sink);

void write(Level level, std::string_view text);

template <class... A> void debug(fmt::format_string<A...> text, A&&... args) {
  write(Level::debug, fmt::format(text, std::forward<A>(args)...));
}
template <class... A> void info(fmt::format_string<A...> text, A&&... args) {  ///< rank 0 only
  write(Level::info, fmt::format(text, std::forward<A>(args)...));
}
template <class... A> void warning(fmt::format_string<A...> text, A&&... args) {
  write(Level::warning, fmt::format(text, std::forward<A>(args)...));
}
template <class... A> void error(fmt::format_string<A...> text, A&&... args) {
  write(Level::error, fmt::format(text, std::forward<A>(args)...));
}

}  // namespace mmt::log
