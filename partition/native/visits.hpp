// The undirected graph that partitioning works on, and visits to its vertices that know the partitions of neighbours.
#pragma once

#include <algorithm>
#include <atomic>
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
// Neighbours are counted turn by turn, on several threads, while the vertices of the turn before are visited. Vertices of
// both turns are marked: as neighbours they are counted when the visit comes, or already with what their own visit gave.
// So the threads change nothing.
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
    const std::size_t size = std::clamp<std::size_t>(std::min(graph_.size() / kTurns, kCounts / slots_), 1, kTurn);
    Turn now(size, slots_), next(size, slots_);
    next.end = std::min(size, count);
    const auto prepare = [&](auto meanwhile) {
      mark(next, vertex);
      share_beside(next.end - next.first, kStep, threads_, meanwhile,
                   [&](std::size_t low, std::size_t high) { tally(next, next.first + low, next.first + high, vertex); });
      std::swap(now, next);
      next.first = now.end, next.end = std::min(now.end + size, count);
    };
    prepare([] {});
    while (now.first < now.end) prepare([&] { visit_all(now, vertex, coming, visit); });
  }

  // The partition that v counts for, and 1; 0: none.
  std::size_t part_of(std::size_t v) const { return seen(v) & static_cast<Seen>(~kMark); }

 private:
  static constexpr Seen kMark = static_cast<Seen>(Seen{1} << (8 * sizeof(Seen) - 1));
  static constexpr std::size_t kTurn = 1 << 15, kTurns = 256;      // vertices at a time, at most; turns of a graph at least
  static constexpr std::size_t kCounts = 1 << 22;                  // counters at a time
  static constexpr std::size_t kStep = 1 << 10;                    // vertices that a thread takes at a time
  static constexpr std::size_t kFar = 32, kNear = 6, kAhead = 48;  // vertices, vertices and neighbours to fetch ahead

  // The vertices from number `first` up to `end`.
  struct Turn {
    std::size_t first = 0, end = 0;
    std::vector<std::uint32_t> counts;  // by vertex and slot; the first slot is for neighbours in no partition
    std::vector<std::vector<std::pair<std::size_t, std::size_t>>> late;  // by step: number of a vertex, marked neighbour

    Turn(std::size_t size, std::size_t slots) : counts(size * slots), late(size / kStep + 1) {}
  };

  // Other threads read what a visit writes.
  Seen seen(std::size_t v) const { return std::atomic_ref(seen_.data()[v]).load(std::memory_order_relaxed); }
  void see(std::size_t v, Seen value) { std::atomic_ref(seen_.data()[v]).store(value, std::memory_order_relaxed); }

  template <class Vertex>
  void mark(const Turn& turn, Vertex vertex) {
    for (std::size_t i = turn.first; i < turn.end; ++i) {
      if (i + kFar < turn.end) request_for_write(seen_.data() + vertex(i + kFar));
      see(static_cast<std::size_t>(vertex(i)), seen_.data()[vertex(i)] | kMark);
    }
  }

  template <class Vertex, class Coming, class Visit>
  void visit_all(const Turn& turn, Vertex vertex, Coming coming, Visit visit) {
    std::vector<std::uint32_t> counts(slots_);
    const auto* late = turn.late.data();
    std::size_t known = 0;
    for (std::size_t i = turn.first; i < turn.end; ++i) {
      const std::size_t at = i - turn.first;
      if (i + kFar < turn.end) coming(static_cast<std::size_t>(vertex(i + kFar)));
      if (at % kStep == 0) late = turn.late.data() + at / kStep, known = 0;
      std::copy_n(turn.counts.data() + at * slots_, slots_, counts.data());
      for (; known < late->size() && (*late)[known].first == i; ++known) ++counts[part_of((*late)[known].second)];
      const auto v = static_cast<std::size_t>(vertex(i));
      see(v, static_cast<Seen>(visit(v, counts.data() + 1) + 1));
    }
  }

  // Counts the neighbours of the vertices from number `low` up to `high`.
  template <class Vertex>
  void tally(Turn& turn, std::size_t low, std::size_t high, Vertex vertex) {
    const auto row_of = [&](std::size_t i) { return graph_.row(static_cast<std::size_t>(vertex(i))); };
    auto& late = turn.late[(low - turn.first) / kStep];
    late.clear();
    std::uint32_t* counts = turn.counts.data() + (low - turn.first) * slots_;
    std::fill_n(counts, (high - low) * slots_, 0);
    for (std::size_t i = low; i < high; ++i, counts += slots_) {
      if (i + kFar < high) fetch_bounds(static_cast<std::size_t>(vertex(i + kFar)));
      if (i + kFar / 2 < high) fetch_row(row_of(i + kFar / 2));
      if (i + kNear < high) {
        const auto row = row_of(i + kNear);
        for (std::size_t k = 0; k < std::min(kAhead, row.size()); ++k) fetch(row[k]);
      }
      const auto row = row_of(i);
      for (std::size_t k = 0; k < row.size(); ++k) {
        if (k + kAhead < row.size()) fetch(row[k + kAhead]);
        const Seen part = seen(static_cast<std::size_t>(row[k]));
        if (part & kMark)
          late.emplace_back(i, static_cast<std::size_t>(row[k]));
        else
          ++counts[part];
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
  Lines<Seen> seen_;  // what part_of(v) gives, and the mark
  std::size_t slots_, threads_;
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
