// 16-bit floats in plain integer and float32 arithmetic, rounded to nearest, ties to even. They need no processor
// extension, and loops over these functions vectorise. NaNs become quiet NaNs.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace atta {

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

}  // namespace atta
