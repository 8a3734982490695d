// Numbers for ids of any size, in the order in which the ids first come.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "hash.hpp"

namespace atta {

// Whether some number begins with a zero and has more digits: 007. Whoever reads it as 7 cannot give it back.
inline bool has_padded_number(std::span<const char> text) {
  const char* c = text.data();
  const auto digit = [c](std::size_t i) -> std::uint8_t { return static_cast<std::uint8_t>(c[i] - '0') < 10; };
  std::uint8_t found = text.size() > 1 && c[0] == '0' && digit(1);
  for (std::size_t i = 1; i + 1 < text.size(); ++i) {
    const std::uint8_t begins = (digit(i - 1) | std::uint8_t{c[i - 1] == '.'}) ^ 1;
    found |= static_cast<std::uint8_t>(begins & std::uint8_t{c[i] == '0'} & digit(i + 1));
  }
  return found != 0;
}

// Ids from 0 up to a bound are looked up in an array, which is several times faster than the hash table of all others.
class Numbering {
 public:
  // out[i]: the number of ids[i].
  void number(std::span<const std::int64_t> ids, std::int32_t* out) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + kAhead < ids.size()) prefetch(ids[i + kAhead]);
      out[i] = number_of(ids[i]);
    }
  }

  // The id of each number.
  std::span<const std::int64_t> ids() const { return ids_; }

 private:
  struct Slot {
    std::int64_t id;
    std::int32_t next;  // the number and 1; 0: the slot is free
  };
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  static constexpr std::size_t kAhead = 16;
  static constexpr std::uint64_t kDirect = std::uint64_t{1} << 27;

  void prefetch(std::int64_t id) const {
    const auto key = static_cast<std::uint64_t>(id);
    if (key < direct_size_)
      __builtin_prefetch(direct_.get() + key);
    else if (key >= kDirect && !slots_.empty())
      __builtin_prefetch(slots_.data() + (mix64(key) & (slots_.size() - 1)));
  }

  std::int32_t number_of(std::int64_t id) {
    const auto key = static_cast<std::uint64_t>(id);
    if (key >= kDirect) return hashed(id);
    if (key >= direct_size_) grow_direct(key);
    std::int32_t& next = direct_.get()[key];
    if (next == 0) next = added(id);
    return next - 1;
  }

  std::int32_t hashed(std::int64_t id) {
    if (2 * (hashed_ + 1) > slots_.size()) grow_slots();
    Slot& slot = find(id);
    if (slot.next == 0) {
      slot = {id, added(id)};
      ++hashed_;
    }
    return slot.next - 1;
  }

  std::int32_t added(std::int64_t id) {
    if (ids_.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
      throw std::length_error("more than 2147483647 different ids");
    ids_.push_back(id);
    return static_cast<std::int32_t>(ids_.size());
  }

  Slot& find(std::int64_t id) {
    std::size_t at = mix64(static_cast<std::uint64_t>(id)) & (slots_.size() - 1);
    while (slots_[at].next != 0 && slots_[at].id != id) at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }

  void grow_slots() {
    std::vector<Slot> old(std::max<std::size_t>(1024, 2 * slots_.size()));
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.next != 0) find(slot.id) = slot;
  }

  // calloc: pages of ids that never come take no memory.
  void grow_direct(std::uint64_t key) {
    const std::size_t size = std::max<std::size_t>(1024, std::bit_ceil(key + 1));
    std::unique_ptr<std::int32_t, Free> wider(static_cast<std::int32_t*>(std::calloc(size, sizeof(std::int32_t))));
    if (!wider) throw std::bad_alloc();
    for (const std::int64_t id : ids_)
      if (static_cast<std::uint64_t>(id) < direct_size_) wider.get()[id] = direct_.get()[id];
    direct_ = std::move(wider);
    direct_size_ = size;
  }

  std::vector<std::int64_t> ids_;
  std::unique_ptr<std::int32_t, Free> direct_;
  std::size_t direct_size_ = 0;
  std::vector<Slot> slots_;
  std::size_t hashed_ = 0;
};

}  // namespace atta
