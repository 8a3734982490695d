// Locks of rows: a row is copied or updated as a whole while other threads read and write the table.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "hash.hpp"

namespace atta {

// Rows share a fixed number of locks ("striping"), so the locks of a table of any size take four kilobytes. A lock is
// held while one row is moved, which takes well below a microsecond. No thread holds two locks. A waiting thread spins,
// and yields in case the holder was descheduled.
class RowLocks {
 public:
  static constexpr int kBits = 12;

  // Holds the lock of one row.
  class Held {
   public:
    Held(RowLocks& locks, std::size_t row) : lock_(locks.of(row)) {
      while (lock_.exchange(1, std::memory_order_acquire) != 0) wait();
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { lock_.store(0, std::memory_order_release); }

   private:
    static constexpr int kSpins = 64;

    void wait() const {
      for (int spins = 0; lock_.load(std::memory_order_relaxed) != 0; ++spins)
        if (spins >= kSpins) std::this_thread::yield();
    }

    std::atomic<std::uint8_t>& lock_;
  };

 private:
  // The multiplication puts the locks of neighbouring rows on different cache lines.
  std::atomic<std::uint8_t>& of(std::size_t row) { return locks_[(row * kGolden) >> (64 - kBits)]; }

  std::array<std::atomic<std::uint8_t>, std::size_t{1} << kBits> locks_{};
};

}  // namespace atta
