// The undirected graph that partitioning works on, and visits to its vertices that know the partitions of neighbours.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "parallel.hpp"

namespace atta {

// The neighbours of each vertex, one vertex after another.
template <class Id>
struct Csr {
  std::span<const std::int64_t> indptr;
  const Id* indices;

  std::size_t size() const { return indptr.size() - 1; }
  std::span<const Id> row(std::size_t v) const {
    return {indices + indptr[v], static_cast<std::size_t>(indptr[v + 1] - indptr[v])};
  }
  std::size_t degree(std::size_t v) const { return static_cast<std::size_t>(indptr[v + 1] - indptr[v]); }
};

// Visits vertices one by one, each with the number of its neighbours in every partition, while visits change partitions.
// Neighbours are counted for many vertices ahead, on several threads. Those that are visited in the same turn may yet
// change: they are marked, and counted when their neighbour's visit comes. So the threads change nothing.
template <class Id, class Seen>
class Visits {
 public:
  // `owners[v]` < 0: v is in no partition yet, and counts for that of `before`, which may be empty.
  Visits(const Csr<Id>& graph, std::span<const std::int32_t> owners, std::span<const std::int32_t> before, std::size_t parts,
         std::size_t threads)
      : graph_(graph), seen_(graph.size()), slots_(parts + 1), threads_(threads) {
    for (std::size_t v = 0; v < graph.size(); ++v)
      seen_.data()[v] = static_cast<Seen>((owners[v] >= 0 || before.empty() ? owners[v] : before[v]) + 1);
  }

  // Calls visit(v, counts) for v = vertex(0), vertex(1), ..., vertex(count - 1): it returns the partition of v from then
  // on. counts[p] is the number of neighbours in partition p. Calls coming(v) some time before.
  template <class Vertex, class Coming, class Visit>
  void each(std::size_t count, Vertex vertex, Coming coming, Visit visit) {
    const std::size_t turn = std::clamp<std::size_t>(std::min(graph_.size() / kTurns, kCounts / slots_), 1, kTurn);
    counts_.resize(turn * slots_);
    late_.resize(turn / kStep + 1);
    for (std::size_t first = 0; first < count; first += turn) {
      const std::size_t size = std::min(turn, count - first);
      const auto at = [&](std::size_t i) { return static_cast<std::size_t>(vertex(first + i)); };
      for (std::size_t i = 0; i < size; ++i) {
        if (i + kFar < size) request_for_write(seen_.data() + at(i + kFar));
        seen_.data()[at(i)] |= kMark;
      }
      share(size, kStep, threads_, [&](std::size_t low, std::size_t high) { tally(low, high, at); });
      auto next = late_.begin();
      std::size_t known = 0;
      for (std::size_t i = 0; i < size; ++i) {
        if (i + kFar < size) coming(at(i + kFar));
        std::uint32_t* counts = counts_.data() + i * slots_;
        if (i % kStep == 0) next = late_.begin() + static_cast<std::ptrdiff_t>(i / kStep), known = 0;
        for (; known < next->size() && (*next)[known].first == i; ++known) ++counts[part_of((*next)[known].second)];
        seen_.data()[at(i)] = static_cast<Seen>(visit(at(i), counts + 1) + 1);
      }
    }
  }

  // The partition that v counts for, and 1; 0: none.
  std::size_t part_of(std::size_t v) const { return seen_.data()[v] & static_cast<Seen>(~kMark); }

 private:
  static constexpr Seen kMark = static_cast<Seen>(Seen{1} << (8 * sizeof(Seen) - 1));
  static constexpr std::size_t kTurn = 1 << 15, kTurns = 256;      // vertices at a time, at most; turns of a graph at least
  static constexpr std::size_t kCounts = 1 << 22;                  // counters at a time
  static constexpr std::size_t kStep = 1 << 10;                    // vertices that a thread takes at a time
  static constexpr std::size_t kFar = 32, kNear = 6, kAhead = 48;  // vertices, vertices and neighbours to fetch ahead

  // Counts the neighbours of vertices at(low) to at(high - 1).
  template <class At>
  void tally(std::size_t low, std::size_t high, At at) {
    auto& late = late_[low / kStep];
    late.clear();
    std::fill(counts_.begin() + static_cast<std::ptrdiff_t>(low * slots_),
              counts_.begin() + static_cast<std::ptrdiff_t>(high * slots_), 0);
    for (std::size_t i = low; i < high; ++i) {
      if (i + kFar < high) fetch_bounds(at(i + kFar));
      if (i + kFar / 2 < high) fetch_row(graph_.row(at(i + kFar / 2)));
      if (i + kNear < high) {
        const auto row = graph_.row(at(i + kNear));
        for (std::size_t k = 0; k < std::min(kAhead, row.size()); ++k) fetch(row[k]);
      }
      std::uint32_t* counts = counts_.data() + i * slots_;
      const auto row = graph_.row(at(i));
      for (std::size_t k = 0; k < row.size(); ++k) {
        if (k + kAhead < row.size()) fetch(row[k + kAhead]);
        const Seen seen = seen_.data()[row[k]];
        if (seen & kMark)
          late.emplace_back(i, static_cast<std::size_t>(row[k]));
        else
          ++counts[seen];
      }
    }
  }
  void fetch_bounds(std::size_t v) const {
    __builtin_prefetch(graph_.indptr.data() + v);
    __builtin_prefetch(graph_.indptr.data() + v + 1);
  }
  void fetch(Id u) const { __builtin_prefetch(seen_.data() + u); }
  static void fetch_row(std::span<const Id> row) {
    constexpr std::size_t kLine = 64 / sizeof(Id);
    for (std::size_t k = 0; k < std::min(row.size(), kAhead); k += kLine) __builtin_prefetch(row.data() + k);
  }

  const Csr<Id>& graph_;
  Lines<Seen> seen_;  // what part_of(v) gives; marked in the turn of v
  std::size_t slots_, threads_;
  std::vector<std::uint32_t> counts_;  // [turn, slots], the first slot is for vertices in no partition
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> late_;  // by step: place in the turn, marked neighbour
};

inline constexpr std::size_t kMostParts = 1 << 14;

// Calls f(visits) with the smallest numbers that hold the partitions.
template <class Id, class F>
decltype(auto) with_visits(const Csr<Id>& graph, std::span<const std::int32_t> owners, std::span<const std::int32_t> before,
                           std::size_t parts, std::size_t threads, F f) {
  if (parts < 127) return f(Visits<Id, std::uint8_t>(graph, owners, before, parts, threads));
  if (parts <= kMostParts) return f(Visits<Id, std::uint16_t>(graph, owners, before, parts, threads));
  throw std::invalid_argument("parts: must be at most " + std::to_string(kMostParts));
}

}  // namespace atta
