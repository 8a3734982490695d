// Bindings of walks and PageRank pushes; typed and documented in atta.samplers.local.walks.
#include "walks.hpp"

#include <cmath>
#include <memory>
#include <vector>

#include "arrays.hpp"
#include "parallel.hpp"

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
