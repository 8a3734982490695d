// Rows of float32 in fewer bytes for the wire.
#pragma once

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace atta {

// 16-bit floats in plain integer and float32 arithmetic, rounded to nearest, ties to even. They need no processor
// extension, and loops over these functions vectorise. NaNs become quiet NaNs.

// IEEE binary16. After the FP16 library (Maratyszcza, MIT licence): the float unit does the rounding. Adding a power of
// two of the right size removes exactly the bits that a half has no room for.
inline std::uint16_t to_half(float value) {
  constexpr float kToInfinity = 0x1.0p+112F, kBack = 0x1.0p-110F;
  const float base = (std::fabs(value) * kToInfinity) * kBack;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits << 1;  // without the sign
  std::uint32_t bias = magnitude & 0xFF000000U;
  bias = bias < 0x71000000U ? 0x71000000U : bias;  // below: a subnormal half
  const float rounded = std::bit_cast<float>((bias >> 1) + 0x07800000U) + base;
  const auto r = std::bit_cast<std::uint32_t>(rounded);
  const std::uint32_t number = ((r >> 13) & 0x7C00U) + (r & 0x0FFFU);
  return static_cast<std::uint16_t>(((bits >> 16) & 0x8000U) | (magnitude > 0xFF000000U ? 0x7E00U : number));
}

inline float from_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7FFFU) << 17;
  constexpr std::uint32_t kExponentShift = 0xE0U << 23;
  const float normal = std::bit_cast<float>((magnitude >> 4) + kExponentShift) * 0x1.0p-112F;
  const float subnormal = std::bit_cast<float>((magnitude >> 17) | (126U << 23)) - 0.5F;
  const float number = magnitude < (1U << 27) ? subnormal : normal;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(number));
}

// bfloat16: the upper half of a float32.
inline std::uint16_t to_brain(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  return static_cast<std::uint16_t>((bits << 1) > 0xFF000000U ? 0x7FC0U : rounded);
}

inline float from_brain(std::uint16_t half) { return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16); }

// Two bytes per number; `to` and `from` need no alignment.
template <std::uint16_t (*Encode)(float), float (*Decode)(std::uint16_t)>
struct HalfCodec {
  static std::size_t bytes(std::size_t width) { return 2 * width; }

  static void encode(const float* row, std::size_t width, std::byte* to) {
    for (std::size_t j = 0; j < width; ++j) {
      const std::uint16_t half = Encode(row[j]);
      std::memcpy(to + 2 * j, &half, 2);
    }
  }

  static void decode(const std::byte* from, std::size_t width, float* row) {
    for (std::size_t j = 0; j < width; ++j) {
      std::uint16_t half;
      std::memcpy(&half, from + 2 * j, 2);
      row[j] = Decode(half);
    }
  }
};

using HalfRows = HalfCodec<to_half, from_half>;
using BrainRows = HalfCodec<to_brain, from_brain>;

// A float32 scale, max|x| / 127, and one signed byte per number: x = scale * byte, with an error of at most half a
// scale. No byte stands for infinity or NaN. A row with one gets the scale NaN, so all its numbers are NaN when
// decoded, and the error is visible.
struct ByteRows {
  static constexpr float kSteps = 127.0F;

  static std::size_t bytes(std::size_t width) { return sizeof(float) + width; }

  static float scale_of(float largest) {
    float scale = largest / kSteps;
    // Subnormals are coarse: a scale that is rounded down could not reach the largest number.
    if (scale < FLT_MIN && scale * kSteps < largest) scale = std::nextafter(scale, FLT_MAX);
    // A scale that is rounded up would turn the largest float into infinity.
    if (std::isinf(scale * kSteps)) scale = std::nextafter(scale, 0.0F);
    return scale;
  }

  static void encode(const float* row, std::size_t width, std::byte* to) {
    float largest = 0;
    bool finite = true;
    for (std::size_t j = 0; j < width; ++j) {
      const float size = std::fabs(row[j]);
      finite &= size <= FLT_MAX;
      largest = std::max(largest, size);
    }
    const float scale = finite ? scale_of(largest) : NAN;
    std::memcpy(to, &scale, sizeof(scale));
    auto* out = reinterpret_cast<std::int8_t*>(to + sizeof(scale));
    if (!finite || largest == 0) {
      std::memset(out, 0, width);
      return;
    }
    // Adding and subtracting 1.5 * 2^23 rounds a small float to an integer, ties to even.
    constexpr float kRound = 12582912.0F;
    for (std::size_t j = 0; j < width; ++j) {
      const float steps = std::clamp(row[j] / scale, -kSteps, kSteps);
      out[j] = static_cast<std::int8_t>(static_cast<std::int32_t>((steps + kRound) - kRound));
    }
  }

  static void decode(const std::byte* from, std::size_t width, float* row) {
    float scale;
    std::memcpy(&scale, from, sizeof(scale));
    const auto* steps = reinterpret_cast<const std::int8_t*>(from + sizeof(scale));
    for (std::size_t j = 0; j < width; ++j) row[j] = scale * static_cast<float>(steps[j]);
  }
};

template <class Codec>
void encode_rows(const float* values, std::size_t rows, std::size_t width, std::byte* to) {
  for (std::size_t i = 0; i < rows; ++i) Codec::encode(values + i * width, width, to + i * Codec::bytes(width));
}

// out[place(i)] = row i
template <class Codec, class Place>
void decode_rows(const std::byte* from, std::size_t rows, std::size_t width, float* out, Place place) {
  for (std::size_t i = 0; i < rows; ++i) Codec::decode(from + i * Codec::bytes(width), width, out + place(i) * width);
}

}  // namespace atta
