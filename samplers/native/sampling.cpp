// Bindings of neighbour sampling: the methods with their tables, rows of a partition, hops of a whole graph. Typed and documented
// in atta.samplers.kernels and atta.samplers.methods.
#include <bit>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "answer.hpp"
#include "arrays.hpp"
#include "hop.hpp"
#include "labor.hpp"
#include "memory.hpp"
#include "parallel.hpp"
#include "temporal.hpp"
#include "weighted.hpp"

using namespace atta;

namespace {

using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutInts = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct Uniform {};
struct Weighted {
  Doubles weights;
  Lines<Alias> alias;
  Lines<std::int64_t> positive;
  bool all_positive;
};
template <class Time>
struct Temporal {
  Lines<Time> times;
  Lines<std::uint64_t> edges;
  int shift;
  std::int64_t origin;
  bool last;
};
struct Labor {
  Lines<std::uint32_t> marks;
};

std::size_t edges_of(const Uniform&) { return 0; }
std::size_t edges_of(const Weighted& t) { return t.alias.size(); }
template <class Time>
std::size_t edges_of(const Temporal<Time>& t) {
  return t.edges.size();
}
std::size_t edges_of(const Labor& t) { return t.marks.size(); }

std::size_t bytes_of(const Uniform&) { return 0; }
std::size_t bytes_of(const Weighted& t) { return t.alias.nbytes() + t.positive.nbytes() + t.weights.nbytes(); }
template <class Time>
std::size_t bytes_of(const Temporal<Time>& t) {
  return t.times.nbytes() + t.edges.nbytes();
}
std::size_t bytes_of(const Labor& t) { return t.marks.nbytes(); }

bool may_replace(const Uniform&) { return true; }
bool may_replace(const Weighted&) { return true; }
template <class Time>
bool may_replace(const Temporal<Time>& t) {
  return !t.last;
}
bool may_replace(const Labor&) { return false; }

void check_rows_of(const Longs& indptr, std::size_t edges, std::size_t row) {
  const std::int64_t begin = indptr.data()[row], end = indptr.data()[row + 1];
  if (begin < 0 || end < begin || end > static_cast<std::int64_t>(edges) || end - begin > INT32_MAX)
    bad("indptr", ("row " + std::to_string(row) + " does not fit the edges").c_str());
}

void check_threads(std::size_t threads) {
  if (threads < 1 || threads > 1024) bad("threads", "must be 1 to 1024");
}

// How edges are drawn, with the tables of one edge type that it takes.
class Method {
 public:
  std::variant<Uniform, Weighted, Temporal<std::uint32_t>, Temporal<std::uint64_t>, Labor> tables;

  std::size_t edges() const {
    return std::visit([](const auto& t) { return edges_of(t); }, tables);
  }
  std::size_t nbytes() const {
    return std::visit([](const auto& t) { return bytes_of(t); }, tables);
  }

  static Method weighted(Longs indptr, Doubles weights, std::size_t threads) {
    if (indptr.size() == 0) bad("indptr", "is empty");
    check_threads(threads);
    const std::size_t n = indptr.size() - 1, edges = weights.size();
    Weighted made{weights, Lines<Alias>(edges), Lines<std::int64_t>(n), true};
    std::vector<char> all(threads, 1);
    {
      nb::gil_scoped_release unlocked;
      split(by_edges({indptr.data(), n + 1}, threads), [&](std::size_t part, std::size_t a, std::size_t b) {
        std::vector<double> scaled;
        std::vector<std::uint32_t> small, large;
        for (std::size_t row = a; row < b; ++row) {
          check_rows_of(indptr, edges, row);
          const std::int64_t begin = indptr.data()[row], degree = indptr.data()[row + 1] - begin;
          made.positive.data()[row] = build_alias(weights.data() + begin, static_cast<std::size_t>(degree), begin,
                                                  made.alias.data() + begin, scaled, small, large);
          if (made.positive.data()[row] != degree) all[part] = 0;
        }
      });
    }
    made.all_positive = std::all_of(all.begin(), all.end(), [](char c) { return c != 0; });
    return Method{std::move(made)};
  }

  static Method temporal(Longs indptr, Vector indices, Longs times, bool last, std::size_t threads) {
    if (indptr.size() == 0) bad("indptr", "is empty");
    if (indices.size() != times.size()) bad("times", "must be as many as indices");
    check_threads(threads);
    std::int64_t first = 0, last_time = 0;
    if (times.size() > 0) {
      const auto [least, most] = std::minmax_element(times.data(), times.data() + times.size());
      first = *least, last_time = *most;
    }
    const bool narrow = static_cast<std::uint64_t>(last_time) - static_cast<std::uint64_t>(first) < UINT32_MAX;
    return with_ids("indices", indices, [&](const auto* sources) {
      return narrow ? Method{sorted<std::uint32_t>(indptr, sources, times, first, last, threads)}
                    : Method{sorted<std::uint64_t>(indptr, sources, times, first, last, threads)};
    });
  }

  static Method labor(Vector indices, std::optional<Longs> source_keys, std::size_t threads) {
    check_threads(threads);
    Labor made{Lines<std::uint32_t>(indices.size())};
    with_ids("indices", indices, [&](const auto* ids) {
      nb::gil_scoped_release unlocked;
      split(evenly(indices.size(), threads), [&](std::size_t, std::size_t a, std::size_t b) {
        for (std::size_t i = a; i < b; ++i) {
          if (source_keys && (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= source_keys->size()))
            bad("indices", ("edge " + std::to_string(i) + " comes from no vertex").c_str());
          made.marks.data()[i] = mark_of(source_keys ? source_keys->data()[ids[i]] : static_cast<std::int64_t>(ids[i]));
        }
      });
    });
    return Method{std::move(made)};
  }

 private:
  template <class Time, class Id>
  static Temporal<Time> sorted(const Longs& indptr, const Id* sources, const Longs& times, std::int64_t origin, bool last,
                               std::size_t threads) {
    const std::size_t n = indptr.size() - 1, edges = times.size();
    nb::gil_scoped_release unlocked;
    std::int64_t degree = 1, most = 0;
    for (std::size_t row = 0; row < n; ++row) {
      check_rows_of(indptr, edges, row);
      degree = std::max(degree, indptr.data()[row + 1] - indptr.data()[row]);
    }
    for (std::size_t i = 0; i < edges; ++i) {
      if (sources[i] < 0) bad("indices", ("edge " + std::to_string(i) + " comes from no vertex").c_str());
      most = std::max(most, static_cast<std::int64_t>(sources[i]));
    }
    const int shift = std::bit_width(static_cast<std::uint64_t>(degree));
    if (degree > UINT32_MAX || shift + std::bit_width(static_cast<std::uint64_t>(most)) > 64)
      bad("indices", "has too many vertices and too long rows for temporal sampling");
    Temporal<Time> made{Lines<Time>(edges), Lines<std::uint64_t>(edges), shift, origin, last};
    split(by_edges({indptr.data(), n + 1}, threads), [&](std::size_t, std::size_t a, std::size_t b) {
      std::vector<std::pair<std::int64_t, std::uint32_t>> scratch;
      for (std::size_t row = a; row < b; ++row) {
        const std::int64_t begin = indptr.data()[row];
        sort_by_time(times.data() + begin, sources + begin, static_cast<std::size_t>(indptr.data()[row + 1] - begin), origin, shift,
                     made.times.data() + begin, made.edges.data() + begin, scratch);
      }
    });
    return made;
  }

  template <class T>
  explicit Method(T&& of) : tables(std::forward<T>(of)) {}

 public:
  Method() : tables(Uniform{}) {}
};

// Calls f with a new picker of the method.
template <class F>
decltype(auto) with_picker(const Method* method, const SampleSpec& spec, F f) {
  if (method != nullptr) {
    if (const auto* w = std::get_if<Weighted>(&method->tables)) {
      const WeightedTables tables{w->weights.data(), w->alias.data(), w->all_positive ? nullptr : w->positive.data()};
      return f([&] { return WeightedPicker(spec, tables); });
    }
    const auto temporal = [&]<class Time>(const Temporal<Time>& t) {
      return f(
          [&] { return TemporalPicker(spec, TemporalTables<Time>{t.times.data(), t.edges.data(), t.shift, t.origin}, t.last); });
    };
    if (const auto* t = std::get_if<Temporal<std::uint32_t>>(&method->tables)) return temporal(*t);
    if (const auto* t = std::get_if<Temporal<std::uint64_t>>(&method->tables)) return temporal(*t);
    if (const auto* l = std::get_if<Labor>(&method->tables)) return f([&] { return LaborPicker(spec, l->marks.data()); });
  }
  return f([&] { return UniformPicker(spec); });
}

void check_method(const Method* method, const SampleSpec& spec, std::size_t edges) {
  if (spec.fan_out < -1) throw std::invalid_argument("fan_out: " + std::to_string(spec.fan_out) + " must be -1 (all) or >= 0");
  if (spec.replace && spec.fan_out > INT32_MAX) throw std::invalid_argument("fan_out: more than 2^31 - 1 neighbours of one row");
  if (method == nullptr || std::holds_alternative<Uniform>(method->tables)) return;
  if (method->edges() != edges) bad("method", "its tables were made for other edges");
  if (spec.replace && !std::visit([](const auto& t) { return may_replace(t); }, method->tables))
    bad("replace", "this method draws no edge twice");
}

// ---- rows of a partition --------------------------------------------------------------------------------------------------------

template <class T>
nb::object joined(std::vector<Growing<T>*> parts) {
  if (parts.size() == 1) {
    const std::size_t size = parts[0]->size();
    T* owned = parts[0]->give_up();
    nb::capsule owner(owned, [](void* p) noexcept { std::free(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned, {size}, owner));
  }
  std::size_t total = 0, at = 0;
  for (const Growing<T>* part : parts) total += part->size();
  Buffer<T> out(total);
  for (const Growing<T>* part : parts) {
    std::copy_n(part->data(), part->size(), out.data + at);
    at += part->size();
  }
  return out.release();
}

struct Rows {
  Vector rows;
  std::optional<Ints> trees;
  std::optional<Longs> times;

  void check() const {
    if (trees && trees->size() != rows.size()) bad("trees", "must be as long as rows");
    if (times && times->size() != rows.size()) bad("times", "must be as long as rows");
  }
};

// Ranges of rows that cost about the same: a row costs its picks, or all its edges where each is looked at.
template <class Id, class Edge>
Bounds divided(const InEdges<Id, Edge>& graph, const Rows& rows, const Method* method, const SampleSpec& spec,
               std::size_t threads) {
  const std::size_t m = rows.rows.size();
  if (threads <= 1) return evenly(m, 1);
  const bool every = spec.fan_out < 0 || (method != nullptr && std::holds_alternative<Labor>(method->tables));
  const double most = every ? std::numeric_limits<double>::max() : static_cast<double>(spec.fan_out);
  return with_ids("rows", rows.rows, [&](const auto* r) {
    return by_cost(m, threads, [&](std::size_t i) {
      const auto row = static_cast<std::size_t>(r[i]);
      if (row >= graph.indptr.size() - 1) return 1.0;  // also a negative one; `target_of` will complain
      return 1.0 + std::clamp(static_cast<double>(graph.indptr[row + 1]) - static_cast<double>(graph.indptr[row]), 0.0, most);
    });
  });
}

template <class Id, class Edge>
nb::tuple sample_rows(const InEdges<Id, Edge>& graph, const Rows& rows, bool want_edges, const Method* method,
                      const SampleSpec& spec, std::size_t threads) {
  const std::size_t m = rows.rows.size();
  Buffer<std::int32_t> counts(m);
  std::vector<std::unique_ptr<AnswerSink<Id, Edge>>> sinks;
  const Bounds bounds = divided(graph, rows, method, spec, threads);
  const std::size_t parts = bounds.size() - 1;
  const std::size_t room =
      m / parts * (spec.fan_out >= 0 ? static_cast<std::size_t>(std::min<std::int64_t>(spec.fan_out, 64)) : 16);
  for (std::size_t i = 0; i < parts; ++i) sinks.push_back(std::make_unique<AnswerSink<Id, Edge>>(counts.data, want_edges, room));
  with_ids("rows", rows.rows, [&](const auto* r) {
    nb::gil_scoped_release unlocked;
    const auto row_at = [&](std::size_t i) {
      return Row{static_cast<std::int64_t>(r[i]), rows.trees ? rows.trees->data()[i] : -1,
                 rows.times ? rows.times->data()[i] : kEndOfTime};
    };
    with_picker(method, spec, [&](auto make) {
      split(bounds, [&](std::size_t part, std::size_t a, std::size_t b) {
        auto picker = make();
        expand(graph, spec, picker, a, b, row_at, want_edges, *sinks[part]);
      });
    });
  });
  std::vector<Growing<Id>*> neighbors;
  std::vector<Growing<Edge>*> edges;
  for (const auto& sink : sinks) neighbors.push_back(&sink->neighbors), edges.push_back(&sink->edge_ids);
  nb::object chosen = want_edges ? joined<Edge>(edges) : nb::none();
  return nb::make_tuple(counts.release(), joined<Id>(neighbors), chosen);
}

nb::tuple sample_neighbors(Longs indptr, Vector indices, std::optional<Vector> edge_ids, Longs keys, Vector rows,
                           std::int64_t fan_out, bool replace, std::uint64_t stream_key, std::size_t threads, const Method* method,
                           std::optional<Ints> trees, std::optional<Longs> times, bool positions) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  if (keys.size() + 1 != indptr.size()) bad("vertex_keys", "must have one key per row");
  if (edge_ids && edge_ids->size() != indices.size()) bad("edge_ids", "must be as long as indices");
  if (edge_ids && positions) bad("positions", "edge ids or positions, not both");
  check_threads(threads);
  const SampleSpec spec{fan_out, replace, stream_key};
  check_method(method, spec, indices.size());
  const Rows of{rows, trees, times};
  of.check();
  const std::span<const std::int64_t> ptr(indptr.data(), indptr.size());
  return with_ids("indices", indices, [&](const auto* ids) {
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(ids)>>;
    const auto run = [&](const auto* e) {
      using Edge = std::remove_const_t<std::remove_pointer_t<decltype(e)>>;
      const InEdges<Id, Edge> graph{ptr, ids, indices.size(), e, keys.data(), std::numeric_limits<std::int64_t>::max()};
      return sample_rows(graph, of, edge_ids.has_value() || positions, method, spec, threads);
    };
    if (!edge_ids) return run(static_cast<const std::int64_t*>(nullptr));
    return with_ids("edge_ids", *edge_ids, run);
  });
}

// ---- hops of a whole graph ------------------------------------------------------------------------------------------------------

// Expands the vertices that `targets` numbers [first, last) and lets `known` number their sources; the two may be one. Returns the
// number of edges written and the first vertex for which there was no room.
nb::tuple sample_hop(Compactor& known, const Compactor& targets, Longs indptr, Vector indices, std::optional<Vector> edge_ids,
                     std::optional<Longs> keys, std::size_t first, std::size_t last, std::int64_t fan_out, bool replace,
                     std::uint64_t stream_key, OutInts out_row, OutInts out_col, std::optional<OutVector> out_edges,
                     const Method* method, std::int64_t sources, bool trees, std::optional<Longs> tree_times) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  if (keys && keys->size() + 1 != indptr.size()) bad("vertex_keys", "must have one key per row");
  if (edge_ids && edge_ids->size() != indices.size()) bad("edge_ids", "must be as long as indices");
  if (first > last || last > targets.size()) bad("last", "passes the number of ids");
  if (out_col.size() != out_row.size() || (out_edges && out_edges->size() != out_row.size()))
    bad("out_row", "outputs differ in length");
  if (out_edges && edge_ids && out_edges->dtype() != edge_ids->dtype()) bad("out_edge_ids", "must have the dtype of edge_ids");
  if (sources < 0) bad("sources", "must not be negative");
  if (tree_times && !trees) bad("tree_times", "need trees");
  if (known.limit() > 0 && (trees || static_cast<std::size_t>(sources) > known.limit())) bad("sources", "do not fit the compactor");
  const auto nodes = static_cast<std::int64_t>(indptr.size()) - 1;
  const SampleSpec spec{fan_out, replace, stream_key};
  check_method(method, spec, indices.size());
  std::int64_t most = -1;
  for (std::size_t i = first; i < last; ++i) most = std::max(most, targets.ids()[i]);
  if (most >= (trees ? 0 : nodes) && (!trees || nodes == 0)) bad("indptr", "has no row for a vertex to be expanded");
  if (trees && most >= 0) {
    const std::int64_t last_tree = most / nodes;
    if (tree_times && last_tree >= static_cast<std::int64_t>(tree_times->size())) bad("tree_times", "must have one entry per tree");
    if (sources > 0 && last_tree >= INT64_MAX / sources) bad("sources", "are too many for so many trees");
  }
  const double share = 1.0 / static_cast<double>(std::max<std::int64_t>(1, nodes));
  const auto row_at = [&](std::size_t i) {
    const std::int64_t id = targets.ids()[i];
    if (!trees) return Row{id};
    auto tree = static_cast<std::int64_t>(static_cast<double>(id) * share);  // a division, but for the rounding
    while (tree * nodes > id) --tree;
    while (id - tree * nodes >= nodes) ++tree;
    return Row{id - tree * nodes, tree, tree_times ? tree_times->data()[tree] : kEndOfTime};
  };
  const auto run = [&](const auto* ids, auto* edges_out) {
    using Edge = std::remove_pointer_t<decltype(edges_out)>;
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(ids)>>;
    const InEdges<Id, Edge> graph{
        {indptr.data(), indptr.size()}, ids,    indices.size(), edge_ids ? static_cast<const Edge*>(edge_ids->data()) : nullptr,
        keys ? keys->data() : nullptr,  sources};
    HopSink<Id, Edge> sink(known, HopOut<Edge>{out_row.data(), out_col.data(), edges_out, out_row.size()}, trees ? sources : 0);
    std::size_t stopped = last;
    {
      nb::gil_scoped_release unlocked;
      with_picker(method, spec, [&](auto make) {
        auto picker = make();
        stopped = expand(graph, spec, picker, first, last, row_at, edges_out != nullptr, sink);
      });
    }
    return nb::make_tuple(sink.written(), stopped);
  };
  return with_ids("indices", indices, [&](const auto* ids) {
    const bool wide = out_edges ? is_int64(out_edges->dtype()) : edge_ids && is_int64(edge_ids->dtype());
    if (out_edges && !wide && !is_int32(out_edges->dtype())) bad("out_edge_ids", "must be int32 or int64");
    void* to = out_edges ? out_edges->data() : nullptr;
    return wide ? run(ids, static_cast<std::int64_t*>(to)) : run(ids, static_cast<std::int32_t*>(to));
  });
}

// ---- single questions -----------------------------------------------------------------------------------------------------------

// bits x bound >> 64, element by element.
nb::object scaled(nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> bits, Longs bounds) {
  if (bits.size() != bounds.size()) bad("bounds", "must be as long as bits");
  Buffer<std::int64_t> out(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (bounds.data()[i] < 0) bad("bounds", "must not be negative");
    out.data[i] = static_cast<std::int64_t>(
        (static_cast<unsigned __int128>(bits.data()[i]) * static_cast<std::uint64_t>(bounds.data()[i])) >> 64);
  }
  return out.release();
}

// Whether rows[i] has an in-edge from sources[i], uint8; rows are ordered by the user id of the source.
nb::object has_edges(Longs indptr, Vector indices, Longs source_keys, Longs rows, Longs sources) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  if (rows.size() != sources.size()) bad("sources", "must be as long as rows");
  Buffer<std::uint8_t> out(rows.size());
  with_ids("indices", indices, [&](const auto* ids) {
    nb::gil_scoped_release unlocked;
    const std::size_t n = indptr.size() - 1;
    const auto key_of = [&](std::int64_t id) {
      if (id < 0 || static_cast<std::size_t>(id) >= source_keys.size())
        throw std::invalid_argument("sources: vertex " + std::to_string(id) + " of " + std::to_string(source_keys.size()));
      return source_keys.data()[id];
    };
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows.data()[i] < 0 || static_cast<std::size_t>(rows.data()[i]) >= n)
        throw std::invalid_argument("rows: row " + std::to_string(rows.data()[i]) + " is outside 0.." + std::to_string(n - 1));
      const auto row = static_cast<std::size_t>(rows.data()[i]);
      check_rows_of(indptr, indices.size(), row);
      const auto *begin = ids + indptr.data()[row], *end = ids + indptr.data()[row + 1];
      const std::int64_t wanted = key_of(sources.data()[i]);
      const auto* found = std::lower_bound(begin, end, wanted, [&](auto id, std::int64_t key) { return key_of(id) < key; });
      out.data[i] = found != end && key_of(*found) == wanted;
    }
  });
  return out.release();
}

}  // namespace

void bind_sampling(nb::module_& m, nb::class_<Compactor>& compactor) {
  nb::class_<Method>(m, "Method")
      .def(nb::init<>())
      .def_static("weighted", &Method::weighted, "indptr"_a, "weights"_a, "threads"_a)
      .def_static("temporal", &Method::temporal, "indptr"_a, "indices"_a, "times"_a, "last"_a, "threads"_a)
      .def_static("labor", &Method::labor, "indices"_a, "source_keys"_a.none(), "threads"_a)
      .def_prop_ro("nbytes", &Method::nbytes);
  m.def("sample_neighbors", &sample_neighbors, "indptr"_a, "indices"_a, "edge_ids"_a.none(), "vertex_keys"_a, "rows"_a, "fan_out"_a,
        "replace"_a, "stream_key"_a, "threads"_a, "method"_a.none(), "trees"_a.none(), "times"_a.none(), "positions"_a);
  m.def("scaled", &scaled, "bits"_a, "bounds"_a);
  m.def("has_edges", &has_edges, "indptr"_a, "indices"_a, "source_keys"_a, "rows"_a, "sources"_a);
  compactor.def("sample_hop", &sample_hop, "targets"_a, "indptr"_a, "indices"_a, "edge_ids"_a.none(), "vertex_keys"_a.none(),
                "first"_a, "last"_a, "fan_out"_a, "replace"_a, "stream_key"_a, "out_row"_a, "out_col"_a, "out_edge_ids"_a.none(),
                "method"_a.none(), "sources"_a, "trees"_a, "tree_times"_a.none());
}
