#include "core/data/media/audio.h"

#include "core/data/media/media_kind.h"
#include "core/data/media/row_counts.h"
#include "core/error.h"

#include <sndfile.h>
#include <soxr.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

namespace mmt::data {
namespace {

// A float file may hold any number; past this its power no longer fits a float, and it is damage, not sound.
constexpr float kMaxMagnitude = 1e6F;

struct AudioSource {
  std::span<const std::byte> bytes;
  const AudioOptions& options;
  std::string_view where;

  [[noreturn]] void fail(DataFault fault, const std::string& message) const {
    throw DataError(fault, std::string(where), message);
  }
};

/// The bytes as the file that libsndfile reads.
struct MemoryFile {
  std::span<const std::byte> bytes;
  sf_count_t at = 0;

  sf_count_t size() const { return static_cast<sf_count_t>(bytes.size()); }
  static MemoryFile& self(void* user) { return *static_cast<MemoryFile*>(user); }
  static sf_count_t get_size(void* user) { return self(user).size(); }
  static sf_count_t tell(void* user) { return self(user).at; }
  static sf_count_t seek(sf_count_t offset, int whence, void* user) {
    MemoryFile& f = self(user);
    const sf_count_t base = whence == SEEK_SET ? 0 : (whence == SEEK_CUR ? f.at : f.size());
    sf_count_t to = 0;
    if (__builtin_add_overflow(base, offset, &to) || to < 0) return -1;
    f.at = std::min(to, f.size());
    return f.at;
  }
  static sf_count_t read(void* to, sf_count_t count, void* user) {
    MemoryFile& f = self(user);
    const sf_count_t n = std::clamp<sf_count_t>(count, 0, f.size() - f.at);
    if (n > 0) std::memcpy(to, f.bytes.data() + f.at, static_cast<std::size_t>(n));
    f.at += n;
    return n;
  }
  static sf_count_t write(const void*, sf_count_t, void*) { return 0; }
};

struct SoundCloser {
  void operator()(SNDFILE* f) const { sf_close(f); }
};

std::uint32_t little_endian(const std::byte* p) {
  std::uint32_t v = 0;
  for (int i = 3; i >= 0; --i) v = (v << 8) | std::to_integer<std::uint32_t>(p[i]);
  return v;
}

/// libsndfile takes what is there of a WAV that was cut; here that is an error, since the text would not fit the sound.
/// Sizes that streaming writers leave (0, or about the largest number) say nothing.
void check_wav_is_whole(const AudioSource& source) {
  const std::span<const std::byte> b = source.bytes;
  if (std::memcmp(b.data(), "RIFF", 4) != 0) return;
  std::size_t at = 12;
  while (at + 8 <= b.size()) {
    const std::size_t length = little_endian(b.data() + at + 4);
    if (std::memcmp(b.data() + at, "data", 4) == 0) {
      const std::size_t there = b.size() - at - 8;
      if (length > there && length < 0x7fff0000) {
        source.fail(
            DataFault::corrupt_audio,
            fmt::format("the WAV ends early: its header promises {} bytes of sound, {} are there", length, there));
      }
      return;
    }
    if (length > b.size() - at - 8) return;
    at += 8 + length + (length & 1);
  }
}

/// An open file whose rate, channels and format have been accepted.
class Sound {
 public:
  explicit Sound(const AudioSource& source) : source_(source), file_{source.bytes} {
    const MediaGuess guess = guess_media(source.bytes);
    if (!is_audio(guess.kind)) {
      source.fail(DataFault::not_audio, fmt::format("not a sound: this looks like {}", guess.name));
    }
    if (guess.kind == MediaKind::other_audio) {
      source.fail(DataFault::unsupported_media,
                  fmt::format("this is {}; convert it to WAV, FLAC, OGG or MP3, which are read", guess.name));
    }
    if (guess.kind == MediaKind::wav) check_wav_is_whole(source);
    SF_VIRTUAL_IO io{&MemoryFile::get_size, &MemoryFile::seek, &MemoryFile::read, &MemoryFile::write,
                     &MemoryFile::tell};
    handle_.reset(sf_open_virtual(&io, SFM_READ, &info_, &file_));
    if (!handle_) {
      // No text from the library: that of a failed open is a global, and other threads open files too.
      source.fail(DataFault::corrupt_audio,
                  fmt::format("{} that cannot be read: damaged, or a codec that libsndfile lacks", guess.name));
    }
    check_format(guess);
  }

  int rate() const { return info_.samplerate; }
  int channels() const { return info_.channels; }
  std::int64_t max_frames() const {
    constexpr double kMost = 1e15;  // 64-bit sample counts times any rate still fit
    return static_cast<std::int64_t>(std::min(source_.options.max_seconds * info_.samplerate, kMost));
  }

  /// Frames as the header says; -1 when it cannot know.
  std::int64_t header_frames() const { return header_frames_; }

  /// Decodes all frames; hands the mean of the channels to `sink(span of floats)`. Returns the number of frames.
  template <class Sink> std::int64_t decode(const Sink& sink) {
    const auto num_channels = static_cast<std::size_t>(info_.channels);
    const std::size_t block = std::max<std::size_t>(1, 16384 / num_channels);
    std::vector<float> frames(block * num_channels);
    std::int64_t total = 0;
    while (true) {
      const sf_count_t got = sf_readf_float(handle_.get(), frames.data(), static_cast<sf_count_t>(block));
      if (got <= 0) break;
      const auto n = static_cast<std::size_t>(got);
      if (num_channels > 1) average(frames, n, num_channels);
      sink(std::span<const float>(frames.data(), n));
      total += got;
      if (total > max_frames()) fail_too_long(total, "more than ");
    }
    if (sf_error(handle_.get()) != SF_ERR_NO_ERROR) {
      source_.fail(DataFault::corrupt_audio,
                   fmt::format("damaged sound after {} samples: {}", total, sf_strerror(handle_.get())));
    }
    if (header_frames_ >= 0 && total != header_frames_) {
      source_.fail(
          DataFault::corrupt_audio,
          fmt::format("the sound ends early: its header promises {} samples, {} are there", header_frames_, total));
    }
    check_not_empty(total);
    return total;
  }

  void check_not_empty(std::int64_t frames) const {
    if (frames == 0) source_.fail(DataFault::audio_too_short, "the sound has no samples");
  }

 private:
  void check_format(const MediaGuess& guess) {
    const int major = info_.format & SF_FORMAT_TYPEMASK;
    const bool wav = major == SF_FORMAT_WAV || major == SF_FORMAT_WAVEX || major == SF_FORMAT_RF64;
    const bool accepted = (guess.kind == MediaKind::wav && wav) ||
                          (guess.kind == MediaKind::flac && major == SF_FORMAT_FLAC) ||
                          (guess.kind == MediaKind::ogg && major == SF_FORMAT_OGG) ||
                          (guess.kind == MediaKind::mp3 && major == SF_FORMAT_MPEG);
    if (!accepted) source_.fail(DataFault::corrupt_audio, fmt::format("starts as {} but is none", guess.name));
    if (info_.channels <= 0) source_.fail(DataFault::corrupt_audio, "the header says 0 channels");
    const AudioOptions& o = source_.options;
    if (info_.samplerate < o.min_rate || info_.samplerate > o.max_rate) {
      source_.fail(DataFault::audio_rate, fmt::format("sample rate {} Hz is outside {} to {} Hz: a damaged header?",
                                                      info_.samplerate, o.min_rate, o.max_rate));
    }
    const bool header_knows = guess.kind == MediaKind::wav || guess.kind == MediaKind::flac;
    const bool plausible = info_.frames >= 0 && info_.frames < (std::int64_t{1} << 40) &&
                           !(guess.kind == MediaKind::flac && info_.frames == 0);
    if (header_knows && plausible) {
      header_frames_ = info_.frames;
      if (header_frames_ > max_frames()) fail_too_long(header_frames_, "");
    }
  }

  [[noreturn]] void fail_too_long(std::int64_t frames, std::string_view at_least) const {
    source_.fail(DataFault::audio_too_long,
                 fmt::format("the sound has {}{:.1f} s, over max_seconds = {}", at_least,
                             static_cast<double>(frames) / info_.samplerate, source_.options.max_seconds));
  }

  static void average(std::span<float> frames, std::size_t num_frames, std::size_t num_channels) {
    for (std::size_t i = 0; i < num_frames; ++i) {
      double sum = 0;
      for (std::size_t c = 0; c < num_channels; ++c) sum += static_cast<double>(frames[i * num_channels + c]);
      frames[i] = static_cast<float>(sum / static_cast<double>(num_channels));
    }
  }

  const AudioSource& source_;
  MemoryFile file_;
  SF_INFO info_{};
  std::unique_ptr<SNDFILE, SoundCloser> handle_;
  std::int64_t header_frames_ = -1;
};

void check_finite(const AudioSource& source, std::span<const float> samples, std::size_t first) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (!(std::abs(samples[i]) <= kMaxMagnitude)) {  // also true for NaN
      source.fail(DataFault::non_finite_audio, fmt::format("sample {} is {}", first + i, samples[i]));
    }
  }
}

/// Designing the filter costs more than filtering a second of sound, so a thread keeps its last resamplers.
/// A cleared one gives the same bits as a new one.
class Resampler {
 public:
  static soxr_t get(int from, int to) {
    thread_local std::array<Resampler, 4> kept;
    thread_local std::size_t next = 0;
    for (Resampler& r : kept) {
      if (r.from_ == from && r.to_ == to && soxr_clear(r.handle_.get()) == nullptr) return r.handle_.get();
    }
    Resampler& r = kept[next];
    next = (next + 1) % kept.size();
    soxr_error_t error = nullptr;
    const soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
    const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    const soxr_runtime_spec_t runtime = soxr_runtime_spec(1);
    r.handle_.reset(soxr_create(from, to, 1, &error, &io, &quality, &runtime));
    if (error != nullptr || !r.handle_) {
      r.from_ = 0;
      throw Error(fmt::format("resampler from {} to {} Hz: {}", from, to, error == nullptr ? "failed" : error));
    }
    r.from_ = from;
    r.to_ = to;
    return r.handle_.get();
  }

 private:
  struct Deleter {
    void operator()(soxr_t h) const { soxr_delete(h); }
  };
  int from_ = 0;
  int to_ = 0;
  std::unique_ptr<soxr, Deleter> handle_;
};

std::vector<float> resample(std::span<const float> in, int from, int to) {
  constexpr std::size_t kBlock = std::size_t{1} << 16;  // what goes in at once is copied by the library
  const auto frames = static_cast<std::int64_t>(in.size());
  std::vector<float> out(static_cast<std::size_t>(resampled_length(frames, from, to)), 0.0F);
  const soxr_t soxr = Resampler::get(from, to);
  std::size_t written = 0;
  while (written < out.size()) {
    const bool flush = in.empty();
    std::size_t used = 0;
    std::size_t made = 0;
    const soxr_error_t error = soxr_process(soxr, flush ? nullptr : in.data(), std::min(in.size(), kBlock), &used,
                                            out.data() + written, out.size() - written, &made);
    if (error != nullptr) throw Error(fmt::format("resampling from {} to {} Hz: {}", from, to, error));
    in = in.subspan(used);
    written += made;
    if (used == 0 && made == 0) {
      MMT_CHECK(flush, "resampler from {} to {} Hz stands still", from, to);
      break;
    }
  }
  return out;
}

}  // namespace

std::int64_t resampled_length(std::int64_t frames, int from, int to) { return ceil_div(frames * to, from); }

AudioInfo read_audio_info(std::span<const std::byte> bytes, const AudioOptions& options, std::string_view where) {
  const AudioSource source{bytes, options, where};
  Sound sound(source);
  AudioInfo info;
  info.rate = sound.rate();
  info.channels = sound.channels();
  info.frames = sound.header_frames() >= 0 ? sound.header_frames() : sound.decode([](std::span<const float>) {});
  sound.check_not_empty(info.frames);
  info.samples = resampled_length(info.frames, info.rate, options.rate);
  return info;
}

Audio decode_audio(std::span<const std::byte> bytes, const AudioOptions& options, std::string_view where) {
  const AudioSource source{bytes, options, where};
  Sound sound(source);
  Audio audio{options.rate, {}};
  // The header's length is a hint only: a small file that promises hours gets no memory for them.
  constexpr std::int64_t kMaxReserve = std::int64_t{1} << 20;
  audio.samples.reserve(static_cast<std::size_t>(std::clamp<std::int64_t>(sound.header_frames(), 0, kMaxReserve)));
  sound.decode([&](std::span<const float> block) {
    check_finite(source, block, audio.samples.size());
    audio.samples.insert(audio.samples.end(), block.begin(), block.end());
  });
  if (sound.rate() != options.rate) audio.samples = resample(audio.samples, sound.rate(), options.rate);
  return audio;
}

}  // namespace mmt::data
