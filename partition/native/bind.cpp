// Bindings of the partitioning kernels; documented in atta.partition.kernels.
#include <nanobind/stl/vector.h>

#include <numeric>

#include "arrays.hpp"
#include "blocks.hpp"
#include "numbering.hpp"
#include "planted.hpp"
#include "streaming.hpp"

using namespace atta;

void bind_edges(nb::module_& m);  // edges.cpp

namespace {

using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutInts = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::int8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Calls f with the checked graph.
template <class F>
decltype(auto) with_csr(const Longs& indptr, const Vector& indices, F f) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  const std::size_t n = indptr.size() - 1;
  for (std::size_t v = 0; v < n; ++v)
    if (indptr.data()[v] < 0 || indptr.data()[v + 1] < indptr.data()[v]) bad("indptr", "does not ascend from 0");
  if (static_cast<std::size_t>(indptr.data()[n]) > indices.size()) bad("indptr", "passes the end of indices");
  return with_ids("indices", indices, [&](const auto* ids) {
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(ids)>>;
    std::make_unsigned_t<Id> largest = 0;  // found without a branch: indices are long
    for (std::int64_t i = 0; i < indptr.data()[n]; ++i) largest = std::max(largest, static_cast<std::make_unsigned_t<Id>>(ids[i]));
    if (indptr.data()[n] > 0 && largest >= n) bad("indices", "name a vertex that does not exist");
    return f(Csr<Id>{{indptr.data(), n + 1}, ids});
  });
}

nb::tuple merge_rows(Longs indptr, Vector indices) {
  return with_csr(indptr, indices, [&](const auto& graph) {
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(graph.indices)>>;
    const std::size_t n = graph.size();
    Buffer<std::int64_t> starts(n + 1);
    std::size_t total = 0;
    std::vector<Id> row;
    const auto merged = [&](std::size_t v, auto take) {
      const auto given = graph.row(v);
      row.assign(given.begin(), given.end());
      std::sort(row.begin(), row.end());
      for (std::size_t i = 0, j; i < row.size(); i = j) {
        for (j = i + 1; j < row.size() && row[j] == row[i];) ++j;
        take(row[i], j - i);
      }
    };
    {
      nb::gil_scoped_release unlocked;
      for (std::size_t v = 0; v < n; ++v) {
        starts.data[v] = static_cast<std::int64_t>(total);
        merged(v, [&](Id, std::size_t) { ++total; });
      }
    }
    starts.data[n] = static_cast<std::int64_t>(total);
    Buffer<std::int64_t> ids(total), weights(total);
    {
      nb::gil_scoped_release unlocked;
      std::size_t at = 0;
      for (std::size_t v = 0; v < n; ++v)
        merged(v, [&](Id u, std::size_t count) {
          ids.data[at] = u;
          weights.data[at++] = static_cast<std::int64_t>(count);
        });
    }
    return nb::make_tuple(starts.release(), ids.release(), weights.release());
  });
}

nb::tuple sparsify_rows(Longs indptr, Vector indices, std::size_t cap, std::uint64_t seed) {
  return with_csr(indptr, indices, [&](const auto& graph) {
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(graph.indices)>>;
    std::size_t total = 0;
    for (std::size_t v = 0; v < graph.size(); ++v) total += std::min(cap, graph.degree(v));
    Buffer<Id> from(total), to(total);
    std::size_t at = 0;
    {
      nb::gil_scoped_release unlocked;
      sparsify(graph, cap, seed, [&](std::size_t v, Id u) {
        from.data[at] = static_cast<Id>(v);
        to.data[at++] = u;
      });
    }
    return nb::make_tuple(from.release(), to.release());
  });
}

nb::object breadth_first_order(Longs indptr, Vector indices) {
  return with_csr(indptr, indices, [&](const auto& graph) {
    std::vector<std::int64_t> order;
    {
      nb::gil_scoped_release unlocked;
      order = breadth_first(graph);
    }
    Buffer<std::int64_t> out(order.size());
    std::copy(order.begin(), order.end(), out.data);
    return out.release();
  });
}

Loads loads_of(std::size_t parts, const Longs& weights, const Doubles& capacity, std::size_t n) {
  if (parts < 1) bad("parts", "must be at least 1");
  if (capacity.size() < 1 || weights.size() != n * capacity.size())
    bad("weights", "must have one row per vertex, one column per capacity");
  return {parts, {weights.data(), weights.size()}, {capacity.data(), capacity.size()}};
}

void check_owners(const char* name, const std::int32_t* owners, std::size_t size, std::size_t n, std::size_t parts,
                  std::int32_t least) {
  if (size != n) bad(name, "must have one entry per vertex");
  for (std::size_t v = 0; v < n; ++v)
    if (owners[v] < least || owners[v] >= static_cast<std::int64_t>(parts)) bad(name, "name a partition that does not exist");
}

void stream_vertices(Longs indptr, Vector indices, Longs order, std::optional<Ints> before, OutInts owners, std::size_t parts,
                     Longs weights, Doubles capacity, double alpha, double gamma, std::size_t threads) {
  with_csr(indptr, indices, [&](const auto& graph) {
    const std::size_t n = graph.size();
    Loads loads = loads_of(parts, weights, capacity, n);
    check_owners("owners", owners.data(), owners.size(), n, parts, -1);
    if (before) check_owners("before", before->data(), before->size(), n, parts, -1);
    for (std::size_t i = 0; i < order.size(); ++i)
      if (static_cast<std::uint64_t>(order.data()[i]) >= n) bad("order", "names a vertex that does not exist");
    const std::span<const std::int64_t> turns(order.data(), order.size());
    const auto known = before ? std::span<const std::int32_t>(before->data(), n) : std::span<const std::int32_t>();
    nb::gil_scoped_release unlocked;
    if (alpha > 0)
      stream(graph, turns, known, {owners.data(), n}, loads, Fennel{alpha, gamma}, threads);
    else
      stream(graph, turns, known, {owners.data(), n}, loads, Ldg{}, threads);
  });
}

std::int64_t even_owners(Longs indptr, Vector indices, OutInts owners, std::size_t parts, Longs weights, Doubles capacity) {
  return with_csr(indptr, indices, [&](const auto& graph) {
    Loads loads = loads_of(parts, weights, capacity, graph.size());
    check_owners("owners", owners.data(), owners.size(), graph.size(), parts, 0);
    nb::gil_scoped_release unlocked;
    return even_out(graph, {owners.data(), owners.size()}, loads);
  });
}

std::int64_t refine_owners(Longs indptr, Vector indices, OutInts owners, std::size_t parts, Longs weights, Doubles capacity,
                           std::size_t threads) {
  return with_csr(indptr, indices, [&](const auto& graph) {
    Loads loads = loads_of(parts, weights, capacity, graph.size());
    check_owners("owners", owners.data(), owners.size(), graph.size(), parts, 0);
    nb::gil_scoped_release unlocked;
    return refine(graph, {owners.data(), owners.size()}, loads, threads);
  });
}

void check_vertices(const char* name, const Longs& vertices, std::size_t n) {
  for (std::size_t i = 0; i < vertices.size(); ++i)
    if (static_cast<std::uint64_t>(vertices.data()[i]) >= n) bad(name, "name a vertex that does not exist");
}

// Calls f(evening) for one step of even_owners: thing `c`, strictly or not.
template <class F>
void with_evening(const Longs& indptr, const Vector& indices, const Longs& vertices, const OutInts& owners, std::size_t parts,
                  const Longs& weights, const Doubles& capacity, std::size_t c, bool strict, F f) {
  with_csr(indptr, indices, [&](const auto& graph) {
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(graph.indices)>>;
    Loads loads = loads_of(parts, weights, capacity, graph.size());
    check_owners("owners", owners.data(), owners.size(), graph.size(), parts, 0);
    check_vertices("vertices", vertices, graph.size());
    if (c >= loads.things()) bad("thing", "must be a column of the weights");
    nb::gil_scoped_release unlocked;
    loads.add_all({owners.data(), owners.size()});
    Evening<Id> evening(graph, {owners.data(), owners.size()}, loads, c, strict);
    f(evening);
  });
}

nb::object even_costs(Longs indptr, Vector indices, Longs vertices, OutInts owners, std::size_t parts, Longs weights,
                      Doubles capacity, std::size_t thing, bool strict) {
  Buffer<std::int64_t> costs(vertices.size());
  with_evening(indptr, indices, vertices, owners, parts, weights, capacity, thing, strict, [&](auto& evening) {
    for (std::size_t i = 0; i < vertices.size(); ++i) costs.data[i] = evening.cost(static_cast<std::size_t>(vertices.data()[i]));
  });
  return costs.release();
}

std::int64_t even_moves(Longs indptr, Vector indices, Longs vertices, OutInts owners, std::size_t parts, Longs weights,
                        Doubles capacity, std::size_t thing, bool strict) {
  std::int64_t moved = 0;
  with_evening(indptr, indices, vertices, owners, parts, weights, capacity, thing, strict,
               [&](auto& evening) { moved = evening.move(std::span<const std::int64_t>(vertices.data(), vertices.size())); });
  return moved;
}

nb::object blocks_around(Longs indptr, Vector indices, Longs centres, std::int64_t hops) {
  return with_csr(indptr, indices, [&](const auto& graph) {
    for (std::size_t i = 0; i < centres.size(); ++i)
      if (static_cast<std::uint64_t>(centres.data()[i]) >= graph.size()) bad("centres", "name a vertex that does not exist");
    std::vector<std::int64_t> block;
    {
      nb::gil_scoped_release unlocked;
      block = grow_blocks(graph, {centres.data(), centres.size()}, hops);
    }
    Buffer<std::int64_t> out(block.size());
    std::copy(block.begin(), block.end(), out.data);
    return out.release();
  });
}

nb::object deal_blocks(Longs indptr, Vector indices, Longs block, std::size_t blocks, Bytes labels, std::size_t parts,
                       Doubles share, double smooth) {
  return with_csr(indptr, indices, [&](const auto& graph) {
    const std::size_t n = graph.size();
    if (parts < 1) bad("parts", "must be at least 1");
    if (block.size() != n || labels.size() != n * kLabels) bad("labels", "must have three entries per vertex");
    if (share.size() != kLabels) bad("share", "must have three entries");
    for (std::size_t v = 0; v < n; ++v)
      if (block.data()[v] < -1 || block.data()[v] >= static_cast<std::int64_t>(blocks))
        bad("block", "names a block that does not exist");
    const BlockRule rule{{share.data()[0], share.data()[1], share.data()[2]}, smooth};
    std::vector<std::int32_t> owners;
    {
      nb::gil_scoped_release unlocked;
      owners = assign_blocks(graph, {block.data(), n}, blocks, {labels.data(), labels.size()}, parts, rule);
    }
    Buffer<std::int32_t> out(n);
    std::copy(owners.begin(), owners.end(), out.data);
    return out.release();
  });
}

// ---- ids of files

nb::object numbers_of(Numbering& numbering, Longs ids) {
  Buffer<std::int32_t> out(ids.size());
  {
    nb::gil_scoped_release unlocked;
    numbering.number({ids.data(), ids.size()}, out.data);
  }
  return out.release();
}

bool padded_number_in(nb::bytes text) {
  nb::gil_scoped_release unlocked;
  return has_padded_number({text.c_str(), text.size()});
}

nb::object numbered_ids(const Numbering& numbering) {
  Buffer<std::int64_t> out(numbering.ids().size());
  std::copy(numbering.ids().begin(), numbering.ids().end(), out.data);
  return out.release();
}

// ---- generated graphs

constexpr std::int64_t kMostVertices = 3037000499;  // the number of their pairs fits into 63 bits

template <class Id>
nb::tuple planted_edges(const Wheel& wheel, const Longs& row_of, const Longs& bounds, const Longs& wants, std::uint64_t key,
                        std::int64_t first) {
  std::size_t total = 0;
  for (std::size_t c = 0; c < wants.size(); ++c) total += static_cast<std::size_t>(wants.data()[c]);
  Buffer<Id> src(2 * total), dst(2 * total);
  std::size_t found = 0;
  {
    nb::gil_scoped_release unlocked;
    std::vector<std::uint64_t> keys, spare;
    for (std::size_t c = 0; c < wants.size(); ++c) {
      const auto low = static_cast<std::size_t>(bounds.data()[c]), high = static_cast<std::size_t>(bounds.data()[c + 1]);
      if (low == high) continue;
      const VertexStream stream(key, first + static_cast<std::int64_t>(c));
      draw_distinct(wheel, low, high, static_cast<std::size_t>(wants.data()[c]), stream, keys, spare);
      const std::int64_t* rows = row_of.data() + low;
      for (const std::uint64_t pair : keys) {
        src.data[found] = static_cast<Id>(rows[pair / (high - low)]);
        dst.data[found++] = static_cast<Id>(rows[pair % (high - low)]);
      }
    }
    std::copy_n(dst.data, found, src.data + found);
    std::copy_n(src.data, found, dst.data + found);
  }
  src.size = dst.size = 2 * found;
  return nb::make_tuple(src.release(), dst.release());
}

// The pairs of communities `first`, `first + 1`, ... as edges in both directions: see atta.partition.generate.
nb::tuple draw_planted(const Wheel& wheel, Longs row_of, Longs bounds, Longs wants, std::uint64_t key, std::int64_t first) {
  const auto n = static_cast<std::int64_t>(row_of.size());
  if (n != static_cast<std::int64_t>(wheel.size())) bad("row_of", "must have one entry per vertex");
  if (bounds.size() != wants.size() + 1) bad("bounds", "must have one entry more than there are communities");
  for (std::size_t c = 0; c < wants.size(); ++c) {
    if (bounds.data()[c] < 0 || bounds.data()[c + 1] < bounds.data()[c] || bounds.data()[c + 1] > n)
      bad("bounds", "must ascend within the vertices");
    if (bounds.data()[c + 1] - bounds.data()[c] > kMostVertices) bad("bounds", "a community has too many vertices");
    if (wants.data()[c] < 0 || wants.data()[c] > (std::int64_t{1} << 40)) bad("wants", "must be numbers of pairs");
  }
  if (n <= INT32_MAX) return planted_edges<std::int32_t>(wheel, row_of, bounds, wants, key, first);
  return planted_edges<std::int64_t>(wheel, row_of, bounds, wants, key, first);
}

}  // namespace

void bind_partition(nb::module_& m) {
  bind_edges(m);
  m.def("merge_rows", &merge_rows, "indptr"_a, "indices"_a);
  m.def("sparsify", &sparsify_rows, "indptr"_a, "indices"_a, "cap"_a, "seed"_a);
  m.def("breadth_first", &breadth_first_order, "indptr"_a, "indices"_a);
  m.def("stream_vertices", &stream_vertices, "indptr"_a, "indices"_a, "order"_a, "before"_a.none(), "owners"_a, "parts"_a,
        "weights"_a, "capacity"_a, "alpha"_a, "gamma"_a, "threads"_a = 1);
  m.def("even_owners", &even_owners, "indptr"_a, "indices"_a, "owners"_a, "parts"_a, "weights"_a, "capacity"_a);
  m.def("even_costs", &even_costs, "indptr"_a, "indices"_a, "vertices"_a, "owners"_a, "parts"_a, "weights"_a, "capacity"_a,
        "thing"_a, "strict"_a);
  m.def("even_moves", &even_moves, "indptr"_a, "indices"_a, "vertices"_a, "owners"_a, "parts"_a, "weights"_a, "capacity"_a,
        "thing"_a, "strict"_a);
  m.def("refine_owners", &refine_owners, "indptr"_a, "indices"_a, "owners"_a, "parts"_a, "weights"_a, "capacity"_a,
        "threads"_a = 1);
  m.def("grow_blocks", &blocks_around, "indptr"_a, "indices"_a, "centres"_a, "hops"_a);
  m.def("assign_blocks", &deal_blocks, "indptr"_a, "indices"_a, "block"_a, "blocks"_a, "labels"_a, "parts"_a, "share"_a,
        "smooth"_a);
  m.def("has_padded_number", &padded_number_in, "text"_a);
  nb::class_<Numbering>(m, "Numbering").def(nb::init<>()).def("number", &numbers_of, "ids"_a).def("ids", &numbered_ids);
  nb::class_<Wheel>(m, "Wheel")
      .def(
          "__init__",
          [](Wheel* self, Doubles weights) {
            for (std::size_t v = 0; v < weights.size(); ++v)
              if (!(weights.data()[v] > 0)) bad("weights", "must be positive numbers");
            if (weights.size() == 0) bad("weights", "are empty");
            new (self) Wheel({weights.data(), weights.size()});
          },
          "weights"_a);
  m.def("draw_planted", &draw_planted, "wheel"_a, "row_of"_a, "bounds"_a, "wants"_a, "key"_a, "first"_a);
}
