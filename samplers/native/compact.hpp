// Compaction: internal ids -> local ids 0, 1, 2, ... in the order in which they are first seen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "hash.hpp"
#include "memory.hpp"

namespace atta {

// One of two tables: a direct one (4 bytes per vertex of the graph) if it is small enough to stay near the caches, else
// one with open addressing, which holds the lower half of each id (all of it, if the graph is small enough). Both are
// reused from batch to batch and never cleared: each batch counts on from the end of the previous one.
class Compactor {
 public:
  static constexpr std::size_t kDirectLimit = std::size_t{1} << 24;  // vertices; 64 MiB

  // `num_ids`: all ids are below this number; 0 = unknown.
  explicit Compactor(std::size_t num_ids = 0) : halves_(num_ids > 0 && num_ids - 1 <= UINT32_MAX) {
    if (num_ids > 0 && num_ids <= kDirectLimit)
      direct_.assign(num_ids, kNone);
    else
      rehash(1024);
  }

  std::size_t size() const { return size_; }
  std::size_t limit() const { return direct_.size(); }  // ids must be below it; 0: no limit
  std::span<const std::int64_t> ids() const { return {ids_.data(), size_}; }

  void reset() {
    base_ += static_cast<std::int32_t>(size_);  // every entry of the table is now below it
    size_ = 0;
    if (base_ < INT32_MAX / 2) return;
    std::fill(direct_.begin(), direct_.end(), kNone);
    std::fill(slots_.begin(), slots_.end(), Slot{0, kNone});
    base_ = 0;
  }

  // Local id of `id`, -1 if it was never inserted. Safe from many threads while no thread inserts.
  std::int32_t find(std::int64_t id) const {
    if (!direct_.empty()) {
      if (static_cast<std::uint64_t>(id) >= direct_.size()) return kNone;
      const std::int32_t entry = direct_[static_cast<std::size_t>(id)];
      return entry < base_ ? kNone : entry - base_;
    }
    if (too_long(id)) return kNone;
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t slot = hash(id);; slot = (slot + 1) & mask) {
      if (slots_[slot].entry < base_) return kNone;
      if (holds(slots_[slot], id)) return slots_[slot].entry - base_;
    }
  }

  // Requests the cache line that `find(id)` reads first.
  void request(std::int64_t id) const {
    if (direct_.empty())
      __builtin_prefetch(&slots_[hash(id)]);
    else if (static_cast<std::uint64_t>(id) < direct_.size())
      __builtin_prefetch(&direct_[static_cast<std::size_t>(id)]);
    asm volatile("");  // else GCC takes this for a function without effects and drops it
  }

  // Requests, for writing, the memory that `number` will touch for an id in range.
  void request_entry(std::int64_t id) { request_entries(&id, 1); }

  // The same for several ids.
  template <class Id>
  void request_entries(const Id* ids, std::size_t count) {
    if (direct_.empty()) {
      for (std::size_t i = 0; i < count; ++i) request_for_write(&slots_[hash(static_cast<std::int64_t>(ids[i]))]);
    } else {
      for (std::size_t i = 0; i < count; ++i) request_for_write(&direct_[static_cast<std::size_t>(ids[i])]);
    }
  }

  // As `insert`, for ids that are known to be in range and have been requested already.
  template <class Id>
  void number(const Id* ids, std::size_t count, std::int32_t* local) {
    if (direct_.empty()) {
      while (crowded(size_ + count)) rehash(2 * slots_.size());
      for (std::size_t i = 0; i < count; ++i)
        local[i] = place(static_cast<std::int64_t>(ids[i]), hash(static_cast<std::int64_t>(ids[i])));
      return;
    }
    // The processor cannot predict whether an id is new, so there is no branch: its number is written in any case. The
    // choice is made by bits, because GCC turns a condition into a branch here, which took a quarter of all sampling.
    // What does not change is in variables: else it would be read again after each store.
    make_room(count);
    std::int64_t* next = ids_.data() + size_;
    std::int32_t* const direct = direct_.data();
    const std::int32_t base = base_;
    auto entry_of_next = base + static_cast<std::int32_t>(size_);
    for (std::size_t i = 0; i < count; ++i) {
      const auto id = static_cast<std::size_t>(ids[i]);
      const std::int32_t before = direct[id];
      const std::int32_t fresh = (before - base) >> 31;  // all bits, or none
      const std::int32_t entry = before ^ ((before ^ entry_of_next) & fresh);
      *next = static_cast<std::int64_t>(id);
      direct[id] = entry;
      local[i] = entry - base;
      next -= fresh;
      entry_of_next -= fresh;
    }
    size_ = static_cast<std::size_t>(next - ids_.data());
  }

  // Local ids of `ids`. New ids are appended in order. `local` may be the memory of `ids` itself.
  template <class Id>
  void insert(const Id* ids, std::size_t count, std::int32_t* local) {
    direct_.empty() ? insert_hashed(ids, count, local) : insert_direct(ids, count, local);
  }

 private:
  static constexpr std::int32_t kNone = -1;
  static constexpr std::size_t kAhead = 64;  // lines requested together

  struct Slot {
    std::uint32_t half;  // the lower half of the id
    std::int32_t entry;  // base_ + local id; below base_: free
  };

  // Whether half of `id` says too little, although it is to say all.
  bool too_long(std::int64_t id) const { return halves_ && static_cast<std::uint64_t>(id) > UINT32_MAX; }

  // Whether a slot of this batch is that of `id`.
  bool holds(const Slot& slot, std::int64_t id) const {
    return slot.half == static_cast<std::uint32_t>(id) && (halves_ || ids_[static_cast<std::size_t>(slot.entry - base_)] == id);
  }

  std::int32_t append(std::int64_t id) {
    if (size_ >= INT32_MAX / 2) throw std::length_error("more than 2^30 vertices in one batch");
    make_room(1);
    ids_[size_++] = id;
    return static_cast<std::int32_t>(size_ - 1);
  }

  void make_room(std::size_t count) {
    if (size_ + count > ids_.size()) ids_.resize(std::max(size_ + count, 2 * ids_.size()));
  }

  template <class Id>
  void insert_direct(const Id* ids, std::size_t count, std::int32_t* local) {
    const std::size_t limit = direct_.size();
    const auto outside = [limit](Id id) { return static_cast<std::uint64_t>(id) >= limit; };
    bool any = false;  // without a branch per id
    for (std::size_t i = 0; i < count; ++i) any |= outside(ids[i]);
    if (any)
      throw std::invalid_argument("ids: id " + std::to_string(*std::find_if(ids, ids + count, outside)) + " is outside 0.." +
                                  std::to_string(limit - 1));
    for (std::size_t i = 0; i < std::min(count, kAhead); ++i) request_entry(static_cast<std::int64_t>(ids[i]));
    for (std::size_t at = 0; at < count; at += kAhead) {
      const std::size_t stop = std::min(count, at + kAhead);
      for (std::size_t i = stop; i < std::min(count, stop + kAhead); ++i) request_entry(static_cast<std::int64_t>(ids[i]));
      number(ids + at, stop - at, local + at);
    }
  }

  template <class Id>
  void insert_hashed(const Id* ids, std::size_t count, std::int32_t* local) {
    for (std::size_t block = 0; block < count; block += kAhead) {
      const std::size_t stop = std::min(count, block + kAhead);
      if (crowded(size_ + kAhead)) rehash(2 * slots_.size());
      std::size_t home[kAhead];
      for (std::size_t i = block; i < stop; ++i) {
        if (too_long(static_cast<std::int64_t>(ids[i])))
          throw std::invalid_argument("ids: id " + std::to_string(ids[i]) + " is negative, or not in the graph");
        home[i - block] = hash(static_cast<std::int64_t>(ids[i]));
        request_for_write(&slots_[home[i - block]]);
      }
      for (std::size_t i = block; i < stop; ++i) local[i] = place(static_cast<std::int64_t>(ids[i]), home[i - block]);
    }
  }

  // The table is at most three quarters full. Probing stays short, and the table stays about as large as the batch.
  bool crowded(std::size_t ids) const { return 4 * ids > 3 * slots_.size(); }

  std::size_t hash(std::int64_t id) const { return static_cast<std::size_t>((static_cast<std::uint64_t>(id) * kGolden) >> shift_); }

  std::int32_t place(std::int64_t id, std::size_t slot) {
    const std::size_t mask = slots_.size() - 1;
    while (true) {
      Slot& s = slots_[slot];
      if (s.entry < base_) {
        if (id < 0) throw std::invalid_argument("ids: id " + std::to_string(id) + " is negative");
        s = Slot{static_cast<std::uint32_t>(id), base_ + append(id)};
        return s.entry - base_;
      }
      if (holds(s, id)) return s.entry - base_;
      slot = (slot + 1) & mask;
    }
  }

  void rehash(std::size_t wanted) {
    std::size_t size = 1024;
    int bits = 10;
    while (size < wanted) size *= 2, ++bits;
    shift_ = 64 - bits;
    slots_.assign(size, Slot{0, kNone});
    const std::size_t mask = size - 1;
    for (std::size_t i = 0; i < size_; ++i) {
      std::size_t slot = hash(ids_[i]);
      while (slots_[slot].entry >= base_) slot = (slot + 1) & mask;
      slots_[slot] = Slot{static_cast<std::uint32_t>(ids_[i]), base_ + static_cast<std::int32_t>(i)};
    }
  }

  std::vector<std::int32_t, LinesAllocator<std::int32_t>> direct_;  // base_ + local id; below base_: not in this batch
  std::int32_t base_ = 0;
  std::vector<Slot, LinesAllocator<Slot>> slots_;
  std::vector<std::int64_t> ids_;  // the first `size_` count
  std::size_t size_ = 0;
  int shift_ = 54;
  const bool halves_;  // the lower half of an id is all of it
};

}  // namespace atta
