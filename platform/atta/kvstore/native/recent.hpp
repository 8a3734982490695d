// The index of the remote rows that are cached because they were asked for lately. The rows themselves lie in arrays of
// Python. atta.kvstore.cache.rows describes the policy.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "hash.hpp"

namespace atta {

// How often ids were seen, where a sighting counts half as much after `half_life` further ones. A new sighting counts more
// instead of old ones counting less, so that nothing must be rewritten but for a rare rescaling. A count-min sketch with
// conservative updates (Estan and Varghese, "New directions in traffic measurement and accounting", SIGCOMM 2002).
class Heat {
 public:
  explicit Heat(std::size_t half_life)
      : per_sighting_(1.0 / static_cast<double>(std::max<std::size_t>(1, half_life))),
        cells_(std::bit_ceil(std::max<std::size_t>(4096, half_life))) {}

  // So many sightings follow. Returns the factor by which all heats have been scaled down.
  float begin(std::size_t sightings) {
    now_ += static_cast<double>(sightings) * per_sighting_;
    float scale = 1;
    if (now_ > kMost) {
      scale = std::exp2(-static_cast<float>(kMost)), now_ -= kMost;
      for (float& cell : cells_) cell *= scale;
    }
    gain_ = std::exp2(static_cast<float>(now_));
    return scale;
  }

  void request(std::int64_t id) const {
    const auto [first, second] = cells_of(id);
    __builtin_prefetch(&cells_[first]);
    __builtin_prefetch(&cells_[second]);
  }
  // The smaller of two cells, as few ids share both with others.
  float of(std::int64_t id) const {
    const auto [first, second] = cells_of(id);
    return std::min(cells_[first], cells_[second]);
  }
  float seen(std::int64_t id) {
    const auto [first, second] = cells_of(id);
    const float heat = std::min(cells_[first], cells_[second]) + gain_;
    cells_[first] = std::max(cells_[first], heat), cells_[second] = std::max(cells_[second], heat);
    return heat;
  }

 private:
  static constexpr double kMost = 32;  // half-lives
  std::pair<std::size_t, std::size_t> cells_of(std::int64_t id) const {
    const std::uint64_t hash = mix64(static_cast<std::uint64_t>(id));
    return {hash & (cells_.size() - 1), (hash >> 32) & (cells_.size() - 1)};
  }

  double per_sighting_, now_ = 0;
  float gain_ = 1;
  std::vector<float> cells_;
};

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

// Ids in a bounded number of slots. A slot with pins (rows are being copied from it or into it) never changes its id.
// Many threads may call all methods. Rows are copied outside the mutex; the state read under the mutex and the pins
// keep these copies in order.
class RecentIndex {
 public:
  static constexpr std::int32_t kNone = -1;

  // `offsets`: the owners' ranges of ids. `half_life`: see `Heat`.
  RecentIndex(std::size_t slots, std::size_t half_life, std::vector<std::int64_t> offsets)
      : offsets_(std::move(offsets)), table_(std::bit_ceil(2 * slots + 2), kNone), slots_(slots), heat_(half_life) {}

  std::size_t capacity() const { return slots_.size(); }
  std::size_t parts() const { return offsets_.size() - 1; }
  std::int64_t base(std::size_t owner) const { return offsets_[owner]; }
  std::int64_t end() const { return offsets_.back(); }

  // If all bits of `need` are there, found[i] is the slot of ids[i], and the slot is now pinned. Otherwise found[i] is
  // kNone. Then tickets[i] is the id if the row should be kept when it comes, else kNone. Returns the number of rows found.
  // `turn`: of the batch that asks, as in `expect`.
  std::size_t look_up(std::span<const std::int64_t> ids, std::uint8_t need, std::int64_t turn, std::int32_t* found,
                      std::int64_t* tickets) {
    const std::lock_guard<std::mutex> held(mutex_);
    turn_ = std::max(turn_, turn);
    window_.turn(turn_);
    if (const float scale = heat_.begin(ids.size()); scale != 1)
      for (Slot& slot : slots_) slot.heat *= scale;
    std::size_t hits = 0, room = slots_.size() - used_;
    coming_.clear();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + kAhead < ids.size()) {
        __builtin_prefetch(&table_[home(ids[i + kAhead])]);
        heat_.request(ids[i + kAhead]), window_.request(ids[i + kAhead]);
      }
      const std::int64_t id = ids[i];
      const std::int32_t at = find(id);
      const float heat = heat_.seen(id);
      found[i] = tickets[i] = kNone;
      if (at != kNone) {
        Slot& slot = slots_[static_cast<std::size_t>(at)];
        slot.heat = heat;
        if ((slot.present & need) == need)
          ++slot.pins, ++hits, found[i] = at;
        else
          tickets[i] = id;
      } else if (room > 0) {
        tickets[i] = id, --room;
      } else {
        tickets[i] = id, coming_.emplace_back(i, worth(id, heat));
      }
    }
    if (coming_.empty()) return hits;
    const float least = bounds(coming_.size(), [&](std::size_t i) { return coming_[i].second; }).coming;
    for (const auto& [i, worth] : coming_)
      if (worth < least) tickets[i] = kNone;  // others would soon take its place
    return hits;
  }

  // Gives pinned slots to ids whose rows have come, and says in `todo` which of `bits` the caller must write there. A
  // slot kNone: write nothing.
  void reserve(std::span<const std::int64_t> ids, std::uint8_t bits, std::int32_t* slots, std::uint8_t* todo) {
    const std::lock_guard<std::mutex> held(mutex_);
    const auto worth_at = [&](std::size_t i) { return worth(ids[i], heat_.of(ids[i])); };
    const Bounds least = ids.size() > slots_.size() - used_ ? bounds(ids.size(), worth_at) : Bounds{};
    std::size_t looked_at = 0;
    const auto place = [&](std::size_t i, float worth) {
      if (const std::int32_t here = find(ids[i]); here != kNone) return here;  // ids may repeat
      const std::int32_t at = take(looked_at, std::min(worth, least.kept));
      if (at != kNone) settle(ids[i], at, heat_.of(ids[i]));
      return at;
    };
    const auto offer = [&](std::size_t i, std::int32_t at) {
      if (at == kNone) return;
      Slot& slot = slots_[static_cast<std::size_t>(at)];
      todo[i] = static_cast<std::uint8_t>(bits & ~(slot.present | slot.coming));
      if (todo[i] == 0) return;  // it is here, or another thread is writing it
      slot.coming |= todo[i], ++slot.pins, slots[i] = at;
    };
    coming_.clear();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + kAhead < ids.size()) {
        __builtin_prefetch(&table_[home(ids[i + kAhead])]);
        heat_.request(ids[i + kAhead]), window_.request(ids[i + kAhead]);
      }
      slots[i] = kNone, todo[i] = 0;
      std::int32_t at = find(ids[i]);
      const float worth = at == kNone ? worth_at(i) : 0;
      if (at == kNone && worth > least.coming) at = place(i, worth);
      if (at == kNone && worth == least.coming) coming_.emplace_back(i, worth);  // those that are worth more come first
      offer(i, at);
    }
    for (const auto& [i, worth] : coming_) offer(i, place(i, worth));
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

  // The batch of this turn will look these ids up. Batches look up in the order of their turns.
  void expect(std::int64_t turn, std::span<const std::int64_t> ids) {
    const std::lock_guard<std::mutex> held(mutex_);
    window_.expect(turn, ids);
    window_.turn(turn_);
  }

  // The batch of this turn will look nothing up any more.
  void close(std::int64_t turn) {
    const std::lock_guard<std::mutex> held(mutex_);
    window_.close(turn);
    window_.turn(turn_);
  }

  // Whether there is a batch of the window that will look something up.
  bool expects() {
    const std::lock_guard<std::mutex> held(mutex_);
    return !window_.empty();
  }

  // Leaves of `ids` those that a batch of the window will look up, and that have no slot.
  void keep_expected(std::vector<std::int64_t>& ids) {
    const std::lock_guard<std::mutex> held(mutex_);
    if (window_.empty()) return ids.clear();
    std::erase_if(ids, [&](std::int64_t id) { return window_.wait(id) == Window::kNever || find(id) != kNone; });
  }

  // The id of each slot, and the tables whose rows are there.
  std::vector<std::pair<std::int64_t, std::uint8_t>> content() {
    const std::lock_guard<std::mutex> held(mutex_);
    std::vector<std::pair<std::int64_t, std::uint8_t>> all;
    for (std::size_t i = 0; i < used_; ++i) all.emplace_back(slots_[i].id, slots_[i].present);
    return all;
  }

 private:
  static constexpr std::size_t kAhead = 16, kSample = 512;
  static constexpr float kSoon = 1e30F;  // above every heat
  static constexpr float kAll = std::numeric_limits<float>::infinity();

  struct Slot {
    std::int64_t id;
    float heat;  // when it was seen last
    std::uint32_t pins;
    std::uint8_t present, coming;  // bit i: the row of table i is here, is being written
  };

  // What keeping a row is worth: first come rows that a batch of the window asks for, the next batch's foremost; then
  // the hotter ones.
  float worth(std::int64_t id, float heat) const {
    if (window_.empty()) return heat;
    const int wait = window_.wait(id);
    return wait == Window::kNever ? heat : kSoon * static_cast<float>(2 * Window::kMost - wait);
  }

  std::size_t home(std::int64_t id) const { return mix64(static_cast<std::uint64_t>(id)) & (table_.size() - 1); }

  std::int32_t find(std::int64_t id) const {
    for (std::size_t at = home(id);; at = (at + 1) & (table_.size() - 1)) {
      const std::int32_t slot = table_[at];
      if (slot == kNone || slots_[static_cast<std::size_t>(slot)].id == id) return slot;
    }
  }

  // Of the rows that come, those that are worth less than `coming` are not kept, and those that are worth as much come last.
  // Of the kept ones, those that are worth less than `kept` may leave for others.
  struct Bounds {
    float coming = -1, kept = kAll;
  };

  // The bounds where as many kept rows are worth less as coming ones are worth as much or more, both known by samples. If
  // few come, a sixteenth of the kept rows may leave, so that not all must be looked through.
  template <class WorthOf>
  Bounds bounds(std::size_t coming, WorthOf worth_of) {
    const auto sampled = [&](std::size_t size, double weight, auto worth_at) {
      const std::size_t step = (size + kSample - 1) / kSample;
      const std::size_t first = step == 0 ? 0 : sample_++ % step;
      for (std::size_t i = first; i < size; i += step) samples_.emplace_back(worth_at(i), weight * static_cast<double>(step));
    };
    samples_.clear();
    sampled(slots_.size(), 1, [&](std::size_t i) { return i < used_ ? worth(slots_[i].id, slots_[i].heat) : -1; });
    sampled(coming, -1, worth_of);
    std::sort(samples_.begin(), samples_.end());
    double less = 0;     // kept rows that are worth less
    double as_much = 0;  // coming rows that are worth as much or more
    for (const auto& [worth, weight] : samples_) as_much -= std::min(0.0, weight);
    const double some = static_cast<double>(slots_.size()) / 16;
    Bounds found;
    for (auto at = samples_.begin(); at != samples_.end();) {
      const float worth = at->first;
      if (less < as_much) found.coming = worth;
      if (less >= as_much && less >= some) {
        found.kept = worth;
        break;
      }
      for (; at != samples_.end() && at->first == worth; ++at) (at->second > 0 ? less : as_much) += at->second;
    }
    return found;
  }

  // A slot without an id: a fresh one, else the next one without pins that is worth less than `most`. The search goes
  // round all slots at most once per `looked_at`.
  std::int32_t take(std::size_t& looked_at, float most) {
    if (used_ < slots_.size()) return static_cast<std::int32_t>(used_++);
    for (; looked_at < slots_.size(); ++looked_at) {
      const std::size_t at = hand_;
      hand_ = at + 1 == slots_.size() ? 0 : at + 1;
      const Slot& slot = slots_[at];
      window_.request(slots_[std::min(at + kAhead, slots_.size() - 1)].id);
      if (slot.pins > 0 || worth(slot.id, slot.heat) >= most) continue;
      forget(slot.id);
      ++looked_at;
      return static_cast<std::int32_t>(at);
    }
    return kNone;
  }

  void settle(std::int64_t id, std::int32_t at, float heat) {
    slots_[static_cast<std::size_t>(at)] = {id, heat, 0, 0, 0};
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
  std::vector<std::int64_t> offsets_;
  std::vector<std::int32_t> table_;  // open addressing: slots by hashed id
  std::vector<Slot> slots_;
  Heat heat_;
  Window window_;
  std::int64_t turn_ = -1;                             // the latest that has looked up
  std::vector<std::pair<std::size_t, float>> coming_;  // positions of rows that a look-up misses, and their worth
  std::vector<std::pair<float, double>> samples_;      // worth, and how many rows it stands for: below 0: coming ones
  std::size_t used_ = 0, hand_ = 0, sample_ = 0;
};

}  // namespace atta
