// Compaction: internal ids -> local ids 0, 1, 2, ... in the order in which they are first seen.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "hash.hpp"

namespace atta {

class Compactor {
 public:
  explicit Compactor(std::size_t expected = 0) { rehash(std::max<std::size_t>(1024, 2 * expected)); }

  std::size_t size() const { return ids_.size(); }
  const std::vector<std::int64_t>& ids() const { return ids_; }

  void reset() {
    ids_.clear();
    std::fill(slots_.begin(), slots_.end(), Slot{kEmpty, 0});
  }

  // Local ids of `ids`, new ones appended in order.
  template <class Id>
  void insert(const Id* ids, std::size_t count, std::int32_t* local) {
    for (std::size_t block = 0; block < count; block += kAhead) {
      const std::size_t stop = std::min(count, block + kAhead);
      if (2 * (ids_.size() + kAhead) > slots_.size()) rehash(2 * slots_.size());
      std::size_t home[kAhead];
      for (std::size_t i = block; i < stop; ++i) {
        home[i - block] = hash(static_cast<std::int64_t>(ids[i]));
        __builtin_prefetch(&slots_[home[i - block]], 1);
      }
      for (std::size_t i = block; i < stop; ++i) local[i] = place(static_cast<std::int64_t>(ids[i]), home[i - block]);
    }
  }

 private:
  static constexpr std::int64_t kEmpty = -1;
  static constexpr std::size_t kAhead = 64;

  struct Slot {
    std::int64_t id;
    std::int32_t local;
  } __attribute__((packed));

  std::size_t hash(std::int64_t id) const { return static_cast<std::size_t>((static_cast<std::uint64_t>(id) * kGolden) >> shift_); }

  std::int32_t place(std::int64_t id, std::size_t slot) {
    const std::size_t mask = slots_.size() - 1;
    while (true) {
      Slot& s = slots_[slot];
      if (s.id == id) return s.local;
      if (s.id == kEmpty) {
        if (id < 0) throw std::invalid_argument("ids: id " + std::to_string(id) + " is negative");
        if (ids_.size() >= INT32_MAX) throw std::length_error("more than 2^31 - 1 vertices in one batch");
        s = Slot{id, static_cast<std::int32_t>(ids_.size())};
        ids_.push_back(id);
        return s.local;
      }
      slot = (slot + 1) & mask;
    }
  }

  void rehash(std::size_t wanted) {
    std::size_t size = 1024;
    int bits = 10;
    while (size < wanted) size *= 2, ++bits;
    shift_ = 64 - bits;
    slots_.assign(size, Slot{kEmpty, 0});
    const std::size_t mask = size - 1;
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      std::size_t slot = hash(ids_[i]);
      while (slots_[slot].id != kEmpty) slot = (slot + 1) & mask;
      slots_[slot] = Slot{ids_[i], static_cast<std::int32_t>(i)};
    }
  }

  std::vector<Slot> slots_;
  std::vector<std::int64_t> ids_;
  int shift_ = 54;
};

}  // namespace atta
