// Draws random pairs of vertices inside ranges of vertices, in proportion to weights. They are the edges of a graph
// with planted communities.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "hash.hpp"

namespace atta {

// Finds the vertex at a position of the cumulated weights. Entry b of the guide is the vertex at the b-th of n equal
// steps through the weights. So a search looks at a few neighbouring vertices instead of all.
class Wheel {
 public:
  explicit Wheel(std::span<const double> weights) : mass_(weights.size() + 1, 0.0), guide_(weights.size() + 1, weights.size() - 1) {
    const std::size_t n = weights.size();
    for (std::size_t v = 0; v < n; ++v) mass_[v + 1] = mass_[v] + weights[v];
    scale_ = static_cast<double>(n) / mass_.back();
    for (std::size_t bucket = 0, v = 0; bucket < n; ++bucket) {
      while (v + 1 < n && mass_[v + 1] * scale_ <= static_cast<double>(bucket)) ++v;
      guide_[bucket] = v;
    }
  }

  std::size_t size() const { return mass_.size() - 1; }
  double mass(std::size_t vertex) const { return mass_[vertex]; }

  // The vertex whose share of the weights holds `position`. Positions outside belong to the first or the last vertex.
  std::size_t at(double position) const {
    const auto bucket = std::min(size() - 1, static_cast<std::size_t>(std::max(0.0, position * scale_)));
    // Search one more bucket on both sides: rounding may move a product across the border between two buckets.
    const std::size_t low = guide_[bucket - (bucket > 0)], high = guide_[std::min(size(), bucket + 2)];
    const double* first = mass_.data() + low + 1;
    return static_cast<std::size_t>(std::upper_bound(first, mass_.data() + high + 1, position) - mass_.data()) - 1;
  }

 private:
  std::vector<double> mass_;        // [n + 1]
  std::vector<std::size_t> guide_;  // [n + 1]
  double scale_;
};

// Sorts keys of at most `bits` bits, lowest digits first. `spare` is memory that calls share.
inline void radix_sort(std::vector<std::uint64_t>& keys, std::vector<std::uint64_t>& spare, int bits) {
  constexpr int kDigit = 11;
  if (keys.size() < 512) {
    std::sort(keys.begin(), keys.end());
    return;
  }
  spare.resize(keys.size());
  for (int shift = 0; shift < bits; shift += kDigit) {
    std::array<std::size_t, 1 << kDigit> starts{};
    const auto digit = [shift](std::uint64_t key) { return (key >> shift) & ((1 << kDigit) - 1); };
    for (const std::uint64_t key : keys) ++starts[digit(key)];
    std::size_t before = 0;
    for (std::size_t& start : starts) before += std::exchange(start, before);
    for (const std::uint64_t key : keys) spare[starts[digit(key)]++] = key;
    keys.swap(spare);
  }
}

// Draws unordered pairs of different vertices of [low, high), each at most once, until about `want` pairs are found or
// twenty attempts are made. A candidate is a function of (stream, its number) alone. A pair is the number `low_vertex *
// (high - low) + high_vertex`, with both vertices counted from `low`. Pairs are ascending.
inline void draw_distinct(const Wheel& wheel, std::size_t low, std::size_t high, std::size_t want, const VertexStream& stream,
                          std::vector<std::uint64_t>& keys, std::vector<std::uint64_t>& spare) {
  constexpr int kAttempts = 20;
  constexpr double kEnough = 0.999, kUnit = 0x1p-53;
  const std::uint64_t size = high - low;
  const double start = wheel.mass(low), width = wheel.mass(high) - start;
  const auto pick = [&](std::uint64_t number) {
    const double uniform = static_cast<double>(stream.draw(number) >> 11) * kUnit;
    return std::clamp(wheel.at(start + uniform * width), low, high - 1) - low;
  };
  const int bits = std::bit_width(size * size - 1);
  std::uint64_t number = 0;
  keys.clear();
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    for (std::size_t missing = want - keys.size(); missing > 0; --missing, number += 2) {
      const std::uint64_t u = pick(number), v = pick(number + 1);
      if (u != v) keys.push_back(std::min(u, v) * size + std::max(u, v));
    }
    radix_sort(keys, spare, bits);
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    if (static_cast<double>(keys.size()) >= kEnough * static_cast<double>(want)) return;
  }
}

}  // namespace atta
