// Bindings of functions that move rows: gathering, messages, the cache of remote rows. Typed and documented in
// atta.samplers.kernels.
#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "compact.hpp"
#include "gather.hpp"
#include "parallel.hpp"

using namespace atta;

namespace {

void gather_rows(Table table, Vector rows, OutTable out, std::optional<Vector> positions, std::size_t threads) {
  if (table.ndim() < 1 || out.ndim() < 1) bad("table", "must have at least one dimension");
  const std::size_t bytes = row_bytes_of(table), n = rows.size();
  if (row_bytes_of(out) != bytes) bad("out", "has rows of another size than the table");
  if (!positions && out.shape(0) != n) bad("out", "must have one row per entry of rows");
  if (positions && positions->size() != n) bad("positions", "must be as long as rows");
  const auto* from = static_cast<const std::byte*>(table.data());
  auto* to = static_cast<std::byte*>(out.data());
  StoreChoice& choice = threads == 1 ? one_mover() : several_movers();
  // As many pieces for each thread, so that none waits for the last one.
  const std::size_t least = kColdBytes / std::max<std::size_t>(1, bytes) + 1, pieces = n / least / threads * threads;
  const std::size_t step = pieces == 0 ? least : (n + pieces - 1) / pieces;
  std::atomic<bool> outside{false};
  // A piece is checked by the thread that moves it. A piece with a wrong row does not move.
  const auto move = [&](auto source, auto target, auto within) {
    atta::share(n, step, threads, [&](std::size_t a, std::size_t b) {
      if (!within(a, b - a)) return outside.store(true);
      atta::move_rows(
          from, to, bytes, b - a, true, [source, a](std::size_t i) { return source(a + i); },
          [target, a](std::size_t i) { return target(a + i); }, choice);
    });
  };
  with_ids("rows", rows, [&](const auto* r) {
    nb::gil_scoped_release unlocked;
    const auto source = [r](std::size_t i) { return static_cast<std::size_t>(r[i]); };
    const auto in_table = [&](std::size_t a, std::size_t count) { return atta::all_within(r + a, count, table.shape(0)); };
    if (!positions) {
      move(source, [](std::size_t i) { return i; }, in_table);
      if (outside) atta::check_rows("rows", r, n, table.shape(0));
      return;
    }
    with_ids("positions", *positions, [&](const auto* p) {
      move(
          source, [p](std::size_t i) { return static_cast<std::size_t>(p[i]); },
          [&](std::size_t a, std::size_t count) { return in_table(a, count) && atta::all_within(p + a, count, out.shape(0)); });
      if (!outside) return;
      atta::check_rows("rows", r, n, table.shape(0));
      atta::check_rows("positions", p, n, out.shape(0));
    });
  });
}

// Rows of several tables, in the order of their places in `out`: so every line of it is written at once. Each part is
// (table, rows, positions): out[positions[i]] = table[rows[i]]. The places are different.
void gather_merged(nb::list parts, OutTable out) {
  if (out.ndim() < 1) bad("out", "must have at least one dimension");
  struct Part {
    Table table;
    Vector rows;
    Longs positions;
  };
  const std::size_t bytes = row_bytes_of(out);
  std::vector<Part> given;
  for (nb::handle item : parts) {
    auto t = nb::cast<nb::tuple>(item);
    if (t.size() != 3) bad("parts", "every part is (table, rows, positions)");
    Part part{nb::cast<Table>(t[0]), nb::cast<Vector>(t[1]), nb::cast<Longs>(t[2])};
    if (part.table.ndim() < 1 || row_bytes_of(part.table) != bytes) bad("out", "has rows of another size than a table");
    if (part.positions.size() != part.rows.size()) bad("positions", "must be as long as rows");
    if (!is_int32(part.rows.dtype()) && !is_int64(part.rows.dtype())) bad("rows", "must be int32 or int64");
    given.push_back(std::move(part));
  }
  nb::gil_scoped_release unlocked;
  std::size_t total = 0, first = out.shape(0), stop = 0;
  for (const Part& part : given) {
    const std::int64_t* const places = part.positions.data();
    const std::size_t n = part.rows.size();
    atta::check_rows("positions", places, n, out.shape(0));
    for (std::size_t i = 0; i < n; ++i) {
      first = std::min(first, static_cast<std::size_t>(places[i]));
      stop = std::max(stop, static_cast<std::size_t>(places[i]) + 1);
    }
    total += n;
  }
  if (total == 0) return;
  std::vector<const std::byte*> from(stop - first, nullptr);
  for (const Part& part : given)
    with_ids("rows", part.rows, [&](const auto* r) {
      const std::size_t n = part.rows.size();
      atta::check_rows("rows", r, n, part.table.shape(0));
      const auto* const table = static_cast<const std::byte*>(part.table.data());
      const std::int64_t* const places = part.positions.data();
      for (std::size_t i = 0; i < n; ++i)
        from[static_cast<std::size_t>(places[i]) - first] = table + static_cast<std::size_t>(r[i]) * bytes;
    });
  std::vector<std::size_t> places;  // where other tasks fill places between
  const std::size_t found = from.size() - static_cast<std::size_t>(std::count(from.begin(), from.end(), nullptr));
  if (found != total) bad("positions", "repeat");
  if (total < from.size()) {
    places.reserve(total);
    for (std::size_t i = 0; i < from.size(); ++i)
      if (from[i] != nullptr) from[places.size()] = from[i], places.push_back(i);
  }
  auto* const to = static_cast<std::byte*>(out.data()) + first * bytes;
  const auto at = [row = from.data()](std::size_t i) { return row[i]; };
  if (places.empty()) return atta::move_from(to, bytes, total, true, at, [](std::size_t i) { return i; });
  atta::move_from(to, bytes, total, true, at, [place = places.data()](std::size_t i) { return place[i]; });
}

// `prefix` followed by the rows of each table. The bytes object is filled in place, so a message is made with one copy.
nb::bytes pack_rows(nb::bytes prefix, nb::list tables_in, Vector rows) {
  std::vector<Table> tables;
  std::size_t row_bytes = 0;
  for (nb::handle item : tables_in) {
    tables.push_back(nb::cast<Table>(item));
    if (tables.back().ndim() < 1) bad("tables", "must have at least one dimension");
    row_bytes += row_bytes_of(tables.back());
  }
  const std::size_t n = rows.size(), head = prefix.size();
  return with_ids("rows", rows, [&](const auto* r) {
    for (const Table& table : tables) atta::check_rows("rows", r, n, table.shape(0));
    PyObject* message = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(head + n * row_bytes));
    if (message == nullptr) throw nb::python_error();
    auto* to = reinterpret_cast<std::byte*>(PyBytes_AsString(message));
    std::memcpy(to, prefix.c_str(), head);
    to += head;
    {
      nb::gil_scoped_release unlocked;  // no other thread knows the object yet
      for (const Table& table : tables) {
        const std::size_t bytes = row_bytes_of(table);
        atta::move_rows(
            static_cast<const std::byte*>(table.data()), to, bytes, n, false,
            [r](std::size_t i) { return static_cast<std::size_t>(r[i]); }, [](std::size_t i) { return i; });
        to += n * bytes;
      }
    }
    return nb::steal<nb::bytes>(message);
  });
}

void scatter_rows(Table rows, Vector positions, OutTable out) {
  if (rows.ndim() < 1 || out.ndim() < 1) bad("rows", "must have at least one dimension");
  const std::size_t bytes = row_bytes_of(rows), n = rows.shape(0);
  if (row_bytes_of(out) != bytes) bad("out", "has rows of another size");
  if (positions.size() != n) bad("positions", "must have one entry per row");
  with_ids("positions", positions, [&](const auto* p) {
    nb::gil_scoped_release unlocked;
    atta::check_rows("positions", p, n, out.shape(0));
    auto* to = static_cast<std::byte*>(out.data());
    const auto* from = static_cast<const std::byte*>(rows.data());
    atta::move_rows(
        from, to, bytes, n, true, [](std::size_t i) { return i; }, [p](std::size_t i) { return static_cast<std::size_t>(p[i]); });
  });
}

// Divides ids into cached ones (all bits of `need` present) and missing ones, which must be fetched; see RowCache.
nb::tuple split_cached(const atta::Compactor& index,
                       nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> present, std::uint8_t need,
                       Longs ids, Longs positions, Longs starts) {
  const std::size_t n = ids.size();
  if (positions.size() != n) bad("positions", "must be as long as ids");
  if (present.size() != index.size()) bad("present", "must have one entry per indexed id");
  std::vector<std::int32_t> slots(n);
  std::size_t hits = 0;
  {
    nb::gil_scoped_release unlocked;
    atta::check_starts(starts, n);
    constexpr std::size_t kAhead = 16;
    for (std::size_t i = 0; i < n; ++i) {
      if (i + kAhead < n) index.request(ids.data()[i + kAhead]);
      slots[i] = index.find(ids.data()[i]);
      // Hits are marked by negative numbers below -1: a slot s becomes -2 - s.
      if (slots[i] >= 0 && (present.data()[slots[i]] & need) == need) slots[i] = -2 - slots[i], ++hits;
    }
  }
  Buffer<std::int32_t> hit_slots(hits), miss_slots(n - hits);
  Buffer<std::int64_t> hit_positions(hits), miss_ids(n - hits), miss_positions(n - hits), miss_starts(starts.size());
  {
    nb::gil_scoped_release unlocked;
    std::size_t hit = 0, miss = 0, i = 0;
    for (std::size_t p = 0; p < starts.size(); ++p) {
      for (; i < static_cast<std::size_t>(starts.data()[p]); ++i) {
        if (slots[i] < -1) {
          hit_slots.data[hit] = -2 - slots[i];
          hit_positions.data[hit++] = positions.data()[i];
        } else {
          miss_slots.data[miss] = slots[i];
          miss_ids.data[miss] = ids.data()[i];
          miss_positions.data[miss++] = positions.data()[i];
        }
      }
      miss_starts.data[p] = static_cast<std::int64_t>(miss);
    }
  }
  return nb::make_tuple(hit_slots.release(), hit_positions.release(), miss_ids.release(), miss_positions.release(),
                        miss_starts.release(), miss_slots.release());
}

void widen_array(nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> ids,
                 nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> out) {
  if (ids.size() != out.size()) bad("out", "must be as long as ids");
  nb::gil_scoped_release unlocked;
  atta::widen_ids(ids.data(), out.data(), ids.size(), ids.size() * sizeof(std::int64_t) >= atta::kColdBytes);
}

}  // namespace

void bind_rows(nb::module_& m) {
  m.def("gather_rows", &gather_rows, "table"_a, "rows"_a, "out"_a, "positions"_a.none(), "threads"_a);
  m.def("gather_merged", &gather_merged, "parts"_a, "out"_a);
  m.def("pack_rows", &pack_rows, "prefix"_a, "tables"_a, "rows"_a);
  m.def("scatter_rows", &scatter_rows, "rows"_a, "positions"_a, "out"_a);
  m.def("split_cached", &split_cached, "index"_a, "present"_a, "need"_a, "ids"_a, "positions"_a, "starts"_a);
  m.def("widen_ids", &widen_array, "ids"_a, "out"_a);
}
