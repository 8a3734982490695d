// A thread that waits for sockets and serves them. It never holds the interpreter's lock.
#pragma once

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

#include "link_tls.hpp"

namespace atta {

// One end of a connection. A loop calls it on the loop's thread only.
class Endpoint {
 public:
  // `tls`: what encrypts the connection; null: nothing does.
  explicit Endpoint(int fd, std::unique_ptr<LinkTls> tls = nullptr) : fd_(fd), tls_(std::move(tls)) {}
  Endpoint(const Endpoint&) = delete;
  virtual ~Endpoint() { ::close(fd_); }

  int fd() const { return fd_; }

  // As ::send and ::recv, without waiting.
  ssize_t send_some(const std::byte* from, std::size_t count) {
    return tls_ != nullptr ? tls_->send(from, count) : ::send(fd_, from, count, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  ssize_t recv_some(std::byte* out, std::size_t room) {
    return tls_ != nullptr ? tls_->recv(out, room) : ::recv(fd_, out, room, MSG_DONTWAIT);
  }
  // Whether bytes that have come wait where the socket does not tell of them.
  bool holds_bytes() const { return tls_ != nullptr && tls_->holds(); }

  // The socket is readable or writable. Returns false when the connection has ended.
  virtual bool on_events(std::uint32_t events) = 0;
  // There was more to do than one turn allows. Returns whether there still is.
  virtual bool on_turn() { return false; }
  virtual bool before(const Endpoint& /*other*/) const { return false; }
  // The connection has ended: nothing is called afterwards.
  virtual void on_end() = 0;

  bool waits_for_turn = false;

 private:
  int fd_;
  std::unique_ptr<LinkTls> tls_;
};

class Loop {
 public:
  explicit Loop(const std::string& name) : epoll_(::epoll_create1(EPOLL_CLOEXEC)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (epoll_ < 0 || wake_ < 0) throw std::system_error(errno, std::generic_category(), "epoll");
    watch(wake_, EPOLLIN, EPOLL_CTL_ADD);
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  }
  Loop(const Loop&) = delete;
  ~Loop() {
    stop();
    ::close(epoll_);
    ::close(wake_);
  }

  void add(std::shared_ptr<Endpoint> endpoint) {
    const int fd = endpoint->fd();
    const std::lock_guard<std::mutex> held(mutex_);
    // Else it is no socket, or the system has no room for it.
    if (stopping_ || !watch(fd, EPOLLIN, EPOLL_CTL_ADD)) return finish(*endpoint);
    endpoints_.emplace(fd, std::move(endpoint));
  }

  // Any thread may call it, as long as the endpoint is of this loop and has not ended.
  void wait_for(int fd, bool readable, bool writable) {
    watch(fd, (readable ? EPOLLIN : 0U) | (writable ? EPOLLOUT : 0U), EPOLL_CTL_MOD);
  }

  // Ends all connections and the thread.
  void stop() {
    {
      const std::lock_guard<std::mutex> held(mutex_);
      if (stopping_) return;
      stopping_ = true;
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
    thread_.join();
  }

 private:
  static constexpr int kEvents = 64;

  bool watch(int fd, std::uint32_t events, int how) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    return ::epoll_ctl(epoll_, how, fd, &event) == 0;
  }

  // What cannot be done for want of memory ends the connection, not the daemon.
  static bool goes_on(Endpoint& endpoint, std::uint32_t events) {
    try {
      return endpoint.on_events(events);
    } catch (const std::exception&) {
      return false;
    }
  }

  void run() {
    std::vector<std::shared_ptr<Endpoint>> turns;  // endpoints that want another turn
    epoll_event events[kEvents];
    while (true) {
      const int count = ::epoll_wait(epoll_, events, kEvents, turns.empty() ? -1 : 0);
      for (int i = 0; i < count; ++i) {
        if (events[i].data.fd == wake_) continue;
        const std::shared_ptr<Endpoint> endpoint = find(events[i].data.fd);
        if (endpoint == nullptr) continue;
        if (!goes_on(*endpoint, events[i].events)) {
          end(endpoint, turns);
        } else if (endpoint->waits_for_turn && std::find(turns.begin(), turns.end(), endpoint) == turns.end()) {
          turns.push_back(endpoint);
        }
      }
      if (stopping()) break;
      if (!turns.empty()) {
        const auto next = std::min_element(turns.begin(), turns.end(), [](const auto& a, const auto& b) { return a->before(*b); });
        if (!(*next)->on_turn()) turns.erase(next);
      }
    }
    std::unordered_map<int, std::shared_ptr<Endpoint>> left;
    {
      const std::lock_guard<std::mutex> held(mutex_);
      left.swap(endpoints_);
    }
    for (const auto& [fd, endpoint] : left) finish(*endpoint);
  }

  // Steps may keep an endpoint for long. The peer hears of its end now.
  static void finish(Endpoint& endpoint) {
    ::shutdown(endpoint.fd(), SHUT_RDWR);
    endpoint.on_end();
  }

  bool stopping() {
    const std::lock_guard<std::mutex> held(mutex_);
    return stopping_;
  }

  std::shared_ptr<Endpoint> find(int fd) {
    const std::lock_guard<std::mutex> held(mutex_);
    const auto found = endpoints_.find(fd);
    return found == endpoints_.end() ? nullptr : found->second;
  }

  void end(const std::shared_ptr<Endpoint>& endpoint, std::vector<std::shared_ptr<Endpoint>>& turns) {
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, endpoint->fd(), nullptr);
    {
      const std::lock_guard<std::mutex> held(mutex_);
      endpoints_.erase(endpoint->fd());
    }
    std::erase(turns, endpoint);
    finish(*endpoint);
  }

  int epoll_, wake_;
  std::mutex mutex_;
  std::unordered_map<int, std::shared_ptr<Endpoint>> endpoints_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace atta
