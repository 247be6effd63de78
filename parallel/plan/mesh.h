// Mesh: one module's grid over an ordered set of world ranks.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace mmt::plan {

/// Axes of a mesh, fastest first.
enum class Axis : std::uint8_t { tp, cp, dp, pp };
inline constexpr int kNumAxes = 4;
const char* name_of(Axis axis);

/// A rank's place on each axis; also the degrees of a mesh.
struct Coord {
  std::array<int, kNumAxes> at{0, 0, 0, 0};
  int& operator[](Axis axis) { return at[static_cast<std::size_t>(axis)]; }
  int operator[](Axis axis) const { return at[static_cast<std::size_t>(axis)]; }
  friend bool operator==(const Coord&, const Coord&) = default;
};

class Mesh {
 public:
  Mesh() = default;
  /// tp * cp * dp * pp must equal ranks.size(); ranks must be distinct. Throws ConfigError with the numbers.
  Mesh(int tp, int cp, int dp, int pp, std::vector<int> ranks);

  int degree(Axis axis) const { return degrees_[axis]; }
  int num_ranks() const { return static_cast<int>(ranks_.size()); }
  std::span<const int> ranks() const { return ranks_; }
  bool contains(int world_rank) const;
  Coord coord_of(int world_rank) const;
  int rank_at(const Coord& coord) const;
  /// World ranks that share all coordinates with `world_rank` but those of `axes`, ordered by them (tp fastest).
  std::vector<int> group(int world_rank, std::span<const Axis> axes) const;

 private:
  Coord degrees_{{1, 1, 1, 1}};
  std::vector<int> ranks_;
};

}  // namespace mmt::plan
