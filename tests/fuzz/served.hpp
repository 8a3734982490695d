// A small partition that is served over links, the requests for it, and what their answers must be.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "asking.hpp"

namespace atta::fuzz {

using Rng = std::mt19937_64;

inline std::size_t below(Rng& rng, std::size_t n) { return static_cast<std::size_t>(rng() % n); }

#define REQUIRE(what)                                                         \
  do {                                                                        \
    if (!(what)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
      std::abort();                                                           \
    }                                                                         \
  } while (false)

inline std::array<int, 2> socket_pair() {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return ends;
}

// Three edge types and two tables of one node type; the rows of the first one are float32. Edges are narrow, wide, and narrow with
// source and id side by side.
struct Partition {
  static constexpr std::size_t kRows = 500, kHub = 3;  // row 3 has many edges
  static constexpr std::array<std::size_t, 2> kRowBytes{40, 8};

  std::vector<std::int64_t> indptr, keys, wide_indices, wide_ids;
  std::vector<std::int32_t> indices, ids, beside;
  std::array<std::vector<std::byte>, 2> tables;
  std::shared_ptr<ServedData> data = std::make_shared<ServedData>();

  explicit Partition(Rng& rng) {
    indptr.push_back(0);
    for (std::size_t r = 0; r < kRows; ++r)
      keys.push_back(static_cast<std::int64_t>(7 * r)),
          indptr.push_back(indptr.back() + static_cast<std::int64_t>(r == kHub ? 20'000 : below(rng, 30)));
    for (std::int64_t e = 0; e < indptr.back(); ++e) {
      indices.push_back(static_cast<std::int32_t>(below(rng, 1 << 20))), ids.push_back(static_cast<std::int32_t>(e));
      wide_indices.push_back(static_cast<std::int64_t>(rng() >> 2)), wide_ids.push_back((std::int64_t{1} << 40) + e);
      beside.push_back(indices.back()), beside.push_back(ids.back());
    }
    for (std::size_t t = 0; t < 2; ++t)
      for (std::size_t at = 0; at < kRows * kRowBytes[t]; ++at) tables[t].push_back(static_cast<std::byte>(rng()));
    for (std::size_t at = 0; at < tables[0].size(); at += 4) {
      const float number = static_cast<float>(rng()) * 0x1p-64F - 0.5F;
      std::memcpy(tables[0].data() + at, &number, sizeof number);
    }
    for (const std::size_t type : {0, 1, 2}) {
      const bool wide = type == 1;
      ServedEdges& edges = data->edges.emplace_back();
      edges.indptr = indptr, edges.keys = keys.data(), edges.edges = indices.size();
      edges.wide_indices = edges.wide_edge_ids = wide;
      edges.indices = wide ? static_cast<const void*>(wide_indices.data()) : indices.data();
      edges.edge_ids = wide ? static_cast<const void*>(wide_ids.data()) : ids.data();
      if (type == 2) edges.indices = beside.data(), edges.edge_ids = beside.data() + 1, edges.stride = 2;
      edges.prepared[0] = true;
    }
    data->tables.resize(1);
    for (std::size_t t = 0; t < 2; ++t) data->tables[0].push_back({tables[t].data(), kRows, kRowBytes[t]});
  }
};

inline constexpr std::byte kUntouched{0xA5};

// One request with the memory that its answer goes to.
struct Question {
  std::vector<std::int64_t> rows, positions, times;
  std::vector<std::uint32_t> counts;  // of the rows of sums
  std::vector<float> weights;
  std::vector<std::int16_t> shifts;  // of the columns of sums
  std::vector<std::int32_t> trees;
  std::array<std::vector<std::byte>, 2> outs;
  std::vector<TargetTable> targets;
  FrameHeader head;
  bool refused = false;  // the owner must refuse it

  Question(Rng& rng, std::size_t most_rows) {
    const std::size_t n = 1 + below(rng, most_rows);
    head.rows = static_cast<std::uint32_t>(n), head.age_ms = static_cast<std::uint32_t>(below(rng, 1000));
    for (std::size_t i = 0; i < n; ++i)
      rows.push_back(below(rng, 200) == 0 ? Partition::kHub : static_cast<std::int64_t>(below(rng, Partition::kRows)));
    if (below(rng, 50) == 0) rows[below(rng, n)] = static_cast<std::int64_t>(Partition::kRows + below(rng, 9)), refused = true;
    if (below(rng, 2) == 0) head.flags |= kWideRows;
    switch (below(rng, 4)) {
      case 0:
        pull(rng);
        break;
      case 1:
        sum(rng);
        break;
      default:
        sample(rng);
    }
    head.first_row = static_cast<std::uint32_t>(shifts.size());
    head.bytes = request_bytes(head);
  }

  void write(Piece& out, std::uint64_t number) {
    head.request = number;
    const std::size_t n = rows.size();
    out.begin();
    if (head.flags & kSums) std::memcpy(out.more(4 * counts.size()), counts.data(), 4 * counts.size());
    if (head.flags & kTimes) std::memcpy(out.more(8 * n), times.data(), 8 * n);
    for (const std::int64_t row : rows) {
      const auto narrow = static_cast<std::int32_t>(row);
      head.flags& kWideRows ? std::memcpy(out.more(8), &row, 8) : std::memcpy(out.more(4), &narrow, 4);
    }
    if (head.flags & kWeights) std::memcpy(out.more(4 * n), weights.data(), 4 * n);
    if (head.flags & kSums) std::memcpy(out.more(2 * shifts.size()), shifts.data(), 2 * shifts.size());
    if (head.flags & kTrees) std::memcpy(out.more(4 * n), trees.data(), 4 * n);
    out.end(head);
  }

  std::unique_ptr<Asked> asked() {
    auto asked = std::make_unique<Asked>();
    asked->rows = head.rows;
    if (head.kind == FrameKind::kPull) {
      asked->positions = positions.data(), asked->tables = &targets;
      for (const TargetTable& table : targets) asked->row_bytes += table.row_bytes;
    } else {
      asked->most_edges = head.fan_out < 0 ? 1 << 20 : static_cast<std::uint64_t>(head.fan_out);
    }
    return asked;
  }

  // What holds whatever the network does: sizes agree, and nothing is written beyond the rows that were answered and
  // those of one answer more, which had not come as a whole.
  void check_structure(const Asked& asked) const {
    REQUIRE(asked.done <= asked.rows && asked.rows == head.rows);
    REQUIRE((asked.state == Asked::State::kAnswered) == (asked.done == asked.rows));
    if (asked.pulls()) {
      const std::size_t one_answer = 4 * kPieceBytes / asked.row_bytes + 1;  // the largest that is not refused
      for (const TargetTable& table : targets)
        for (std::size_t i = asked.done + one_answer; i < asked.rows; ++i)
          for (std::size_t b = 0; b < table.row_bytes; ++b)
            REQUIRE(table.data[static_cast<std::size_t>(positions[i]) * table.row_bytes + b] == kUntouched);
      return;
    }
    REQUIRE(asked.counts.size() == asked.done);
    std::size_t total = 0;
    for (const std::int32_t count : asked.counts) total += static_cast<std::size_t>(count);
    REQUIRE(total == asked.edges);
    REQUIRE(asked.neighbors.size() == total * (asked.wide_neighbors ? 8 : 4));
    REQUIRE(asked.edge_ids.size() == total * (asked.wide_edge_ids ? 8 : 4));
  }

  // What holds when no array was damaged on its way: what was answered is right.
  void check_values(const Asked& asked, const Partition& of) const {
    if (head.flags & kSums) return check_sums(asked, of);
    asked.pulls() ? check_pulled(asked, of) : check_sampled(asked, of);
  }

 private:
  void sample(Rng& rng) {
    head.kind = FrameKind::kSample, head.item = static_cast<std::uint16_t>(below(rng, 3)), head.key = rng();
    head.fan_out = static_cast<std::int32_t>(below(rng, 12)) - 1;
    if (head.fan_out > 0 && below(rng, 4) == 0) head.flags |= kReplace;
    if (below(rng, 50) == 0) head.method = static_cast<std::uint32_t>(1 + below(rng, 40)), refused = true;
    if (below(rng, 3) == 0) head.flags |= kTrees, trees.assign(rows.size(), 5);
    if (below(rng, 3) == 0) head.flags |= kTimes, times.assign(rows.size(), 1000);
  }

  void pull(Rng& rng) {
    head.kind = FrameKind::kPull, head.key = 1 + below(rng, 3);
    for (std::size_t i = 0; i < rows.size(); ++i) positions.push_back(static_cast<std::int64_t>(i));
    std::shuffle(positions.begin(), positions.end(), rng);
    for (std::size_t t = 0; t < 2; ++t) {
      if (!(head.key >> t & 1)) continue;
      outs[t].assign(rows.size() * Partition::kRowBytes[t], kUntouched);
      targets.push_back({outs[t].data(), Partition::kRowBytes[t]});
    }
    if (below(rng, 50) == 0) head.key |= 4, refused = true;
  }

  static constexpr std::size_t kColumns = Partition::kRowBytes[0] / 4;

  void sum(Rng& rng) {
    head.kind = FrameKind::kPull, head.flags |= kSums, head.key = 1, head.edges = rows.size();
    head.method = static_cast<std::uint32_t>(below(rng, 2) == 0 ? kNarrowSum : kWideSum);
    for (std::size_t j = 0; j < kColumns; ++j) shifts.push_back(static_cast<std::int16_t>(18 + below(rng, 4)));
    for (std::size_t left = rows.size(); left > 0; left -= counts.back())
      counts.push_back(static_cast<std::uint32_t>(1 + below(rng, std::min<std::size_t>(left, 30))));
    if (below(rng, 2) == 0) head.flags |= kWeights, weights.assign(rows.size(), 0.75F);
    head.rows = static_cast<std::uint32_t>(counts.size());
    for (std::size_t g = 0; g < counts.size(); ++g) positions.push_back(static_cast<std::int64_t>(g));
    outs[0].assign(counts.size() * kColumns * head.method, kUntouched);
    targets.push_back({outs[0].data(), kColumns * head.method});
    switch (below(rng, 50)) {
      case 0:
        head.method = 6, refused = true;  // bytes of a column
        break;
      case 1:
        head.key = 3, refused = true;  // two tables
        break;
      case 2:
        ++counts[0], refused = true;  // more rows than came
        break;
      case 3:
        shifts.push_back(20), refused = true;  // more columns than there are
        break;
      case 4:
        shifts[0] = 401, refused = true;
        break;
      default:;
    }
  }

  void check_sums(const Asked& asked, const Partition& of) const {
    const std::size_t bytes = kColumns * head.method;
    for (std::size_t g = 0, first = 0; g < asked.done; first += counts[g++])
      for (std::size_t j = 0; j < kColumns; ++j) {
        std::int64_t want = 0, got = 0;
        for (std::size_t i = first; i < first + counts[g]; ++i) {
          float number = 0;
          std::memcpy(&number, &of.tables[0][static_cast<std::size_t>(rows[i]) * Partition::kRowBytes[0] + 4 * j], sizeof number);
          want += std::llrint(static_cast<double>(number) * (weights.empty() ? 1.0 : 0.75) * std::ldexp(1.0, shifts[j]));
        }
        const std::byte* const row = &outs[0][g * bytes];
        if (head.method == kWideSum) {
          std::memcpy(&got, row + 8 * j, 8);
        } else {
          std::uint32_t high = 0;
          std::memcpy(&high, row + 4 * j, 4);
          got = (std::int64_t{high} << 8 | std::to_integer<std::int64_t>(row[4 * kColumns + j])) - kNarrowHalf;
        }
        REQUIRE(got == want);
      }
  }

  void check_pulled(const Asked& asked, const Partition& of) const {
    for (std::size_t t = 0; t < 2; ++t) {
      if (outs[t].empty()) continue;
      const std::size_t bytes = Partition::kRowBytes[t];
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::byte* got = &outs[t][static_cast<std::size_t>(positions[i]) * bytes];
        if (i >= asked.done && refused) continue;  // there is no such row
        const std::byte* want = &of.tables[t][static_cast<std::size_t>(rows[i]) * bytes];
        for (std::size_t b = 0; b < bytes; ++b) REQUIRE(got[b] == want[b] || (i >= asked.done && got[b] == kUntouched));
      }
    }
  }

  void check_sampled(const Asked& asked, const Partition& of) const {
    std::size_t at = 0;
    for (std::size_t i = 0; i < asked.done; ++i) {
      const auto r = static_cast<std::size_t>(rows[i]);
      const std::int64_t begin = of.indptr[r], degree = of.indptr[r + 1] - begin;
      const bool replace = head.flags & kReplace;
      const std::int64_t most = head.fan_out < 0 ? degree : head.fan_out;
      REQUIRE(asked.counts[i] == (replace ? (degree == 0 ? 0 : most) : std::min(degree, most)));
      std::vector<std::int64_t> seen;
      for (std::int32_t k = 0; k < asked.counts[i]; ++k, ++at) {
        const bool wide = head.item == 1;
        const std::int64_t edge = element(asked.edge_ids, at, wide) - (wide ? std::int64_t{1} << 40 : 0);
        REQUIRE(edge >= begin && edge < begin + degree);
        seen.push_back(edge);
        const auto e = static_cast<std::size_t>(edge);
        REQUIRE(element(asked.neighbors, at, wide) == (wide ? of.wide_indices[e] : of.indices[e]));
      }
      std::sort(seen.begin(), seen.end());
      REQUIRE(replace || std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    }
  }

  static std::int64_t element(const std::vector<std::byte>& of, std::size_t at, bool wide) {
    std::int64_t value = 0;
    std::int32_t narrow = 0;
    if (wide) return std::memcpy(&value, of.data() + 8 * at, 8), value;
    return std::memcpy(&narrow, of.data() + 4 * at, 4), narrow;
  }
};

}  // namespace atta::fuzz
