// What a daemon answers its peers with: the in-edges and the table rows of its partition.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <stdexcept>
#include <vector>

#include "disk_rows.hpp"
#include "expand.hpp"
#include "frames.hpp"
#include "gather.hpp"
#include "mapped.hpp"
#include "method.hpp"
#include "sums.hpp"

namespace atta {

inline constexpr std::size_t kMethods = 16;  // numbers of neighbour methods are below this

// The in-edges of one type. The arrays belong to Python, which keeps them as long as the links live.
struct ServedEdges {
  std::span<const std::int64_t> indptr;
  const void* indices = nullptr;
  const void* edge_ids = nullptr;
  bool wide_indices = false, wide_edge_ids = false;
  std::size_t edges = 0;
  std::int64_t stride = 1;  // see InEdges
  const std::int64_t* keys = nullptr;
  // Where sources and edge ids are on the disk, and the byte there where they begin; null: the arrays above are read.
  DiskRows *disk_indices = nullptr, *disk_edge_ids = nullptr;
  std::uint64_t indices_at = 0, edge_ids_at = 0;
  // By number. A method without tables is uniform sampling; one that is not prepared is refused.
  std::array<std::atomic<const Method*>, kMethods> methods{};
  std::array<std::atomic<bool>, kMethods> prepared{};
};

struct ServedTable {
  const std::byte* data = nullptr;
  std::size_t rows = 0, row_bytes = 0;
  DiskRows* disk = nullptr;  // null: `data` is read
};

struct ServedData {
  std::deque<ServedEdges> edges;                 // by edge type; their addresses stay
  std::vector<std::vector<ServedTable>> tables;  // by node type
};

// An answer that is being written: a header and its arrays, padded.
class Piece {
 public:
  void begin() { bytes_.resize(bytes_.size() + sizeof(FrameHeader)), head_at_ = bytes_.size() - sizeof(FrameHeader); }
  // Room for `count` more bytes. It moves when more room is asked for.
  std::byte* more(std::size_t count) {
    bytes_.resize(bytes_.size() + count);
    return bytes_.data() + bytes_.size() - count;
  }
  void end(FrameHeader head) {
    head.bytes = bytes_.size() - head_at_ - sizeof head;
    head.seal();
    std::memcpy(bytes_.data() + head_at_, &head, sizeof head);
    const std::size_t padding = padded(head.bytes) - head.bytes;
    if (padding > 0) std::memset(more(padding), 0, padding);
  }
  void undo() { bytes_.resize(head_at_); }
  // A buffer of the usual size is kept for the next answer.
  void clear() {
    if (bytes_.capacity() > 4 * kPieceBytes)
      bytes_ = {};
    else
      bytes_.clear();
  }
  void drop(std::size_t count) { bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(count)); }
  const std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }

 private:
  // New bytes need not be zeroed: all of them are written.
  template <class T>
  struct Uninitialised : std::allocator<T> {
    template <class U>
    struct rebind {
      using other = Uninitialised<U>;
    };
    template <class U>
    void construct(U* /*place*/) const {}
    template <class U, class A>
    void construct(U* place, A&& value) const {
      new (place) U(std::forward<A>(value));
    }
  };

  std::vector<std::byte, Uninitialised<std::byte>> bytes_;
  std::size_t head_at_ = 0;
};

// A request, and how far it has been answered.
class Request {
 public:
  Request(const FrameHeader& head, const std::byte* arrays, std::int64_t came_us)
      : head_(head), came_us_(came_us), since_us_(came_us - std::int64_t{1000} * head.age_ms), rows_(head.rows) {
    if (head.flags & kSums) {
      for (std::size_t i = 0; i < head.rows; ++i) starts_.push_back(starts_.back() + read<std::uint32_t>(arrays, i));
      arrays += 4 * std::size_t{head.rows};
      rows_.resize(head.edges);
    }
    const std::size_t n = rows_.size();
    if (head.flags & kTimes && !pulls()) times_.resize(n), std::memcpy(times_.data(), arrays, 8 * n), arrays += 8 * n;
    for (std::size_t i = 0; i < n; ++i)
      rows_[i] = head.flags & kWideRows ? read<std::int64_t>(arrays, i) : read<std::int32_t>(arrays, i);
    arrays += row_width(head) * n;
    if (head.flags & kSums && n > 0 && head.first_row > 0) {
      if (head.flags & kWeights) weights_.resize(n), std::memcpy(weights_.data(), arrays, 4 * n), arrays += 4 * n;
      shifts_.resize(head.first_row), std::memcpy(shifts_.data(), arrays, 2 * shifts_.size());
    }
    if (head.flags & kTrees && !pulls()) trees_.resize(n), std::memcpy(trees_.data(), arrays, 4 * n);
  }

  bool pulls() const { return head_.kind == FrameKind::kPull; }
  bool done() const { return done_ == head_.rows; }
  std::int64_t came_us() const { return came_us_; }
  std::size_t nbytes() const {
    return sizeof *this + 8 * (rows_.size() + times_.size()) + 4 * (trees_.size() + weights_.size()) + 8 * starts_.size() +
           2 * shifts_.size();
  }
  // Expansions come before rows, since more work waits for them. Then the oldest batch is first.
  bool before(const Request& other) const { return pulls() != other.pulls() ? other.pulls() : since_us_ < other.since_us_; }

  std::uint64_t answered_bytes = 0;  // as its owner counts them

  // Writes the next answer. A request that cannot be answered is refused, and done.
  void answer(const ServedData& data, Piece& out) {
    out.begin();
    try {
      pulls() ? pull(data, out) : sample(data, out);
      if (files_damaged.load(std::memory_order_relaxed)) throw std::runtime_error("a file of the partition has changed");
    } catch (const std::exception& error) {
      out.undo();
      refuse(error.what(), out);
    }
  }

 private:
  void refuse(const char* why, Piece& out) {
    FrameHeader head = answered(FrameKind::kRefused, 0);
    const std::size_t length = std::min(std::strlen(why), kMaxRefusal);
    out.begin();
    std::memcpy(out.more(length), why, length);
    out.end(head);
    done_ = head_.rows;
  }

  FrameHeader answered(FrameKind kind, std::size_t rows) const {
    FrameHeader head;
    head.kind = kind, head.item = head_.item, head.request = head_.request;
    head.first_row = static_cast<std::uint32_t>(done_), head.rows = static_cast<std::uint32_t>(rows);
    return head;
  }

  template <class T>
  static T read(const std::byte* from, std::size_t i) {
    T value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    return value;
  }

  // ---- rows ---------------------------------------------------------------------------------------------------------------------

  void pull(const ServedData& data, Piece& out) {
    if (head_.item >= data.tables.size()) throw std::invalid_argument("no such node type");
    const std::vector<ServedTable>& tables = data.tables[head_.item];
    if (head_.key == 0 || (tables.size() < 64 && head_.key >> tables.size() != 0)) throw std::invalid_argument("no such table");
    if (head_.flags & kSums) return sum(tables, out);
    std::size_t row_bytes = 0;
    for (std::size_t t = 0; t < tables.size(); ++t)
      if (head_.key >> t & 1) row_bytes += tables[t].row_bytes;
    const std::size_t count =
        std::min(head_.rows - done_, std::max<std::size_t>(1, kPieceBytes / std::max<std::size_t>(1, row_bytes)));
    for (std::size_t t = 0; t < tables.size(); ++t) {
      if (!(head_.key >> t & 1)) continue;
      check_rows("rows", rows_.data() + done_, count, tables[t].rows);
      std::byte* to = out.more(count * tables[t].row_bytes);
      if (tables[t].disk != nullptr) {
        tables[t].disk->gather(std::span<const std::int64_t>(rows_).subspan(done_, count), to, [](std::size_t i) { return i; });
        continue;
      }
      move_rows(
          tables[t].data, to, tables[t].row_bytes, count, false,
          [&](std::size_t i) { return static_cast<std::size_t>(rows_[done_ + i]); }, [](std::size_t i) { return i; });
    }
    out.end(answered(FrameKind::kPulled, count));
    done_ += count;
  }

  void sum(const std::vector<ServedTable>& tables, Piece& out) {
    const ServedTable& table = tables[static_cast<std::size_t>(std::countr_zero(head_.key))];
    const std::size_t columns = table.row_bytes / 4, width = head_.method, bytes = columns * width;
    check_sums(shifts_.data(), shifts_.size(), columns, width);
    if (std::popcount(head_.key) != 1 || table.row_bytes % 4 != 0 || starts_.back() != rows_.size())
      throw std::invalid_argument("sums of several tables, or of other rows than came");
    const std::size_t count = std::min(head_.rows - done_, std::max<std::size_t>(1, kPieceBytes / std::max<std::size_t>(1, bytes)));
    check_rows("rows", rows_.data() + starts_[done_], starts_[done_ + count] - starts_[done_], table.rows);
    std::byte* const to = out.more(count * bytes);
    const float* const weights = weights_.empty() ? nullptr : weights_.data();
    if (table.disk == nullptr) {
      sum_groups(table.data, columns, rows_.data(), weights, starts_.data(), done_, done_ + count, shifts_.data(), width, to);
    } else {
      const auto mine = std::span<const std::int64_t>(rows_).subspan(starts_[done_], starts_[done_ + count] - starts_[done_]);
      std::vector<std::byte> read(mine.size() * table.row_bytes);
      table.disk->gather(mine, read.data(), [](std::size_t i) { return i; });
      std::vector<std::int64_t> at(rows_.size());
      for (std::size_t i = 0; i < mine.size(); ++i) at[starts_[done_] + i] = static_cast<std::int64_t>(i);
      sum_groups(read.data(), columns, at.data(), weights, starts_.data(), done_, done_ + count, shifts_.data(), width, to);
    }
    out.end(answered(FrameKind::kPulled, count));
    done_ += count;
  }

  // ---- edges --------------------------------------------------------------------------------------------------------------------

  void sample(const ServedData& data, Piece& out) {
    if (head_.item >= data.edges.size()) throw std::invalid_argument("no such edge type");
    const ServedEdges& edges = data.edges[head_.item];
    if (head_.method >= kMethods || !edges.prepared[head_.method].load(std::memory_order_acquire))
      throw std::invalid_argument("the neighbour method is not prepared");
    const Method* method = edges.methods[head_.method].load(std::memory_order_acquire);
    const SampleSpec spec{head_.fan_out, (head_.flags & kReplace) != 0, head_.key, head_.first_row};
    check_method(method, spec, edges.edges);
    const std::size_t stop = piece_end(edges, method);
    if (edges.wide_indices)
      edges.wide_edge_ids ? draw<std::int64_t, std::int64_t>(edges, method, spec, stop, out)
                          : draw<std::int64_t, std::int32_t>(edges, method, spec, stop, out);
    else
      edges.wide_edge_ids ? draw<std::int32_t, std::int64_t>(edges, method, spec, stop, out)
                          : draw<std::int32_t, std::int32_t>(edges, method, spec, stop, out);
    done_ = stop;
  }

  // The rows of one answer. A single huge row stays whole.
  std::size_t piece_end(const ServedEdges& edges, const Method* method) const {
    const std::size_t most = kPieceBytes / 8;
    if (head_.fan_out >= 0 && (method == nullptr || !method->reads_every_edge()))
      return std::min<std::size_t>(head_.rows,
                                   done_ + std::max<std::size_t>(1, most / (static_cast<std::size_t>(head_.fan_out) + 1)));
    std::size_t total = 0, at = done_;
    while (at < head_.rows) {
      const auto r = static_cast<std::size_t>(rows_[at]);
      if (r < edges.indptr.size() - 1) total += 1 + static_cast<std::size_t>(edges.indptr[r + 1] - edges.indptr[r]);
      ++at;
      if (total >= most) break;
    }
    return at;
  }

  template <class Id, class Edge>
  struct PieceSink {
    std::vector<std::int32_t> counts;
    std::vector<Id> neighbors;
    std::vector<Edge> edge_ids;

    bool reserve(std::size_t /*edges*/) const { return true; }
    void request(Block<Id, Edge>& /*block*/) const {}
    void take(Block<Id, Edge>& block) {
      counts.insert(counts.end(), block.picks.counts.begin(), block.picks.counts.end());
      neighbors.insert(neighbors.end(), block.sources.begin(), block.sources.end());
      edge_ids.insert(edge_ids.end(), block.edge_ids.begin(), block.edge_ids.end());
    }
  };

  template <class Id, class Edge>
  void draw(const ServedEdges& edges, const Method* method, const SampleSpec& spec, std::size_t stop, Piece& out) {
    if (edges.disk_indices != nullptr) return draw_on_disk<Id, Edge>(edges, method, spec, stop, out);
    const InEdges<Id, Edge> graph{
        edges.indptr, static_cast<const Id*>(edges.indices),    edges.edges, static_cast<const Edge*>(edges.edge_ids),
        edges.keys,   std::numeric_limits<std::int64_t>::max(), edges.stride};
    static thread_local PieceSink<Id, Edge> sink;  // keeps its memory
    sink.counts.clear(), sink.neighbors.clear(), sink.edge_ids.clear();
    if (spec.fan_out == -1 && method == nullptr) return copy(graph, spec, [this](std::size_t i) { return row_at(i); }, stop, out);
    expand_into(sink, graph, method, spec, stop, true);
    append(sink.counts, out), append(sink.neighbors, out), append(sink.edge_ids, out);
    out.end(sampled<Id, Edge>(stop, sink.neighbors.size()));
  }

  // The same where sources and edge ids are on the disk: positions are drawn, then read.
  template <class Id, class Edge>
  void draw_on_disk(const ServedEdges& edges, const Method* method, const SampleSpec& spec, std::size_t stop, Piece& out) {
    const InEdges<std::int64_t, std::int64_t> graph{edges.indptr, nullptr,    edges.edges,
                                                    nullptr,      edges.keys, std::numeric_limits<std::int64_t>::max()};
    PieceSink<std::int64_t, std::int64_t> sink;
    expand_into(sink, graph, method, spec, stop, false);
    append(sink.counts, out);
    const std::vector<std::int64_t>& drawn = sink.neighbors;
    const auto read_values = [&](DiskRows& disk, std::uint64_t start, std::size_t bytes) {
      disk.values(drawn.size(), bytes, out.more(drawn.size() * bytes),
                  [&](std::size_t i) { return start + static_cast<std::uint64_t>(drawn[i]) * bytes; });
    };
    read_values(*edges.disk_indices, edges.indices_at, sizeof(Id));
    read_values(*edges.disk_edge_ids, edges.edge_ids_at, sizeof(Edge));
    out.end(sampled<Id, Edge>(stop, drawn.size()));
  }

  Row row_at(std::size_t i) const {
    return Row{rows_[i], trees_.empty() ? -1 : trees_[i], times_.empty() ? kEndOfTime : times_[i]};
  }

  template <class Id, class Edge, class Sink>
  void expand_into(Sink& sink, const InEdges<Id, Edge>& graph, const Method* method, const SampleSpec& spec, std::size_t stop,
                   bool want_edges) const {
    with_picker(method, spec, [&](auto make) {
      auto picker = make();
      expand(graph, spec, picker, done_, stop, [this](std::size_t i) { return row_at(i); }, want_edges, sink);
    });
  }

  template <class Id, class Edge>
  FrameHeader sampled(std::size_t stop, std::size_t edges) const {
    FrameHeader head = answered(FrameKind::kSampled, stop - done_);
    head.edges = edges;
    head.flags = static_cast<std::uint8_t>((sizeof(Id) == 8 ? kWideNeighbors : 0) | (sizeof(Edge) == 8 ? kWideEdgeIds : 0));
    return head;
  }

  // Answers with all edges of the rows. Nothing is drawn, so each row's edges move at once.
  template <class Id, class Edge, class RowAt>
  void copy(const InEdges<Id, Edge>& graph, const SampleSpec& spec, const RowAt& row_at, std::size_t stop, Piece& out) {
    static thread_local std::vector<Target> found;  // keeps its memory
    found.clear();
    FrameHeader head = answered(FrameKind::kSampled, stop - done_);
    for (std::size_t i = done_; i < stop; ++i) {
      found.push_back(target_of(graph, spec, row_at(i)));
      if (found.back().degree > INT32_MAX) throw std::invalid_argument("fan_out: more than 2^31 - 1 neighbours of one row");
      head.edges += static_cast<std::uint64_t>(found.back().degree);
    }
    head.flags = static_cast<std::uint8_t>((sizeof(Id) == 8 ? kWideNeighbors : 0) | (sizeof(Edge) == 8 ? kWideEdgeIds : 0));
    std::byte* to = out.more(found.size() * 4 + head.edges * (sizeof(Id) + sizeof(Edge)));
    for (const Target& row : found) {
      const auto count = static_cast<std::int32_t>(row.degree);
      std::memcpy(to, &count, sizeof count), to += sizeof count;
    }
    const auto move = [&](const auto* values) {
      for (const Target& row : found) {
        const auto count = static_cast<std::size_t>(row.degree);
        if (graph.stride == 1 && count > 0) std::memcpy(to, values + row.begin, count * sizeof *values);
        if (graph.stride != 1)
          for (std::size_t i = 0; i < count; ++i)
            std::memcpy(to + i * sizeof *values, values + (row.begin + static_cast<std::int64_t>(i)) * graph.stride,
                        sizeof *values);
        to += count * sizeof *values;
      }
    };
    move(graph.indices), move(graph.edge_ids);
    out.end(head);
  }

  template <class T>
  static void append(const std::vector<T>& values, Piece& out) {
    std::byte* to = out.more(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(T));
  }

  FrameHeader head_;
  std::int64_t came_us_, since_us_;  // when it came, and when its batch was begun
  std::vector<std::int64_t> rows_, times_;
  std::vector<std::int32_t> trees_;
  std::vector<std::size_t> starts_{0};  // of sums: their bounds in `rows_`
  std::vector<float> weights_;          // of their rows; none: 1
  std::vector<std::int16_t> shifts_;    // of the columns
  std::size_t done_ = 0;
};

}  // namespace atta
