// Reads, overwrites and adds rows of a table that other threads read and write at the same time.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "gather.hpp"
#include "halves.hpp"
#include "locks.hpp"

namespace atta {

struct Half {  // what a float16 table holds
  std::uint16_t bits;
};

// A table's bytes and, if it has them, the versions of its rows. A row and its version change together.
template <class Byte, class Version>
struct Versioned {
  Byte* rows;
  Version* versions;  // may be null
};

using Rows = Versioned<std::byte, std::int64_t>;
using ConstRows = Versioned<const std::byte, const std::int64_t>;

inline void request_ahead(const std::byte* table, std::size_t row_bytes, std::span<const std::int64_t> rows, std::size_t i) {
  if (row_bytes <= 16 * kLine && i + kRowsAhead < rows.size())
    request_row(table + static_cast<std::size_t>(rows[i + kRowsAhead]) * row_bytes, row_bytes);
}

// out[i] = table[rows[i]]; rows are in range.
inline void read_rows(ConstRows table, std::size_t row_bytes, std::span<const std::int64_t> rows, Rows out, RowLocks& locks) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    request_ahead(table.rows, row_bytes, rows, i);
    const auto row = static_cast<std::size_t>(rows[i]);
    const RowLocks::Held held(locks, row);
    std::memcpy(out.rows + i * row_bytes, table.rows + row * row_bytes, row_bytes);
    if (out.versions != nullptr) out.versions[i] = table.versions[row];
  }
}

// table[rows[i]] = values[i], in order: the last value of a repeated row wins. A row of a higher version does not
// change.
inline void write_rows(Rows table, std::size_t row_bytes, std::span<const std::int64_t> rows, const std::byte* values,
                       std::int64_t version, RowLocks& locks) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    request_ahead(table.rows, row_bytes, rows, i);
    const auto row = static_cast<std::size_t>(rows[i]);
    const RowLocks::Held held(locks, row);
    if (table.versions != nullptr) {
      if (table.versions[row] > version) continue;
      table.versions[row] = version;
    }
    std::memcpy(table.rows + row * row_bytes, values + i * row_bytes, row_bytes);
  }
}

template <class T>
void accumulate(T* to, const T* values, std::size_t n) {
  if constexpr (std::same_as<T, Half>) {
    for (std::size_t j = 0; j < n; ++j) to[j].bits = to_half(from_half(to[j].bits) + from_half(values[j].bits));
  } else if constexpr (std::integral<T>) {
    using Unsigned = std::make_unsigned_t<T>;  // integers wrap as in numpy
    for (std::size_t j = 0; j < n; ++j) to[j] = static_cast<T>(static_cast<Unsigned>(to[j]) + static_cast<Unsigned>(values[j]));
  } else {
    for (std::size_t j = 0; j < n; ++j) to[j] += values[j];
  }
}

// table[rows[i]] += values[i], in order; all values of a repeated row are added.
template <class T>
void add_rows(T* table, std::size_t width, std::span<const std::int64_t> rows, const T* values, RowLocks& locks) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    request_ahead(reinterpret_cast<const std::byte*>(table), width * sizeof(T), rows, i);
    const auto row = static_cast<std::size_t>(rows[i]);
    const RowLocks::Held held(locks, row);
    accumulate(table + row * width, values + i * width, width);
  }
}

}  // namespace atta
