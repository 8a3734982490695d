// Cuts the bytes that a socket receives into frames.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "frames.hpp"

namespace atta {

// Each thread receives into one buffer, and frames are handled there. A connection keeps only the frame that has come
// in part, and what follows when its owner takes no more. So many idle connections take no memory.
class FrameReader {
 public:
  // Receives what has come, and calls take(header, arrays) for each whole frame. `wrong(header)` says why a header is
  // refused, before memory is taken for its arrays; null: it is good. `take` returns false to stop reading: the reader
  // is `paused` then, and the socket need not become readable again. Returns why the connection must end; null: it
  // goes on.
  template <class Wrong, class Take>
  const char* read(int fd, Wrong wrong, Take take) {
    static thread_local const std::unique_ptr<std::byte[]> shared = std::make_unique_for_overwrite<std::byte[]>(kShared);
    for (int turn = 0; turn < kTurns; ++turn) {
      const bool own = needed_ > kShared;  // a frame larger than the shared buffer collects in memory of its own
      if (!own && held_ > 0) std::memcpy(shared.get(), rest_.data(), held_);
      std::byte* buffer = own ? rest_.data() : shared.get();
      const std::size_t room = (own ? static_cast<std::size_t>(needed_) : kShared) - held_;
      std::size_t end = held_, at = 0;
      bool full = true;  // there may be more
      if (!std::exchange(paused_, false)) {
        const ssize_t got = ::recv(fd, buffer + held_, room, MSG_DONTWAIT);
        if (got == 0) return "the connection was closed";
        if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? nullptr : "the connection broke";
        received += static_cast<std::uint64_t>(got);
        full = static_cast<std::size_t>(got) == room;
        end += static_cast<std::size_t>(got);
      }
      bool more = true;
      needed_ = 0;
      while (more && end - at >= sizeof(FrameHeader)) {
        FrameHeader head;
        std::memcpy(&head, buffer + at, sizeof head);
        if (const char* why = wrong(head)) {
          malformed = true;
          return why;
        }
        const std::uint64_t whole = sizeof head + padded(head.bytes);
        if (end - at < whole) {
          needed_ = whole;
          break;
        }
        more = take(head, buffer + at + sizeof head);
        at += static_cast<std::size_t>(whole);
      }
      paused_ = !more;
      keep(buffer + at, end - at, own);
      if (!more || !full) return nullptr;
    }
    return nullptr;
  }

  // Whether frames that have come may wait for the next `read`.
  bool paused() const { return paused_; }

  std::uint64_t received = 0;  // bytes
  bool malformed = false;      // whether the peer has sent what is not a frame

 private:
  static constexpr std::size_t kShared = std::size_t{1} << 20;
  static constexpr int kTurns = 4;  // then other connections get their turn

  void keep(const std::byte* from, std::size_t count, bool own) {
    if (own && needed_ > kShared) {  // it has not come as a whole yet
      held_ = count;
      return;
    }
    std::vector<std::byte> rest;
    rest.resize(needed_ > kShared ? static_cast<std::size_t>(needed_) : count);
    if (count > 0) std::memcpy(rest.data(), from, count);
    rest_ = std::move(rest), held_ = count;
  }

  std::vector<std::byte> rest_;  // what was not taken yet: its first `held_` bytes
  std::size_t held_ = 0;
  std::uint64_t needed_ = 0;  // bytes of the frame that has come in part if its header has come, else 0
  bool paused_ = false;
};

}  // namespace atta
