// What is known of batches whose rows have not been looked up yet. atta.kvstore.cache.rows describes what for.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "hash.hpp"

namespace atta {

// The ids that batches will ask for. A batch is known by its turn: lower turns look up earlier. Not thread-safe.
class Window {
 public:
  static constexpr int kMost = 32;  // batches at a time; further ones are not noted
  static constexpr int kNever = kMost;

  // The batch of this turn will ask for these ids, each at most once.
  void expect(std::int64_t turn, std::span<const std::int64_t> ids) {
    const int at = ids.empty() ? -1 : place_of(turn);
    if (at < 0) return;
    Batch& batch = batches_[static_cast<std::size_t>(at)];
    batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
    make_room(ids.size());
    for (const std::int64_t id : ids) {
      Entry& entry = entry_of(id);
      if (entry.id != id) entry = {id, 0}, ++used_;
      entry.batches |= std::uint32_t{1} << at;
    }
  }

  // The batch of this turn will ask for nothing more.
  void close(std::int64_t turn) {
    for (int at = 0; at < kMost; ++at) {
      Batch& batch = batches_[static_cast<std::size_t>(at)];
      if (!(open_ >> at & 1) || batch.turn != turn) continue;
      for (const std::int64_t id : batch.ids)
        if (Entry& entry = entry_of(id); entry.id == id) entry.batches &= ~(std::uint32_t{1} << at);
      batch.ids = {}, open_ &= ~(std::uint32_t{1} << at);
    }
  }

  bool empty() const { return open_ == 0; }

  // The batch of this turn looks up: what earlier ones ask for does not count any more.
  void turn(std::int64_t now) {
    for (int at = 0; at < kMost; ++at) {
      const auto later = [&](int of) { return (open_ >> of & 1) && turn_of(of) > now; };
      auto& wait = waits_[static_cast<std::size_t>(at)] = later(at) ? 0 : kNever;
      for (int other = 0; wait != kNever && other < kMost; ++other) wait += later(other) && turn_of(other) < turn_of(at);
    }
  }

  // How many batches of the window look up before the next one that asks for the id; kNever: none asks for it. Not while
  // the window is empty.
  int wait(std::int64_t id) const {
    const Entry& entry = entries_[home(id)];
    int least = kNever;
    if (entry.id == id)
      for (std::uint32_t asking = entry.batches; asking != 0; asking &= asking - 1)
        least = std::min(least, waits_[static_cast<std::size_t>(std::countr_zero(asking))]);
    return least;
  }
  // `wait` will be called for this id soon.
  void request(std::int64_t id) const {
    if (!entries_.empty()) __builtin_prefetch(&entries_[first(id)]);
  }

 private:
  static constexpr std::int64_t kNone = -1;
  struct Batch {
    std::int64_t turn = 0;
    std::vector<std::int64_t> ids;
  };
  struct Entry {
    std::int64_t id;
    std::uint32_t batches;  // bit i: the one at place i
  };

  // A batch's place; -1: all are taken.
  int place_of(std::int64_t turn) {
    for (int at = 0; at < kMost; ++at)
      if ((open_ >> at & 1) && turn_of(at) == turn) return at;
    const int at = std::countr_one(open_);
    if (at == kMost) return -1;
    open_ |= std::uint32_t{1} << at, batches_[static_cast<std::size_t>(at)].turn = turn;
    return at;
  }

  std::int64_t turn_of(int at) const { return batches_[static_cast<std::size_t>(at)].turn; }
  std::size_t first(std::int64_t id) const { return mix64(static_cast<std::uint64_t>(id)) & (entries_.size() - 1); }

  // Where an id is, or would be.
  std::size_t home(std::int64_t id) const {
    std::size_t at = first(id);
    while (entries_[at].id != id && entries_[at].id != kNone) at = (at + 1) & (entries_.size() - 1);
    return at;
  }
  Entry& entry_of(std::int64_t id) { return entries_[home(id)]; }

  // So many more ids fit. Those that no batch asks for any more go.
  void make_room(std::size_t more) {
    if (2 * (used_ + more) <= entries_.size()) return;
    std::vector<Entry> before;
    before.swap(entries_);
    std::size_t live = 0;
    for (const Entry& entry : before) live += entry.id != kNone && (entry.batches & open_) != 0;
    entries_.assign(std::bit_ceil(3 * (live + more)), Entry{kNone, 0});
    used_ = 0;
    for (const Entry& entry : before)
      if (entry.id != kNone && (entry.batches & open_) != 0) entry_of(entry.id) = entry, ++used_;
  }

  std::array<Batch, kMost> batches_;
  std::array<int, kMost> waits_{};  // of each batch, see `wait`
  std::uint32_t open_ = 0;          // bit i: the i-th place is taken
  std::vector<Entry> entries_;      // open addressing, at most half of it used
  std::size_t used_ = 0;
};

}  // namespace atta
