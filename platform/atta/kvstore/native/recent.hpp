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

// An id and its hash, which several tables use.
struct HashedId {
  std::int64_t id;
  std::uint64_t hash;
  explicit HashedId(std::int64_t of) : id(of), hash(mix64(static_cast<std::uint64_t>(of))) {}
  HashedId() : id(0), hash(0) {}
};

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

  void request(HashedId id) const {
    const auto [first, second] = cells_of(id);
    __builtin_prefetch(&cells_[first], 1);
    __builtin_prefetch(&cells_[second], 1);
  }
  // The smaller of two cells, as few ids share both with others.
  float of(HashedId id) const {
    const auto [first, second] = cells_of(id);
    return std::min(cells_[first], cells_[second]);
  }
  float seen(HashedId id) {
    const auto [first, second] = cells_of(id);
    const float heat = std::min(cells_[first], cells_[second]) + gain_;
    cells_[first] = std::max(cells_[first], heat), cells_[second] = std::max(cells_[second], heat);
    return heat;
  }

 private:
  static constexpr double kMost = 32;  // half-lives
  std::pair<std::size_t, std::size_t> cells_of(HashedId id) const {
    return {id.hash & (cells_.size() - 1), (id.hash >> 32) & (cells_.size() - 1)};
  }

  double per_sighting_, now_ = 0;
  float gain_ = 1;
  std::vector<float> cells_;
};

// The batches that are known ahead. A batch is known by its turn: lower turns look up earlier. A set of them has bit i for
// the batch at place i. Not thread-safe.
class Window {
 public:
  static constexpr int kMost = 32;  // batches at a time; further ones are not noted
  static constexpr int kNever = kMost;

  // The set of the batch of this turn alone, which will ask for these ids, too. Empty: it is not noted.
  std::uint32_t expect(std::int64_t turn, std::span<const std::int64_t> ids) {
    const int at = ids.empty() ? kMost : place_of(turn);
    if (at == kMost) return 0;
    Batch& batch = batches_[static_cast<std::size_t>(at)];
    batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
    return std::uint32_t{1} << at;
  }

  // The batch of this turn will ask for nothing more. Calls let_go(its set, the ids that it asked for).
  template <class LetGo>
  void close(std::int64_t turn, LetGo let_go) {
    for (int at = 0; at < kMost; ++at) {
      if ((open_ >> at & 1) == 0 || turn_of(at) != turn) continue;
      std::vector<std::int64_t>& ids = batches_[static_cast<std::size_t>(at)].ids;
      let_go(std::uint32_t{1} << at, std::span<const std::int64_t>(ids));
      ids.clear();  // its memory is for the next batch here
      open_ &= ~(std::uint32_t{1} << at);
    }
  }

  // The batch of this turn looks up: what earlier ones ask for does not count any more.
  void turn(std::int64_t now) {
    for (int at = 0; at < kMost; ++at) {
      const auto later = [&](int of) { return (open_ >> of & 1) && turn_of(of) > now; };
      auto& wait = waits_[static_cast<std::size_t>(at)] = later(at) ? 0 : kNever;
      for (int other = 0; wait != kNever && other < kMost; ++other) wait += later(other) && turn_of(other) < turn_of(at);
    }
  }

  // Whether no batch is known.
  bool empty() const { return open_ == 0; }

  // How many batches look up before the next one of a set; kNever: none of it does.
  int wait(std::uint32_t set) const {
    int least = kNever;
    for (; set != 0; set &= set - 1) least = std::min(least, waits_[static_cast<std::size_t>(std::countr_zero(set))]);
    return least;
  }

 private:
  struct Batch {
    std::int64_t turn = 0;
    std::vector<std::int64_t> ids;
  };

  // A batch's place; kMost: all are taken.
  int place_of(std::int64_t turn) {
    for (int at = 0; at < kMost; ++at)
      if ((open_ >> at & 1) && turn_of(at) == turn) return at;
    const int at = std::countr_one(open_);
    if (at < kMost) open_ |= std::uint32_t{1} << at, batches_[static_cast<std::size_t>(at)].turn = turn;
    return at;
  }

  std::int64_t turn_of(int at) const { return batches_[static_cast<std::size_t>(at)].turn; }

  std::array<Batch, kMost> batches_;
  std::array<int, kMost> waits_{};  // of each batch, see `wait`
  std::uint32_t open_ = 0;          // bit i: the i-th place is taken
};

// By id: its slot, and the batches known ahead that ask for it. Ids that have neither stay until room is needed.
class Places {
 public:
  static constexpr std::int32_t kNone = -1;
  struct Entry {
    std::int64_t id;
    std::int32_t slot;
    std::uint32_t asking;  // a set, see Window
  };

  void request(HashedId id) const { __builtin_prefetch(&entries_[first(id)]); }

  Entry of(HashedId id) const {
    const Entry& found = entries_[home(id)];
    return found.id == id.id ? found : Entry{id.id, kNone, 0};
  }

  // May be written; right until the next call of `make_room`, which must have made room for it.
  Entry& entry(HashedId id) {
    Entry& found = entries_[home(id)];
    if (found.id != id.id) found = {id.id, kNone, 0}, ++used_;
    return found;
  }

  // So many more ids fit.
  void make_room(std::size_t more) {
    if (2 * (used_ + more) <= entries_.size()) return;
    const auto live = [](const Entry& entry) { return entry.id != kFree && (entry.slot != kNone || entry.asking != 0); };
    used_ = static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(), live));
    std::vector<Entry> before(std::bit_ceil(3 * (used_ + more) + 1), Entry{kFree, kNone, 0});
    before.swap(entries_);
    for (const Entry& entry : before)
      if (live(entry)) entries_[home(HashedId(entry.id))] = entry;
  }

 private:
  static constexpr std::int64_t kFree = -1;
  std::size_t first(HashedId id) const { return id.hash & (entries_.size() - 1); }

  // Where an id is, or would be.
  std::size_t home(HashedId id) const {
    std::size_t at = first(id);
    while (entries_[at].id != id.id && entries_[at].id != kFree) at = (at + 1) & (entries_.size() - 1);
    return at;
  }

  std::vector<Entry> entries_{Entry{kFree, kNone, 0}};  // open addressing, at most half of it used
  std::size_t used_ = 0;
};

// Ids in a bounded number of slots. A slot with pins (rows are being copied from it or into it) never changes its id.
// Many threads may call all methods. Rows are copied outside the mutex; the state read under the mutex and the pins
// keep these copies in order.
class RecentIndex {
 public:
  static constexpr std::int32_t kNone = Places::kNone;

  // `offsets`: the owners' ranges of ids. `half_life`: see `Heat`.
  RecentIndex(std::size_t slots, std::size_t half_life, std::vector<std::int64_t> offsets)
      : offsets_(std::move(offsets)), slots_(slots), heat_(half_life) {}

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
    let_go();
    turn_ = std::max(turn_, turn);
    window_.turn(turn_);
    if (const float scale = heat_.begin(ids.size()); scale != 1)
      for (Slot& slot : slots_) slot.heat *= scale;
    std::size_t hits = 0, room = slots_.size() - used_;
    coming_.clear();
    each<true>(ids, [&](std::size_t i, HashedId id) {
      const Places::Entry place = places_.of(id);
      const float heat = heat_.seen(id);
      found[i] = tickets[i] = kNone;
      if (place.slot != kNone) {
        Slot& slot = at(place.slot);
        slot.heat = heat;
        if ((slot.present & need) == need)
          ++slot.pins, ++hits, found[i] = place.slot;
        else
          tickets[i] = id.id;
      } else if (room > 0) {
        tickets[i] = id.id, --room;
      } else {
        tickets[i] = id.id, coming_.emplace_back(i, worth(place.asking, heat));
      }
    });
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
    let_go();
    places_.make_room(ids.size());
    const auto worth_of = [&](HashedId id) { return worth(places_.of(id).asking, heat_.of(id)); };
    const auto worth_at = [&](std::size_t i) { return worth_of(HashedId(ids[i])); };
    const Bounds least = ids.size() > slots_.size() - used_ ? bounds(ids.size(), worth_at) : Bounds{};
    std::size_t looked_at = 0;
    const auto place = [&](HashedId id, float worth) {
      Places::Entry& entry = places_.entry(id);
      if (entry.slot != kNone) return entry.slot;  // ids may repeat
      if (const std::int32_t free = take(looked_at, std::min(worth, least.kept)); free != kNone)
        at(entry.slot = free) = {id.id, heat_.of(id), 0, entry.asking, 0, 0};
      return entry.slot;
    };
    const auto offer = [&](std::size_t i, std::int32_t in) {
      if (in == kNone) return;
      Slot& slot = at(in);
      todo[i] = static_cast<std::uint8_t>(bits & ~(slot.present | slot.coming));
      if (todo[i] == 0) return;  // it is here, or another thread is writing it
      slot.coming |= todo[i], ++slot.pins, slots[i] = in;
    };
    coming_.clear();
    each<true>(ids, [&](std::size_t i, HashedId id) {
      slots[i] = kNone, todo[i] = 0;
      std::int32_t in = places_.of(id).slot;
      const float worth = in == kNone ? worth_of(id) : 0;
      if (in == kNone && worth > least.coming) in = place(id, worth);
      if (in == kNone && worth == least.coming) coming_.emplace_back(i, worth);  // those that are worth more come first
      offer(i, in);
    });
    for (const auto& [i, worth] : coming_) offer(i, place(HashedId(ids[i]), worth));
  }

  // Call it after the rows of `reserve` are written; `written` is false if they could not be. Slots are in range or
  // kNone.
  void publish(std::span<const std::int32_t> slots, const std::uint8_t* todo, bool written) {
    const std::lock_guard<std::mutex> held(mutex_);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] == kNone) continue;
      Slot& slot = at(slots[i]);
      slot.coming &= static_cast<std::uint8_t>(~todo[i]);
      if (written) slot.present |= todo[i];
      --slot.pins;
    }
  }

  // Call it after the rows that `look_up` found are copied. Slots are in range.
  void unpin(std::span<const std::int32_t> slots) {
    const std::lock_guard<std::mutex> held(mutex_);
    for (const std::int32_t in : slots) --at(in).pins;
  }

  // The batch of this turn will look these ids up. Batches look up in the order of their turns.
  void expect(std::int64_t turn, std::span<const std::int64_t> ids) {
    const std::lock_guard<std::mutex> held(mutex_);
    let_go();
    const std::uint32_t batch = window_.expect(turn, ids);
    window_.turn(turn_);
    if (batch == 0) return;
    places_.make_room(ids.size());
    each<false>(ids, [&](std::size_t, HashedId id) { ask(id, batch, 0); });
  }

  // The batch of this turn will look nothing up any more. The next call of another method lets it go: this one is brief.
  void close(std::int64_t turn) {
    const std::lock_guard<std::mutex> held(mutex_);
    closed_.push_back(turn);
    if (closed_.size() > Window::kMost) let_go();
  }

  // Whether there is a batch of the window that will look something up.
  bool expects() {
    const std::lock_guard<std::mutex> held(mutex_);
    return !window_.empty();
  }

  // Leaves of `ids` those that a batch of the window will look up, and that have no slot.
  void keep_expected(std::vector<std::int64_t>& ids) {
    const std::lock_guard<std::mutex> held(mutex_);
    std::erase_if(ids, [&](std::int64_t id) {
      const Places::Entry place = places_.of(HashedId(id));
      return place.slot != kNone || window_.wait(place.asking) == Window::kNever;
    });
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
    std::uint32_t asking;          // as in its entry of `places_`: a search for a free slot reads one slot after the other
    std::uint8_t present, coming;  // bit i: the row of table i is here, is being written
  };

  // What keeping a row is worth: first come rows that a batch of the window asks for, the next batch's foremost; then
  // the hotter ones.
  float worth(std::uint32_t asking, float heat) const {
    const int wait = asking == 0 ? Window::kNever : window_.wait(asking);
    return wait == Window::kNever ? heat : kSoon * static_cast<float>(2 * Window::kMost - wait);
  }

  void let_go() {
    for (const std::int64_t turn : closed_)
      window_.close(turn, [&](std::uint32_t batch, std::span<const std::int64_t> ids) {
        each<false>(ids, [&](std::size_t, HashedId id) { ask(id, 0, batch); });
      });
    if (!closed_.empty()) closed_.clear(), window_.turn(turn_);
  }

  // The batches of one set ask for an id, those of another one do not any more.
  void ask(HashedId id, std::uint32_t more, std::uint32_t fewer) {
    Places::Entry& entry = places_.entry(id);
    entry.asking = (entry.asking | more) & ~fewer;
    if (entry.slot != kNone) at(entry.slot).asking = entry.asking;
  }

  Slot& at(std::int32_t slot) { return slots_[static_cast<std::size_t>(slot)]; }

  // Calls use(i, ids[i]) for each id. What it is going to read is requested ahead; `Heats`: their heats, too.
  template <bool Heats, class Use>
  void each(std::span<const std::int64_t> ids, Use use) {
    std::array<HashedId, 2 * kAhead> next;
    for (std::size_t i = 0; i < ids.size() + kAhead; ++i) {
      if (i < ids.size()) {
        const HashedId id = next[i % next.size()] = HashedId(ids[i]);
        places_.request(id);
        if (Heats) heat_.request(id);
      }
      if (const std::size_t soon = i - kAhead / 2; i >= kAhead / 2 && soon < ids.size())
        if (const std::int32_t slot = places_.of(next[soon % next.size()]).slot; slot != kNone) __builtin_prefetch(&at(slot), 1);
      if (const std::size_t now = i - kAhead; i >= kAhead) use(now, next[now % next.size()]);
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
    sampled(slots_.size(), 1, [&](std::size_t i) { return i < used_ ? worth(slots_[i].asking, slots_[i].heat) : -1; });
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
      const std::size_t here = hand_;
      hand_ = here + 1 == slots_.size() ? 0 : here + 1;
      const Slot& slot = slots_[here];
      if (slot.pins > 0 || worth(slot.asking, slot.heat) >= most) continue;
      places_.entry(HashedId(slot.id)).slot = kNone;
      ++looked_at;
      return static_cast<std::int32_t>(here);
    }
    return kNone;
  }

  std::mutex mutex_;
  std::vector<std::int64_t> offsets_;
  Places places_;
  std::vector<Slot> slots_;
  Heat heat_;
  Window window_;
  std::vector<std::int64_t> closed_;                   // turns of batches that `window_` still has
  std::int64_t turn_ = -1;                             // the latest that has looked up
  std::vector<std::pair<std::size_t, float>> coming_;  // positions of rows that a look-up misses, and their worth
  std::vector<std::pair<float, double>> samples_;      // worth, and how many rows it stands for: below 0: coming ones
  std::size_t used_ = 0, hand_ = 0, sample_ = 0;
};

}  // namespace atta
