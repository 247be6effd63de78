// Error types. Libraries throw them and never exit; the application turns them into one message and an exit code.
//   std::logic_error  a bug of ours (MMT_CHECK throws it, with the values)
//   ConfigError       the user's YAML, command line or run folder          exit code 2
//   DataError         a sample or a media file                             exit code 1
//   OutOfMemoryError  memory of the host or a device is used up             exit code 4
//   NonFiniteError    loss or gradient is NaN or infinite                  exit code 3
//   PeerError         another rank failed or does not answer               exit code 5
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace mmt {

/// A run-time failure with a message that says what happened, where, and what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One or more user mistakes; `what()` has a line for each, as `file:line:col: key: message`.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// Why a sample cannot be used. The values are the rows of the data report and never change their names.
enum class DataFault : std::uint8_t {
  missing_file,
  not_an_image,
  corrupt_image,
  image_too_large,
  not_audio,
  corrupt_audio,
  non_finite_audio,
  audio_too_short,
  audio_too_long,
  audio_rate,
  placeholder_count,
  too_long,
  no_labels,
  bad_record,
  unsafe_path,
  unsupported_media,
  image_ratio,
  not_a_video,
  empty_video,
  too_many_frames,
  frame_size,
};
inline constexpr int kNumDataFaults = static_cast<int>(DataFault::frame_size) + 1;
std::string_view name_of(DataFault fault);

class DataError : public Error {
 public:
  /// `where` names the data set and the sample ("train.json: sample 17 (id a-3)") or the file.
  DataError(DataFault fault, const std::string& where, const std::string& message);
  DataFault fault() const { return fault_; }

 private:
  DataFault fault_;
};

class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

class NonFiniteError : public Error {
 public:
  using Error::Error;
};

class PeerError : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void throw_check_failed(const char* file, int line, const char* condition, const std::string& values);

}  // namespace mmt

/// Throws std::logic_error with the place, the condition and the formatted values when `condition` is false.
#define MMT_CHECK(condition, ...)                                                            \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::mmt::throw_check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
