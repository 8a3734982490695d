// Weighted in-neighbour sampling: probabilities proportional to edge weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "hash.hpp"
#include "memory.hpp"
#include "parallel.hpp"
#include "sample.hpp"

namespace atta {

// One slot of Walker's alias table: the row's position `other` is taken with probability 1 - keep.
struct Alias {
  float keep;
  std::uint32_t other;
};

// Fills the alias slots of one row (Vose, "A linear algorithm for generating random numbers with a given distribution", 1991) and
// returns how many weights are positive. Throws for a weight that is not a finite number >= 0.
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
  // Rounding leaves these over. Each gets a full slot, unless its edge must never be drawn.
  for (const std::uint32_t i : small) out[i] = weights[i] > 0 ? Alias{1, i} : Alias{0, heaviest};
  return positive;
}

// The tables for drawing by weight: 16 bytes per edge, made once.
struct WeightedTables {
  const double* weights;
  const Alias* alias;
  const std::int64_t* positive;  // per row: edges of positive weight; null: all of them
};

inline constexpr std::uint64_t kTriesPerPick = 16;

// `fan_out` draws with replacement, or successive sampling without (each pick with probability proportional to its weight among
// the edges left). To draw again when an edge comes twice gives exactly this distribution. If a few edges hold nearly
// all the weight, the rest is drawn from running sums. An edge of weight 0 is never drawn.
class WeightedPicker {
 public:
  static constexpr bool kResolves = true, kKnowsSources = false;

  WeightedPicker(const SampleSpec& spec, const WeightedTables& tables) : spec_(spec), tables_(tables) {}

  void request(std::size_t row) const {
    if (tables_.positive != nullptr) __builtin_prefetch(&tables_.positive[row]);
  }

  void draw(Picks& block) const {
    for (const Target& t : block.targets) {
      if (takes_all(t)) continue;
      const std::int64_t ahead = std::min<std::int64_t>(spec_.fan_out, kBlock);
      for (std::int64_t i = 0; i < ahead; ++i)
        __builtin_prefetch(&tables_.alias[t.begin + slot_of(t, static_cast<std::uint64_t>(i)).first]);
    }
    asm volatile("");
  }

  void resolve(Picks& block) {
    for (const Target& t : block.targets) {
      found_.clear();
      if (takes_all(t))
        take_all(t);
      else if (spec_.replace)
        for (std::int64_t i = 0; i < spec_.fan_out; ++i) found_.push_back(draw_one(t, static_cast<std::uint64_t>(i)));
      else
        without_replacement(t);
      std::int64_t* mine = block.add(static_cast<std::int64_t>(found_.size()));
      for (std::size_t i = 0; i < found_.size(); ++i) mine[i] = t.begin + found_[i];
    }
  }

 private:
  std::int64_t positive(const Target& t) const { return tables_.positive != nullptr ? tables_.positive[t.row] : t.degree; }

  bool takes_all(const Target& t) const {
    return spec_.fan_out < 0 || positive(t) == 0 || (!spec_.replace && positive(t) <= spec_.fan_out);
  }

  // The alias slot of a draw and the fraction that decides which of its two edges is taken.
  static std::pair<std::int64_t, float> slot_of(const Target& t, std::uint64_t index) {
    const auto wide = static_cast<unsigned __int128>(t.stream.draw(index)) * static_cast<std::uint64_t>(t.degree);
    const float fraction = static_cast<float>(static_cast<std::uint64_t>(wide) >> 40) * 0x1.0p-24F;
    return {static_cast<std::int64_t>(wide >> 64), fraction};
  }

  std::int64_t draw_one(const Target& t, std::uint64_t index) const {
    const auto [slot, fraction] = slot_of(t, index);
    const Alias& alias = tables_.alias[t.begin + slot];
    return fraction < alias.keep ? slot : static_cast<std::int64_t>(alias.other);
  }

  void take_all(const Target& t) {
    const bool every = positive(t) == t.degree;
    for (std::int64_t i = 0; i < t.degree; ++i)
      if (every || tables_.weights[t.begin + i] > 0) found_.push_back(i);
  }

  void without_replacement(const Target& t) {
    picked_.reset(t.degree, spec_.fan_out);
    const std::uint64_t most = kTriesPerPick * static_cast<std::uint64_t>(spec_.fan_out);
    std::int64_t count = 0;
    std::uint64_t draws = 0;
    while (count < spec_.fan_out && draws < most) {
      const std::int64_t position = draw_one(t, draws++);
      if (picked_.holds(position, found_.data(), count)) continue;
      picked_.add(position);
      found_.push_back(position);
      ++count;
    }
    for (; count < spec_.fan_out; ++count) add_from_sums(t, count, t.stream.draw(draws++));
  }

  void add_from_sums(const Target& t, std::int64_t count, std::uint64_t bits) {
    const double* weights = tables_.weights + t.begin;
    double left = 0;
    for (std::int64_t i = 0; i < t.degree; ++i)
      if (!picked_.holds(i, found_.data(), count)) left += weights[i];
    double mark = static_cast<double>(bits >> 11) * 0x1.0p-53 * left;
    std::int64_t chosen = -1;
    for (std::int64_t i = 0; i < t.degree; ++i) {
      if (weights[i] <= 0 || picked_.holds(i, found_.data(), count)) continue;
      chosen = i;  // if rounding leaves a rest, the last one stays chosen
      mark -= weights[i];
      if (mark < 0) break;
    }
    picked_.add(chosen);
    found_.push_back(chosen);
  }

  SampleSpec spec_;
  WeightedTables tables_;
  Picked picked_;
  std::vector<std::int64_t> found_;
};

// The method, see method.hpp.
class Weighted {
 public:
  static constexpr bool kReadsEveryEdge = false;

  static Weighted made(Longs indptr, Doubles weights, std::size_t threads) {
    if (indptr.size() == 0) bad("indptr", "is empty");
    check_threads(threads);
    const std::size_t n = indptr.size() - 1, edges = weights.size();
    Weighted made{weights, Lines<Alias>(edges), Lines<std::int64_t>(n), true};
    std::vector<char> all(threads, 1);
    {
      nb::gil_scoped_release unlocked;
      split(by_edges({indptr.data(), n + 1}, threads), [&](std::size_t part, std::size_t a, std::size_t b) {
        std::vector<double> scaled;
        std::vector<std::uint32_t> small, large;
        for (std::size_t row = a; row < b; ++row) {
          check_rows_of(indptr, edges, row);
          const std::int64_t begin = indptr.data()[row], degree = indptr.data()[row + 1] - begin;
          made.positive_.data()[row] = build_alias(weights.data() + begin, static_cast<std::size_t>(degree), begin,
                                                   made.alias_.data() + begin, scaled, small, large);
          if (made.positive_.data()[row] != degree) all[part] = 0;
        }
      });
    }
    made.all_positive_ = std::all_of(all.begin(), all.end(), [](char c) { return c != 0; });
    return made;
  }

  std::size_t edges() const { return alias_.size(); }
  std::size_t nbytes() const { return alias_.nbytes() + positive_.nbytes() + weights_.nbytes(); }
  bool may_replace() const { return true; }

  template <class F>
  void with_picker(const SampleSpec& spec, F f) const {
    const WeightedTables tables{weights_.data(), alias_.data(), all_positive_ ? nullptr : positive_.data()};
    f([&] { return WeightedPicker(spec, tables); });
  }

  template <class Method>
  static void bind(nb::class_<Method>& methods) {
    methods.def_static(
        "weighted", [](Longs indptr, Doubles weights, std::size_t threads) { return Method(made(indptr, weights, threads)); },
        "indptr"_a, "weights"_a, "threads"_a);
  }

 private:
  Weighted(Doubles weights, Lines<Alias> alias, Lines<std::int64_t> positive, bool all)
      : weights_(std::move(weights)), alias_(std::move(alias)), positive_(std::move(positive)), all_positive_(all) {}

  Doubles weights_;
  Lines<Alias> alias_;
  Lines<std::int64_t> positive_;
  bool all_positive_;
};

}  // namespace atta
