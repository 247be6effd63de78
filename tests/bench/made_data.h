// Data that the rows of data.cpp work on, made in memory: the same in every run, on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mmt::bench {

/// A JPEG of shapes, shades and noise: about 1.5 bits a pixel at quality 90, as photographs have. 4:2:0 colour.
std::vector<std::byte> make_jpeg(int width, int height, unsigned seed);
/// Seconds of chirps and noise in [-1, 1].
std::vector<float> make_sound(double seconds, int rate, unsigned seed);
/// The same as a 16-bit stereo WAV file.
std::vector<std::byte> make_wav(double seconds, int rate, unsigned seed);

/// A byte-level BPE tokenizer.json (Qwen2's split) of the words that make_text writes: every word of `lexicon` is built
/// from its letters by a chain of merges, as frequent words are in learned ones.
std::string make_tokenizer();
/// English-like text of about `bytes` bytes: words of falling frequency, numbers, punctuation, some that the tokenizer
/// has never seen.
std::string make_text(std::size_t bytes, unsigned seed);

}  // namespace mmt::bench
