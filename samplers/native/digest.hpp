// A digest of a row's in-edges: a copy of the row that another daemon holds has the same one.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hash.hpp"

namespace atta {

// A weighted sum modulo 2^64. All weights are odd, so a change of a single edge always changes the sum. They differ by the
// edge's position, so the order counts, too.
template <class Id, class Edge>
std::uint64_t edges_digest(std::int64_t vertex_key, const Id* sources, const Edge* edge_ids, std::size_t degree) {
  constexpr std::uint64_t kStep = kGolden & ~std::uint64_t{1};
  std::uint64_t sum = mix64(mix64(static_cast<std::uint64_t>(vertex_key)) + degree), weight = 1;
  for (std::size_t i = 0; i < degree; ++i, weight += kStep) {
    const auto source = static_cast<std::uint64_t>(static_cast<std::int64_t>(sources[i]));
    sum += (source + std::rotl(static_cast<std::uint64_t>(static_cast<std::int64_t>(edge_ids[i])), 32)) * weight;
    asm volatile("");  // without it, vectors of 64-bit products in pieces of 32 bits, which take twice as long
  }
  return sum;
}

// Whether all `ids` are at least 0 and below `limit`. It takes half as long as a comparison in 64 bits.
template <class Id>
bool all_below(const Id* ids, std::size_t count, std::uint64_t limit) {
  std::make_unsigned_t<Id> most = 0;
  for (std::size_t i = 0; i < count; ++i) most = std::max(most, static_cast<std::make_unsigned_t<Id>>(ids[i]));
  return count == 0 || most < limit;
}

}  // namespace atta
