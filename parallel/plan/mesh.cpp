#include "parallel/plan/mesh.h"

#include "core/error.h"

#include <algorithm>

namespace mmt::plan {

const char* name_of(Axis axis) {
  constexpr const char* names[] = {"tp", "cp", "dp", "pp"};
  return names[static_cast<std::size_t>(axis)];
}

Mesh::Mesh(int tp, int cp, int dp, int pp, std::vector<int> ranks)
    : degrees_{{tp, cp, dp, pp}}, ranks_(std::move(ranks)) {
  std::int64_t product = 1;
  for (const int degree : degrees_.at) {
    if (degree < 1)
      throw ConfigError(fmt::format("a mesh degree is {}; each of tp, cp, dp, pp must be 1 or more", degree));
    product *= degree;
  }
  if (product != num_ranks()) {
    throw ConfigError(fmt::format("tp {} x cp {} x dp {} x pp {} = {}, but the mesh has {} ranks", tp, cp, dp, pp,
                                  product, num_ranks()));
  }
  std::vector<int> sorted = ranks_;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end()) throw ConfigError(fmt::format("rank {} stands twice in a mesh", *twice));
  if (!sorted.empty() && sorted.front() < 0) throw ConfigError(fmt::format("rank {} in a mesh", sorted.front()));
}

bool Mesh::contains(int world_rank) const { return std::ranges::find(ranks_, world_rank) != ranks_.end(); }

Coord Mesh::coord_of(int world_rank) const {
  const auto found = std::ranges::find(ranks_, world_rank);
  MMT_CHECK(found != ranks_.end(), "rank {} is not in the mesh", world_rank);
  int index = static_cast<int>(found - ranks_.begin());
  Coord coord;
  for (std::size_t a = 0; a < kNumAxes; ++a) {
    coord.at[a] = index % degrees_.at[a];
    index /= degrees_.at[a];
  }
  return coord;
}

int Mesh::rank_at(const Coord& coord) const {
  std::size_t index = 0;
  for (std::size_t a = kNumAxes; a-- > 0;) {
    MMT_CHECK(coord.at[a] >= 0 && coord.at[a] < degrees_.at[a], "coordinate {} on axis {} of degree {}", coord.at[a],
              name_of(static_cast<Axis>(a)), degrees_.at[a]);
    index = index * static_cast<std::size_t>(degrees_.at[a]) + static_cast<std::size_t>(coord.at[a]);
  }
  return ranks_[index];
}

std::vector<int> Mesh::group(int world_rank, std::span<const Axis> axes) const {
  const Coord mine = coord_of(world_rank);
  std::vector<int> members;
  for (const int rank : ranks_) {
    const Coord other = coord_of(rank);
    bool same = true;
    for (std::size_t a = 0; a < kNumAxes; ++a) {
      const bool free = std::ranges::find(axes, static_cast<Axis>(a)) != axes.end();
      same = same && (free || other.at[a] == mine.at[a]);
    }
    if (same) members.push_back(rank);
  }
  return members;
}

}  // namespace mmt::plan
