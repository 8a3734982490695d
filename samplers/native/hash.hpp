// Counter-based randomness: every draw is a pure function of (stream, vertex, index). So results do not depend on
// order, threads or placement. The mixer is the finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable
// pseudorandom number generators", 2014).
#pragma once

#include <cstdint>

namespace atta {

inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

inline constexpr std::uint64_t mix64(std::uint64_t x) {
  x += kGolden;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// A number of a vertex that is the same in all streams, uniform over 32 bits.
inline constexpr std::uint32_t mark_of(std::int64_t vertex_key) {
  return static_cast<std::uint32_t>(mix64(static_cast<std::uint64_t>(vertex_key)) >> 32);
}

// The draws of one vertex in one stream: draw(i) for i = 0, 1, 2, ...
struct VertexStream {
  std::uint64_t base;

  VertexStream(std::uint64_t stream_key, std::int64_t vertex_key)
      : base(mix64(stream_key ^ mix64(static_cast<std::uint64_t>(vertex_key)))) {}

  std::uint64_t draw(std::uint64_t index) const { return mix64(base + index * kGolden); }

  // Uniform in [0, bound). The multiply-shift reduction favours some values by at most bound / 2^64.
  std::uint64_t below(std::uint64_t index, std::uint64_t bound) const {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(draw(index)) * bound) >> 64);
  }
};

}  // namespace atta
