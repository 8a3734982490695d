// Weighted in-neighbour sampling: probabilities proportional to edge weights.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "hash.hpp"
#include "sample.hpp"

namespace atta {

// One slot of Walker's alias table: the row's position `other` is taken with probability 1 - keep.
struct Alias {
  float keep;
  std::uint32_t other;
};

// Fills the alias slots of one row (Vose, "A linear algorithm for generating random numbers with a given distribution", 1991) and
// returns how many weights are positive. Throws for a weight that is no finite number >= 0.
inline std::int64_t build_alias(const double* weights, std::size_t degree, std::int64_t first_edge, Alias* out,
                                std::vector<double>& scaled, std::vector<std::uint32_t>& small, std::vector<std::uint32_t>& large) {
  double total = 0;
  std::int64_t positive = 0;
  for (std::size_t i = 0; i < degree; ++i) {
    if (!(weights[i] >= 0) || !std::isfinite(weights[i]))
      throw std::invalid_argument("weights: edge " + std::to_string(first_edge + static_cast<std::int64_t>(i)) + " weighs " +
                                  std::to_string(weights[i]) + ", must be finite and not negative");
    total += weights[i];
    positive += weights[i] > 0;
  }
  if (!std::isfinite(total)) throw std::invalid_argument("weights: the edges of one vertex weigh more than a double holds");
  small.clear(), large.clear();
  scaled.resize(degree);
  std::uint32_t heaviest = 0;
  for (std::size_t i = 0; i < degree; ++i) {
    if (weights[i] > weights[heaviest]) heaviest = static_cast<std::uint32_t>(i);
    scaled[i] = total > 0 ? weights[i] / total * static_cast<double>(degree) : 1.0;
    (scaled[i] < 1 ? small : large).push_back(static_cast<std::uint32_t>(i));
  }
  while (!small.empty() && !large.empty()) {
    const std::uint32_t less = small.back(), more = large.back();
    small.pop_back();
    out[less] = Alias{static_cast<float>(scaled[less]), more};
    scaled[more] -= 1 - scaled[less];
    if (scaled[more] < 1) {
      large.pop_back();
      small.push_back(more);
    }
  }
  for (const std::uint32_t i : large) out[i] = Alias{1, i};
  // Left over by rounding: a full slot, unless its edge must never be drawn.
  for (const std::uint32_t i : small) out[i] = weights[i] > 0 ? Alias{1, i} : Alias{0, heaviest};
  return positive;
}

// The edges of one row with what drawing from it takes.
struct WeightedRow {
  const double* weights;
  const Alias* alias;
  std::int64_t degree;
  std::int64_t positive;

  std::int64_t draw(std::uint64_t bits) const {
    const auto wide = static_cast<unsigned __int128>(bits) * static_cast<std::uint64_t>(degree);
    const auto slot = static_cast<std::size_t>(wide >> 64);
    const auto fraction = static_cast<float>(static_cast<std::uint64_t>(wide) >> 40) * 0x1.0p-24F;
    return static_cast<std::int64_t>(fraction < alias[slot].keep ? slot : alias[slot].other);
  }
};

inline constexpr std::uint64_t kTriesPerPick = 16;

// Positions in the row: `fan_out` draws with replacement, or successive sampling without (each pick with probability proportional
// to its weight among the edges left). Drawing again when an edge comes twice is exactly that; where a few edges hold nearly all
// the weight the rest is drawn from running sums.
inline void pick_weighted(const WeightedRow& row, const SampleSpec& spec, const VertexStream& stream,
                          std::vector<std::int64_t>& out, Picked& picked) {
  if (row.positive == 0 || spec.fan_out == 0) return;
  if (spec.fan_out < 0 || (!spec.replace && row.positive <= spec.fan_out)) {
    for (std::int64_t i = 0; i < row.degree; ++i)
      if (row.weights[i] > 0) out.push_back(i);
    return;
  }
  std::uint64_t draws = 0;
  const std::size_t first = out.size();
  if (spec.replace) {
    for (std::int64_t i = 0; i < spec.fan_out; ++i) out.push_back(row.draw(stream.draw(draws++)));
    return;
  }
  picked.reset(row.degree, spec.fan_out);
  const std::uint64_t most = kTriesPerPick * static_cast<std::uint64_t>(spec.fan_out);
  std::int64_t count = 0;
  while (count < spec.fan_out && draws < most) {
    const std::int64_t position = row.draw(stream.draw(draws++));
    if (picked.holds(position, out.data() + first, count)) continue;
    picked.add(position);
    out.push_back(position);
    ++count;
  }
  for (; count < spec.fan_out; ++count) {
    double left = 0;
    for (std::int64_t i = 0; i < row.degree; ++i)
      if (!picked.holds(i, out.data() + first, count)) left += row.weights[i];
    double mark = static_cast<double>(stream.draw(draws++) >> 11) * 0x1.0p-53 * left;
    std::int64_t chosen = -1;
    for (std::int64_t i = 0; i < row.degree; ++i) {
      if (row.weights[i] <= 0 || picked.holds(i, out.data() + first, count)) continue;
      chosen = i;  // the last one stays where rounding leaves a rest
      mark -= row.weights[i];
      if (mark < 0) break;
    }
    picked.add(chosen);
    out.push_back(chosen);
  }
}

}  // namespace atta
