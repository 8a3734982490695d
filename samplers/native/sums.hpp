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
#include "processor.hpp"

namespace atta {

inline constexpr int kMostShift = 400;  // of a column: 2**shift units make one
// Bytes of a sum of one column on the way: the upper 32 bits of all columns, then the lower 8; or 64 bits.
inline constexpr std::size_t kNarrowSum = 5, kWideSum = 8;
inline constexpr std::int64_t kNarrowHalf = std::int64_t{1} << 39;  // a narrow sum lies in [-kNarrowHalf, kNarrowHalf)

// Adding it rounds a double below 2**51 to a whole number, which then stands in the lower bits.
inline constexpr double kToWhole = 0x1.8p52;
inline constexpr std::uint64_t kWholeBits = std::bit_cast<std::uint64_t>(kToWhole);

// The sum of the rows of one group, column by column, each in units of its own.
class UnitSum {
 public:
  UnitSum(const std::int16_t* shifts, std::size_t columns) : units_(columns) {
    for (std::size_t j = 0; j < columns; ++j) scales_.push_back(std::ldexp(1.0, shifts[j])), ones_.push_back(1 / scales_[j]);
  }

  void clear() { std::fill(units_.begin(), units_.end(), std::uint64_t{0}), wrong_ = 0; }

  // Adds rows, each number times the row's factor (null: 1). A product of two float32 is exact in double, so that its
  // rounding to units is the only one. Rows need not be aligned.
  void add(const std::byte* const* rows, const double* factors, std::size_t count) {
#if defined(__x86_64__)
    const Processor& here = Processor::here();
    if (here.avx512) return add_by_avx512(rows, factors, count);
    if (here.avx2) return add_by_avx2(rows, factors, count);
#endif
    add_plain(rows, factors, count);
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
    if (wrong_ >> 52 != 0)
      throw std::invalid_argument("a row has a number that is not finite, or far larger than its table's largest");
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

  // out[j] = the sum, times `factor`.
  void finish(float* out, double factor) const {
    check();
    for (std::size_t j = 0; j < units_.size(); ++j)
      out[j] = static_cast<float>(static_cast<double>(static_cast<std::int64_t>(units_[j])) * ones_[j] * factor);
  }

 private:
  template <class T>
  static T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  // Columns whose sums stay in registers while the rows of a group are added.
  static constexpr std::size_t kTogether = 32;

  inline __attribute__((always_inline)) void add_plain(const std::byte* const* rows, const double* factors, std::size_t count) {
    factors == nullptr ? add_all<false>(rows, factors, count) : add_all<true>(rows, factors, count);
  }

  template <bool Weighed>
  inline __attribute__((always_inline)) void add_all(const std::byte* const* rows, const double* factors, std::size_t count) {
    const std::size_t columns = units_.size();
    std::size_t j = 0;
    for (; j + kTogether <= columns; j += kTogether) add_columns<kTogether, Weighed>(rows, factors, count, j, kTogether);
    if (j < columns) add_columns<0, Weighed>(rows, factors, count, j, columns - j);
  }

  // Of columns from `first` on, `Count` or, if that is 0, `some`. Doubles in [2**52, 2**53) have the same 12 upper bits. A
  // product of 2**51 or more leaves others, or one that is not finite.
  template <std::size_t Count, bool Weighed>
  inline __attribute__((always_inline)) void add_columns(const std::byte* const* rows, const double* factors, std::size_t count,
                                                         std::size_t first, std::size_t some) {
    const std::size_t columns = Count > 0 ? Count : some;
    std::uint64_t sums[kTogether], wrong = 0;
    double scales[kTogether];
    for (std::size_t j = 0; j < columns; ++j) sums[j] = units_[first + j] - count * kWholeBits, scales[j] = scales_[first + j];
    for (std::size_t i = 0; i < count; ++i) {
      const std::byte* const row = rows[i] + 4 * first;
      const double factor = Weighed ? factors[i] : 1.0;
      for (std::size_t j = 0; j < columns; ++j) {
        const auto number = static_cast<double>(load<float>(row + 4 * j));
        const auto bits = std::bit_cast<std::uint64_t>((Weighed ? number * factor : number) * scales[j] + kToWhole);
        wrong |= bits ^ kWholeBits;
        sums[j] += bits;
      }
    }
    for (std::size_t j = 0; j < columns; ++j) units_[first + j] = sums[j];
    wrong_ |= wrong;
  }

#if defined(__x86_64__)
  __attribute__((target("avx512f,avx512dq"))) void add_by_avx512(const std::byte* const* rows, const double* factors,
                                                                 std::size_t count) {
    add_plain(rows, factors, count);
  }
  __attribute__((target("avx2,fma"))) void add_by_avx2(const std::byte* const* rows, const double* factors, std::size_t count) {
    add_plain(rows, factors, count);
  }
#endif

  std::vector<std::uint64_t> units_;   // two's complement
  std::vector<double> scales_, ones_;  // units that make one, and what one is
  std::uint64_t wrong_ = 0;
};

// Adds groups of rows of a table: group g has rows[starts[g]] to rows[starts[g + 1] - 1], weights[i] each (null: 1), and
// its sum goes to out + (g - first) * columns * width. `shifts`: of the columns.
template <class Row, class Start>
void sum_groups(const std::byte* table, std::size_t columns, const Row* rows, const float* weights, const Start* starts,
                std::size_t first, std::size_t stop, const std::int16_t* shifts, std::size_t width, std::byte* out) {
  UnitSum sum(shifts, columns);
  std::vector<const std::byte*> group;
  std::vector<double> factors;
  const std::size_t row_bytes = 4 * columns;
  const Ahead ahead(std::max<std::size_t>(1, row_bytes));
  const auto end = static_cast<std::size_t>(starts[stop]);
  for (std::size_t g = first; g < stop; ++g, out += columns * width) {
    group.clear(), factors.clear();
    for (auto i = static_cast<std::size_t>(starts[g]); i < static_cast<std::size_t>(starts[g + 1]); ++i) {
      if (i + ahead.read < end) ahead.request(table + static_cast<std::size_t>(rows[i + ahead.read]) * row_bytes, row_bytes);
      group.push_back(table + static_cast<std::size_t>(rows[i]) * row_bytes);
      if (weights != nullptr) factors.push_back(static_cast<double>(weights[i]));
    }
    sum.clear();
    sum.add(group.data(), weights == nullptr ? nullptr : factors.data(), group.size());
    sum.store(out, width);
  }
}

inline void check_sums(const std::int16_t* shifts, std::size_t count, std::size_t columns, std::size_t width) {
  if (count != columns) throw std::invalid_argument("shifts: must be one for each column");
  if (std::any_of(shifts, shifts + count, [](int shift) { return shift < -kMostShift || shift > kMostShift; }))
    throw std::invalid_argument("shifts: must be -400 to 400");
  if (width != kNarrowSum && width != kWideSum) throw std::invalid_argument("width: must be 5 or 8");
}

}  // namespace atta
