// What every binding needs: typed views of numpy arrays, new arrays, and errors that name bad input.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace atta {

namespace nb = nanobind;
using namespace nb::literals;

using Vector = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Spread = nb::ndarray<nb::ro, nb::ndim<1>, nb::device::cpu>;  // perhaps every second value of an array
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using OutTable = nb::ndarray<nb::c_contig, nb::device::cpu>;
using OutVector = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline bool is_int32(nb::dlpack::dtype t) { return t == nb::dtype<std::int32_t>(); }
inline bool is_int64(nb::dlpack::dtype t) { return t == nb::dtype<std::int64_t>(); }

[[noreturn]] inline void bad(const char* name, const char* why) { throw std::invalid_argument(std::string(name) + ": " + why); }

// Calls f with a typed pointer to the ids of `v`.
template <class Ids, class F>
decltype(auto) with_ids(const char* name, const Ids& v, F f) {
  if (is_int32(v.dtype())) return f(static_cast<const std::int32_t*>(v.data()));
  if (is_int64(v.dtype())) return f(static_cast<const std::int64_t*>(v.data()));
  bad(name, "must be int32 or int64");
}

// Distance between sources, and between the edge ids beside them, in values: 1 or 2.
inline std::int64_t stride_of(const Spread& indices, const Spread* edge_ids) {
  if (edge_ids != nullptr && edge_ids->size() != indices.size()) bad("edge_ids", "must be as long as indices");
  if (indices.size() < 2) return 1;
  const std::int64_t stride = indices.stride(0);
  if (stride != 1 && stride != 2) bad("indices", "must be all or every second value of an array");
  if (edge_ids != nullptr && edge_ids->stride(0) != stride) bad("edge_ids", "must have the stride of indices");
  return stride;
}

// A new array. It uses malloc and not new[], because the memory need not be zeroed.
template <class T>
struct Buffer {
  T* data;
  std::size_t size;

  explicit Buffer(std::size_t n) : data(static_cast<T*>(std::malloc(std::max<std::size_t>(1, n) * sizeof(T)))), size(n) {
    if (data == nullptr) throw std::bad_alloc();
  }
  Buffer(Buffer&& other) noexcept : data(std::exchange(other.data, nullptr)), size(other.size) {}
  Buffer(const Buffer&) = delete;
  ~Buffer() { std::free(data); }

  nb::object release() {
    T* owned = std::exchange(data, nullptr);
    nb::capsule owner(owned, [](void* p) noexcept { std::free(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned, {size}, owner));
  }
};

std::size_t row_bytes_of(const auto& a) {
  std::size_t bytes = a.itemsize();
  for (std::size_t d = 1; d < a.ndim(); ++d) bytes *= a.shape(d);
  return bytes;
}

// Checks that several bindings make before they work.

inline void check_rows_of(const Longs& indptr, std::size_t edges, std::size_t row) {
  const std::int64_t begin = indptr.data()[row], end = indptr.data()[row + 1];
  if (begin < 0 || end < begin || end > static_cast<std::int64_t>(edges) || end - begin > INT32_MAX)
    bad("indptr", ("row " + std::to_string(row) + " does not fit the edges").c_str());
}

// Starts of groups: from 0 to the number of rows, ascending.
inline void check_starts(const Longs& starts, std::size_t rows) {
  const std::int64_t *begin = starts.data(), *end = begin + starts.size();
  if (starts.size() == 0 || *begin != 0 || end[-1] != static_cast<std::int64_t>(rows) || !std::is_sorted(begin, end))
    bad("starts", "must ascend from 0 to the number of rows");
}

inline void check_threads(std::size_t threads) {
  if (threads < 1 || threads > 1024) bad("threads", "must be 1 to 1024");
}

}  // namespace atta
