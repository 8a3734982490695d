// Reads many pieces of a file at once, past the page cache: by io_uring, or by threads where the kernel has none.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "parallel.hpp"

namespace atta {

// Reading a file failed. `code` says why, `path` which one.
struct DiskError : std::system_error {
  std::string path;
  DiskError(int number, std::string of) : std::system_error(number, std::generic_category(), of.c_str()), path(std::move(of)) {}
};

inline constexpr std::size_t kDiskBlock = 4096;                 // what is read at least
inline constexpr std::size_t kDiskDepth = 64;                   // reads under way per caller
inline constexpr std::size_t kDiskSlot = std::size_t{1} << 16;  // bytes of a merged read, unless a row is longer
// Two pieces with less between them are read at once: so many bytes in order take as long as another read.
inline constexpr std::size_t kDiskGap = 12288;

#if __has_include(<linux/io_uring.h>)
// The rings of io_uring, by its system calls alone. Of one thread at a time.
class Ring {
 public:
  // Null: the kernel has none, or gives none to this process.
  static std::unique_ptr<Ring> open() {
    io_uring_params params{};
    const int fd = static_cast<int>(syscall(SYS_io_uring_setup, kDiskDepth, &params));
    if (fd < 0) return nullptr;
    std::unique_ptr<Ring> ring(new Ring(fd));
    return (params.features & IORING_FEAT_SINGLE_MMAP) != 0 && ring->map(params) ? std::move(ring) : nullptr;
  }
  Ring(const Ring&) = delete;
  ~Ring() {
    if (entries_ != nullptr) munmap(entries_, kDiskDepth * sizeof *entries_);
    if (rings_ != nullptr) munmap(rings_, bytes_);
    close(fd_);
  }

  // At most kDiskDepth reads are under way.
  void add(int fd, void* to, std::size_t bytes, std::uint64_t offset, std::uint64_t user) {
    const unsigned tail = *tail_, at = tail & mask_;
    entries_[at] = {};
    entries_[at].opcode = IORING_OP_READ, entries_[at].fd = fd, entries_[at].user_data = user, entries_[at].off = offset;
    entries_[at].addr = reinterpret_cast<std::uint64_t>(to), entries_[at].len = static_cast<unsigned>(bytes);
    order_[at] = at;
    std::atomic_ref(*tail_).store(tail + 1, std::memory_order_release);
    ++added_;
  }
  // Hands over what was added, and waits until so many reads have ended. Returns an error's number, or 0.
  int enter(unsigned wait) {
    while (true) {
      const long done = syscall(SYS_io_uring_enter, fd_, added_, wait, IORING_ENTER_GETEVENTS, nullptr, 0);
      if (done >= 0) added_ -= static_cast<unsigned>(done);
      if (done >= 0 && added_ == 0) return 0;
      if (done < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY) return errno;
    }
  }
  // Calls f(user, result) for each read that has ended.
  template <class F>
  void ended(F f) {
    unsigned head = *done_head_;
    for (; head != std::atomic_ref(*done_tail_).load(std::memory_order_acquire); ++head)
      f(done_[head & done_mask_].user_data, done_[head & done_mask_].res);
    std::atomic_ref(*done_head_).store(head, std::memory_order_release);
  }

 private:
  explicit Ring(int fd) : fd_(fd) {}
  bool map(const io_uring_params& params) {
    bytes_ = std::max(params.sq_off.array + params.sq_entries * sizeof(unsigned),
                      params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
    const auto mapped = [&](std::size_t bytes, off_t at) {
      void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, at);
      return found == MAP_FAILED ? nullptr : found;
    };
    rings_ = static_cast<std::byte*>(mapped(bytes_, IORING_OFF_SQ_RING));
    entries_ = static_cast<io_uring_sqe*>(mapped(kDiskDepth * sizeof *entries_, IORING_OFF_SQES));
    if (rings_ == nullptr || entries_ == nullptr || params.sq_entries != kDiskDepth) return false;
    const auto word = [&](unsigned at) { return reinterpret_cast<unsigned*>(rings_ + at); };
    tail_ = word(params.sq_off.tail), order_ = word(params.sq_off.array), mask_ = *word(params.sq_off.ring_mask);
    done_head_ = word(params.cq_off.head), done_tail_ = word(params.cq_off.tail), done_mask_ = *word(params.cq_off.ring_mask);
    done_ = reinterpret_cast<io_uring_cqe*>(rings_ + params.cq_off.cqes);
    return true;
  }

  int fd_;
  std::byte* rings_ = nullptr;
  io_uring_sqe* entries_ = nullptr;
  std::size_t bytes_ = 0;
  unsigned *tail_ = nullptr, *order_ = nullptr, *done_head_ = nullptr, *done_tail_ = nullptr;
  unsigned mask_ = 0, done_mask_ = 0, added_ = 0;
  io_uring_cqe* done_ = nullptr;
};
#else
struct Ring {
  static std::unique_ptr<Ring> open() { return nullptr; }
  void add(int, void*, std::size_t, std::uint64_t, std::uint64_t) {}
  int enter(unsigned) { return ENOSYS; }
  template <class F>
  void ended(F) {}
};
#endif

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using DiskBuffer = std::unique_ptr<std::byte, FreeMemory>;

inline DiskBuffer disk_buffer(std::size_t bytes) {
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kDiskBlock, bytes));
  if (memory == nullptr) throw std::bad_alloc();
  return DiskBuffer(memory);
}

// What one caller reads with. They are lent, so that there are no more than callers at a time.
struct DiskReader {
  std::unique_ptr<Ring> ring = Ring::open();
  DiskBuffer buffer = disk_buffer(kDiskDepth * kDiskSlot);
};

class DiskReaders {
 public:
  std::unique_ptr<DiskReader> take() {
    const std::lock_guard<std::mutex> held(mutex_);
    if (free_.empty()) return std::make_unique<DiskReader>();
    std::unique_ptr<DiskReader> found = std::move(free_.back());
    free_.pop_back();
    return found;
  }
  void give(std::unique_ptr<DiskReader> reader) {
    const std::lock_guard<std::mutex> held(mutex_);
    if (free_.size() < kMost) free_.push_back(std::move(reader));
  }
  static DiskReaders& all() {
    static DiskReaders readers;
    return readers;
  }

 private:
  static constexpr std::size_t kMost = 16;
  std::mutex mutex_;
  std::vector<std::unique_ptr<DiskReader>> free_;
};

// Whole blocks of a file, and which pieces of those that were asked for lie in them.
struct DiskRange {
  std::uint64_t offset;
  std::size_t bytes;
  std::size_t first, last;  // pieces [first, last)
  std::uint64_t fresh;      // what lies before this byte is in the range before, too
};

class DiskFile {
 public:
  // `ring`, `direct`: whether to use io_uring, and to pass the page cache by, where the system can. Throws DiskError.
  explicit DiskFile(std::string path, bool ring = true, bool direct = true) : path_(std::move(path)), ring_(ring) {
    if (direct) direct_ = open_direct();
    if (!direct_) fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat found{};
    if (fd_ < 0 || fstat(fd_, &found) != 0) {
      const int number = errno;
      if (fd_ >= 0) close(fd_);
      throw DiskError(number, path_);
    }
    size_ = static_cast<std::uint64_t>(found.st_size);
    if (!direct_) posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);
  }
  DiskFile(const DiskFile&) = delete;
  ~DiskFile() { close(fd_); }

  std::uint64_t size() const { return size_; }
  bool direct() const { return direct_; }
  std::uint64_t reads() const { return reads_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t waited_us() const { return waited_us_; }

  // The blocks that hold `count` pieces of `bytes` bytes, merged where few bytes lie between. `begin(i)` ascends.
  template <class Begin>
  static std::vector<DiskRange> ranges(std::size_t count, std::size_t bytes, Begin begin) {
    std::vector<DiskRange> found;
    const std::size_t most = std::max(kDiskSlot, bytes + 2 * kDiskBlock);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t from = begin(i) / kDiskBlock * kDiskBlock;
      const std::uint64_t to = (begin(i) + bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
      if (!found.empty()) {
        DiskRange& last = found.back();
        const std::uint64_t end = last.offset + last.bytes;
        if (from <= end + kDiskGap && std::max(to, end) - last.offset <= most) {
          last.bytes = std::max(to, end) - last.offset, last.last = i + 1;
          continue;
        }
      }
      const std::uint64_t fresh = found.empty() ? from : std::max(from, found.back().offset + found.back().bytes);
      found.push_back({from, to - from, i, i + 1, fresh});
    }
    return found;
  }

  // Reads ranges and calls take(range, its bytes) for each, in any order: from one thread, or without a ring from
  // several at a time. `take` does not throw. What lies beyond the file's end is left out. Throws DiskError.
  template <class Take>
  void read(const std::vector<DiskRange>& ranges, Take take) {
    if (ranges.empty()) return;
    std::size_t most = kDiskSlot;
    for (const DiskRange& range : ranges) most = std::max(most, range.bytes);
    std::unique_ptr<DiskReader> reader = DiskReaders::all().take();
    const int failed = ring_ && reader->ring ? by_ring(*reader, ranges, most, take) : by_threads(ranges, most, take);
    if (failed < 0) throw DiskError(-failed, path_);  // the ring itself: it goes, and with it what is under way
    DiskReaders::all().give(std::move(reader));
    if (failed != 0) throw DiskError(failed, path_);
  }

 private:
  static constexpr std::size_t kThreads = 16;  // that read for one caller without a ring

  bool open_direct() {
    fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd_ < 0) return false;
    const DiskBuffer buffer = disk_buffer(kDiskBlock);
    if (pread(fd_, buffer.get(), kDiskBlock, 0) >= 0) return true;
    close(fd_);
    fd_ = -1;
    return false;
  }

  std::size_t wanted(const DiskRange& range) const {
    return range.offset >= size_ ? 0 : static_cast<std::size_t>(std::min<std::uint64_t>(range.bytes, size_ - range.offset));
  }

  // Reads on from what has come of a range. Returns an error's number, or 0.
  int finish(const DiskRange& range, std::byte* to, std::size_t came) const {
    // What passes the page cache by begins at a block.
    for (std::size_t at = came / kDiskBlock * kDiskBlock; at < wanted(range);) {
      const ssize_t more = pread(fd_, to + at, range.bytes - at, static_cast<off_t>(range.offset + at));
      if (more < 0 && errno == EINTR) continue;
      if (more < 0) return errno;
      if (more == 0 || at + static_cast<std::size_t>(more) < wanted(range)) {
        struct stat now{};
        if (more == 0 || (fstat(fd_, &now) == 0 && static_cast<std::uint64_t>(now.st_size) < size_)) return ENODATA;
      }
      at += static_cast<std::size_t>(more);
      if (at < wanted(range)) at = at / kDiskBlock * kDiskBlock;
    }
    return 0;
  }

  template <class Take>
  int by_threads(const std::vector<DiskRange>& ranges, std::size_t most, Take take) {
    std::atomic<int> failed{0};
    const Waiting waiting(*this);
    share(ranges.size(), std::max<std::size_t>(1, ranges.size() / (4 * kThreads)), kThreads, [&](std::size_t a, std::size_t b) {
      const DiskBuffer buffer = disk_buffer(most);
      for (std::size_t i = a; i < b && failed == 0; ++i) {
        if (const int error = finish(ranges[i], buffer.get(), 0); error != 0) {
          failed = error;
          return;
        }
        count(ranges[i]);
        take(ranges[i], buffer.get());
      }
    });
    return failed;
  }

  // A negative number: of the ring itself.
  template <class Take>
  int by_ring(DiskReader& reader, const std::vector<DiskRange>& ranges, std::size_t most, Take take) {
    const std::size_t depth = std::clamp<std::size_t>(kDiskDepth * kDiskSlot / most, 1, kDiskDepth);
    const DiskBuffer larger = most * depth > kDiskDepth * kDiskSlot ? disk_buffer(most * depth) : nullptr;
    std::byte* const buffer = larger ? larger.get() : reader.buffer.get();
    std::size_t next = 0, under_way = 0;
    std::vector<std::pair<std::size_t, std::size_t>> slots;  // free places, and the range that was there
    std::vector<std::size_t> range_at(depth), free(depth);
    for (std::size_t i = 0; i < depth; ++i) free[i] = i;
    int failed = 0;
    while (under_way > 0 || (next < ranges.size() && failed == 0)) {
      for (; !free.empty() && next < ranges.size() && failed == 0; ++next, ++under_way) {
        const std::size_t at = free.back();
        free.pop_back();
        range_at[at] = next;
        reader.ring->add(fd_, buffer + at * most, ranges[next].bytes, ranges[next].offset, at);
      }
      {
        const Waiting waiting(*this);
        const std::size_t some = next < ranges.size() ? std::min<std::size_t>(under_way, depth / 8) : under_way;
        if (const int error = reader.ring->enter(static_cast<unsigned>(std::max<std::size_t>(1, some))); error != 0) return -error;
      }
      reader.ring->ended([&](std::uint64_t at, int result) {
        const DiskRange& range = ranges[range_at[at]];
        std::byte* const here = buffer + at * most;
        free.push_back(at), --under_way;
        if (failed != 0) return;
        const std::size_t came = result < 0 ? 0 : static_cast<std::size_t>(result);
        if (result < 0 && result != -EAGAIN && result != -EINTR)
          failed = -result;
        else if (came < wanted(range))
          failed = finish(range, here, came);
        if (failed != 0) return;
        count(range);
        take(range, here);
      });
    }
    return failed;
  }

  void count(const DiskRange& range) {
    reads_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(range.bytes, std::memory_order_relaxed);
    if (!direct_) posix_fadvise(fd_, static_cast<off_t>(range.offset), static_cast<off_t>(range.bytes), POSIX_FADV_DONTNEED);
  }

  // Counts the time until its end.
  class Waiting {
   public:
    explicit Waiting(DiskFile& file) : file_(file), began_(Clock::now()) {}
    Waiting(const Waiting&) = delete;
    ~Waiting() {
      const auto spent = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began_);
      file_.waited_us_.fetch_add(static_cast<std::uint64_t>(spent.count()), std::memory_order_relaxed);
    }

   private:
    using Clock = std::chrono::steady_clock;
    DiskFile& file_;
    Clock::time_point began_;
  };

  std::string path_;
  int fd_ = -1;
  bool ring_, direct_ = false;
  std::uint64_t size_ = 0;
  std::atomic<std::uint64_t> reads_{0}, bytes_{0}, waited_us_{0};
};

}  // namespace atta
