// Reads, overwrites and adds rows of a table that other threads read and write at the same time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <span>
#include <thread>
#include <type_traits>

#include "codecs.hpp"
#include "gather.hpp"
#include "hash.hpp"

namespace atta {

// Locks of rows: a row is copied or updated as a whole while other threads read and write the table.

// Rows share a fixed number of locks ("striping"), so the locks of a table of any size take four kilobytes. A lock is
// held while one row is moved, which takes well below a microsecond. No thread holds two locks. A waiting thread spins,
// and yields in case the holder was descheduled.
class RowLocks {
 public:
  static constexpr int kBits = 12;

  // Holds the lock of one row.
  class Held {
   public:
    Held(RowLocks& locks, std::size_t row) : lock_(locks.of(row)) {
      while (lock_.exchange(1, std::memory_order_acquire) != 0) wait();
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { lock_.store(0, std::memory_order_release); }

   private:
    static constexpr int kSpins = 64;

    void wait() const {
      for (int spins = 0; lock_.load(std::memory_order_relaxed) != 0; ++spins)
        if (spins >= kSpins) std::this_thread::yield();
    }

    std::atomic<std::uint8_t>& lock_;
  };

 private:
  // The multiplication puts the locks of neighbouring rows on different cache lines.
  std::atomic<std::uint8_t>& of(std::size_t row) { return locks_[(row * kGolden) >> (64 - kBits)]; }

  std::array<std::atomic<std::uint8_t>, std::size_t{1} << kBits> locks_{};
};

// Random contents of a table: a number is a function of the seed, the row's id, and the column. So it does not depend
// on how the table is cut into shards, or on where a shard has the row.

// In [0, 1): the 53 upper bits of a draw.
inline double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

template <class T>
void fill_uniform(T* out, std::span<const std::int64_t> ids, std::size_t width, std::uint64_t key, double low, double high) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const VertexStream stream(key, ids[i]);
    for (std::size_t j = 0; j < width; ++j) out[i * width + j] = static_cast<T>(low + (high - low) * unit(stream.draw(j)));
  }
}

// Box and Muller, "A note on the generation of random normal deviates", 1958: two draws give the numbers of two columns.
template <class T>
void fill_normal(T* out, std::span<const std::int64_t> ids, std::size_t width, std::uint64_t key, double mean, double std) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const VertexStream stream(key, ids[i]);
    T* row = out + i * width;
    for (std::size_t j = 0; j < width; j += 2) {
      const double radius = std::sqrt(-2.0 * std::log(1.0 - unit(stream.draw(j))));  // argument in (0, 1]: the log is finite
      const double angle = 2.0 * std::numbers::pi * unit(stream.draw(j + 1));
      row[j] = static_cast<T>(mean + std * radius * std::cos(angle));
      if (j + 1 < width) row[j + 1] = static_cast<T>(mean + std * radius * std::sin(angle));
    }
  }
}

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

inline void request_ahead(const Ahead& ahead, const std::byte* table, std::size_t row_bytes, std::span<const std::int64_t> rows,
                          std::size_t i) {
  if (i + ahead.read < rows.size()) ahead.request(table + static_cast<std::size_t>(rows[i + ahead.read]) * row_bytes, row_bytes);
}

// out[i] = table[rows[i]]; rows are in range.
inline void read_rows(ConstRows table, std::size_t row_bytes, std::span<const std::int64_t> rows, Rows out, RowLocks& locks) {
  const Ahead ahead(std::max<std::size_t>(1, row_bytes));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    request_ahead(ahead, table.rows, row_bytes, rows, i);
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
  const Ahead ahead(std::max<std::size_t>(1, row_bytes));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    request_ahead(ahead, table.rows, row_bytes, rows, i);
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
  const Ahead ahead(std::max<std::size_t>(1, width * sizeof(T)));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    request_ahead(ahead, reinterpret_cast<const std::byte*>(table), width * sizeof(T), rows, i);
    const auto row = static_cast<std::size_t>(rows[i]);
    const RowLocks::Held held(locks, row);
    accumulate(table + row * width, values + i * width, width);
  }
}

}  // namespace atta
