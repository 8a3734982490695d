// The in-neighbours that a vertex admits to a server's subgraph (expansion-aware sampling): the best few that no vertex
// has admitted yet.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace atta {

// A neighbour that may be admitted. Lower scores come first, and user ids decide between equal scores. Parallel edges
// make equal candidates.
struct Candidate {
  std::uint64_t score;
  std::int64_t key;
  std::int64_t vertex;

  auto operator<=>(const Candidate&) const = default;
};

// The `limit` lowest of the candidates offered, without repeats. About twice as many are kept before they are sorted
// and cut. So a vertex of degree d costs d comparisons and few sorts, in any order of its edges.
class Lowest {
 public:
  explicit Lowest(std::int64_t limit)
      : limit_(static_cast<std::size_t>(limit)),
        room_(limit_ > std::numeric_limits<std::size_t>::max() / 4 ? limit_ : 2 * limit_ + 64) {}

  void clear() {
    kept_.clear();
    full_ = false;
  }

  void offer(const Candidate& candidate) {
    if (limit_ == 0 || (full_ && !(candidate < kept_[limit_ - 1]))) return;
    kept_.push_back(candidate);
    if (kept_.size() >= room_) cut();
  }

  // In ascending order; valid until the next call.
  std::span<const Candidate> found() {
    cut();
    return kept_;
  }

 private:
  void cut() {
    std::sort(kept_.begin(), kept_.end());
    kept_.erase(std::unique(kept_.begin(), kept_.end()), kept_.end());
    if (kept_.size() < limit_) return;
    kept_.resize(limit_);
    full_ = true;  // kept_[limit_ - 1] stays the worst of the best: later candidates stand behind it
  }

  std::size_t limit_, room_;
  std::vector<Candidate> kept_;
  bool full_ = false;
};

}  // namespace atta
