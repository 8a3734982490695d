// The index of the remote rows that are cached because they were asked for lately. The rows themselves lie in arrays of
// Python. atta.kvstore.cache.rows describes the policy.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "hash.hpp"

namespace atta {

// Remembers which ids have been seen, and forgets them after `window` to 2 * `window` other ids. It keeps a bit per
// hashed id, in two generations.
class Sightings {
 public:
  explicit Sightings(std::size_t window)
      : window_(std::max<std::size_t>(1, window)),
        bits_(std::bit_ceil(std::max<std::size_t>(64, 8 * window_))),
        now_(bits_ / 64),
        before_(bits_ / 64) {}

  // Notes a sighting. Returns whether the id was seen before. Other ids may share the bit: at most about one in eight.
  bool again(std::int64_t id) {
    const std::uint64_t bit = mix64(static_cast<std::uint64_t>(id)) & (bits_ - 1), mask = std::uint64_t{1} << (bit % 64);
    if (now_[bit / 64] & mask) return true;
    const bool known = before_[bit / 64] & mask;
    now_[bit / 64] |= mask;
    if (++noted_ == window_) {
      std::swap(now_, before_);
      std::fill(now_.begin(), now_.end(), 0);
      noted_ = 0;
    }
    return known;
  }

 private:
  std::size_t window_, bits_, noted_ = 0;
  std::vector<std::uint64_t> now_, before_;
};

// Ids in a bounded number of slots. A slot with pins (rows are being copied from it or into it) never changes its id.
// Many threads may call all methods. Rows are copied outside the mutex; the state read under the mutex and the pins
// keep these copies in order.
class RecentIndex {
 public:
  static constexpr std::int32_t kNone = -1;

  // `offsets`: the owners' ranges of ids. `quiet`: number of pulls from its owner after which a row that none of them
  // asked for may lose its slot.
  RecentIndex(std::size_t slots, std::size_t window, std::size_t quiet, std::vector<std::int64_t> offsets)
      : quiet_(static_cast<std::uint32_t>(quiet)),
        offsets_(std::move(offsets)),
        pulls_(offsets_.size() - 1),
        table_(std::bit_ceil(2 * slots + 2), kNone),
        slots_(slots),
        sightings_(window) {}

  std::size_t capacity() const { return slots_.size(); }
  std::size_t parts() const { return pulls_.size(); }
  std::int64_t base(std::size_t owner) const { return offsets_[owner]; }
  std::int64_t end() const { return offsets_.back(); }

  // One pull from every owner p with rows: ids[starts[p]] to ids[starts[p + 1]]. If all bits of `need` are there,
  // found[i] is the slot of ids[i], and the slot is now pinned. Otherwise found[i] is kNone. Then tickets[i] is the id if
  // the row should be kept when it comes, else kNone. Returns the number of rows found.
  std::size_t look_up(std::span<const std::int64_t> ids, std::span<const std::int64_t> starts, std::uint8_t need,
                      std::int32_t* found, std::int64_t* tickets) {
    const std::lock_guard<std::mutex> held(mutex_);
    std::size_t hits = 0, room = slots_.size() - used_, i = 0;
    for (std::size_t owner = 0; owner < parts(); ++owner) {
      const auto stop = static_cast<std::size_t>(starts[owner + 1]);
      if (i == stop) continue;
      const std::uint32_t pull = ++pulls_[owner];
      for (; i < stop; ++i) {
        if (i + kAhead < ids.size()) __builtin_prefetch(&table_[home(ids[i + kAhead])]);
        const std::int64_t id = ids[i];
        const std::int32_t at = find(id);
        found[i] = tickets[i] = kNone;
        if (at != kNone) {
          Slot& slot = slots_[static_cast<std::size_t>(at)];
          slot.pull = pull;
          if ((slot.present & need) == need)
            ++slot.pins, ++hits, found[i] = at;
          else
            tickets[i] = id;
        } else if (sightings_.again(id)) {
          tickets[i] = id;
        } else if (room > 0) {
          tickets[i] = id, --room;
        }
      }
    }
    return hits;
  }

  // Gives pinned slots to ids whose rows have come, and says in `todo` which of `bits` the caller must write there. A
  // slot kNone: write nothing.
  void reserve(std::span<const std::int64_t> ids, std::uint8_t bits, std::int32_t* slots, std::uint8_t* todo) {
    const std::lock_guard<std::mutex> held(mutex_);
    std::size_t looked_at = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      slots[i] = kNone, todo[i] = 0;
      std::int32_t at = find(ids[i]);
      if (at == kNone && (at = take(looked_at)) != kNone) settle(ids[i], at);
      if (at == kNone) continue;
      Slot& slot = slots_[static_cast<std::size_t>(at)];
      todo[i] = static_cast<std::uint8_t>(bits & ~(slot.present | slot.coming));
      if (todo[i] == 0) continue;  // it is here, or another thread is writing it
      slot.coming |= todo[i], ++slot.pins, slots[i] = at;
    }
  }

  // Call it after the rows of `reserve` are written; `written` is false if they could not be. Slots are in range or
  // kNone.
  void publish(std::span<const std::int32_t> slots, const std::uint8_t* todo, bool written) {
    const std::lock_guard<std::mutex> held(mutex_);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] == kNone) continue;
      Slot& slot = slots_[static_cast<std::size_t>(slots[i])];
      slot.coming &= static_cast<std::uint8_t>(~todo[i]);
      if (written) slot.present |= todo[i];
      --slot.pins;
    }
  }

  // Call it after the rows that `look_up` found are copied. Slots are in range.
  void unpin(std::span<const std::int32_t> slots) {
    const std::lock_guard<std::mutex> held(mutex_);
    for (const std::int32_t at : slots) --slots_[static_cast<std::size_t>(at)].pins;
  }

  // The id of each slot, and the tables whose rows are there.
  std::vector<std::pair<std::int64_t, std::uint8_t>> content() {
    const std::lock_guard<std::mutex> held(mutex_);
    std::vector<std::pair<std::int64_t, std::uint8_t>> all;
    for (std::size_t i = 0; i < used_; ++i) all.emplace_back(slots_[i].id, slots_[i].present);
    return all;
  }

 private:
  static constexpr std::size_t kAhead = 16;

  struct Slot {
    std::int64_t id;
    std::uint32_t owner, pull;  // whose row, and the last pull from there that asked for it
    std::uint32_t pins;
    std::uint8_t present, coming;  // bit i: the row of table i is here, is being written
  };

  std::size_t home(std::int64_t id) const { return mix64(static_cast<std::uint64_t>(id)) & (table_.size() - 1); }

  std::int32_t find(std::int64_t id) const {
    for (std::size_t at = home(id);; at = (at + 1) & (table_.size() - 1)) {
      const std::int32_t slot = table_[at];
      if (slot == kNone || slots_[static_cast<std::size_t>(slot)].id == id) return slot;
    }
  }

  // A slot without an id: a fresh one, else the next one without pins that its owner's last pulls have not asked for.
  // The search goes round all slots at most once per `looked_at`.
  std::int32_t take(std::size_t& looked_at) {
    if (used_ < slots_.size()) return static_cast<std::int32_t>(used_++);
    for (; looked_at < slots_.size(); ++looked_at) {
      const std::size_t at = hand_;
      hand_ = at + 1 == slots_.size() ? 0 : at + 1;
      const Slot& slot = slots_[at];
      if (slot.pins > 0 || pulls_[slot.owner] - slot.pull < quiet_) continue;
      forget(slot.id);
      ++looked_at;
      return static_cast<std::int32_t>(at);
    }
    return kNone;
  }

  void settle(std::int64_t id, std::int32_t at) {
    const auto above = std::upper_bound(offsets_.begin(), offsets_.end(), id);
    const auto owner = static_cast<std::uint32_t>(above - offsets_.begin() - 1);
    slots_[static_cast<std::size_t>(at)] = {id, owner, pulls_[owner], 0, 0, 0};
    std::size_t place = home(id);
    while (table_[place] != kNone) place = (place + 1) & (table_.size() - 1);
    table_[place] = at;
  }

  // Removes an id from the hash table and moves later entries back, so that searches need no tombstones.
  void forget(std::int64_t id) {
    const std::size_t mask = table_.size() - 1;
    std::size_t gap = home(id);
    while (slots_[static_cast<std::size_t>(table_[gap])].id != id) gap = (gap + 1) & mask;
    for (std::size_t at = (gap + 1) & mask; table_[at] != kNone; at = (at + 1) & mask) {
      const std::size_t wanted = home(slots_[static_cast<std::size_t>(table_[at])].id);
      if (((at - wanted) & mask) < ((at - gap) & mask)) continue;  // the gap lies before its home
      table_[gap] = table_[at];
      gap = at;
    }
    table_[gap] = kNone;
  }

  std::mutex mutex_;
  std::uint32_t quiet_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::uint32_t> pulls_;  // per owner
  std::vector<std::int32_t> table_;   // open addressing: slots by hashed id
  std::vector<Slot> slots_;
  Sightings sightings_;
  std::size_t used_ = 0, hand_ = 0;
};

}  // namespace atta
