// Numbers for ids of any size, in the order in which the ids first come; counts and orders by such numbers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "hash.hpp"
#include "memory.hpp"

namespace atta {

// Whether some number begins with a zero and has more digits: 007. Whoever reads it as 7 cannot give it back.
inline bool has_padded_number(std::span<const char> text) {
  const char* c = text.data();
  const auto digit = [c](std::size_t i) -> std::uint8_t { return static_cast<std::uint8_t>(c[i] - '0') < 10; };
  std::uint8_t found = text.size() > 1 && c[0] == '0' && digit(1);
  for (std::size_t i = 1; i + 1 < text.size(); ++i) {
    const std::uint8_t begins = (digit(i - 1) | std::uint8_t{c[i - 1] == '.'}) ^ 1;
    found |= static_cast<std::uint8_t>(begins & std::uint8_t{c[i] == '0'} & digit(i + 1));
  }
  return found != 0;
}

// Ids from 0 up to a bound are looked up in an array, which is several times faster than the hash table of all others.
class Numbering {
 public:
  // out[i]: the number of ids[i].
  void number(std::span<const std::int64_t> ids, std::int32_t* out) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + kAhead < ids.size()) prefetch(ids[i + kAhead]);
      out[i] = number_of(ids[i]);
    }
  }

  // The id of each number.
  std::span<const std::int64_t> ids() const { return ids_; }

 private:
  struct Slot {
    std::int64_t id;
    std::int32_t next;  // the number and 1; 0: the slot is free
  };
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  static constexpr std::size_t kAhead = 16;
  static constexpr std::uint64_t kDirect = std::uint64_t{1} << 27;

  void prefetch(std::int64_t id) const {
    const auto key = static_cast<std::uint64_t>(id);
    if (key < direct_size_)
      __builtin_prefetch(direct_.get() + key);
    else if (key >= kDirect && !slots_.empty())
      __builtin_prefetch(slots_.data() + (mix64(key) & (slots_.size() - 1)));
  }

  std::int32_t number_of(std::int64_t id) {
    const auto key = static_cast<std::uint64_t>(id);
    if (key >= kDirect) return hashed(id);
    if (key >= direct_size_) grow_direct(key);
    std::int32_t& next = direct_.get()[key];
    if (next == 0) next = added(id);
    return next - 1;
  }

  std::int32_t hashed(std::int64_t id) {
    if (2 * (hashed_ + 1) > slots_.size()) grow_slots();
    Slot& slot = find(id);
    if (slot.next == 0) {
      slot = {id, added(id)};
      ++hashed_;
    }
    return slot.next - 1;
  }

  std::int32_t added(std::int64_t id) {
    if (ids_.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
      throw std::length_error("more than 2147483647 different ids");
    ids_.push_back(id);
    return static_cast<std::int32_t>(ids_.size());
  }

  Slot& find(std::int64_t id) {
    std::size_t at = mix64(static_cast<std::uint64_t>(id)) & (slots_.size() - 1);
    while (slots_[at].next != 0 && slots_[at].id != id) at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }

  void grow_slots() {
    std::vector<Slot> old(std::max<std::size_t>(1024, 2 * slots_.size()));
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.next != 0) find(slot.id) = slot;
  }

  // calloc: pages of ids that never come take no memory.
  void grow_direct(std::uint64_t key) {
    const std::size_t size = std::max<std::size_t>(1024, std::bit_ceil(key + 1));
    std::unique_ptr<std::int32_t, Free> wider(static_cast<std::int32_t*>(std::calloc(size, sizeof(std::int32_t))));
    if (!wider) throw std::bad_alloc();
    for (const std::int64_t id : ids_)
      if (static_cast<std::uint64_t>(id) < direct_size_) wider.get()[id] = direct_.get()[id];
    direct_ = std::move(wider);
    direct_size_ = size;
  }

  std::vector<std::int64_t> ids_;
  std::unique_ptr<std::int32_t, Free> direct_;
  std::size_t direct_size_ = 0;
  std::vector<Slot> slots_;
  std::size_t hashed_ = 0;
};

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
template <class Index, class Value>
void sort_groups(const std::vector<Index>& ends, const Value* values, Index* order) {
  std::vector<std::pair<Value, Index>> group;
  Index first = 0;
  for (const Index end : ends) {
    group.clear();
    for (Index i = first; i < end; ++i) group.emplace_back(values[order[i]], order[i]);
    std::sort(group.begin(), group.end());
    for (const auto& [value, position] : group) order[first++] = position;
  }
}

// The positions of `keys` by (key, value, position), for values that are not negative. A value and its position are one
// number, so that sorting reads nothing at random.
template <class Key>
void order_by_key_and_value(std::span<const Key> keys, std::size_t bound, const std::int32_t* values, std::int32_t* order) {
  std::vector<std::size_t> next(bound + 1, 0);
  each_below(keys, bound, [&](std::size_t, std::size_t key) { ++next[key + 1]; });
  std::partial_sum(next.begin(), next.end(), next.begin());
  Lines<std::uint64_t> packed(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i)
    packed.data()[next[static_cast<std::size_t>(keys[i])]++] = static_cast<std::uint64_t>(values[i]) << 32 | i;
  std::size_t first = 0;
  for (std::size_t key = 0; key < bound; first = next[key++]) std::sort(packed.data() + first, packed.data() + next[key]);
  for (std::size_t i = 0; i < keys.size(); ++i) order[i] = static_cast<std::int32_t>(packed.data()[i]);
}

}  // namespace atta
