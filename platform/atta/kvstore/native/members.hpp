// Places of ids in an ascending list: a bit per possible id, and how many bits stand before each word.
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace atta {

// A search of the list itself takes some twenty cache misses. This takes one, in two bits of memory per possible id.
class Members {
 public:
  // `ids`: ascending, without repeats, below `limit`.
  Members(const std::int64_t* ids, std::size_t count, std::size_t limit) : limit_(limit), words_(limit / 64 + 1) {
    if (count > UINT32_MAX) throw std::invalid_argument("members: there are too many");
    for (std::size_t i = 0; i < count; ++i) {
      if (static_cast<std::uint64_t>(ids[i]) >= limit) throw std::invalid_argument("members: an id is not below the limit");
      if (i > 0 && ids[i] <= ids[i - 1]) throw std::invalid_argument("members: must ascend");
      words_[static_cast<std::size_t>(ids[i]) / 64].bits |= std::uint64_t{1} << (ids[i] % 64);
    }
    std::uint32_t before = 0;
    for (Word& word : words_) {
      word.before = before;
      before += static_cast<std::uint32_t>(std::popcount(word.bits));
    }
  }

  std::size_t limit() const { return limit_; }

  // Calls f with the place of `id`, which is below the limit, if it is a member.
  template <class F>
  void place(std::size_t id, F f) const {
    const Word& word = words_[id / 64];
    const std::uint64_t bit = std::uint64_t{1} << (id % 64);
    if (word.bits & bit) f(word.before + static_cast<std::size_t>(std::popcount(word.bits & (bit - 1))));
  }

 private:
  struct Word {
    std::uint64_t bits = 0;
    std::uint32_t before = 0;
  };

  std::size_t limit_;
  std::vector<Word> words_;
};

}  // namespace atta
