// The end of a link that asks. Python's threads add requests; the loop's thread takes the answers in.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "frame_reader.hpp"
#include "loop.hpp"
#include "serving.hpp"
#include "step.hpp"

namespace atta {

class AskingEnd final : public Endpoint {
 public:
  AskingEnd(int fd, std::int64_t owner, Loop& loop, std::shared_ptr<LinkCounters> counters, std::unique_ptr<LinkTls> tls = nullptr)
      : Endpoint(fd, std::move(tls)),
        owner_(owner),
        loop_(loop),
        counters_(std::move(counters)),
        received_(counters_->received[owner]) {}

  std::int64_t owner() const { return owner_; }

  bool alive() const { return alive_.load(std::memory_order_acquire); }

  // Whether the owner owes answers, and nothing has come since `us`, of `now_us`.
  bool silent_since(std::int64_t us) const {
    const std::int64_t quiet = quiet_us_.load(std::memory_order_relaxed);
    return quiet != kOwesNothing && quiet <= us;
  }

  // Adds a request; `write(out, number)` writes its frame. It is sent by the next `flush`. Returns its number; 0: the
  // link is down, or its owner has not read for long.
  template <class Write>
  std::uint64_t ask(std::shared_ptr<StepRequests> step, Asked* asked, Write write) {
    const std::lock_guard<std::mutex> held(mutex_);
    if (!why_.empty() || out_.size() - sent_ > kMaxUnsent) return 0;
    const std::uint64_t number = ++numbers_;
    write(out_, number);
    if (waiting_.empty()) quiet_us_.store(now_us(), std::memory_order_relaxed);
    waiting_.emplace(number, Waiting{std::move(step), asked});
    most_row_bytes_ = std::max(most_row_bytes_, asked->most_row_bytes());
    counters_->asked.fetch_add(1, std::memory_order_relaxed);
    return number;
  }

  void flush() {
    const std::lock_guard<std::mutex> held(mutex_);
    if (why_.empty() && !writable_ && out_.size() > 0 && !send()) close();
  }

  // Gives a request up. When this returns, it has ended, and nobody writes into its memory any more.
  void forget(std::uint64_t number, const char* why) {
    std::shared_ptr<StepRequests> step;
    {
      const std::lock_guard<std::mutex> held(mutex_);
      const auto found = waiting_.find(number);
      if (found == waiting_.end()) return;
      found->second.asked->state = Asked::State::kLost;
      found->second.asked->why = why;
      step = std::move(found->second.step);
      waiting_.erase(found);
      if (waiting_.empty()) quiet_us_.store(kOwesNothing, std::memory_order_relaxed);
    }
    step->ended();
  }

  // Ends the connection soon: the loop hears of it.
  void close() { ::shutdown(fd(), SHUT_RDWR); }

  bool on_events(std::uint32_t events) override {
    const std::lock_guard<std::mutex> held(mutex_);
    if (events & EPOLLERR) return broke("the connection broke");
    if (events & (EPOLLIN | EPOLLHUP) || holds_bytes()) {
      const char* why = reader_.read(
          *this, [this](const FrameHeader& head) { return wrong(head); },
          [this](const FrameHeader& head, const std::byte* bytes, std::uint64_t at, std::size_t count) {
            return take(head, bytes, at, count);
          });
      if (why == nullptr) why = misfit_;
      const std::uint64_t received = std::exchange(reader_.received, 0);
      counters_->answered_bytes.fetch_add(received, std::memory_order_relaxed);
      received_.fetch_add(received, std::memory_order_relaxed);
      if (received > 0) quiet_us_.store(waiting_.empty() ? kOwesNothing : now_us(), std::memory_order_relaxed);
      if (reader_.malformed || misfit_ != nullptr) counters_->malformed.fetch_add(1, std::memory_order_relaxed);
      if (why != nullptr) return broke(why);
    }
    return events & EPOLLOUT || holds_bytes() ? send() : true;
  }

  void on_end() override {
    const std::lock_guard<std::mutex> held(mutex_);
    if (why_.empty()) broke("the link was closed");
    counters_->broken.fetch_add(1, std::memory_order_relaxed);
    for (const auto& [number, waiting] : waiting_) {
      waiting.asked->state = Asked::State::kLost, waiting.asked->why = why_;
      waiting.step->ended();
    }
    waiting_.clear();
    quiet_us_.store(kOwesNothing, std::memory_order_relaxed);
    out_.clear(), sent_ = 0;
  }

 private:
  struct Waiting {
    std::shared_ptr<StepRequests> step;
    Asked* asked;
  };

  static constexpr std::size_t kMaxUnsent = std::size_t{64} << 20;  // bytes of requests
  static constexpr std::int64_t kOwesNothing = -1;

  bool broke(const char* why) {
    why_ = why;
    alive_.store(false, std::memory_order_release);
    return false;
  }

  // Checks the size of an answer before memory is taken for it. Requests that were given up are answered all the same.
  const char* wrong(const FrameHeader& head) const {
    if (const char* why = wrong_answer(head)) return why;
    const auto found = waiting_.find(head.request);
    const std::uint64_t row_bytes = found == waiting_.end() ? most_row_bytes_ : found->second.asked->most_row_bytes();
    return head.bytes > 4 * kPieceBytes + row_bytes ? "an answer that is too large" : nullptr;
  }

  // A stretch of an answer. What answers a request that was given up is passed over.
  bool take(const FrameHeader& head, const std::byte* bytes, std::uint64_t at, std::size_t count) {
    const auto found = waiting_.find(head.request);
    if (found == waiting_.end()) return true;
    Asked& asked = *found->second.asked;
    misfit_ = asked.take(head, bytes, at, count);
    if (misfit_ != nullptr) return false;
    if (asked.state == Asked::State::kWaiting) return true;
    if (asked.state == Asked::State::kRefused) counters_->refused.fetch_add(1, std::memory_order_relaxed);
    const std::shared_ptr<StepRequests> step = std::move(found->second.step);
    waiting_.erase(found);
    step->ended();
    return true;
  }

  bool send() {
    if (!send_bytes(*this, out_, sent_)) return broke("the connection broke");
    const bool writable = out_.size() > 0 || holds_bytes();  // a writable socket calls at once
    if (writable == writable_) return true;
    writable_ = writable;
    loop_.wait_for(fd(), true, writable);
    return true;
  }

  std::int64_t owner_;
  Loop& loop_;
  std::shared_ptr<LinkCounters> counters_;
  std::atomic<std::uint64_t>& received_;  // of `counters_`: bytes of this owner
  std::mutex mutex_;
  std::string why_;                                   // it ended; empty: it lives
  std::atomic<bool> alive_{true};                     // whether `why_` is empty, for those who need not be exact
  std::atomic<std::int64_t> quiet_us_{kOwesNothing};  // when the last bytes came, or the waiting began
  const char* misfit_ = nullptr;
  FrameReader reader_;
  std::uint64_t numbers_ = 0;
  std::unordered_map<std::uint64_t, Waiting> waiting_;
  std::uint64_t most_row_bytes_ = 0;  // of all requests so far
  Piece out_;
  std::size_t sent_ = 0;
  bool writable_ = false;
};

}  // namespace atta
