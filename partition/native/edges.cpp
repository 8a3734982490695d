// Bindings of the kernels that count, order and move edges; documented in atta.partition.kernels.
#include "edges.hpp"

#include <atomic>
#include <numeric>

#include "arrays.hpp"
#include "numbering.hpp"

using namespace atta;

namespace {

using OutLongs = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<std::uint16_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutDoubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// ---- rows of the union graph

// Calls f(edges) with the edges between `src` + `from` and `dst` + `to`, without Python's lock.
template <class F>
void with_edges(const Vector& src, const Vector& dst, std::int64_t from, std::int64_t to, F f) {
  if (src.size() != dst.size()) bad("src", "must be as long as dst");
  with_ids("src", src, [&](const auto* s) {
    with_ids("dst", dst, [&](const auto* d) {
      nb::gil_scoped_release unlocked;
      f(EdgeList{s, d, src.size(), from, to});
    });
  });
}

// What BlockSizes has of the edges: its balance, and both numbers by block.
nb::tuple block_sizes(Vector src, Vector dst, std::int64_t src_start, std::int64_t dst_start, std::size_t n) {
  BlockSizes sizes(n);
  with_edges(src, dst, src_start, dst_start, [&](const auto& edges) {
    edges.each(n, [&](std::size_t u, std::size_t v) {
      if (u != v) sizes.add(u, v);
    });
  });
  Buffer<std::int64_t> inward(sizes.inward.size()), outward(sizes.outward.size());
  std::copy(sizes.inward.begin(), sizes.inward.end(), inward.data);
  std::copy(sizes.outward.begin(), sizes.outward.end(), outward.data);
  return nb::make_tuple(sizes.balance, inward.release(), outward.release());
}

template <class Id>
void fill_blocks_of(const Vector& src, const Vector& dst, std::int64_t src_start, std::int64_t dst_start, std::size_t n, bool both,
                    OutLongs& room, OutVector& neighbors, Places& places, OutLongs& loops) {
  const BlockWriter<Id> out{{room.data(), room.size()}, {static_cast<Id*>(neighbors.data()), neighbors.size()}, places.data()};
  with_edges(src, dst, src_start, dst_start, [&](const auto& edges) {
    edges.each(n, [&](std::size_t u, std::size_t v) {
      if (u == v) return static_cast<void>(std::atomic_ref(loops.data()[v]).fetch_add(1, std::memory_order_relaxed));
      out.add(v, u, true);
      if (both) out.add(u, v, false);
    });
  });
}

// Writes the neighbours that these edges give to where their blocks have `room`; `loops` counts edges to themselves.
void fill_blocks(Vector src, Vector dst, std::int64_t src_start, std::int64_t dst_start, std::size_t n, bool both, OutLongs room,
                 OutVector neighbors, Places places, OutLongs loops) {
  if (room.size() != block_count(n)) bad("room", "must have one entry per block");
  if (loops.size() != n) bad("loops", "must have one entry per vertex");
  if (places.size() != neighbors.size()) bad("places", "must be as long as neighbors");
  for (std::size_t b = 0; b < room.size(); ++b)
    if (room.data()[b] < 0) bad("room", "must not be negative");
  if (is_int32(neighbors.dtype()) && n <= static_cast<std::size_t>(INT32_MAX))
    return fill_blocks_of<std::int32_t>(src, dst, src_start, dst_start, n, both, room, neighbors, places, loops);
  if (!is_int64(neighbors.dtype())) bad("neighbors", "must be int32 or int64, and hold all vertices");
  fill_blocks_of<std::int64_t>(src, dst, src_start, dst_start, n, both, room, neighbors, places, loops);
}

// See atta::sort_block. The arrays are those of one block.
void sort_rows(OutVector neighbors, Places places, OutLongs ends, OutLongs inward) {
  if (places.size() != neighbors.size()) bad("places", "must be as long as neighbors");
  if (inward.size() != ends.size()) bad("inward", "must be as long as ends");
  with_ids("neighbors", neighbors, [&](const auto* ids) {
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(ids)>>;
    nb::gil_scoped_release unlocked;
    sort_block<Id>({static_cast<Id*>(neighbors.data()), neighbors.size()}, places.data(), {ends.data(), ends.size()},
                   {inward.data(), inward.size()});
  });
}

// ---- counts and orders of edges

void count_ids(Vector ids, OutLongs counts) {
  with_ids("ids", ids, [&](const auto* given) {
    nb::gil_scoped_release unlocked;
    each_below(std::span(given, ids.size()), counts.size(), [&](std::size_t, std::size_t id) { ++counts.data()[id]; });
  });
}

void add_sums_of(Vector ids, Doubles values, OutDoubles totals, OutDoubles scratch) {
  if (values.size() != ids.size()) bad("values", "must be one for each id");
  if (scratch.size() != totals.size()) bad("scratch", "must be as long as totals");
  with_ids("ids", ids, [&](const auto* given) {
    nb::gil_scoped_release unlocked;
    add_sums(std::span(given, ids.size()), values.data(), {totals.data(), totals.size()}, scratch.data());
  });
}

// table[ids], as a new array.
nb::object looked_up(Vector table, Vector ids) {
  return with_ids("table", table, [&](const auto* values) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
    Buffer<T> out(ids.size());
    with_ids("ids", ids, [&](const auto* given) {
      nb::gil_scoped_release unlocked;
      each_below(std::span(given, ids.size()), table.size(), [](std::size_t, std::size_t) {});
      look_up(values, std::span(given, ids.size()), out.data);
    });
    return out.release();
  });
}

// Calls f with the rows of both tables as numbers of one size, and how many numbers a row has.
template <class F>
void with_rows(const Table& rows, OutTable& out, F f) {
  const std::size_t bytes = row_bytes_of(rows);
  const auto as = [&]<class T>(T) { f(static_cast<const T*>(rows.data()), bytes / sizeof(T), static_cast<T*>(out.data())); };
  if (bytes % 8 == 0) return as(std::uint64_t{});
  if (bytes % 4 == 0) return as(std::uint32_t{});
  if (bytes % 2 == 0) return as(std::uint16_t{});
  as(std::uint8_t{});
}

// Sorts rows of all `columns` by their keys, into `outs`; rows of one key keep their order. Returns where each key begins.
nb::object dealt(Vector keys, std::size_t bound, nb::list columns, nb::list outs) {
  if (columns.size() != outs.size()) bad("outs", "must be one for each column");
  Buffer<std::int64_t> starts(bound + 1);
  with_ids("keys", keys, [&](const auto* given) {
    const std::span keys_of(given, keys.size());
    std::vector<std::size_t> counts(bound + 1, 0);
    each_below(keys_of, bound, [&](std::size_t, std::size_t key) { ++counts[key + 1]; });
    std::partial_sum(counts.begin(), counts.end(), counts.begin());
    std::copy(counts.begin(), counts.end(), starts.data);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const auto rows = nb::cast<Table>(columns[c]);
      auto out = nb::cast<OutTable>(outs[c]);
      if (rows.ndim() < 1 || rows.shape(0) != keys.size()) bad("columns", "must have a row for each key");
      if (out.ndim() < 1 || out.shape(0) != keys.size() || row_bytes_of(out) != row_bytes_of(rows))
        bad("outs", "must have the shapes of the columns");
      nb::gil_scoped_release unlocked;
      with_rows(rows, out, [&](const auto* from, std::size_t width, auto* to) { deal(keys_of, counts, from, width, to); });
    }
  });
  return starts.release();
}

// The bucket of each id; bucket b has the ids from starts[b] up to starts[b + 1].
nb::object buckets_of(Vector ids, Longs starts) {
  if (starts.size() < 2 || starts.data()[0] != 0) bad("starts", "must begin with 0 and have an end");
  for (std::size_t b = 1; b < starts.size(); ++b)
    if (starts.data()[b] < starts.data()[b - 1]) bad("starts", "must ascend");
  Buffer<std::int32_t> out(ids.size());
  with_ids("ids", ids, [&](const auto* given) {
    nb::gil_scoped_release unlocked;
    find_buckets(std::span(given, ids.size()), {starts.data(), starts.size()}, out.data);
  });
  return out.release();
}

template <class Index>
nb::object order_of(const Vector& keys, std::size_t bound, const std::optional<Vector>& values) {
  Buffer<Index> order(keys.size());
  with_ids("keys", keys, [&](const auto* given) {
    nb::gil_scoped_release unlocked;
    const auto ends = order_by_key(std::span(given, keys.size()), bound, order.data);
    if (values) with_ids("values", *values, [&](const auto* of) { sort_groups(ends, of, order.data); });
  });
  return order.release();
}

nb::object order_by_values(const Vector& keys, std::size_t bound, const std::int32_t* values) {
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (values[i] < 0) bad("values", "of int32 must not be negative");
  Buffer<std::int32_t> order(keys.size());
  with_ids("keys", keys, [&](const auto* given) {
    nb::gil_scoped_release unlocked;
    order_by_key_and_value(std::span(given, keys.size()), bound, values, order.data);
  });
  return order.release();
}

nb::object stable_order(Vector keys, std::size_t bound, std::optional<Vector> values) {
  if (values && values->size() != keys.size()) bad("values", "must be one for each key");
  const bool narrow = keys.size() <= static_cast<std::size_t>(INT32_MAX);
  if (values && narrow && is_int32(values->dtype()))
    return order_by_values(keys, bound, static_cast<const std::int32_t*>(values->data()));
  if (keys.size() <= static_cast<std::size_t>(INT32_MAX)) return order_of<std::int32_t>(keys, bound, values);
  return order_of<std::int64_t>(keys, bound, values);
}

}  // namespace

void bind_edges(nb::module_& m) {
  m.attr("BLOCK_ROWS") = kBlockRows;
  m.def("block_sizes", &block_sizes, "src"_a, "dst"_a, "src_start"_a, "dst_start"_a, "n"_a);
  m.def("fill_blocks", &fill_blocks, "src"_a, "dst"_a, "src_start"_a, "dst_start"_a, "n"_a, "both"_a, "room"_a.noconvert(),
        "neighbors"_a.noconvert(), "places"_a.noconvert(), "loops"_a.noconvert());
  m.def("sort_rows", &sort_rows, "neighbors"_a.noconvert(), "places"_a.noconvert(), "ends"_a.noconvert(), "inward"_a.noconvert());
  m.def("count_ids", &count_ids, "ids"_a, "counts"_a.noconvert());
  m.def("add_sums", &add_sums_of, "ids"_a, "values"_a, "totals"_a.noconvert(), "scratch"_a.noconvert());
  m.def("looked_up", &looked_up, "table"_a, "ids"_a);
  m.def("dealt", &dealt, "keys"_a, "bound"_a, "columns"_a, "outs"_a);
  m.def("buckets_of", &buckets_of, "ids"_a, "starts"_a);
  m.def("stable_order", &stable_order, "keys"_a, "bound"_a, "values"_a.none() = nb::none());
}
