// Locks of rows: a row is copied or updated as a whole while other threads read and write the table.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "hash.hpp"

namespace atta {

// Rows share a fixed number of locks ("striping"), so a table of any size pays four kilobytes for them. A lock is held while one
// row is moved, well below a microsecond, and no thread holds two: waiting is spinning, and yielding in case the holder was
// descheduled.
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
  // Multiplied, so that neighbouring rows lie on different cache lines.
  std::atomic<std::uint8_t>& of(std::size_t row) { return locks_[(row * kGolden) >> (64 - kBits)]; }

  std::array<std::atomic<std::uint8_t>, std::size_t{1} << kBits> locks_{};
};

}  // namespace atta
