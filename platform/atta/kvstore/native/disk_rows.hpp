// Rows of a table that lies on the disk. Those that batches known ahead will ask for next, and those that were asked for
// most often lately, stay in a bounded number of slots. atta.kvstore.disk describes the policy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "disk.hpp"
#include "gather.hpp"
#include "memory.hpp"
#include "recent.hpp"

namespace atta {

class DiskRows {
 public:
  // The rows begin at byte `start` of the file; the last one may be cut short. `slots`: of the rows in memory, at least 1.
  DiskRows(std::string path, std::uint64_t start, std::size_t rows, std::size_t row_bytes, std::size_t slots, std::size_t half_life,
           bool ring, bool direct)
      : file_(std::move(path), ring, direct),
        start_(start),
        rows_(rows),
        row_bytes_(row_bytes),
        index_(slots, half_life, {0, static_cast<std::int64_t>(rows)}),
        kept_(slots * row_bytes) {
    if (start + rows * row_bytes >= file_.size() + row_bytes) throw std::invalid_argument("rows: the file is shorter");
  }

  std::size_t rows() const { return rows_; }
  std::size_t row_bytes() const { return row_bytes_; }
  std::size_t nbytes() const { return kept_.nbytes(); }
  const DiskFile& file() const { return file_; }
  RecentIndex& index() { return index_; }
  std::uint64_t asked() const { return asked_; }
  std::uint64_t hits() const { return hits_; }

  // out[to(i)] = the row rows[i], for all of `rows`. `turn`: of the batch that asks, as in RecentIndex. Throws DiskError.
  template <class Row, class To>
  void gather(std::span<const Row> rows, std::byte* out, To to, std::int64_t turn = -1) {
    check_rows("rows", rows.data(), rows.size(), rows_);
    const std::vector<std::int64_t> ids(rows.begin(), rows.end());
    std::vector<std::int32_t> found(ids.size());
    std::vector<std::int64_t> tickets(ids.size());
    const std::size_t hits = index_.look_up(ids, 1, turn, found.data(), tickets.data());
    asked_.fetch_add(ids.size(), std::memory_order_relaxed), hits_.fetch_add(hits, std::memory_order_relaxed);
    std::vector<Missing> missing;
    missing.reserve(ids.size() - hits);
    std::vector<std::int32_t> pinned;
    std::vector<std::size_t> places;
    pinned.reserve(hits), places.reserve(hits);
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (found[i] == RecentIndex::kNone)
        missing.push_back({ids[i], to(i), tickets[i] != RecentIndex::kNone});
      else
        pinned.push_back(found[i]), places.push_back(to(i));
    move_rows(
        kept_.data(), out, row_bytes_, hits, true, [&](std::size_t i) { return static_cast<std::size_t>(pinned[i]); },
        [&](std::size_t i) { return places[i]; });
    index_.unpin(pinned);
    if (!missing.empty()) read(missing, out);
  }

  // out[i] = the value of `bytes` bytes at byte at(i) of the file, for i in 0..count. The rows are the file's blocks, and
  // no value lies in two of them. A block is read once, wherever its values go.
  template <class At>
  void values(std::size_t count, std::size_t bytes, std::byte* out, At at) {
    std::vector<std::pair<std::uint64_t, std::size_t>> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = {at(i), i};
    std::sort(order.begin(), order.end());
    const std::size_t most = std::max<std::size_t>(1, kValueBytes / row_bytes_);
    std::vector<std::int64_t> blocks;
    std::vector<std::byte> read;
    for (std::size_t first = 0, next = 0; first < count; first = next) {
      blocks.clear();
      for (; next < count; ++next) {
        const auto block = static_cast<std::int64_t>(order[next].first / row_bytes_);
        if (!blocks.empty() && blocks.back() == block) continue;
        if (blocks.size() == most) break;
        blocks.push_back(block);
      }
      read.resize(blocks.size() * row_bytes_);
      gather(std::span<const std::int64_t>(blocks), read.data(), [](std::size_t i) { return i; });
      for (std::size_t i = first, block = 0; i < next; ++i) {
        const std::uint64_t from = order[i].first;
        while (static_cast<std::uint64_t>(blocks[block]) != from / row_bytes_) ++block;
        std::memcpy(out + order[i].second * bytes, read.data() + block * row_bytes_ + from % row_bytes_, bytes);
      }
    }
  }

 private:
  static constexpr std::size_t kValueBytes = std::size_t{8} << 20;    // of blocks that `values` has at a time
  static constexpr std::size_t kBesideBytes = std::size_t{16} << 20;  // of rows that are read for later batches

  struct Missing {
    std::int64_t row;
    std::size_t to;
    bool keep;
  };

  std::uint64_t begin_of(std::int64_t row) const { return start_ + static_cast<std::uint64_t>(row) * row_bytes_; }

  void read(std::vector<Missing>& missing, std::byte* out) {
    std::sort(missing.begin(), missing.end(), [](const Missing& a, const Missing& b) { return a.row < b.row; });
    const auto ranges = DiskFile::ranges(missing.size(), row_bytes_, [&](std::size_t i) { return begin_of(missing[i].row); });
    const std::vector<std::int64_t> beside = soon(ranges, missing);
    std::vector<std::byte> beside_rows(beside.size() * row_bytes_);
    file_.read(ranges, [&](const DiskRange& range, const std::byte* data) {
      const std::uint64_t end = std::min(range.offset + range.bytes, file_.size());
      const auto copy = [&](std::int64_t row, std::byte* target) {
        const std::uint64_t from = begin_of(row);
        std::memcpy(target, data + (from - range.offset), std::min<std::uint64_t>(row_bytes_, end - from));
      };
      for (std::size_t i = range.first; i < range.last; ++i) copy(missing[i].row, out + missing[i].to * row_bytes_);
      const auto inside = [&](std::int64_t row) { return begin_of(row) + row_bytes_ <= end; };
      auto at = std::lower_bound(beside.begin(), beside.end(), first_in(range));
      for (; at != beside.end() && inside(*at); ++at)
        copy(*at, beside_rows.data() + static_cast<std::size_t>(at - beside.begin()) * row_bytes_);
    });
    std::vector<std::int64_t> ids;
    std::vector<const std::byte*> from;
    for (const Missing& row : missing)
      if (row.keep) ids.push_back(row.row), from.push_back(out + row.to * row_bytes_);
    for (std::size_t i = 0; i < beside.size(); ++i) ids.push_back(beside[i]), from.push_back(beside_rows.data() + i * row_bytes_);
    keep(ids, from);
  }

  // The first row that lies wholly in a range, and begins in no earlier one.
  std::int64_t first_in(const DiskRange& range) const {
    return range.fresh <= start_ ? 0 : static_cast<std::int64_t>((range.fresh - start_ + row_bytes_ - 1) / row_bytes_);
  }

  // Rows that are read together with missing ones, and that a batch of the window will ask for: they ascend.
  std::vector<std::int64_t> soon(const std::vector<DiskRange>& ranges, const std::vector<Missing>& missing) {
    std::vector<std::int64_t> found;
    if (!index_.expects()) return found;
    for (const DiskRange& range : ranges) {
      std::size_t next = range.first;
      for (std::int64_t row = first_in(range); row < static_cast<std::int64_t>(rows_); ++row) {
        if (begin_of(row) + row_bytes_ > range.offset + range.bytes) break;
        while (next < range.last && missing[next].row < row) ++next;
        if (next == range.last || missing[next].row != row) found.push_back(row);
      }
    }
    index_.keep_expected(found);
    found.resize(std::min(found.size(), std::max<std::size_t>(1, kBesideBytes / row_bytes_)));
    return found;
  }

  void keep(std::span<const std::int64_t> ids, const std::vector<const std::byte*>& from) {
    std::vector<std::int32_t> slots(ids.size());
    std::vector<std::uint8_t> todo(ids.size());
    index_.reserve(ids, 1, slots.data(), todo.data());
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (slots[i] != RecentIndex::kNone)
        std::memcpy(kept_.data() + static_cast<std::size_t>(slots[i]) * row_bytes_, from[i], row_bytes_);
    index_.publish(slots, todo.data(), true);
  }

  DiskFile file_;
  std::uint64_t start_;
  std::size_t rows_, row_bytes_;
  RecentIndex index_;
  Lines<std::byte> kept_;
  std::atomic<std::uint64_t> asked_{0}, hits_{0};
};

}  // namespace atta
