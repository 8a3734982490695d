// Positive and negative samples: in-neighbours of a vertex, and vertices that are not its in-neighbours (ByteGNN's
// operators).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hash.hpp"

namespace atta {

inline constexpr std::uint64_t kTries = 64;

// The in-neighbours of a vertex, ordered by user id, and the user id of the vertex itself.
template <class Id>
struct Neighborhood {
  const Id* sources;
  std::size_t degree;
  const std::int64_t* user_ids;
  std::int64_t self;

  bool holds(std::int64_t user_id) const {
    const auto* end = sources + degree;
    const auto* found =
        std::lower_bound(sources, end, user_id, [this](Id source, std::int64_t wanted) { return user_ids[source] < wanted; });
    return user_id == self || (found != end && user_ids[*found] == user_id);
  }
};

template <class Id>
Neighborhood(const Id*, std::size_t, const std::int64_t*, std::int64_t) -> Neighborhood<Id>;

template <class Id>
void draw_neighbors(const Neighborhood<Id>& near, const VertexStream& stream, std::size_t count, std::int64_t* out) {
  for (std::size_t i = 0; i < count; ++i)
    out[i] = near.degree == 0 ? -1 : static_cast<std::int64_t>(near.sources[stream.below(i, near.degree)]);
}

// Rejection comes first: it is fast if neighbourhoods are small. After it, the next non-neighbour by rank from a drawn
// start is taken. The result is never a neighbour, and it is -1 only if every vertex is one.
template <class Id, class Rank>
void draw_strangers(const Neighborhood<Id>& near, const VertexStream& stream, const Rank* by_rank, std::size_t total,
                    std::size_t count, std::int64_t* out) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = -1;
    std::size_t rank = 0;
    for (std::uint64_t attempt = 0; attempt < kTries && out[i] < 0 && total > 0; ++attempt) {
      rank = stream.below(i * kTries + attempt, total);
      const auto id = static_cast<std::int64_t>(by_rank[rank]);
      if (!near.holds(near.user_ids[id])) out[i] = id;
    }
    for (std::size_t step = 1; step <= total && out[i] < 0; ++step) {
      const auto id = static_cast<std::int64_t>(by_rank[(rank + step) % total]);
      if (!near.holds(near.user_ids[id])) out[i] = id;
    }
  }
}

}  // namespace atta
