// Counting and ordering by small numbers: ids of vertices, numbers of buckets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace atta {

// Calls f(i, id) for every id; throws if one is not below `bound`.
template <class Id, class F>
void each_below(std::span<const Id> ids, std::size_t bound, F f) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (static_cast<std::uint64_t>(ids[i]) >= bound) throw std::invalid_argument("ids: must lie below their bound");
    f(i, static_cast<std::size_t>(ids[i]));
  }
}

// Adds to each total the sum of its id's values. The sum is formed first, from 0, so that pieces round as one by one.
// `scratch` has a zero for each id, before and after.
template <class Id>
void add_sums(std::span<const Id> ids, const double* values, std::span<double> totals, double* scratch) {
  each_below(ids, totals.size(), [&](std::size_t, std::size_t) {});
  for (std::size_t i = 0; i < ids.size(); ++i) scratch[ids[i]] += values[i];
  for (const Id id : ids) totals[static_cast<std::size_t>(id)] += std::exchange(scratch[id], 0.0);
}

// Writes the positions of `keys` by key; those of one key keep their order. Returns where the positions of each key end.
template <class Key, class Index>
std::vector<Index> order_by_key(std::span<const Key> keys, std::size_t bound, Index* order) {
  std::vector<Index> next(bound + 1, 0);
  each_below(keys, bound, [&](std::size_t, std::size_t key) { ++next[key + 1]; });
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (std::size_t i = 0; i < keys.size(); ++i) order[next[static_cast<std::size_t>(keys[i])]++] = static_cast<Index>(i);
  next.pop_back();
  return next;
}

// Sorts each group of positions by (value, position).
template <class Index>
void sort_groups(const std::vector<Index>& ends, const std::int64_t* values, Index* order) {
  std::vector<std::pair<std::int64_t, Index>> group;
  Index first = 0;
  for (const Index end : ends) {
    group.clear();
    for (Index i = first; i < end; ++i) group.emplace_back(values[order[i]], order[i]);
    std::sort(group.begin(), group.end());
    for (const auto& [value, position] : group) order[first++] = position;
  }
}

}  // namespace atta
