// Sums of table rows that are the same whoever adds which of them, and in whatever order: every number becomes a whole
// number of units first, and whole numbers add up exactly.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "gather.hpp"

namespace atta {

inline constexpr int kMostShift = 400;  // 2**-kMostShift to 2**kMostShift units make one
// Bytes of a sum of one column on the way: the upper 32 bits of all columns, then the lower 8; or 64 bits.
inline constexpr std::size_t kNarrowSum = 5, kWideSum = 8;
inline constexpr std::int64_t kNarrowHalf = std::int64_t{1} << 39;  // a narrow sum lies in [-kNarrowHalf, kNarrowHalf)

// Adding it rounds a double below 2**51 to a whole number, which then stands in the lower bits.
inline constexpr double kToWhole = 0x1.8p52;
inline constexpr std::uint64_t kWholeBits = std::bit_cast<std::uint64_t>(kToWhole);

// The sum of the rows of one group, column by column, in units.
class UnitSum {
 public:
  explicit UnitSum(std::size_t columns) : units_(columns) {}

  void clear() { std::fill(units_.begin(), units_.end(), std::uint64_t{0}), wrong_ = 0; }

  // Adds a row, each number times `factor`: the weight of the row in units. A product of two float32 is exact in double,
  // so that its rounding to units is the only one. `row` need not be aligned.
  void add(const std::byte* row, double factor) {
#if defined(__x86_64__)
    static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
    if (avx2) return add_by_avx2(row, factor);
#endif
    add_plain(row, factor);
  }

  // Adds a sum that came from elsewhere.
  void add_sum(const std::byte* bytes, std::size_t width) {
    const std::size_t columns = units_.size();
    if (width == kWideSum) {
      for (std::size_t j = 0; j < columns; ++j) units_[j] += load<std::uint64_t>(bytes + 8 * j);
      return;
    }
    const std::byte* const lower = bytes + 4 * columns;
    for (std::size_t j = 0; j < columns; ++j)
      units_[j] += (std::uint64_t{load<std::uint32_t>(bytes + 4 * j)} << 8 | std::to_integer<std::uint64_t>(lower[j])) -
                   static_cast<std::uint64_t>(kNarrowHalf);
  }

  // Throws: a number was not finite, or too large to be counted in units.
  void check() const {
    if (wrong_ >> 52 != 0) throw std::invalid_argument("a row has a number that is not finite, or far larger than its table's largest");
  }

  // Writes `width` bytes per column. Throws: the sum is too large for narrow ones.
  void store(std::byte* to, std::size_t width) const {
    check();
    const std::size_t columns = units_.size();
    if (width == kWideSum) return static_cast<void>(std::memcpy(to, units_.data(), 8 * columns));
    std::byte* const lower = to + 4 * columns;
    std::uint64_t over = 0;
    for (std::size_t j = 0; j < columns; ++j) {
      const std::uint64_t up = units_[j] + static_cast<std::uint64_t>(kNarrowHalf);
      over |= up;
      const auto high = static_cast<std::uint32_t>(up >> 8);
      std::memcpy(to + 4 * j, &high, sizeof high);
      lower[j] = static_cast<std::byte>(up);
    }
    if (over >> 40 != 0) throw std::invalid_argument("a sum is too large for its 5 bytes");
  }

  // out[j] = the sum, times `unit`.
  void finish(float* out, double unit) const {
    check();
    for (std::size_t j = 0; j < units_.size(); ++j)
      out[j] = static_cast<float>(static_cast<double>(static_cast<std::int64_t>(units_[j])) * unit);
  }

 private:
  template <class T>
  static T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  // A whole number in [-2**51, 2**51) has its 13 upper bits equal. One outside leaves others behind, or one that is not
  // finite.
  inline __attribute__((always_inline)) void add_plain(const std::byte* row, double factor) {
    std::uint64_t wrong = 0;
    std::uint64_t* const units = units_.data();
    const std::size_t columns = units_.size();
    for (std::size_t j = 0; j < columns; ++j) {
      const std::uint64_t bits = std::bit_cast<std::uint64_t>(static_cast<double>(load<float>(row + 4 * j)) * factor + kToWhole);
      const std::uint64_t whole = bits - kWholeBits;
      wrong |= whole ^ (whole << 1);
      units[j] += whole;
    }
    wrong_ |= wrong;
  }

#if defined(__x86_64__)
  __attribute__((target("avx2,fma"))) void add_by_avx2(const std::byte* row, double factor) { add_plain(row, factor); }
#endif

  std::vector<std::uint64_t> units_;  // two's complement
  std::uint64_t wrong_ = 0;
};

// Adds groups of rows of a table: group g has rows[starts[g]] to rows[starts[g + 1] - 1], weights[i] each (null: 1), and
// its sum goes to out + (g - first) * columns * width. `scale`: units that make one.
template <class Row, class Start>
void sum_groups(const std::byte* table, std::size_t columns, const Row* rows, const float* weights, const Start* starts,
                std::size_t first, std::size_t stop, double scale, std::size_t width, std::byte* out) {
  UnitSum sum(columns);
  const std::size_t row_bytes = 4 * columns;
  const Ahead ahead(std::max<std::size_t>(1, row_bytes));
  const auto end = static_cast<std::size_t>(starts[stop]);
  for (std::size_t g = first; g < stop; ++g, out += columns * width) {
    sum.clear();
    for (auto i = static_cast<std::size_t>(starts[g]); i < static_cast<std::size_t>(starts[g + 1]); ++i) {
      if (i + ahead.read < end) request_row(table + static_cast<std::size_t>(rows[i + ahead.read]) * row_bytes, row_bytes);
      sum.add(table + static_cast<std::size_t>(rows[i]) * row_bytes,
              weights == nullptr ? scale : static_cast<double>(weights[i]) * scale);
    }
    sum.store(out, width);
  }
}

inline void check_sums(int shift, std::size_t width) {
  if (shift < -kMostShift || shift > kMostShift) throw std::invalid_argument("shift: must be -400 to 400");
  if (width != kNarrowSum && width != kWideSum) throw std::invalid_argument("width: must be 5 or 8");
}

}  // namespace atta
