// Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): randomness by address.
// A value depends on (seed, purpose, id, sample, step, element) and on nothing else: not on layout, order or thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace mmt {

/// 64-bit mix of the run's seed, a purpose ("init", "order", "dropout", ...) and a tensor or layer id.
std::uint64_t random_key(std::uint64_t seed, std::string_view purpose, std::string_view id);
std::uint64_t hash64(std::string_view text);
std::uint64_t hash64(std::uint64_t a, std::uint64_t b);

/// Four 32-bit values of the block that holds elements `block * 4` to `block * 4 + 3`. The 128-bit counter is, from its
/// lowest bit: block (48 bits), sample (48), step (32). Throws std::logic_error when a part does not fit its bits.
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t block);

/// One element's value: bits, uniform in (0, 1), standard normal (Box-Muller on the element's pair of the block).
std::uint32_t random_bits(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t element);
double random_uniform(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t element);
double random_normal(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t element);

/// The same values for the elements [first, first + out.size()), four to a block: for whole tensors and rows.
void random_uniforms(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t first,
                     std::span<double> out);
void random_normals(std::uint64_t key, std::uint64_t sample, std::uint32_t step, std::uint64_t first,
                    std::span<double> out);

/// Place of item `index` in a random permutation of [0, count): a keyed bijection computed without the whole list
/// (Feistel network over the next power of four, walked along its cycle until the value lies below `count`: Black and
/// Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). `count` is at most 2^62.
std::uint64_t permuted(std::uint64_t key, std::uint64_t index, std::uint64_t count);

}  // namespace mmt
