// What a step of a batch asks other daemons, and where their answers go.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "frames.hpp"
#include "gather.hpp"
#include "served_data.hpp"

namespace atta {

// Where steps go when all their requests have ended. `fd` is readable while there are some.
class Finished {
 public:
  Finished() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (wake_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  Finished(const Finished&) = delete;
  ~Finished() { ::close(wake_); }

  int fd() const { return wake_; }
  void add(std::uint64_t step) {
    const std::lock_guard<std::mutex> held(mutex_);
    if (steps_.empty()) {
      const std::uint64_t one = 1;
      [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
    }
    steps_.push_back(step);
  }
  std::vector<std::uint64_t> take() {
    const std::lock_guard<std::mutex> held(mutex_);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_, &count, sizeof count);
    return std::exchange(steps_, {});
  }

 private:
  int wake_;
  std::mutex mutex_;
  std::vector<std::uint64_t> steps_;
};

// A table of the batch: rows go to their positions.
struct TargetTable {
  std::byte* data;
  std::size_t row_bytes;
};

// Rows of one owner: one request.
struct Asked {
  enum class State : std::uint8_t { kWaiting, kAnswered, kLost, kRefused };

  std::size_t item = 0;  // of the step
  std::int64_t owner = 0;
  std::size_t first = 0;  // of its rows, in the item
  std::size_t rows = 0, done = 0;
  State state = State::kWaiting;
  std::string why;  // it was refused or lost

  // SAMPLE
  std::uint64_t most_edges = 0;  // of one row
  std::size_t edges = 0;         // of the rows that are done
  std::vector<std::int32_t> counts;
  std::vector<std::byte> neighbors, edge_ids;
  bool wide_neighbors = false, wide_edge_ids = false;

  // PULL
  const std::int64_t* positions = nullptr;  // of its rows
  const std::vector<TargetTable>* tables = nullptr;
  std::size_t row_bytes = 0;  // of all tables

  bool pulls() const { return positions != nullptr; }

  std::uint64_t most_row_bytes() const { return pulls() ? row_bytes : 4 + 16 * most_edges; }

  // Takes a stretch of an answer in: `count` bytes of its arrays, from byte `at` on. Returns why it does not fit; null:
  // it does.
  const char* take(const FrameHeader& head, const std::byte* bytes, std::uint64_t at, std::size_t count) {
    if (head.kind == FrameKind::kRefused) {
      state = State::kRefused;
      why.assign(reinterpret_cast<const char*>(bytes), count);
      for (char& letter : why)
        if (letter < ' ' || letter > '~') letter = '?';  // Python takes it as UTF-8
      return nullptr;
    }
    if (head.first_row != done || head.rows > rows - done) return "an answer for other rows";
    const char* wrong = pulls() ? take_rows(head, bytes, at, count) : take_edges(head, bytes);
    if (wrong != nullptr) return wrong;
    if (at + count < head.bytes) return nullptr;
    done += head.rows;
    if (done == rows) state = State::kAnswered;
    return nullptr;
  }

 private:
  const char* take_rows(const FrameHeader& head, const std::byte* bytes, std::uint64_t at, std::size_t count) {
    if (head.kind != FrameKind::kPulled || head.bytes != row_bytes * head.rows) return "rows of another size";
    auto first = static_cast<std::size_t>(at);  // of the bytes, in what is left of the frame
    for (const TargetTable& table : *tables) {
      const std::size_t whole = table.row_bytes * head.rows, some = first < whole ? std::min(count, whole - first) : 0;
      if (some > 0) put(table, bytes, first, some);
      bytes += some, count -= some, first -= std::min(first, whole);
    }
    return nullptr;
  }

  // Puts bytes [first, first + count) of a table's answer into their rows. They may begin and end within a row.
  void put(const TargetTable& table, const std::byte* bytes, std::size_t first, std::size_t count) const {
    const std::int64_t* to = positions + done + first / table.row_bytes;
    const auto row = [&] { return table.data + static_cast<std::size_t>(*to) * table.row_bytes; };
    if (const std::size_t within = first % table.row_bytes; within > 0) {
      const std::size_t some = std::min(count, table.row_bytes - within);
      std::memcpy(row() + within, bytes, some);
      bytes += some, count -= some, ++to;
    }
    const std::size_t rows_here = count / table.row_bytes;
    move_rows(
        bytes, table.data, table.row_bytes, rows_here, true, [](std::size_t i) { return i; },
        [to](std::size_t i) { return static_cast<std::size_t>(to[i]); });
    to += rows_here;
    if (const std::size_t rest = count % table.row_bytes; rest > 0) std::memcpy(row(), bytes + count - rest, rest);
  }

  const char* take_edges(const FrameHeader& head, const std::byte* arrays) {
    const bool wide = head.flags & kWideNeighbors, wide_ids = head.flags & kWideEdgeIds;
    if (head.kind != FrameKind::kSampled) return "not edges";
    if (done > 0 && (wide != wide_neighbors || wide_ids != wide_edge_ids)) return "ids of another width";
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < head.rows; ++i) {
      std::int32_t count;
      std::memcpy(&count, arrays + 4 * i, sizeof count);
      if (count < 0 || static_cast<std::uint64_t>(count) > most_edges) return "an impossible number of edges";
      total += static_cast<std::uint64_t>(count);
    }
    if (total != head.edges) return "counts and edges that do not match";
    counts.resize(done + head.rows);
    std::memcpy(counts.data() + done, arrays, 4 * std::size_t{head.rows});
    arrays += 4 * std::size_t{head.rows};
    const std::size_t bytes = head.edges * (wide ? 8 : 4);
    neighbors.insert(neighbors.end(), arrays, arrays + bytes);
    edge_ids.insert(edge_ids.end(), arrays + bytes, arrays + bytes + head.edges * (wide_ids ? 8 : 4));
    wide_neighbors = wide, wide_edge_ids = wide_ids;
    edges += head.edges;
    return nullptr;
  }
};

class AskingEnd;

// The requests of one step. Links write into it until `left_` is 0; then it belongs to Python again.
class StepRequests : public std::enable_shared_from_this<StepRequests> {
 public:
  StepRequests(std::uint64_t number, std::shared_ptr<Finished> finished) : number_(number), finished_(std::move(finished)) {}

  std::uint64_t number() const { return number_; }

  // One request has ended.
  void ended() {
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) finished_->add(number_);
  }

  std::vector<std::unique_ptr<Asked>> asked;      // fixed once the step has begun
  std::vector<std::shared_ptr<AskingEnd>> links;  // of each request; null: there is none
  std::vector<std::uint64_t> numbers;             // of each request on its link
  void expect(std::size_t requests) { left_.store(requests, std::memory_order_release); }
  bool done() const { return left_.load(std::memory_order_acquire) == 0; }

 private:
  std::uint64_t number_;
  std::shared_ptr<Finished> finished_;
  std::atomic<std::size_t> left_{0};
};

}  // namespace atta
