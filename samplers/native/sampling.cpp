// Bindings of neighbour sampling: rows of a partition, hops of a whole graph. Typed and documented in atta.samplers.kernels.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "compact.hpp"
#include "expand.hpp"
#include "method.hpp"
#include "parallel.hpp"

// One hop of a batch on a whole graph in this process. Sources are numbered as they are read, and nothing is written
// twice.
namespace atta {

// The output of a hop: local ids of sources and targets, edge ids. It has room for `capacity` edges.
template <class Edge>
struct HopOut {
  std::int32_t* row;
  std::int32_t* col;
  Edge* edge_ids;  // null: not wanted
  std::size_t capacity;
};

// Numbers new sources in the order in which their first edge is written, as `sample_neighbors` and `stitch` do. With
// trees it numbers tree x sources + source.
template <class Id, class Edge>
class HopSink {
 public:
  HopSink(Compactor& known, const HopOut<Edge>& out, std::int64_t trees_of) : known_(known), out_(out), trees_of_(trees_of) {}

  std::size_t written() const { return written_; }

  bool reserve(std::size_t edges) {
    reserved_ += edges;
    return reserved_ <= out_.capacity;
  }

  void request(Block<Id, Edge>& block) {
    if (trees_of_ == 0) return known_.request_entries(block.sources.data(), block.sources.size());
    const auto& in_tree = ids_in_tree(block);
    known_.request_entries(in_tree.data(), in_tree.size());
  }

  void take(Block<Id, Edge>& block) {
    const std::size_t count = block.sources.size();
    if (trees_of_ == 0)
      known_.number(block.sources.data(), count, out_.row + written_);
    else
      known_.number(ids_in_tree(block).data(), count, out_.row + written_);
    std::size_t at = written_;
    for (std::size_t i = 0; i < block.picks.counts.size(); ++i) {
      const auto picks = static_cast<std::size_t>(block.picks.counts[i]);
      const auto target = static_cast<std::int32_t>(block.first + i);
      if (at + picks + kWhole <= out_.capacity)  // what is written too much is written again, or is free
        for (std::size_t j = 0; j < picks; j += kWhole) std::fill_n(out_.col + at + j, kWhole, target);
      else
        std::fill_n(out_.col + at, picks, target);
      at += picks;
    }
    if (out_.edge_ids != nullptr) std::copy_n(block.edge_ids.data(), count, out_.edge_ids + written_);
    written_ += count;
  }

 private:
  static constexpr std::size_t kWhole = 8;  // a few picks are written with whole stores

  const std::vector<std::int64_t>& ids_in_tree(const Block<Id, Edge>& block) {
    scratch_.resize(block.sources.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < block.picks.counts.size(); ++i) {
      const std::int64_t base = block.picks.targets[i].tree * trees_of_;
      for (std::int32_t j = 0; j < block.picks.counts[i]; ++j, ++at)
        scratch_[at] = base + static_cast<std::int64_t>(block.sources[at]);
    }
    return scratch_;
  }

  Compactor& known_;
  HopOut<Edge> out_;
  std::int64_t trees_of_;
  std::vector<std::int64_t> scratch_;
  std::size_t written_ = 0, reserved_ = 0;
};

}  // namespace atta

// Expands some rows of a partition. The answer is new arrays, which are sent or stitched.
namespace atta {

// An array that grows by realloc and gives away its memory at the end.
template <class T>
class Growing {
 public:
  explicit Growing(std::size_t room) { grow(std::max<std::size_t>(1, room)); }
  Growing(Growing&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_), room_(std::exchange(other.room_, 0)) {}
  Growing(const Growing&) = delete;
  ~Growing() { std::free(data_); }

  std::size_t size() const { return size_; }
  const T* data() const { return data_; }
  T* give_up() { return std::exchange(data_, nullptr); }

  void append(const T* values, std::size_t count) {
    if (size_ + count > room_) grow(std::max(size_ + count, room_ + room_ / 2));
    if (count > 0) std::memcpy(data_ + size_, values, count * sizeof(T));
    size_ += count;
  }

 private:
  void grow(std::size_t room) {
    void* bigger = std::realloc(data_, room * sizeof(T));
    if (bigger == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(bigger);
    room_ = room;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0, room_ = 0;
};

template <class Id, class Edge>
struct AnswerSink {
  std::int32_t* counts;  // by row
  bool want_edges;
  Growing<Id> neighbors;
  Growing<Edge> edge_ids;

  AnswerSink(std::int32_t* to, bool edges, std::size_t room)
      : counts(to), want_edges(edges), neighbors(room), edge_ids(edges ? room : 0) {}

  bool reserve(std::size_t /*edges*/) const { return true; }
  void request(Block<Id, Edge>& /*block*/) const {}
  void take(Block<Id, Edge>& block) {
    std::copy(block.picks.counts.begin(), block.picks.counts.end(), counts + block.first);
    neighbors.append(block.sources.data(), block.sources.size());
    if (want_edges) edge_ids.append(block.edge_ids.data(), block.edge_ids.size());
  }
};

}  // namespace atta

using namespace atta;

namespace {

using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutInts = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

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

// Ranges of rows with about the same cost. A row costs its picks, or all its edges if the method reads each edge.
template <class Id, class Edge>
Bounds divided(const InEdges<Id, Edge>& graph, const Rows& rows, const Method* method, const SampleSpec& spec,
               std::size_t threads) {
  const std::size_t m = rows.rows.size();
  if (threads <= 1) return evenly(m, 1);
  const bool every = spec.fan_out < 0 || (method != nullptr && method->reads_every_edge());
  const double most = every ? std::numeric_limits<double>::max() : static_cast<double>(spec.fan_out);
  return with_ids("rows", rows.rows, [&](const auto* r) {
    return by_cost(m, threads, [&](std::size_t i) {
      const auto row = static_cast<std::size_t>(r[i]);
      if (row >= graph.indptr.size() - 1) return 1.0;  // a negative row too; `target_of` throws for it later
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

nb::tuple sample_neighbors(Longs indptr, Spread indices, std::optional<Spread> edge_ids, Longs keys, Vector rows,
                           std::int64_t fan_out, bool replace, std::uint64_t stream_key, std::uint32_t renewed, std::size_t threads,
                           const Method* method, std::optional<Ints> trees, std::optional<Longs> times, bool positions,
                           bool unread) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  if (keys.size() + 1 != indptr.size()) bad("vertex_keys", "must have one key per row");
  const std::int64_t stride = stride_of(indices, edge_ids ? &*edge_ids : nullptr);
  if (edge_ids && positions) bad("positions", "edge ids or positions, not both");
  check_threads(threads);
  const SampleSpec spec{fan_out, replace, stream_key, renewed};
  check_method(method, spec, indices.size());
  const Rows of{rows, trees, times};
  of.check();
  const std::span<const std::int64_t> ptr(indptr.data(), indptr.size());
  constexpr std::int64_t kAnySource = std::numeric_limits<std::int64_t>::max();
  if (unread) {
    const InEdges<std::int64_t, std::int64_t> graph{ptr, nullptr, indices.size(), nullptr, keys.data(), kAnySource};
    return sample_rows(graph, of, false, method, spec, threads);
  }
  return with_ids("indices", indices, [&](const auto* ids) {
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(ids)>>;
    const auto run = [&](const auto* e) {
      using Edge = std::remove_const_t<std::remove_pointer_t<decltype(e)>>;
      const InEdges<Id, Edge> graph{ptr, ids, indices.size(), e, keys.data(), kAnySource, stride};
      return sample_rows(graph, of, edge_ids.has_value() || positions, method, spec, threads);
    };
    if (!edge_ids) return run(static_cast<const std::int64_t*>(nullptr));
    return with_ids("edge_ids", *edge_ids, run);
  });
}

// ---- hops of a whole graph ------------------------------------------------------------------------------------------------------

// Expands the vertices with local ids [first, last) in `targets`, and numbers their sources in `known`. Both may be the
// same compactor. Returns the number of edges written and the first vertex that had no room.
nb::tuple sample_hop(Compactor& known, const Compactor& targets, Longs indptr, Vector indices, std::optional<Vector> edge_ids,
                     std::optional<Longs> keys, std::size_t first, std::size_t last, std::int64_t fan_out, bool replace,
                     std::uint64_t stream_key, std::uint32_t renewed, OutInts out_row, OutInts out_col,
                     std::optional<OutVector> out_edges, const Method* method, std::int64_t sources, bool trees,
                     std::optional<Longs> tree_times) {
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
  const SampleSpec spec{fan_out, replace, stream_key, renewed};
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
    auto tree = static_cast<std::int64_t>(static_cast<double>(id) * share);  // a division, up to rounding
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

// Whether rows[i] has an in-edge from sources[i], uint8. The edges of a row are ordered by the user id of the source.
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
  bind_methods(m);
  m.def("sample_neighbors", &sample_neighbors, "indptr"_a, "indices"_a, "edge_ids"_a.none(), "vertex_keys"_a, "rows"_a, "fan_out"_a,
        "replace"_a, "stream_key"_a, "renewed"_a, "threads"_a, "method"_a.none(), "trees"_a.none(), "times"_a.none(), "positions"_a,
        "unread"_a);
  m.def("scaled", &scaled, "bits"_a, "bounds"_a);
  m.def("has_edges", &has_edges, "indptr"_a, "indices"_a, "source_keys"_a, "rows"_a, "sources"_a);
  compactor.def("sample_hop", &sample_hop, "targets"_a, "indptr"_a, "indices"_a, "edge_ids"_a.none(), "vertex_keys"_a.none(),
                "first"_a, "last"_a, "fan_out"_a, "replace"_a, "stream_key"_a, "renewed"_a, "out_row"_a, "out_col"_a,
                "out_edge_ids"_a.none(), "method"_a.none(), "sources"_a, "trees"_a, "tree_times"_a.none());
}
