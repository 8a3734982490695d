// Cuts the bytes that a socket receives into frames.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "frames.hpp"
#include "loop.hpp"

namespace atta {

// Each thread receives into one buffer, which stays in its cache, and frames are handled there. Rows of tables go on
// to their places as they come (`in_parts`). A connection keeps only another frame that has come in part, and what
// follows when its owner takes no more. So many idle connections take no memory.
class FrameReader {
 public:
  // Receives what has come. Calls take(header, bytes, at, count) for each whole frame (`at` is 0), or for stretches of
  // its arrays in order: `count` bytes that begin at byte `at`. `wrong(header)` says why a header is refused, before
  // memory is taken for its arrays; null: it is good. `take` returns false to stop reading: the reader is `paused`
  // then, and the socket need not become readable again. Returns why the connection must end; null: it goes on.
  template <class Wrong, class Take>
  const char* read(Endpoint& from, Wrong wrong, Take take) {
    static thread_local const std::unique_ptr<std::byte[]> shared = std::make_unique_for_overwrite<std::byte[]>(kShared);
    for (int turn = 0; turn < kTurns; ++turn) {
      const bool own = needed_ > kShared;  // a frame larger than the shared buffer collects in memory of its own
      if (!own && held_ > 0) std::memcpy(shared.get(), rest_.data(), held_);
      std::byte* buffer = own ? rest_.data() : shared.get();
      const std::size_t room = (own ? static_cast<std::size_t>(needed_) : kShared) - held_;
      std::size_t end = held_;
      bool full = true;  // there may be more
      if (!std::exchange(paused_, false)) {
        const ssize_t got = from.recv_some(buffer + held_, room);
        if (got == 0) return "the connection was closed";
        if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? nullptr : "the connection broke";
        received += static_cast<std::uint64_t>(got);
        full = static_cast<std::size_t>(got) == room;
        end += static_cast<std::size_t>(got);
      }
      std::size_t at = 0;
      if (const char* why = cut(buffer, end, at, wrong, take)) return why;
      keep(buffer + at, end - at, own);
      if (paused_ || !full) return nullptr;
    }
    return nullptr;
  }

  // Whether frames that have come may wait for the next `read`.
  bool paused() const { return paused_; }

  std::uint64_t received = 0;  // bytes
  bool malformed = false;      // whether the peer has sent what is not a frame

 private:
  static constexpr std::size_t kShared = std::size_t{256} << 10;
  static constexpr std::size_t kKept = std::size_t{4} << 10;  // bytes that a connection may keep while nothing comes
  static constexpr int kTurns = 16;                           // then other connections get their turn

  // Hands out the frames in buffer[at, end), and moves `at` behind them.
  template <class Wrong, class Take>
  const char* cut(const std::byte* buffer, std::size_t end, std::size_t& at, Wrong& wrong, Take& take) {
    bool more = true;
    needed_ = 0;
    while (more) {
      if (coming_ > 0) {
        if (at == end) break;
        more = take_part(buffer, end, at, take);
        continue;
      }
      if (end - at < sizeof(FrameHeader)) break;
      FrameHeader head;
      std::memcpy(&head, buffer + at, sizeof head);
      if (const char* why = wrong(head)) {
        malformed = true;
        return why;
      }
      if (in_parts(head)) {
        head_ = head, coming_ = padded(head.bytes);
        at += sizeof head;
        continue;
      }
      const std::uint64_t whole = sizeof head + padded(head.bytes);
      if (end - at < whole) {
        needed_ = whole;
        break;
      }
      more = take(head, buffer + at + sizeof head, std::uint64_t{0}, static_cast<std::size_t>(head.bytes));
      at += static_cast<std::size_t>(whole);
    }
    paused_ = !more;
    return nullptr;
  }

  // Hands on what has come of the frame `head_`, without its padding.
  template <class Take>
  bool take_part(const std::byte* buffer, std::size_t end, std::size_t& at, Take& take) {
    const auto came = static_cast<std::size_t>(std::min<std::uint64_t>(coming_, end - at));
    const std::uint64_t first = padded(head_.bytes) - coming_;
    const std::byte* from = buffer + at;
    at += came, coming_ -= came;
    return first >= head_.bytes || take(head_, from, first, static_cast<std::size_t>(std::min(came, head_.bytes - first)));
  }

  void keep(const std::byte* from, std::size_t count, bool own) {
    if (own && needed_ > kShared) {  // it has not come as a whole yet
      held_ = count;
      return;
    }
    if (needed_ > kShared) {
      std::vector<std::byte> rest(static_cast<std::size_t>(needed_));
      std::memcpy(rest.data(), from, count);
      rest_ = std::move(rest);
    } else if (own || (count <= kKept && rest_.capacity() > kKept)) {
      rest_ = std::vector<std::byte>(from, from + count);
    } else {
      rest_.assign(from, from + count);
    }
    held_ = count;
  }

  std::vector<std::byte> rest_;  // what was not taken yet: its first `held_` bytes
  std::size_t held_ = 0;
  std::uint64_t needed_ = 0;  // bytes of the whole frame that has come in part if its header has come, else 0
  FrameHeader head_;          // of the frame that is taken in parts
  std::uint64_t coming_ = 0;  // bytes of it that have not come, with padding
  bool paused_ = false;
};

}  // namespace atta
