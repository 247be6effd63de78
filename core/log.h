// Log lines. Rank 0 writes people's lines to standard output; warnings and errors of every rank go to standard error
// with `[rank R host]`. The rank is set per thread, since tests run many ranks in one process.
#pragma once

#include <fmt/core.h>

#include <functional>
#include <string>
#include <string_view>

namespace mmt::log {

enum class Level { debug, info, warning, error };

/// For the calling thread. Threads that never call it (loaders, writers) take the main thread's rank.
void set_rank(int rank, int ranks);
void set_level(Level lowest);
/// Also writes every line of this process, of whichever rank, to a file with the time (appended; the folder must
/// exist, else mmt::Error). An empty path closes it.
void open_file(const std::string& path);
/// Redirects all lines of this process, of all ranks (tests); an empty function restores the streams. Calls do not
/// overlap; the function must not log.
void set_sink(std::function<void(Level, int rank, std::string_view)> sink);
/// The line that stays below all others on a terminal (a progress bar); replaced by the next one, removed by "".
/// Does nothing when standard output is no terminal.
void status(std::string_view text);
/// Whether people's lines go to a terminal, and whether they may be coloured (NO_COLOR is unset, TERM is not dumb).
bool on_terminal();
bool colored();

/// One line; control characters in it (text of data files may end up here) are written as \xNN, line breaks stay.
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
