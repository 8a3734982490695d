// Bindings of the mutable tables' kernels; documented in atta.kvstore.mutable.kernels.
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arrays.hpp"
#include "codecs.hpp"
#include "fill.hpp"
#include "locks.hpp"
#include "optim.hpp"
#include "rows.hpp"

using namespace atta;

namespace {

using ByteTable = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutByteTable = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutFloats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutLongs = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::int64_t> span_of(const Longs& rows) { return {rows.data(), rows.size()}; }

// Checks that `values` has one row of the table's width for each of `rows`, and that `rows` lie in the table.
void check_request(const auto& table, const Longs& rows, const auto& values) {
  if (values.shape(0) != rows.size()) bad("values", "must have one row per entry of rows");
  if (values.shape(1) != table.shape(1)) bad("values", "has rows of another size than the table");
  check_rows("rows", rows.data(), rows.size(), table.shape(0));
}

void check_versions(const auto& versions, std::size_t rows) {
  if (versions && versions->size() != rows) bad("versions", "must have one entry per row");
}

// ---- rows -----------------------------------------------------------------------------------------------------------------------

void read_table(ByteTable table, Longs rows, OutByteTable out, RowLocks& locks, std::optional<Longs> versions,
                std::optional<OutLongs> out_versions) {
  if (versions.has_value() != out_versions.has_value()) bad("out_versions", "and versions go together");
  check_versions(versions, table.shape(0));
  check_versions(out_versions, rows.size());
  nb::gil_scoped_release unlocked;
  check_request(table, rows, out);
  read_rows({reinterpret_cast<const std::byte*>(table.data()), versions ? versions->data() : nullptr}, table.shape(1),
            span_of(rows), {reinterpret_cast<std::byte*>(out.data()), out_versions ? out_versions->data() : nullptr}, locks);
}

// A message made in place: `head`, the rows, and for a table with versions `middle` and the versions.
nb::bytes pack_table(nb::bytes head, ByteTable table, Longs rows, RowLocks& locks, std::optional<Longs> versions,
                     nb::bytes middle) {
  check_versions(versions, table.shape(0));
  check_rows("rows", rows.data(), rows.size(), table.shape(0));
  const std::size_t n = rows.size(), values = n * table.shape(1), kept = versions ? n * sizeof(std::int64_t) : 0;
  const std::size_t between = versions ? middle.size() : 0;
  PyObject* message = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(head.size() + values + between + kept));
  if (message == nullptr) throw nb::python_error();
  auto* to = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(message));
  std::memcpy(to, head.c_str(), head.size());
  to += head.size();
  {
    nb::gil_scoped_release unlocked;                    // no other thread knows the object yet
    std::vector<std::int64_t> found(versions ? n : 0);  // the message's bytes may not be aligned for numbers
    read_rows({reinterpret_cast<const std::byte*>(table.data()), versions ? versions->data() : nullptr}, table.shape(1),
              span_of(rows), {to, versions ? found.data() : nullptr}, locks);
    if (between != 0) std::memcpy(to + values, middle.c_str(), between);
    if (kept != 0) std::memcpy(to + values + between, found.data(), kept);
  }
  return nb::steal<nb::bytes>(message);
}

void write_table(OutByteTable table, Longs rows, ByteTable values, RowLocks& locks, std::optional<OutLongs> versions,
                 std::int64_t version) {
  check_versions(versions, table.shape(0));
  nb::gil_scoped_release unlocked;
  check_request(table, rows, values);
  write_rows({reinterpret_cast<std::byte*>(table.data()), versions ? versions->data() : nullptr}, table.shape(1), span_of(rows),
             reinterpret_cast<const std::byte*>(values.data()), version, locks);
}

template <class T>
void add_typed(const OutTable& table, const Longs& rows, const Table& values, RowLocks& locks) {
  nb::gil_scoped_release unlocked;
  add_rows(static_cast<T*>(table.data()), table.shape(1), span_of(rows), static_cast<const T*>(values.data()), locks);
}

void add_table(OutTable table, Longs rows, Table values, RowLocks& locks) {
  if (table.ndim() != 2 || values.ndim() != 2) bad("table", "must have two dimensions");
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

void check_state(const OutFloats& table, const OutFloats& state) {
  if (state.shape(0) != table.shape(0) || state.shape(1) != table.shape(1)) bad("state", "must have the shape of the table");
}

void step_sgd(OutFloats table, Longs rows, Floats grads, RowLocks& locks, double lr) {
  nb::gil_scoped_release unlocked;
  check_request(table, rows, grads);
  const std::size_t width = table.shape(1);
  step_rows(span_of(rows), grads.data(), width, locks, Sgd{table.data(), width, static_cast<float>(lr)});
}

void step_adagrad(OutFloats table, OutFloats sums, Longs rows, Floats grads, RowLocks& locks, double lr, double eps) {
  check_state(table, sums);
  nb::gil_scoped_release unlocked;
  check_request(table, rows, grads);
  const std::size_t width = table.shape(1);
  step_rows(span_of(rows), grads.data(), width, locks,
            Adagrad{table.data(), sums.data(), width, static_cast<float>(lr), static_cast<float>(eps)});
}

void step_adam(OutFloats table, OutFloats means, OutFloats squares, Longs rows, Floats grads, RowLocks& locks, double step_size,
               double beta1, double beta2, double eps) {
  check_state(table, means);
  check_state(table, squares);
  nb::gil_scoped_release unlocked;
  check_request(table, rows, grads);
  const std::size_t width = table.shape(1);
  step_rows(span_of(rows), grads.data(), width, locks,
            SparseAdam{table.data(), means.data(), squares.data(), width, static_cast<float>(step_size),
                       static_cast<float>(1.0 - beta1), static_cast<float>(1.0 - beta2), static_cast<float>(eps)});
}

void step_row_adam(OutFloats table, OutFloats means, OutFloats squares, OutFloats steps, Longs rows, Floats grads, RowLocks& locks,
                   double lr, double beta1, double beta2, double eps) {
  check_state(table, means);
  check_state(table, squares);
  check_state(table, steps);
  nb::gil_scoped_release unlocked;
  check_request(table, rows, grads);
  const std::size_t width = table.shape(1);
  step_rows(span_of(rows), grads.data(), width, locks,
            RowAdam{table.data(), means.data(), squares.data(), steps.data(), width, lr, beta1, beta2, eps});
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

void encode_table(const char* codec, Floats values, OutByteTable out) {
  with_codec(codec, [&](auto as) {
    using Codec = decltype(as);
    if (out.shape(0) != values.shape(0)) bad("out", "must have one row per row of values");
    if (out.shape(1) != Codec::bytes(values.shape(1))) bad("out", "has rows of the wrong size");
    nb::gil_scoped_release unlocked;
    encode_rows<Codec>(values.data(), values.shape(0), values.shape(1), reinterpret_cast<std::byte*>(out.data()));
  });
}

void decode_table(const char* codec, ByteTable encoded, OutFloats out, std::optional<Longs> positions) {
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

void fill_table(OutTable out, Longs ids, bool normal, std::uint64_t seed, double a, double b) {
  if (out.ndim() != 2) bad("out", "must have two dimensions");
  if (ids.size() != out.shape(0)) bad("ids", "must have one entry per row of out");
  const auto run = [&](auto* data) {
    nb::gil_scoped_release unlocked;
    const std::uint64_t key = mix64(mix64(seed));  // mixed twice: (seed 0, row 1) differs from (seed 1, row 0)
    if (normal)
      fill_normal(data, span_of(ids), out.shape(1), key, a, b);
    else
      fill_uniform(data, span_of(ids), out.shape(1), key, a, b);
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
  m.def("read_rows", &read_table, "table"_a, "rows"_a, "out"_a, "locks"_a, "versions"_a.none(), "out_versions"_a.none());
  m.def("pack_table", &pack_table, "head"_a, "table"_a, "rows"_a, "locks"_a, "versions"_a.none(), "middle"_a);
  m.def("write_rows", &write_table, "table"_a, "rows"_a, "values"_a, "locks"_a, "versions"_a.none(), "version"_a);
  m.def("add_rows", &add_table, "table"_a, "rows"_a, "values"_a, "locks"_a);
  m.def("step_sgd", &step_sgd, "table"_a, "rows"_a, "grads"_a, "locks"_a, "lr"_a);
  m.def("step_adagrad", &step_adagrad, "table"_a, "sums"_a, "rows"_a, "grads"_a, "locks"_a, "lr"_a, "eps"_a);
  m.def("step_adam", &step_adam, "table"_a, "means"_a, "squares"_a, "rows"_a, "grads"_a, "locks"_a, "step_size"_a, "beta1"_a,
        "beta2"_a, "eps"_a);
  m.def("step_row_adam", &step_row_adam, "table"_a, "means"_a, "squares"_a, "steps"_a, "rows"_a, "grads"_a, "locks"_a, "lr"_a,
        "beta1"_a, "beta2"_a, "eps"_a);
  m.def("encode_rows", &encode_table, "codec"_a, "values"_a, "out"_a);
  m.def("decode_rows", &decode_table, "codec"_a, "encoded"_a, "out"_a, "positions"_a.none());
  m.def("encoded_bytes", &encoded_bytes, "codec"_a, "width"_a);
  m.def("fill_rows", &fill_table, "out"_a, "ids"_a, "normal"_a, "seed"_a, "a"_a, "b"_a);
}
