// Bindings of rows on the disk; see atta.kvstore.disk. Errors of the disk are OSError, with the file's name.
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "arrays.hpp"
#include "disk_rows.hpp"

using namespace atta;

namespace {

void make_rows(DiskRows* self, std::string path, std::uint64_t start, std::size_t rows, std::size_t row_bytes, std::size_t slots,
               std::size_t half_life, bool ring, bool direct) {
  if (slots < 1 || slots > std::size_t{1} << 30) bad("slots", "must be 1 to 2**30");
  if (row_bytes < 1 || rows > std::size_t{1} << 40 || row_bytes > std::size_t{1} << 30) bad("rows", "are too many, too large or empty");
  new (self) DiskRows(std::move(path), start, rows, row_bytes, slots, half_life, ring, direct);
}

void gather(DiskRows& table, Vector rows, OutTable out, std::optional<Vector> positions, std::int64_t turn) {
  if (out.ndim() < 1 || row_bytes_of(out) != table.row_bytes()) bad("out", "has rows of another size than the table");
  if (!positions && out.shape(0) != rows.size()) bad("out", "must have one row per entry of rows");
  if (positions && positions->size() != rows.size()) bad("positions", "must be as long as rows");
  auto* const to = static_cast<std::byte*>(out.data());
  with_ids("rows", rows, [&](const auto* r) {
    const std::span given(r, rows.size());
    nb::gil_scoped_release unlocked;
    if (!positions) return table.gather(given, to, [](std::size_t i) { return i; }, turn);
    with_ids("positions", *positions, [&](const auto* p) {
      check_rows("positions", p, rows.size(), out.shape(0));
      table.gather(given, to, [p](std::size_t i) { return static_cast<std::size_t>(p[i]); }, turn);
    });
  });
}

// out[i] = the value at byte start + positions[i] * its size. Rows are blocks of the file.
void values(DiskRows& blocks, std::uint64_t start, Longs positions, OutVector out) {
  const std::size_t bytes = out.itemsize(), last = blocks.file().size();
  if (out.size() != positions.size()) bad("out", "must be as long as positions");
  if (start % bytes != 0 || blocks.row_bytes() % bytes != 0) bad("start", "values would lie in two blocks");
  if (last < start) bad("start", "is beyond the file");
  nb::gil_scoped_release unlocked;
  check_rows("positions", positions.data(), positions.size(), (last - start) / bytes);
  blocks.values(positions.size(), bytes, static_cast<std::byte*>(out.data()),
                [&](std::size_t i) { return start + static_cast<std::uint64_t>(positions.data()[i]) * bytes; });
}

nb::dict figures(const DiskRows& rows) {
  nb::dict found;
  found["disk_reads"] = static_cast<double>(rows.file().reads());
  found["disk_read_bytes"] = static_cast<double>(rows.file().bytes());
  found["disk_wait_seconds"] = 1e-6 * static_cast<double>(rows.file().waited_us());
  found["disk_rows_asked"] = static_cast<double>(rows.asked());
  found["disk_rows_hit"] = static_cast<double>(rows.hits());
  found["disk_cache_bytes"] = static_cast<double>(rows.nbytes());
  return found;
}

void translate(const std::exception_ptr& raised, void* /*unused*/) {
  try {
    std::rethrow_exception(raised);
  } catch (const DiskError& error) {
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, error.path.c_str());
  }
}

}  // namespace

void bind_disk(nb::module_& m) {
  nb::register_exception_translator(translate);
  nb::class_<DiskRows>(m, "DiskRows")
      .def("__init__", &make_rows, "path"_a, "start"_a, "rows"_a, "row_bytes"_a, "slots"_a, "half_life"_a, "ring"_a, "direct"_a)
      .def("gather", &gather, "rows"_a, "out"_a, "positions"_a.none(), "turn"_a)
      .def("values", &values, "start"_a, "positions"_a, "out"_a)
      .def(
          "expect",
          [](DiskRows& table, std::int64_t turn, Longs rows) {
            nb::gil_scoped_release unlocked;
            check_rows("rows", rows.data(), rows.size(), table.rows());
            table.index().expect(turn, {rows.data(), rows.size()});
          },
          "turn"_a, "rows"_a)
      .def(
          "close", [](DiskRows& table, std::int64_t turn) { table.index().close(turn); }, "turn"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def("figures", &figures)
      .def_prop_ro("direct", [](const DiskRows& rows) { return rows.file().direct(); });
}
