// Whether large targets are written through the caches or past them. Neither is best everywhere: streaming stores were
// 1.3 times as fast on one make of processor and 0.7 times as fast on another. So both are timed, while they do their
// work.
#pragma once

#include <time.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <utility>

namespace atta {

// Times pieces of a megabyte or more. The first pieces go through the caches, as many go past them, and then all take
// the way with the lower median. It tries both again, soon at first (a new target costs fresh pages), then after each
// gigabyte (other processes want the memory, too).
class StoreChoice {
 public:
  // Calls move(streams) for a piece of `bytes` bytes. Safe from many threads.
  template <class Move>
  void time(std::size_t bytes, Move move) {
    const auto [piece, streams] = take();
    if (piece >= 2 * kTrials) return move(streams);
    const double start = used();
    move(streams);
    tell(piece, (used() - start) / static_cast<double>(bytes));
  }

 private:
  static constexpr std::size_t kTrials = 8, kLongest = 1024;  // pieces

  // Nanoseconds of processor time that this thread has used. Other processes do not count.
  static double used() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
  }

  // The number of the next piece in this period, and whether it streams.
  std::pair<std::size_t, bool> take() {
    const std::scoped_lock lock(mutex_);
    const std::size_t piece = next_++;
    if (next_ == period_) next_ = 0, told_ = 0, period_ = std::min(2 * period_, kLongest);
    return {piece, piece < 2 * kTrials ? piece >= kTrials : streams_};
  }

  void tell(std::size_t piece, double cost) {
    const std::scoped_lock lock(mutex_);
    costs_[piece] = cost;
    if (++told_ < 2 * kTrials) return;
    const auto middle = [&](std::size_t first) {
      const auto begin = costs_.begin() + static_cast<std::ptrdiff_t>(first), at = begin + kTrials / 2;
      std::nth_element(begin, at, begin + kTrials);
      return *at;
    };
    streams_ = middle(kTrials) < kWorth * middle(0);
  }

  // Streaming leaves the caches to others. So it may cost a little more.
  static constexpr double kWorth = 1.03;

  std::mutex mutex_;
  std::size_t next_ = 0, told_ = 0, period_ = 4 * kTrials;
  bool streams_ = true;
  std::array<double, 2 * kTrials> costs_{};
};

// One thread, and several that share the bandwidth of the memory, choose apart.
inline StoreChoice& one_mover() {
  static StoreChoice choice;
  return choice;
}

inline StoreChoice& several_movers() {
  static StoreChoice choice;
  return choice;
}

}  // namespace atta
