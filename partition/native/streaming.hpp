// Assigns vertices one by one to the partition with their neighbours, while every partition stays within its capacity.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "hash.hpp"
#include "visits.hpp"

namespace atta {

// Calls keep(v, u) for the edges to keep. A vertex with more than `cap` neighbours keeps the `cap` of lowest degree
// (ties by a hash): an edge to a hub says least about where a vertex belongs.
template <class Id, class F>
void sparsify(const Csr<Id>& graph, std::size_t cap, std::uint64_t seed, F keep) {
  std::vector<std::pair<std::uint64_t, Id>> ranked;
  for (std::size_t v = 0; v < graph.size(); ++v) {
    const auto row = graph.row(v);
    if (row.size() <= cap) {
      for (const Id u : row) keep(v, u);
      continue;
    }
    ranked.clear();
    for (const Id u : row) {
      const std::uint64_t degree = std::min<std::uint64_t>(graph.degree(static_cast<std::size_t>(u)), 0xFFFFFFFFULL);
      ranked.emplace_back(degree << 32 | (mix64(seed ^ static_cast<std::uint64_t>(u)) >> 32), u);
    }
    std::nth_element(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(cap), ranked.end());
    for (std::size_t i = 0; i < cap; ++i) keep(v, ranked[i].second);
  }
}

// All vertices in breadth-first order. Each component starts at its first vertex.
template <class Id>
std::vector<std::int64_t> breadth_first(const Csr<Id>& graph) {
  std::vector<std::int64_t> order;
  order.reserve(graph.size());
  std::vector<char> seen(graph.size(), 0);
  for (std::size_t start = 0, at = 0; start < graph.size(); ++start) {
    if (seen[start]) continue;
    seen[start] = 1;
    order.push_back(static_cast<std::int64_t>(start));
    for (; at < order.size(); ++at)
      for (const Id u : graph.row(static_cast<std::size_t>(order[at])))
        if (!seen[static_cast<std::size_t>(u)]) {
          seen[static_cast<std::size_t>(u)] = 1;
          order.push_back(static_cast<std::int64_t>(u));
        }
  }
  return order;
}

inline constexpr double kLenience = 0.005;  // share of a capacity that may be exceeded to balance another thing

// How much the partitions hold of each thing to be balanced, and how much they may hold.
class Loads {
 public:
  Loads(std::size_t parts, std::span<const std::int64_t> weights, std::span<const double> capacity)
      : parts_(parts),
        weights_(weights),
        capacity_(capacity),
        loads_(parts * capacity.size(), 0.0),
        free_(parts, 1.0),
        easy_(parts, -1.0) {
    for (std::size_t part = 0; part < parts; ++part) measure(part);
  }

  std::size_t parts() const { return parts_; }
  std::size_t things() const { return capacity_.size(); }
  double weight(std::size_t vertex, std::size_t c) const { return static_cast<double>(weights_[vertex * things() + c]); }
  // Whether the move would leave partition `part` with too much of something: clearly more than it may hold, and more
  // than the vertex' home holds then.
  bool worsens(std::size_t vertex, std::size_t home, std::size_t part) const {
    for (std::size_t c = 0; c < things(); ++c) {
      const double more = weight(vertex, c);
      if (more > 0 && excess(part, c) + more > std::max(kLenience * capacity_[c], excess(home, c) - more)) return true;
    }
    return false;
  }
  // How much more of thing `c` the partition holds than it may.
  double excess(std::size_t part, std::size_t c) const { return loads_[part * things() + c] - capacity_[c]; }
  double of(std::size_t part) const { return loads_[part * things()]; }

  void add(std::size_t vertex, std::size_t part, double sign) {
    for (std::size_t c = 0; c < things(); ++c) loads_[part * things() + c] += sign * weight(vertex, c);
    measure(part);
  }
  // Adds all vertices that are placed: owners[v] >= 0.
  void add_all(std::span<const std::int32_t> owners) {
    for (std::size_t v = 0; v < owners.size(); ++v)
      if (owners[v] >= 0)
        for (std::size_t c = 0; c < things(); ++c) loads_[static_cast<std::size_t>(owners[v]) * things() + c] += weight(v, c);
    for (std::size_t part = 0; part < parts_; ++part) measure(part);
  }
  void prefetch(std::size_t vertex) const {  // both ends: they may lie in two lines
    __builtin_prefetch(weights_.data() + vertex * things());
    __builtin_prefetch(weights_.data() + (vertex + 1) * things() - 1);
  }

  // The smallest share of free room that the partition has left with the vertex; below 0: the vertex does not fit.
  double room(std::size_t vertex, std::size_t part) const {
    for (std::size_t c = 0; c < things(); ++c) {
      const double load = loads_[part * things() + c], more = weight(vertex, c);
      if (more > 0 && load + more > capacity_[c]) return capacity_[c] > 0 ? (capacity_[c] - load - more) / capacity_[c] : -1.0;
    }
    return free_[part];
  }
  // The same where `heaviest` is known, the largest weight of the vertex: most partitions have room for any such vertex.
  double room(std::size_t vertex, std::size_t part, double heaviest) const {
    return heaviest <= easy_[part] ? free_[part] : room(vertex, part);
  }
  double heaviest(std::size_t vertex) const {
    double most = 0;
    for (std::size_t c = 0; c < things(); ++c) most = std::max(most, weight(vertex, c));
    return most;
  }

 private:
  void measure(std::size_t part) {
    double least = 1.0, left = std::numeric_limits<double>::infinity();
    for (std::size_t c = 0; c < things(); ++c) {
      if (capacity_[c] > 0) least = std::min(least, 1.0 - loads_[part * things() + c] / capacity_[c]);
      left = std::min(left, -excess(part, c));
    }
    free_[part] = std::max(0.0, least);
    easy_[part] = left - 1;  // less one, so that rounding changes nothing
  }

  std::size_t parts_;
  std::span<const std::int64_t> weights_;  // [n, things], the first one counts vertices
  std::span<const double> capacity_;
  std::vector<double> loads_;
  std::vector<double> free_;  // by partition: the smallest share of free room
  std::vector<double> easy_;  // by partition: a weight for which there is room of everything
};

// Counts neighbours by partition. Only the counters in use are cleared.
class Tally {
 public:
  explicit Tally(std::size_t parts) : counts_(parts, 0) {}
  void count(std::int32_t part) {
    if (part < 0) return;
    if (counts_[static_cast<std::size_t>(part)]++ == 0) touched_.push_back(part);
  }
  std::int64_t operator[](std::size_t part) const { return counts_[part]; }
  const std::vector<std::int32_t>& touched() const { return touched_; }
  void clear() {
    for (const std::int32_t part : touched_) counts_[static_cast<std::size_t>(part)] = 0;
    touched_.clear();
  }

 private:
  std::vector<std::int64_t> counts_;
  std::vector<std::int32_t> touched_;
};

// Linear deterministic greedy (Stanton and Kliot, KDD 2012): number of neighbours there, times the share of room that
// is left.
struct Ldg {
  double operator()(std::int64_t neighbors, double room, double /*load*/) const { return static_cast<double>(neighbors) * room; }
};

// Fennel (Tsourakakis et al., WSDM 2014): number of neighbours there, less the cost of one more vertex in a partition
// of this size.
struct Fennel {
  double alpha, gamma;
  double operator()(std::int64_t neighbors, double /*room*/, double load) const {
    return static_cast<double>(neighbors) - alpha * gamma * std::pow(load, gamma - 1);
  }
};

// Places the vertices of `order`. `owners[v]` < 0: not placed yet; other vertices are placed from the beginning. A
// neighbour that is not placed yet counts for its partition of the previous pass (`before`, may be empty): restreaming
// (Nishimura and Ugander, KDD 2013). Ties go to the emptier partition, then to the smaller number. If a vertex fits
// nowhere, it goes to the partition that it overfills least.
template <class Id, class Score>
void stream(const Csr<Id>& graph, std::span<const std::int64_t> order, std::span<const std::int32_t> before,
            std::span<std::int32_t> owners, Loads& loads, const Score& score, std::size_t threads) {
  loads.add_all(owners);
  const auto best_of = [&](std::size_t v, const std::uint32_t* counts) {
    std::size_t best = loads.parts();
    double best_score = 0, best_room = 0;
    const double heaviest = loads.heaviest(v);
    for (std::size_t part = 0; part < loads.parts(); ++part) {
      const double room = loads.room(v, part, heaviest);
      const double value = room < 0 ? room : score(counts[part], room, loads.of(part));
      const bool fits = room >= 0, best_fits = best_room >= 0;
      const bool better = best == loads.parts() || (fits != best_fits     ? fits
                                                    : value != best_score ? value > best_score
                                                                          : loads.of(part) < loads.of(best));
      if (better) best = part, best_score = value, best_room = room;
    }
    return best;
  };
  const auto coming = [&](std::size_t v) {
    loads.prefetch(v);
    __builtin_prefetch(owners.data() + v);
  };
  with_visits(graph, owners, before, loads.parts(), threads, [&](auto&& visits) {
    visits.each(
        order.size(), [&](std::size_t i) { return order[i]; }, coming,
        [&](std::size_t v, const std::uint32_t* counts) {
          if (owners[v] < 0) {
            const std::size_t best = best_of(v, counts);
            owners[v] = static_cast<std::int32_t>(best);
            loads.add(v, best, 1);
          }
          return owners[v];
        });
  });
}

// Moves vertices to the partition with most of their neighbours, if there is room. Of several, to the one whose vertex
// comes first in the row. Returns how many moved.
template <class Id>
std::int64_t refine(const Csr<Id>& graph, std::span<std::int32_t> owners, Loads& loads, std::size_t threads) {
  std::int64_t moved = 0;
  loads.add_all(owners);
  const auto coming = [&](std::size_t v) {
    loads.prefetch(v);
    __builtin_prefetch(owners.data() + v);
  };
  with_visits(graph, owners, {}, loads.parts(), threads, [&](auto&& visits) {
    const auto best_of = [&](std::size_t v, const std::uint32_t* counts) {
      const auto home = static_cast<std::size_t>(owners[v]);
      std::size_t best = home;
      bool tied = false;
      for (std::size_t part = 0; part < loads.parts(); ++part) {
        if (counts[part] <= counts[home] || counts[part] < counts[best] || loads.room(v, part) < 0) continue;
        tied = counts[part] == counts[best];
        best = part;
      }
      if (!tied) return best;
      for (const Id u : graph.row(v)) {
        const std::size_t part = visits.part_of(static_cast<std::size_t>(u)) - 1;
        if (counts[part] == counts[best] && loads.room(v, part) >= 0) return part;
      }
      return best;
    };
    visits.each(owners.size(), std::identity(), coming, [&](std::size_t v, const std::uint32_t* counts) {
      const auto home = static_cast<std::size_t>(owners[v]);
      const std::size_t best = best_of(v, counts);
      if (best != home) {
        loads.add(v, home, -1);
        loads.add(v, best, 1);
        owners[v] = static_cast<std::int32_t>(best);
        ++moved;
      }
      return owners[v];
    });
  });
  return moved;
}

// Moves vertices out of partitions that hold too much of one thing, `c`. `strict`: a vertex must fit in every respect
// where it goes. Otherwise it may also go to a partition that is then no worse in any respect than its home was. Only the
// rows of vertices that are asked about are read, so a graph may have just those.
template <class Id>
class Evening {
 public:
  Evening(const Csr<Id>& graph, std::span<std::int32_t> owners, Loads& loads, std::size_t c, bool strict)
      : graph_(graph), owners_(owners), loads_(loads), c_(c), strict_(strict), tally_(loads.parts()) {}

  // Whether v weighs something and its home holds too much.
  bool candidate(std::size_t v) const { return loads_.weight(v, c_) > 0 && loads_.excess(home(v), c_) > 0; }
  // How many edges more are cut if v goes to its best partition.
  std::int64_t cost(std::size_t v) { return -target(v).second; }
  // Moves vertices, in this order, while their homes hold too much. Returns how many moved.
  template <class Vertices>
  std::int64_t move(const Vertices& vertices) {
    std::int64_t moved = 0;
    for (const auto v : vertices) moved += move_one(static_cast<std::size_t>(v));
    return moved;
  }

 private:
  std::size_t home(std::size_t v) const { return static_cast<std::size_t>(owners_[v]); }

  std::int64_t move_one(std::size_t v) {
    const std::size_t from = home(v);
    if (loads_.excess(from, c_) <= 0) return 0;
    const std::size_t best = target(v).first;
    if (best == from) return 0;
    loads_.add(v, from, -1);
    loads_.add(v, best, 1);
    owners_[v] = static_cast<std::int32_t>(best);
    return 1;
  }

  // The best partition for v and the gain of moving there.
  std::pair<std::size_t, std::int64_t> target(std::size_t v) {
    const std::size_t from = home(v);
    for (const Id u : graph_.row(v)) tally_.count(owners_[static_cast<std::size_t>(u)]);
    std::size_t best = from;
    for (std::size_t part = 0; part < loads_.parts(); ++part) {
      if (part == from || loads_.excess(part, c_) + loads_.weight(v, c_) > 0 ||
          (strict_ ? loads_.room(v, part) < 0 : loads_.worsens(v, from, part)))
        continue;
      if (best == from || tally_[part] > tally_[best] ||
          (tally_[part] == tally_[best] && loads_.excess(part, c_) < loads_.excess(best, c_)))
        best = part;
    }
    const std::int64_t gain = tally_[best] - tally_[from];
    tally_.clear();
    return {best, gain};
  }

  const Csr<Id>& graph_;
  std::span<std::int32_t> owners_;
  Loads& loads_;
  std::size_t c_;
  bool strict_;
  Tally tally_;
};

// Moves vertices out of partitions that hold too much of something: thing by thing, first strictly. The vertices whose
// move costs the fewest cut edges go first. Returns how many moved.
template <class Id>
std::int64_t even_out(const Csr<Id>& graph, std::span<std::int32_t> owners, Loads& loads) {
  loads.add_all(owners);
  std::int64_t moved = 0;
  std::vector<std::pair<std::int64_t, std::size_t>> candidates;
  for (std::size_t c = 0; c < loads.things(); ++c)
    for (const bool strict : {true, false}) {
      Evening<Id> evening(graph, owners, loads, c, strict);
      candidates.clear();
      for (std::size_t v = 0; v < owners.size(); ++v)
        if (evening.candidate(v)) candidates.emplace_back(evening.cost(v), v);
      std::sort(candidates.begin(), candidates.end());
      moved += evening.move(candidates | std::views::values);
    }
  return moved;
}

}  // namespace atta
