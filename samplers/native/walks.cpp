// Bindings of walks and PageRank pushes; typed and documented in atta.samplers.local.walks.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "compact.hpp"
#include "hash.hpp"
#include "parallel.hpp"

// Random walks along in-edges, PinSAGE's neighbourhoods from them, and personalised PageRank by local pushes.
//
// A walker's draws depend only on the stream key, its number, the user id of its start, and the step. So walks are the
// same in any order and on any number of threads.
namespace atta {

inline constexpr std::int64_t kNowhere = -1;       // a walk that cannot go on
inline constexpr std::uint64_t kRejections = 256;  // rejections before node2vec weighs all neighbours

// The in-edges of all vertices; rows are ordered by the user id of the source.
template <class Id>
struct Graph {
  std::span<const std::int64_t> indptr;
  const Id* indices;
  std::size_t edges;
  const std::int64_t* keys;  // user ids

  std::int64_t size() const { return static_cast<std::int64_t>(indptr.size()) - 1; }

  std::span<const Id> neighbors(std::int64_t vertex) const {
    if (vertex < 0 || vertex >= size())
      throw std::invalid_argument("vertex " + std::to_string(vertex) + " is outside 0.." + std::to_string(size() - 1));
    const std::int64_t begin = indptr[static_cast<std::size_t>(vertex)], end = indptr[static_cast<std::size_t>(vertex) + 1];
    if (begin < 0 || end < begin || end > static_cast<std::int64_t>(edges))
      throw std::invalid_argument("indptr: row " + std::to_string(vertex) + " spans " + std::to_string(begin) + ".." +
                                  std::to_string(end) + " of " + std::to_string(edges) + " edges");
    return {indices + begin, static_cast<std::size_t>(end - begin)};
  }

  bool has_neighbor(std::int64_t vertex, std::int64_t wanted) const {
    const auto row = neighbors(vertex);
    const std::int64_t key = key_of(wanted);
    const auto found = std::lower_bound(row.begin(), row.end(), key, [this](Id id, std::int64_t k) { return key_of(id) < k; });
    return found != row.end() && key_of(*found) == key;
  }

  std::int64_t key_of(std::int64_t vertex) const {
    if (vertex < 0 || vertex >= size())
      throw std::invalid_argument("indices: vertex " + std::to_string(vertex) + " of " + std::to_string(size()));
    return keys[static_cast<std::size_t>(vertex)];
  }
};

struct Bias {
  double back, out;  // 1/p and 1/q of node2vec; both 1: an unbiased walk
  bool unbiased() const { return back == 1.0 && out == 1.0; }
};

inline double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }  // [0, 1)

// One step from `at`, reached from `before` (kNowhere at the start). Rejection against the largest weight keeps the distribution
// exact (KnightKing, Yang et al., SOSP 2019, section 3); if it takes too long, all neighbours are weighed.
template <class Id>
std::int64_t step(const Graph<Id>& graph, std::int64_t before, std::int64_t at, const Bias& bias, const VertexStream& stream,
                  std::uint64_t& draws) {
  const auto row = graph.neighbors(at);
  if (row.empty()) return kNowhere;
  if (before == kNowhere || bias.unbiased()) return static_cast<std::int64_t>(row[stream.below(draws++, row.size())]);
  const auto weight = [&](std::int64_t next) {
    if (next == before) return bias.back;
    return graph.has_neighbor(before, next) ? 1.0 : bias.out;
  };
  const double most = std::max({bias.back, 1.0, bias.out});
  for (std::uint64_t attempt = 0; attempt < kRejections; ++attempt) {
    const auto next = static_cast<std::int64_t>(row[stream.below(draws++, row.size())]);
    if (unit(stream.draw(draws++)) * most < weight(next)) return next;
  }
  std::vector<double> sums;
  double total = 0;
  for (const Id next : row) sums.push_back(total += weight(static_cast<std::int64_t>(next)));
  const double mark = unit(stream.draw(draws++)) * total;
  const auto found = std::upper_bound(sums.begin(), sums.end(), mark);
  return static_cast<std::int64_t>(row[std::min(static_cast<std::size_t>(found - sums.begin()), row.size() - 1)]);
}

// Walkers [first, last): out[w * (length + 1) ...] holds the start and the later vertices. With probability `restart` a
// walker returns to its start instead of a step (PinSAGE). The start then takes a place in the walk too.
template <class Id>
void walk(const Graph<Id>& graph, const std::int64_t* starts, std::size_t first, std::size_t last, std::size_t length,
          const Bias& bias, double restart, std::uint64_t stream_key, std::int64_t* out) {
  for (std::size_t w = first; w < last; ++w) {
    std::int64_t* path = out + w * (length + 1);
    const VertexStream stream(stream_key ^ mix64(w), graph.key_of(starts[w]));
    std::uint64_t draws = 0;
    std::int64_t before = kNowhere, at = starts[w];
    path[0] = at;
    for (std::size_t i = 1; i <= length; ++i) {
      if (at != kNowhere && restart > 0 && unit(stream.draw(draws++)) < restart) {
        before = kNowhere;
        at = starts[w];
      } else if (at != kNowhere) {
        const std::int64_t next = step(graph, before, at, bias, stream, draws);
        before = at;
        at = next;
      }
      path[i] = at;
    }
  }
}

// The `most` vertices that `places` names most often, without `start` and kNowhere; ties go to the lower user id.
template <class Id>
std::size_t most_visited(const Graph<Id>& graph, std::int64_t start, std::span<const std::int64_t> places, std::size_t most,
                         std::int64_t* vertices, std::int64_t* counts) {
  std::vector<std::int64_t> sorted;
  for (const std::int64_t place : places)
    if (place != kNowhere && place != start) sorted.push_back(place);
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::pair<std::int64_t, std::int64_t>> found;  // (visits, vertex)
  for (const std::int64_t place : sorted) {
    if (found.empty() || found.back().second != place) found.emplace_back(0, place);
    ++found.back().first;
  }
  const std::size_t kept = std::min(most, found.size());
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(kept), found.end(),
                    [&](const auto& a, const auto& b) {
                      return a.first != b.first ? a.first > b.first : graph.key_of(a.second) < graph.key_of(b.second);
                    });
  for (std::size_t i = 0; i < kept; ++i) vertices[i] = found[i].second, counts[i] = found[i].first;
  return kept;
}

// Personalised PageRank of one seed by forward pushes (Andersen, Chung, Lang: "Local graph partitioning using PageRank vectors",
// FOCS 2006): It ends when no vertex holds more than `epsilon` x its degree. Mass that reaches a vertex without
// in-edges goes back to the seed.
template <class Id>
class Push {
 public:
  explicit Push(const Graph<Id>& graph) : graph_(graph) {}

  // (score, vertex), best first, ties by user id.
  std::vector<std::pair<double, std::int64_t>> run(std::int64_t seed, double alpha, double epsilon, std::size_t most) {
    known_.reset();
    graph_.neighbors(seed);  // throws for a seed that does not exist
    score_.clear(), residue_.clear(), queued_.clear();
    add(seed, 1.0, epsilon);
    while (!queue_.empty()) {
      const auto u = static_cast<std::size_t>(queue_.front());
      queue_.pop_front();
      queued_[u] = 0;
      const double mass = residue_[u];
      residue_[u] = 0;
      score_[u] += alpha * mass;
      const auto row = graph_.neighbors(known_.ids()[u]);
      if (row.empty())
        add(seed, (1 - alpha) * mass, epsilon);
      else
        for (const Id next : row)
          add(static_cast<std::int64_t>(next), (1 - alpha) * mass / static_cast<double>(row.size()), epsilon);
    }
    std::vector<std::pair<double, std::int64_t>> found;
    for (std::size_t i = 0; i < score_.size(); ++i)
      if (score_[i] > 0) found.emplace_back(score_[i], known_.ids()[i]);
    const std::size_t kept = std::min(most, found.size());
    std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(kept), found.end(),
                      [&](const auto& a, const auto& b) {
                        return a.first != b.first ? a.first > b.first : graph_.key_of(a.second) < graph_.key_of(b.second);
                      });
    found.resize(kept);
    return found;
  }

 private:
  void add(std::int64_t vertex, double mass, double epsilon) {
    std::int32_t local;
    known_.insert(&vertex, 1, &local);
    const auto u = static_cast<std::size_t>(local);
    if (u == score_.size()) score_.push_back(0), residue_.push_back(0), queued_.push_back(0);
    residue_[u] += mass;
    const double degree = std::max<double>(1, static_cast<double>(graph_.neighbors(vertex).size()));
    if (residue_[u] > epsilon * degree && !queued_[u]) {
      queued_[u] = 1;
      queue_.push_back(local);
    }
  }

  Graph<Id> graph_;
  Compactor known_;
  std::vector<double> score_, residue_;
  std::vector<char> queued_;
  std::deque<std::int32_t> queue_;
};

}  // namespace atta

using namespace atta;

namespace {

template <class F>
decltype(auto) with_graph(const Longs& indptr, const Vector& indices, const Longs& keys, F f) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  if (keys.size() + 1 != indptr.size()) bad("vertex_keys", "must have one key per row");
  return with_ids("indices", indices, [&](const auto* ids) {
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(ids)>>;
    return f(Graph<Id>{{indptr.data(), indptr.size()}, ids, indices.size(), keys.data()});
  });
}

void check_threads(std::size_t threads) {
  if (threads < 1 || threads > 1024) bad("threads", "must be 1 to 1024");
}

nb::object random_walks(Longs indptr, Vector indices, Longs keys, Longs starts, std::size_t length, double p, double q,
                        double restart, std::uint64_t stream_key, std::size_t threads) {
  if (!(p > 0) || !std::isfinite(p) || !(q > 0) || !std::isfinite(q)) bad("p", "p and q must be positive and finite");
  if (!(restart >= 0 && restart < 1)) bad("restart", "must be at least 0 and below 1");
  if (length > 1'000'000) bad("length", "must be at most 1000000");
  check_threads(threads);
  return with_graph(indptr, indices, keys, [&](const auto& graph) {
    Buffer<std::int64_t> out(starts.size() * (length + 1));
    {
      nb::gil_scoped_release unlocked;
      const Bias bias{1 / p, 1 / q};
      split(evenly(starts.size(), threads), [&](std::size_t, std::size_t a, std::size_t b) {
        walk(graph, starts.data(), a, b, length, bias, restart, stream_key, out.data);
      });
    }
    return out.release();
  });
}

// counts int32 [m], vertices and visits int64 [sum(counts)]
nb::tuple frequent_visits(Longs indptr, Vector indices, Longs keys, Longs starts, Longs paths, std::size_t most) {
  return with_graph(indptr, indices, keys, [&](const auto& graph) {
    const std::size_t m = starts.size(), each = m == 0 ? 0 : paths.size() / m;
    if (each * m != paths.size()) bad("paths", "must have equally many places for every start");
    Buffer<std::int32_t> counts(m);
    std::vector<std::int64_t> vertices, visits;
    {
      nb::gil_scoped_release unlocked;
      const std::size_t room = std::min(most, each);
      for (std::size_t i = 0; i < m; ++i) {
        const std::size_t at = vertices.size();
        vertices.resize(at + room), visits.resize(at + room);
        const std::size_t kept =
            most_visited(graph, starts.data()[i], {paths.data() + i * each, each}, most, vertices.data() + at, visits.data() + at);
        vertices.resize(at + kept), visits.resize(at + kept);
        counts.data[i] = static_cast<std::int32_t>(kept);
      }
    }
    Buffer<std::int64_t> ids(vertices.size()), times(visits.size());
    std::copy(vertices.begin(), vertices.end(), ids.data);
    std::copy(visits.begin(), visits.end(), times.data);
    return nb::make_tuple(counts.release(), ids.release(), times.release());
  });
}

// counts int32 [m], vertices int64 and scores float64 [sum(counts)]
nb::tuple pagerank(Longs indptr, Vector indices, Longs keys, Longs seeds, double alpha, double epsilon, std::size_t most,
                   std::size_t threads) {
  if (!(alpha > 0 && alpha < 1)) bad("alpha", "must lie between 0 and 1");
  if (!(epsilon >= 1e-12 && epsilon < 1)) bad("epsilon", "must be at least 1e-12 and below 1");
  check_threads(threads);
  return with_graph(indptr, indices, keys, [&](const auto& graph) {
    std::vector<std::vector<std::pair<double, std::int64_t>>> found(seeds.size());
    {
      nb::gil_scoped_release unlocked;
      split(evenly(seeds.size(), threads), [&](std::size_t, std::size_t a, std::size_t b) {
        Push push(graph);
        for (std::size_t i = a; i < b; ++i) found[i] = push.run(seeds.data()[i], alpha, epsilon, most);
      });
    }
    std::size_t total = 0;
    for (const auto& scores : found) total += scores.size();
    Buffer<std::int32_t> counts(seeds.size());
    Buffer<std::int64_t> vertices(total);
    Buffer<double> scores(total);
    std::size_t at = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      counts.data[i] = static_cast<std::int32_t>(found[i].size());
      for (const auto& [score, vertex] : found[i]) scores.data[at] = score, vertices.data[at++] = vertex;
    }
    return nb::make_tuple(counts.release(), vertices.release(), scores.release());
  });
}

}  // namespace

void bind_walks(nb::module_& m) {
  m.def("random_walks", &random_walks, "indptr"_a, "indices"_a, "vertex_keys"_a, "starts"_a, "length"_a, "p"_a, "q"_a, "restart"_a,
        "stream_key"_a, "threads"_a);
  m.def("frequent_visits", &frequent_visits, "indptr"_a, "indices"_a, "vertex_keys"_a, "starts"_a, "paths"_a, "most"_a);
  m.def("pagerank", &pagerank, "indptr"_a, "indices"_a, "vertex_keys"_a, "seeds"_a, "alpha"_a, "epsilon"_a, "most"_a, "threads"_a);
}
