// What the loader's threads do with a sample: decode and resize a picture, decode and resample a sound, its log-mel
// spectrogram, tokens of a text. Every thread works alone, as they do.
#include "bench/bench.h"
#include "bench/made_data.h"

#include "core/data/media/audio.h"
#include "core/data/media/image.h"
#include "core/data/media/preprocess.h"
#include "core/data/text/tokenizer.h"
#include "core/error.h"

#include <omp.h>

#include <cstdio>
#include <exception>

#include <jpeglib.h>

namespace mmt::bench {
namespace {

constexpr int kRate = 16000;
constexpr double kClipSeconds = 30.0;

/// f(number of the piece, number of the thread) for pieces handed out as threads become free; an exception comes back.
template <class F> void on_all_threads(int pieces, F&& f) {
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic)
  for (int i = 0; i < pieces; ++i) {
    try {
      f(i, omp_get_thread_num());
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

/// The library alone with the settings of core/data: every pixel decoded once.
void decode_only(const std::vector<std::byte>& bytes, std::vector<std::uint8_t>& row) {
  jpeg_decompress_struct c{};
  jpeg_error_mgr errors{};
  c.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&c);
  jpeg_mem_src(&c, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&c, TRUE);
  c.out_color_space = JCS_RGB;
  c.dct_method = JDCT_ISLOW;
  c.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&c);
  row.resize(std::size_t{3} * c.output_width);
  JSAMPROW to = row.data();
  while (c.output_scanline < c.output_height) jpeg_read_scanlines(&c, &to, 1);
  jpeg_finish_decompress(&c);
  jpeg_destroy_decompress(&c);
}

/// Pictures of a usual size through decoding, CLIP's resize and crop, and normalisation, to the rows of a tower.
void measure_pictures(Bench& bench, const std::string& name) {
  const int pieces = 8 * bench.threads();
  std::vector<std::vector<std::byte>> files;
  for (int i = 0; i < 8; ++i)
    files.push_back(i % 2 == 0 ? make_jpeg(640, 480, 1U + static_cast<unsigned>(i))
                               : make_jpeg(480, 640, 1U + static_cast<unsigned>(i)));
  const data::ImageProcessing options;
  std::vector<data::ImageProcessor> processors(static_cast<std::size_t>(bench.threads()),
                                               data::ImageProcessor(options));
  std::vector<std::vector<float>> out(processors.size());
  for (auto& o : out) o.resize(static_cast<std::size_t>(options.grid().count() * options.cols()));
  const auto file = [&](int i) -> const std::vector<std::byte>& {
    return files[static_cast<std::size_t>(i) % files.size()];
  };
  const Seconds whole = bench.time([&] {
    on_all_threads(pieces, [&](int i, int thread) {
      const data::Image image = data::decode_image(file(i), {}, "made picture");
      processors[static_cast<std::size_t>(thread)].patches(image, out[static_cast<std::size_t>(thread)],
                                                           "made picture");
    });
  });
  std::vector<std::vector<std::uint8_t>> rows(processors.size());
  const Seconds library = bench.time([&] {
    on_all_threads(pieces, [&](int i, int thread) { decode_only(file(i), rows[static_cast<std::size_t>(thread)]); });
  });
  bench.rate(name, "images/s", pieces, whole, "libjpeg's decoding alone", pieces / library.best);
}

void measure_log_mel(Bench& bench, const std::string& name) {
  const data::AudioProcessing options;
  std::vector<data::AudioProcessor> processors(static_cast<std::size_t>(bench.threads()),
                                               data::AudioProcessor(options));
  const std::vector<float> clip = make_sound(kClipSeconds, kRate, 1);
  const auto size = data::audio_frames(options.rows, static_cast<std::int64_t>(clip.size())) * options.num_mel_bins;
  std::vector<std::vector<float>> out(processors.size(), std::vector<float>(static_cast<std::size_t>(size)));
  const Seconds seconds = bench.time([&] {
    on_all_threads(bench.threads(), [&](int, int thread) {
      processors[static_cast<std::size_t>(thread)].log_mel(clip, out[static_cast<std::size_t>(thread)], "made sound");
    });
  });
  bench.rate(name, "s/s", kClipSeconds * bench.threads(), seconds, "", 0.0);
}

void measure_wav(Bench& bench, const std::string& name) {
  const std::vector<std::byte> file = make_wav(kClipSeconds, 44100, 1);
  const Seconds seconds = bench.time([&] {
    on_all_threads(bench.threads(), [&](int, int) { data::decode_audio(file, {.rate = kRate}, "made sound"); });
  });
  bench.rate(name, "s/s", kClipSeconds * bench.threads(), seconds, "", 0.0);
}

void measure_tokenizer(Bench& bench, const std::string& name) {
  const data::Tokenizer tokenizer = data::Tokenizer::parse(make_tokenizer(), "made tokenizer");
  std::vector<std::string> texts;
  for (unsigned i = 0; i < 8U * static_cast<unsigned>(bench.threads()); ++i) texts.push_back(make_text(20'000, 1 + i));
  std::int64_t tokens = 0;
  for (const std::string& text : texts) {
    const std::vector<data::TokenId> ids = tokenizer.encode(text);
    MMT_CHECK(tokenizer.decode(ids) == text, "{}: text does not come back", name);
    tokens += std::ssize(ids);
  }
  const Seconds seconds = bench.time([&] {
    on_all_threads(static_cast<int>(texts.size()),
                   [&](int i, int) { tokenizer.encode(texts[static_cast<std::size_t>(i)]); });
  });
  bench.rate(name, "tok/s", static_cast<double>(tokens), seconds, "", 0.0);
}

}  // namespace

void add_data(Cases& cases) {
  const auto add = [&](const std::string& name, void (*measure)(Bench&, const std::string&)) {
    cases.push_back({{name}, [=](Bench& bench) { measure(bench, name); }});
  };
  add("data/jpeg-224", measure_pictures);
  add("data/log-mel", measure_log_mel);
  add("data/wav-44k1", measure_wav);
  add("data/tokenizer", measure_tokenizer);
}

}  // namespace mmt::bench
