#include "core/error.h"

#include "core/dtype.h"

namespace mmt {

std::string_view name_of(DataFault fault) {
  constexpr std::string_view names[] = {"missing_file",   "not_an_image",  "corrupt_image",     "image_too_large",
                                        "not_audio",      "corrupt_audio", "non_finite_audio",  "audio_too_short",
                                        "audio_too_long", "audio_rate",    "placeholder_count", "too_long",
                                        "no_labels",      "bad_record",    "unsafe_path",       "unsupported_media",
                                        "image_ratio",    "not_a_video",   "empty_video",       "too_many_frames",
                                        "frame_size"};
  return names[static_cast<int>(fault)];
}

DataError::DataError(DataFault fault, const std::string& where, const std::string& message)
    : Error(fmt::format("{}: {} [{}]", where, message, name_of(fault))), fault_(fault) {}

void throw_check_failed(const char* file, int line, const char* condition, const std::string& values) {
  throw std::logic_error(fmt::format("{}:{}: check failed: {}: {}", file, line, condition, values));
}

void throw_not_float(DType dtype) {
  throw std::logic_error(fmt::format("{} is not a floating-point type", name_of(dtype)));
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DType d : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::i64, DType::u64, DType::u8}) {
    if (name == name_of(d)) return d;
  }
  return std::nullopt;
}

}  // namespace mmt
