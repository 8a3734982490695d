// Random contents of a table: a number is a function of the seed, the row's id, and the column. So it does not depend
// on how the table is cut into shards, or on where a shard has the row.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>

#include "hash.hpp"

namespace atta {

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

}  // namespace atta
