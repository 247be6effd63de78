#include "core/data/media/row_counts.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace mmt::data {

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  MMT_CHECK(b > 0, "divisor {}", b);
  return a / b - (a % b < 0 ? 1 : 0);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  MMT_CHECK(b > 0, "divisor {}", b);
  return a / b + (a % b > 0 ? 1 : 0);
}

PatchGrid patch_grid(int width, int height, int patch) {
  MMT_CHECK(width >= 0 && height >= 0 && patch > 0, "{}x{} in patches of {}", width, height, patch);
  return {height / patch, width / patch};
}

std::int64_t vision_encoder_rows(PatchGrid grid, bool class_token) { return grid.count() + (class_token ? 1 : 0); }

std::int64_t vision_output_rows(PatchGrid grid, bool class_token, VisionSelect select) {
  return select == VisionSelect::full ? vision_encoder_rows(grid, class_token) : grid.count();
}

PictureSize dynamic_size(const PixelRule& rule, int width, int height, std::string_view where) {
  constexpr double kMaxRatio = 200;
  MMT_CHECK(width > 0 && height > 0 && rule.factor > 0 && rule.min_pixels > 0 && rule.max_pixels >= rule.min_pixels,
            "{} x {}, factor {}, {} to {} pixels", width, height, rule.factor, rule.min_pixels, rule.max_pixels);
  const double w = width, h = height, factor = rule.factor;
  if (std::max(w, h) / std::min(w, h) > kMaxRatio) {
    throw DataError(
        DataFault::image_ratio, std::string(where),
        fmt::format("a picture of {} x {} is more than {} times as long as wide; cut it", width, height, kMaxRatio));
  }
  // As in Python: halves to even, divisions one by one in double.
  const auto nearest = [&](double side) { return std::max(factor, std::nearbyint(side / factor) * factor); };
  double to_w = nearest(w), to_h = nearest(h);
  if (to_w * to_h > static_cast<double>(rule.max_pixels)) {
    const double beta = std::sqrt(h * w / static_cast<double>(rule.max_pixels));
    to_h = std::max(factor, std::floor(h / beta / factor) * factor);
    to_w = std::max(factor, std::floor(w / beta / factor) * factor);
  } else if (to_w * to_h < static_cast<double>(rule.min_pixels)) {
    const double beta = std::sqrt(static_cast<double>(rule.min_pixels) / (h * w));
    to_h = std::ceil(h * beta / factor) * factor;
    to_w = std::ceil(w * beta / factor) * factor;
  }
  return {static_cast<int>(to_w), static_cast<int>(to_h)};
}

std::int64_t mel_frames(AudioWindow window, std::int64_t samples, int hop) {
  return window == AudioWindow::none ? floor_div(samples, hop) : ceil_div(samples, hop);
}

std::int64_t conv_rows(std::int64_t frames) { return floor_div(frames - 1, 2) + 1; }

std::int64_t pooled_rows(std::int64_t rows, int pool) { return floor_div(rows - pool, pool) + 1; }

namespace {

AudioChunk make_chunk(const AudioRowRule& rule, std::int64_t first, std::int64_t samples) {
  AudioChunk c;
  c.first_sample = first;
  c.samples = samples;
  const std::int64_t own = mel_frames(rule.window, samples, rule.hop);
  c.valid_frames = rule.window == AudioWindow::full ? rule.max_frames : own;
  c.encoder_rows = conv_rows(c.valid_frames);
  c.rows = pooled_rows(c.encoder_rows, rule.pool);
  // Row r sees frames 2r - 2 to 2r + 2 through the two convolutions: the last one, the clip's end and what lies behind.
  c.frames = rule.window == AudioWindow::mask ? std::min(2 * c.encoder_rows + 1, rule.max_frames) : c.valid_frames;
  return c;
}

}  // namespace

std::vector<AudioChunk> audio_chunks(const AudioRowRule& rule, std::int64_t samples) {
  MMT_CHECK(rule.max_frames > 0 && rule.hop > 0 && rule.pool > 0, "frames {}, hop {}, pool {}", rule.max_frames,
            rule.hop, rule.pool);
  std::vector<AudioChunk> chunks;
  const std::int64_t window = rule.window_samples();
  if (samples > window && rule.over_long == OverLong::skip) return chunks;
  const std::int64_t end = rule.over_long == OverLong::chunk ? samples : std::min(samples, window);
  for (std::int64_t first = 0; first < end; first += window) {
    const AudioChunk chunk = make_chunk(rule, first, std::min(window, end - first));
    if (chunk.rows > 0) chunks.push_back(chunk);
  }
  return chunks;
}

std::int64_t audio_rows(const AudioRowRule& rule, std::int64_t samples) {
  std::int64_t sum = 0;
  for (const AudioChunk& c : audio_chunks(rule, samples)) sum += c.rows;
  return sum;
}

std::int64_t audio_frames(const AudioRowRule& rule, std::int64_t samples) {
  std::int64_t sum = 0;
  for (const AudioChunk& c : audio_chunks(rule, samples)) sum += c.frames;
  return sum;
}

void check_audio_length(const AudioRowRule& rule, std::int64_t samples, int rate, std::string_view where) {
  const double seconds = static_cast<double>(samples) / rate;
  if (samples > rule.window_samples() && rule.over_long == OverLong::skip) {
    throw DataError(
        DataFault::audio_too_long, std::string(where),
        fmt::format("the clip has {:.2f} s, the encoder's window {:.2f} s; cut it, or allow chunk or truncate", seconds,
                    static_cast<double>(rule.window_samples()) / rate));
  }
  if (audio_rows(rule, samples) <= 0) {
    throw DataError(DataFault::audio_too_short, std::string(where),
                    fmt::format("a clip of {:.1f} ms ({} samples) gives no rows", 1000 * seconds, samples));
  }
}

}  // namespace mmt::data
