// Moves edges to where their vertices are: into rows of the union graph, and into buckets. What is written at random lies
// in a few hundred places at a time, which stay in the caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "hash.hpp"

namespace atta {

// Some edges src[i] + src_start -> dst[i] + dst_start.
template <class A, class B>
struct EdgeList {
  const A* src;
  const B* dst;
  std::size_t count;
  std::int64_t src_start, dst_start;

  template <class F>
  void each(std::size_t n, F f) const {
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t u = src[i] + src_start, v = dst[i] + dst_start;
      if (static_cast<std::uint64_t>(u) >= n || static_cast<std::uint64_t>(v) >= n)
        throw std::invalid_argument("edges: edge " + std::to_string(i) + " leaves the " + std::to_string(n) + " vertices");
      f(static_cast<std::size_t>(u), static_cast<std::size_t>(v));
    }
  }
};

// The rows of the union graph are first divided into blocks of so many rows. A place in a block has a bit to spare.
inline constexpr std::size_t kBlockBits = 15, kBlockRows = std::size_t{1} << kBlockBits;
inline constexpr std::uint16_t kInward = 1 << kBlockBits;

inline std::size_t block_count(std::size_t n) { return (n + kBlockRows - 1) >> kBlockBits; }

// What is known of some edges before their neighbours are divided. Slices of the edges add up.
struct BlockSizes {
  std::vector<std::int64_t> inward, outward;  // by block: edges into its rows and out of them, without loops
  // Sum of hashes of all edges less the sum of those of their reverses, modulo 2^64: zero if all edges are there in both
  // directions.
  std::uint64_t balance = 0;

  explicit BlockSizes(std::size_t n) : inward(block_count(n)), outward(block_count(n)) {}

  void add(std::size_t u, std::size_t v) {
    const std::uint64_t from = mix64(u), to = mix64(v);
    balance += mix64(from ^ v) - mix64(to ^ u);
    ++inward[v >> kBlockBits];
    ++outward[u >> kBlockBits];
  }
};

// Writes the neighbours of rows to where their block has room next. `places`: the row in its block, and whether the edge
// points to the row.
template <class Id>
struct BlockWriter {
  std::span<std::int64_t> next;  // by block
  std::span<Id> neighbors;
  std::uint16_t* places;

  void add(std::size_t row, std::size_t neighbor, bool inward) const {
    const auto at = static_cast<std::size_t>(next[row >> kBlockBits]++);
    if (at >= neighbors.size()) throw std::invalid_argument("next: the blocks have no room for the edges");
    neighbors[at] = static_cast<Id>(neighbor);
    places[at] = static_cast<std::uint16_t>((row & (kBlockRows - 1)) | (inward ? kInward : 0));
  }
};

// Sorts the neighbours of a block by row; those of one row keep their order. `ends[r]`: the number of neighbours in rows
// up to r. `inward[r]`: how many edges point to the row.
template <class Id>
void sort_block(std::span<Id> neighbors, const std::uint16_t* places, std::span<std::int64_t> ends,
                std::span<std::int64_t> inward) {
  std::vector<std::size_t> next(ends.size() + 1, 0);
  std::fill(inward.begin(), inward.end(), 0);
  const auto row_of = [places](std::size_t i) { return static_cast<std::size_t>(places[i] & (kInward - 1)); };
  for (std::size_t i = 0; i < neighbors.size(); ++i) {
    if (row_of(i) >= ends.size()) throw std::invalid_argument("places: name a row that the block does not have");
    ++next[row_of(i) + 1];
    inward[row_of(i)] += places[i] >> kBlockBits;
  }
  for (std::size_t r = 0; r < ends.size(); ++r) ends[r] = static_cast<std::int64_t>(next[r + 1] += next[r]);
  std::vector<Id> sorted(neighbors.size());
  for (std::size_t i = 0; i < neighbors.size(); ++i) sorted[next[row_of(i)]++] = neighbors[i];
  std::copy(sorted.begin(), sorted.end(), neighbors.begin());
}

inline constexpr std::size_t kFetchAhead = 32;  // entries of a table

// out[i] = table[ids[i]], for ids that lie below the table's length.
template <class T, class Id>
void look_up(const T* table, std::span<const Id> ids, T* out) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + kFetchAhead < ids.size()) __builtin_prefetch(table + ids[i + kFetchAhead]);
    out[i] = table[ids[i]];
  }
}

// out[i]: the bucket of ids[i]; bucket b has the ids from starts[b] up to starts[b + 1]. The search begins at the bucket of
// the first id with the same leading digits.
template <class Id>
void find_buckets(std::span<const Id> ids, std::span<const std::int64_t> starts, std::int32_t* out) {
  constexpr std::size_t kDoors = 1 << 14;
  const auto size = static_cast<std::size_t>(starts.back());
  std::size_t shift = 0;
  while (size >> shift >= kDoors) ++shift;
  std::vector<std::int32_t> doors((size >> shift) + 1);
  std::int32_t bucket = 0;
  const auto advance = [&](std::int64_t id) {
    while (starts[static_cast<std::size_t>(bucket) + 1] <= id) ++bucket;
  };
  for (std::size_t door = 0; door << shift < size; ++door) {
    advance(static_cast<std::int64_t>(door << shift));
    doors[door] = bucket;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (static_cast<std::uint64_t>(ids[i]) >= size) throw std::invalid_argument("ids: lie beyond the buckets");
    bucket = doors[static_cast<std::size_t>(ids[i]) >> shift];
    advance(ids[i]);
    out[i] = bucket;
  }
}

// Writes rows of `width` values to where their key has room next.
template <class Key, class T>
void deal(std::span<const Key> keys, std::vector<std::size_t> next, const T* rows, std::size_t width, T* out) {
  if (width == 1)
    for (std::size_t i = 0; i < keys.size(); ++i) out[next[static_cast<std::size_t>(keys[i])]++] = rows[i];
  else
    for (std::size_t i = 0; i < keys.size(); ++i)
      std::copy_n(rows + i * width, width, out + next[static_cast<std::size_t>(keys[i])]++ * width);
}

}  // namespace atta
