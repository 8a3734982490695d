// The end of a link that answers: the requests of one peer, served on the loop's thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <vector>

#include "frame_reader.hpp"
#include "loop.hpp"
#include "served_data.hpp"
#include "served_log.hpp"

namespace atta {

inline std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Figures of all links of a daemon.
struct LinkCounters {
  std::atomic<std::uint64_t> served{0}, served_bytes{0}, asked{0}, answered_bytes{0}, broken{0}, malformed{0}, refused{0};
  // Bytes of answers by the owner that sent them. Python's threads alone add owners; a map moves none of its values.
  std::map<std::int64_t, std::atomic<std::uint64_t>> received;
  ServedLog log;
};

// Sends what lies in `out`, as far as the socket takes it. Returns false when the connection has ended.
inline bool send_bytes(Endpoint& to, Piece& out, std::size_t& sent) {
  while (sent < out.size()) {
    const ssize_t count = to.send_some(out.data() + sent, out.size() - sent);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      if (sent > out.size() / 2) out.drop(sent), sent = 0;  // else a busy connection keeps all that it has ever sent
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
    sent += static_cast<std::size_t>(count);
  }
  out.clear(), sent = 0;
  return true;
}

class ServingEnd final : public Endpoint {
 public:
  // `peer`: partition of the daemon that asks; -1: not known.
  ServingEnd(int fd, Loop& loop, std::shared_ptr<const ServedData> data, std::shared_ptr<LinkCounters> counters,
             std::int64_t peer = -1, std::unique_ptr<LinkTls> tls = nullptr)
      : Endpoint(fd, std::move(tls)), loop_(loop), data_(std::move(data)), counters_(std::move(counters)), peer_(peer) {}

  bool on_events(std::uint32_t events) override {
    if (events & EPOLLERR) return false;
    const bool more = holds_bytes() && waiting_ < kMaxWaiting;
    if ((events & (EPOLLIN | EPOLLHUP) || more) && !receive()) return false;
    if (events & EPOLLOUT && !send()) return false;
    settle();
    return true;
  }

  // Answers the most urgent requests. It stops after one piece, or after several small ones that share a call: so a
  // large pull never holds up an expansion.
  bool on_turn() override {
    if (!serve()) {
      requests_.clear(), waiting_ = 0, out_.clear(), sent_ = 0;
      ::shutdown(fd(), SHUT_RDWR);  // the loop hears of it and ends the connection
    }
    settle();
    return waits_for_turn;
  }

  bool before(const Endpoint& other) const override {
    const auto& that = static_cast<const ServingEnd&>(other);  // only this kind of endpoint takes turns
    return requests_.front().before(that.requests_.front());
  }

  void on_end() override {
    requests_.clear();
    waits_for_turn = false;
  }

 private:
  static constexpr std::size_t kMaxWaiting = std::size_t{32} << 20;  // bytes of requests; then no more are read

  static bool later(const Request& a, const Request& b) { return b.before(a); }

  bool serve() {
    try {
      do {
        Request& first = requests_.front();
        const std::size_t before = out_.size();
        first.answer(*data_, out_);
        first.answered_bytes += out_.size() - before;
        if (!first.done()) continue;
        if (counters_->log.keeps()) counters_->log.add({first.came_us(), now_us(), peer_, first.pulls(), first.answered_bytes});
        std::pop_heap(requests_.begin(), requests_.end(), later);
        waiting_ -= requests_.back().nbytes();
        requests_.pop_back();
        counters_->served.fetch_add(1, std::memory_order_relaxed);
      } while (!requests_.empty() && out_.size() < kPieceBytes / 2);
      counters_->served_bytes.fetch_add(out_.size(), std::memory_order_relaxed);
      // Requests that had no place have come already, so the socket does not tell of them.
      return send() && (!reader_.paused() || waiting_ >= kMaxWaiting || receive());
    } catch (const std::exception&) {  // there is no memory for an answer
      return false;
    }
  }

  bool receive() {
    const char* why =
        reader_.read(*this, wrong_request, [&](const FrameHeader& head, const std::byte* arrays, std::uint64_t, std::size_t) {
          requests_.emplace_back(head, arrays, now_us());
          waiting_ += requests_.back().nbytes();
          std::push_heap(requests_.begin(), requests_.end(), later);
          return waiting_ < kMaxWaiting;
        });
    if (why != nullptr && reader_.malformed) counters_->malformed.fetch_add(1, std::memory_order_relaxed);
    return why == nullptr;
  }

  bool send() { return send_bytes(*this, out_, sent_); }

  // While an answer waits for the socket, no other is made: a slow reader costs one piece of memory.
  void settle() {
    const bool readable = waiting_ < kMaxWaiting;
    waits_for_turn = out_.size() == 0 && !requests_.empty();
    const bool writable = out_.size() > 0 || (readable && holds_bytes());  // a writable socket calls at once
    if (readable == readable_ && writable == writable_) return;
    readable_ = readable, writable_ = writable;
    loop_.wait_for(fd(), readable, writable);
  }

  Loop& loop_;
  std::shared_ptr<const ServedData> data_;
  std::shared_ptr<LinkCounters> counters_;
  std::int64_t peer_;
  FrameReader reader_;
  std::vector<Request> requests_;  // a heap: the most urgent is at the front; none is done
  std::size_t waiting_ = 0;        // their bytes
  Piece out_;                      // empty, or what the socket has not taken yet
  std::size_t sent_ = 0;           // of it
  bool readable_ = true, writable_ = false;
};

}  // namespace atta
