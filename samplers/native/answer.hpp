// Expands some rows of a partition. The answer is new arrays, which are sent or stitched.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "expand.hpp"

namespace atta {

// An array that grows by realloc and gives away its memory at the end.
template <class T>
class Growing {
 public:
  explicit Growing(std::size_t room) { grow(std::max<std::size_t>(1, room)); }
  Growing(Growing&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_), room_(std::exchange(other.room_, 0)) {}
  Growing(const Growing&) = delete;
  ~Growing() { std::free(data_); }

  std::size_t size() const { return size_; }
  const T* data() const { return data_; }
  T* give_up() { return std::exchange(data_, nullptr); }

  void append(const T* values, std::size_t count) {
    if (size_ + count > room_) grow(std::max(size_ + count, room_ + room_ / 2));
    if (count > 0) std::memcpy(data_ + size_, values, count * sizeof(T));
    size_ += count;
  }

 private:
  void grow(std::size_t room) {
    void* bigger = std::realloc(data_, room * sizeof(T));
    if (bigger == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(bigger);
    room_ = room;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0, room_ = 0;
};

template <class Id, class Edge>
struct AnswerSink {
  std::int32_t* counts;  // by row
  bool want_edges;
  Growing<Id> neighbors;
  Growing<Edge> edge_ids;

  AnswerSink(std::int32_t* to, bool edges, std::size_t room)
      : counts(to), want_edges(edges), neighbors(room), edge_ids(edges ? room : 0) {}

  bool reserve(std::size_t /*edges*/) const { return true; }
  void request(Block<Id, Edge>& /*block*/) const {}
  void take(Block<Id, Edge>& block) {
    std::copy(block.picks.counts.begin(), block.picks.counts.end(), counts + block.first);
    neighbors.append(block.sources.data(), block.sources.size());
    if (want_edges) edge_ids.append(block.edge_ids.data(), block.edge_ids.size());
  }
};

}  // namespace atta
