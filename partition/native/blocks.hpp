// ByteGNN's blocks (section 4.2 of its description): vertices near a labelled vertex stay together.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "streaming.hpp"

namespace atta {

inline constexpr std::size_t kLabels = 3;  // train, val, test
inline constexpr double kRounding = 1e-9;  // smaller differences count as 0: a full partition has room 0 up to rounding

// Breadth-first search from all centres at once, one hop per round. A vertex keeps the first block that reaches it. If
// several reach it in one round, the smallest number wins. Returns the block of each vertex, -1 beyond `hops`.
template <class Id>
std::vector<std::int64_t> grow_blocks(const Csr<Id>& graph, std::span<const std::int64_t> centres, std::int64_t hops) {
  std::vector<std::int64_t> block(graph.size(), -1), frontier, reached;
  for (std::size_t b = 0; b < centres.size(); ++b) {
    block[static_cast<std::size_t>(centres[b])] = static_cast<std::int64_t>(b);
    frontier.push_back(centres[b]);
  }
  std::vector<std::int64_t> found(graph.size(), -1);
  for (std::int64_t hop = 0; hop < hops && !frontier.empty(); ++hop) {
    reached.clear();
    for (const std::int64_t v : frontier)
      for (const Id u : graph.row(static_cast<std::size_t>(v))) {
        const auto at = static_cast<std::size_t>(u);
        if (block[at] >= 0) continue;
        const std::int64_t mine = block[static_cast<std::size_t>(v)];
        if (found[at] < 0) reached.push_back(static_cast<std::int64_t>(at));
        if (found[at] < 0 || mine < found[at]) found[at] = mine;
      }
    for (const std::int64_t u : reached) block[static_cast<std::size_t>(u)] = found[static_cast<std::size_t>(u)];
    frontier.swap(reached);
  }
  return block;
}

struct BlockRule {
  std::array<double, kLabels> share;  // alpha, beta, gamma: they sum to 1
  double smooth;                      // added to the cross edges per vertex: a partition without any can win too
};

// Assigns blocks to partitions: blocks with the most labelled vertices first, ties by size. Each block goes to the
// partition with the largest product of cross edges per vertex and free room for labelled vertices. A partition without
// room gets no block while another has room. Vertices without a block keep -1.
template <class Id>
std::vector<std::int32_t> assign_blocks(const Csr<Id>& graph, std::span<const std::int64_t> block, std::size_t blocks,
                                        std::span<const std::int8_t> labels, std::size_t parts, const BlockRule& rule) {
  const std::size_t n = graph.size();
  std::vector<std::int64_t> starts(blocks + 1, 0), members(n);
  std::vector<std::array<std::int64_t, kLabels>> labelled(blocks, {0, 0, 0});
  std::array<std::int64_t, kLabels> total{0, 0, 0};
  for (std::size_t v = 0; v < n; ++v) {
    if (block[v] >= 0) ++starts[static_cast<std::size_t>(block[v]) + 1];
    for (std::size_t k = 0; k < kLabels; ++k) {
      total[k] += labels[v * kLabels + k];
      if (block[v] >= 0) labelled[static_cast<std::size_t>(block[v])][k] += labels[v * kLabels + k];
    }
  }
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  std::vector<std::int64_t> next(starts.begin(), starts.end());
  for (std::size_t v = 0; v < n; ++v)
    if (block[v] >= 0) members[static_cast<std::size_t>(next[static_cast<std::size_t>(block[v])]++)] = static_cast<std::int64_t>(v);

  std::vector<std::size_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  const auto most = [&](std::size_t b) { return *std::max_element(labelled[b].begin(), labelled[b].end()); };
  const auto size = [&](std::size_t b) { return starts[b + 1] - starts[b]; };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (most(a) != most(b)) return most(a) > most(b);
    if (size(a) != size(b)) return size(a) > size(b);
    return a < b;
  });

  std::vector<std::int32_t> owners(n, -1);
  std::vector<std::int64_t> held(parts, 0);
  std::vector<std::array<std::int64_t, kLabels>> held_labels(parts, {0, 0, 0});
  Tally cross(parts);
  for (const std::size_t b : order) {
    for (std::int64_t at = starts[b]; at < starts[b + 1]; ++at)
      for (const Id u : graph.row(static_cast<std::size_t>(members[static_cast<std::size_t>(at)])))
        cross.count(owners[static_cast<std::size_t>(u)]);
    std::size_t best = parts;
    double best_value = 0, best_room = 0;
    for (std::size_t part = 0; part < parts; ++part) {
      double room = 1;
      for (std::size_t k = 0; k < kLabels; ++k)
        if (total[k] > 0)
          room -= rule.share[k] * static_cast<double>(held_labels[part][k]) * static_cast<double>(parts) /
                  static_cast<double>(total[k]);
      const double edges = static_cast<double>(cross[part]) / static_cast<double>(std::max<std::int64_t>(1, held[part]));
      const double value = (rule.smooth + edges) * std::max(room, 0.0);
      const auto differ = [](double x, double y) { return std::abs(x - y) > kRounding; };
      const bool full = room < -kRounding, best_full = best_room < -kRounding;
      const bool better = best == parts || (full != best_full           ? best_full
                                            : differ(value, best_value) ? value > best_value
                                            : differ(room, best_room)   ? room > best_room
                                                                        : held[part] < held[best]);
      if (better) best = part, best_value = value, best_room = room;
    }
    for (std::int64_t at = starts[b]; at < starts[b + 1]; ++at)
      owners[static_cast<std::size_t>(members[static_cast<std::size_t>(at)])] = static_cast<std::int32_t>(best);
    held[best] += size(b);
    for (std::size_t k = 0; k < kLabels; ++k) held_labels[best][k] += labelled[b][k];
    cross.clear();
  }
  return owners;
}

}  // namespace atta
