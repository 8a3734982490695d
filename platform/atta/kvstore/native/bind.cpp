// Bindings of the mutable tables' kernels. Tables and values are arrays [n, *row shape]; rows are int64 places in the
// table. Bad input raises ValueError naming the argument, before anything changes. The interpreter lock is released.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arrays.hpp"
#include "codecs.hpp"
#include "optim.hpp"
#include "rows.hpp"

using namespace atta;

namespace {

using ByteTable = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutByteTable = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FlatFloats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutFlatFloats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using OutFloats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using OutLongs = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::int64_t> span_of(const Longs& rows) { return {rows.data(), rows.size()}; }

// Numbers in a row.
std::size_t width_of(const auto& table) { return row_bytes_of(table) / table.itemsize(); }

std::byte* bytes_of(const OutTable& table) { return static_cast<std::byte*>(table.data()); }
const std::byte* bytes_of(const Table& table) { return static_cast<const std::byte*>(table.data()); }

// Checks that `values` has one row of the table's size for each of `rows`, and that `rows` lie in the table.
void check_request(const auto& table, const Longs& rows, const auto& values) {
  if (table.ndim() < 1 || values.ndim() < 1) bad("table", "must have rows");
  if (values.shape(0) != rows.size()) bad("values", "must have one row per entry of rows");
  if (row_bytes_of(values) != row_bytes_of(table)) bad("values", "has rows of another size than the table");
  check_rows("rows", rows.data(), rows.size(), table.shape(0));
}

void check_versions(const auto& versions, std::size_t rows) {
  if (versions && versions->size() != rows) bad("versions", "must have one entry per row");
}

// ---- rows -----------------------------------------------------------------------------------------------------------------------

// out[i] = table[rows[i]] and, read at the same moment, out_versions[i] = versions[rows[i]].
void read_table(Table table, Longs rows, OutTable out, RowLocks& locks, std::optional<Longs> versions,
                std::optional<OutLongs> out_versions) {
  if (versions.has_value() != out_versions.has_value()) bad("out_versions", "and versions go together");
  nb::gil_scoped_release unlocked;
  check_request(table, rows, out);
  check_versions(versions, table.shape(0));
  check_versions(out_versions, rows.size());
  read_rows({bytes_of(table), versions ? versions->data() : nullptr}, row_bytes_of(table), span_of(rows),
            {bytes_of(out), out_versions ? out_versions->data() : nullptr}, locks);
}

// A message made in place: `head`, the rows, and for a table with versions `middle` and the versions.
nb::bytes pack_table(nb::bytes head, Table table, Longs rows, RowLocks& locks, std::optional<Longs> versions, nb::bytes middle) {
  check_versions(versions, table.shape(0));
  check_rows("rows", rows.data(), rows.size(), table.shape(0));
  const std::size_t n = rows.size(), values = n * row_bytes_of(table), kept = versions ? n * sizeof(std::int64_t) : 0;
  const std::size_t between = versions ? middle.size() : 0;
  PyObject* message = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(head.size() + values + between + kept));
  if (message == nullptr) throw nb::python_error();
  auto* to = reinterpret_cast<std::byte*>(PyBytes_AsString(message));
  std::memcpy(to, head.c_str(), head.size());
  to += head.size();
  {
    nb::gil_scoped_release unlocked;                    // no other thread knows the object yet
    std::vector<std::int64_t> found(versions ? n : 0);  // the message's bytes may not be aligned for numbers
    read_rows({bytes_of(table), versions ? versions->data() : nullptr}, row_bytes_of(table), span_of(rows),
              {to, versions ? found.data() : nullptr}, locks);
    if (between != 0) std::memcpy(to + values, middle.c_str(), between);
    if (kept != 0) std::memcpy(to + values + between, found.data(), kept);
  }
  return nb::steal<nb::bytes>(message);
}

// table[rows[i]] = values[i] in order, and versions[rows[i]] = version. The last value of a repeated row counts. A row
// with a higher version keeps its values and its version.
void write_table(OutTable table, Longs rows, Table values, RowLocks& locks, std::optional<OutLongs> versions,
                 std::int64_t version) {
  nb::gil_scoped_release unlocked;
  check_request(table, rows, values);
  check_versions(versions, table.shape(0));
  write_rows({bytes_of(table), versions ? versions->data() : nullptr}, row_bytes_of(table), span_of(rows), bytes_of(values),
             version, locks);
}

template <class T>
void add_typed(const OutTable& table, const Longs& rows, const Table& values, RowLocks& locks) {
  nb::gil_scoped_release unlocked;
  add_rows(static_cast<T*>(table.data()), width_of(table), span_of(rows), static_cast<const T*>(values.data()), locks);
}

// table[rows[i]] += values[i] in order. All values of a repeated row are added. Integers wrap.
void add_table(OutTable table, Longs rows, Table values, RowLocks& locks) {
  const nb::dlpack::dtype t = table.dtype();
  if (values.dtype() != t) bad("values", "must have the dtype of the table");
  check_request(table, rows, values);
  const auto run = [&](auto like) { add_typed<decltype(like)>(table, rows, values, locks); };
  if (t == nb::dtype<float>()) return run(float{});
  if (t == nb::dtype<double>()) return run(double{});
  if (t.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) && t.bits == 16) return run(Half{});
  if (t == nb::dtype<std::int8_t>()) return run(std::int8_t{});
  if (t == nb::dtype<std::int16_t>()) return run(std::int16_t{});
  if (t == nb::dtype<std::int32_t>()) return run(std::int32_t{});
  if (t == nb::dtype<std::int64_t>()) return run(std::int64_t{});
  if (t == nb::dtype<std::uint8_t>()) return run(std::uint8_t{});
  if (t == nb::dtype<std::uint16_t>()) return run(std::uint16_t{});
  if (t == nb::dtype<std::uint32_t>()) return run(std::uint32_t{});
  if (t == nb::dtype<std::uint64_t>()) return run(std::uint64_t{});
  bad("table", "holds something that cannot be added");
}

// ---- optimisers -----------------------------------------------------------------------------------------------------------------

// One step of the optimiser `kind` on float32 rows; gradients of equal rows are summed first. `state`: its arrays, of
// the table's shape, in the order of OptimiserSpec.state_names. What a kind has no use for does not count.
void step_table(const std::string& kind, OutFloats table, std::vector<OutFloats> state, Longs rows, Floats grads, RowLocks& locks,
                double lr, double beta1, double beta2, double eps) {
  nb::gil_scoped_release unlocked;
  check_request(table, rows, grads);
  std::vector<float*> kept;
  for (const OutFloats& array : state) {
    if (array.size() != table.size() || width_of(array) != width_of(table)) bad("state", "must have the shape of the table");
    kept.push_back(array.data());
  }
  const std::size_t width = width_of(table);
  const auto run = [&](std::size_t arrays, auto make) {
    if (kept.size() != arrays) bad("state", "has another number of arrays than the optimiser");
    step_rows(span_of(rows), grads.data(), width, locks, make());
  };
  const auto rate = static_cast<float>(lr), little = static_cast<float>(eps);
  if (kind == "sgd") return run(0, [&] { return Sgd{table.data(), width, rate}; });
  if (kind == "adagrad") return run(1, [&] { return Adagrad{table.data(), kept[0], width, rate, little}; });
  if (kind == "adam")
    return run(2, [&] {
      return SparseAdam{
          table.data(), kept[0], kept[1], width, rate, static_cast<float>(1.0 - beta1), static_cast<float>(1.0 - beta2), little};
    });
  if (kind == "row_adam")
    return run(3, [&] { return RowAdam{table.data(), kept[0], kept[1], kept[2], width, lr, beta1, beta2, eps}; });
  bad("kind", "is no optimiser");
}

// ---- codecs ---------------------------------------------------------------------------------------------------------------------

// Calls f with the codec of that name.
template <class F>
decltype(auto) with_codec(std::string_view name, F f) {
  if (name == "fp16") return f(HalfRows{});
  if (name == "bf16") return f(BrainRows{});
  if (name == "int8") return f(ByteRows{});
  bad("codec", "must be fp16, bf16 or int8");
}

void encode_table(const char* codec, FlatFloats values, OutByteTable out) {
  with_codec(codec, [&](auto as) {
    using Codec = decltype(as);
    if (out.shape(0) != values.shape(0)) bad("out", "must have one row per row of values");
    if (out.shape(1) != Codec::bytes(values.shape(1))) bad("out", "has rows of the wrong size");
    nb::gil_scoped_release unlocked;
    encode_rows<Codec>(values.data(), values.shape(0), values.shape(1), reinterpret_cast<std::byte*>(out.data()));
  });
}

void decode_table(const char* codec, ByteTable encoded, OutFlatFloats out, std::optional<Longs> positions) {
  with_codec(codec, [&](auto as) {
    using Codec = decltype(as);
    const std::size_t n = encoded.shape(0), width = out.shape(1);
    if (encoded.shape(1) != Codec::bytes(width)) bad("encoded", "has rows of the wrong size");
    if (!positions && out.shape(0) != n) bad("out", "must have one row per encoded row");
    if (positions && positions->size() != n) bad("positions", "must have one entry per encoded row");
    const auto* from = reinterpret_cast<const std::byte*>(encoded.data());
    nb::gil_scoped_release unlocked;
    if (!positions) return decode_rows<Codec>(from, n, width, out.data(), [](std::size_t i) { return i; });
    const std::int64_t* at = positions->data();
    check_rows("positions", at, n, out.shape(0));
    decode_rows<Codec>(from, n, width, out.data(), [at](std::size_t i) { return static_cast<std::size_t>(at[i]); });
  });
}

std::size_t encoded_bytes(const char* codec, std::size_t width) {
  return with_codec(codec, [&](auto as) { return decltype(as)::bytes(width); });
}

// ---- contents -------------------------------------------------------------------------------------------------------------------

// Fills float32 or float64 rows with normal (mean a, deviation b) or uniform numbers (from a to b). out[i] is the row of
// ids[i]: a number depends on the seed, its row's id and its column only.
void fill_table(OutTable out, Longs ids, bool normal, std::uint64_t seed, double a, double b) {
  if (out.ndim() < 1 || ids.size() != out.shape(0)) bad("ids", "must have one entry per row of out");
  const auto run = [&](auto* data) {
    nb::gil_scoped_release unlocked;
    const std::uint64_t key = mix64(mix64(seed));  // mixed twice: (seed 0, row 1) differs from (seed 1, row 0)
    if (normal)
      fill_normal(data, span_of(ids), width_of(out), key, a, b);
    else
      fill_uniform(data, span_of(ids), width_of(out), key, a, b);
  };
  if (out.dtype() == nb::dtype<float>()) return run(static_cast<float*>(out.data()));
  if (out.dtype() == nb::dtype<double>()) return run(static_cast<double*>(out.data()));
  bad("out", "must be float32 or float64");
}

}  // namespace

void bind_cache(nb::module_& m);

void bind_tables(nb::module_& m) {
  bind_cache(m);
  nb::class_<RowLocks>(m, "RowLocks").def(nb::init<>());
  m.def("read_rows", &read_table, "table"_a.noconvert(), "rows"_a, "out"_a.noconvert(), "locks"_a,
        "versions"_a.noconvert() = nb::none(), "out_versions"_a.noconvert() = nb::none());
  m.def("pack_table", &pack_table, "head"_a, "table"_a.noconvert(), "rows"_a, "locks"_a, "versions"_a.noconvert() = nb::none(),
        "middle"_a = nb::bytes("", 0));
  m.def("write_rows", &write_table, "table"_a.noconvert(), "rows"_a, "values"_a, "locks"_a, "versions"_a.noconvert() = nb::none(),
        "version"_a = 0);
  m.def("add_rows", &add_table, "table"_a.noconvert(), "rows"_a, "values"_a, "locks"_a);
  m.def("step_rows", &step_table, "kind"_a, "table"_a.noconvert(), "state"_a.noconvert(), "rows"_a, "grads"_a, "locks"_a, "lr"_a,
        "beta1"_a = 0.0, "beta2"_a = 0.0, "eps"_a = 0.0);
  m.def("encode_rows", &encode_table, "codec"_a, "values"_a, "out"_a);
  m.def("decode_rows", &decode_table, "codec"_a, "encoded"_a, "out"_a, "positions"_a.none());
  m.def("encoded_bytes", &encoded_bytes, "codec"_a, "width"_a);
  m.def("fill_rows", &fill_table, "out"_a.noconvert(), "ids"_a, "normal"_a, "seed"_a, "a"_a, "b"_a);
}
