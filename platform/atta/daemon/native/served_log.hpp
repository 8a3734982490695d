// The last requests that links have answered, for traces.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace atta {

struct ServedRequest {
  std::int64_t came_us, ended_us;  // of the steady clock
  std::int64_t peer;               // partition of the daemon that asked; -1: not known
  bool pulls;
  std::uint64_t bytes;  // of the answer
};

class ServedLog {
 public:
  // Keeps the last `most` requests from now on; 0: none.
  void keep(std::size_t most) {
    const std::lock_guard<std::mutex> held(mutex_);
    ring_.clear(), next_ = 0;
    most_.store(most, std::memory_order_relaxed);
  }
  bool keeps() const { return most_.load(std::memory_order_relaxed) > 0; }

  void add(const ServedRequest& request) {
    const std::lock_guard<std::mutex> held(mutex_);
    const std::size_t most = most_.load(std::memory_order_relaxed);
    if (most == 0) return;
    ring_.size() < most ? ring_.push_back(request) : static_cast<void>(ring_[next_] = request);
    next_ = (next_ + 1) % most;
  }

  // The oldest first.
  std::vector<ServedRequest> entries() const {
    const std::lock_guard<std::mutex> held(mutex_);
    const std::size_t first = ring_.size() < most_.load(std::memory_order_relaxed) ? 0 : next_;
    std::vector<ServedRequest> found;
    found.reserve(ring_.size());
    for (std::size_t i = 0; i < ring_.size(); ++i) found.push_back(ring_[(first + i) % ring_.size()]);
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<std::size_t> most_{0};
  std::vector<ServedRequest> ring_;
  std::size_t next_ = 0;
};

}  // namespace atta
