// A digest of a row's in-edges: a copy of the row that another daemon holds has the same one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hash.hpp"

namespace atta {

// The edges' hashes are added up, so the processor works on several at a time. Each hash depends on the edge's position,
// so the order counts, too.
template <class Id, class Edge>
std::uint64_t edges_digest(std::int64_t vertex_key, const Id* sources, const Edge* edge_ids, std::size_t degree,
                           const std::int64_t* source_keys) {
  std::uint64_t sum = mix64(mix64(static_cast<std::uint64_t>(vertex_key)) + degree);
  for (std::size_t i = 0; i < degree; ++i) {
    const auto source = static_cast<std::uint64_t>(source_keys[static_cast<std::size_t>(sources[i])]);
    const std::uint64_t placed = mix64(source + i * kGolden);
    sum += mix64(placed ^ static_cast<std::uint64_t>(static_cast<std::int64_t>(edge_ids[i])));
  }
  return sum;
}

}  // namespace atta
