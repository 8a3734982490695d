// Moving table rows: gather, scatter, and both at once, with the lines of coming rows requested ahead.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

namespace atta {

inline constexpr std::size_t kRowsAhead = 12;
inline constexpr std::size_t kLine = 64;

template <class Row>
void check_rows(const char* what, const Row* rows, std::size_t count, std::size_t limit) {
  for (std::size_t i = 0; i < count; ++i)
    if (rows[i] < 0 || static_cast<std::size_t>(rows[i]) >= limit)
      throw std::invalid_argument(std::string(what) + ": row " + std::to_string(static_cast<std::int64_t>(rows[i])) +
                                  " is outside 0.." + std::to_string(static_cast<std::int64_t>(limit) - 1));
}

inline void request_row(const std::byte* row, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at);
}

template <std::size_t Bytes>
void copy_fixed(std::byte* to, const std::byte* from) {
  std::memcpy(to, from, Bytes);
}

// out[to(i)] = table[from(i)] for i in 0..count.
template <class From, class To>
void move_rows(const std::byte* table, std::byte* out, std::size_t row_bytes, std::size_t count, From from, To to) {
  const bool wide = row_bytes <= 16 * kLine;
  const auto loop = [&](auto copy) {
    for (std::size_t i = 0; i < count; ++i) {
      if (wide && i + kRowsAhead < count) request_row(table + from(i + kRowsAhead) * row_bytes, row_bytes);
      copy(out + to(i) * row_bytes, table + from(i) * row_bytes);
    }
  };
  switch (row_bytes) {
    case 4:
      return loop(copy_fixed<4>);
    case 8:
      return loop(copy_fixed<8>);
    default:
      return loop([row_bytes](std::byte* a, const std::byte* b) { std::memcpy(a, b, row_bytes); });
  }
}

}  // namespace atta
