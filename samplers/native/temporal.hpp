// Temporal in-neighbour sampling: an edge later than the row's time does not exist for it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "arrays.hpp"
#include "gather.hpp"
#include "memory.hpp"
#include "parallel.hpp"
#include "sample.hpp"

namespace atta {

// The edges of each row in the order of their times. These tables are made once. Times count from the earliest time of
// the graph. If they span less than 2^32 (136 years of seconds), they take four bytes, and a binary search touches half
// as many lines. An edge's source stands beside its position, so a pick costs one line and not two.
template <class Time>
struct TemporalTables {
  const Time* times;           // ascending within a row
  const std::uint64_t* edges;  // source << shift | position within the row
  int shift;
  std::int64_t origin;
};

// Fills the tables of one row; edges of the same time keep their order.
template <class Time, class Id>
void sort_by_time(const std::int64_t* times, const Id* sources, std::size_t degree, std::int64_t origin, int shift, Time* sorted,
                  std::uint64_t* edges, std::vector<std::pair<std::int64_t, std::uint32_t>>& scratch) {
  scratch.clear();
  for (std::size_t i = 0; i < degree; ++i) scratch.emplace_back(times[i], static_cast<std::uint32_t>(i));
  std::sort(scratch.begin(), scratch.end());
  for (std::size_t i = 0; i < degree; ++i) {
    sorted[i] = static_cast<Time>(static_cast<std::uint64_t>(scratch[i].first) - static_cast<std::uint64_t>(origin));
    edges[i] = static_cast<std::uint64_t>(sources[scratch[i].second]) << shift | scratch[i].second;
  }
}

// Picks uniformly among the edges up to the row's time, or picks the last `fan_out` of them. If all are taken, they
// come in the order of time.
template <class Time>
class TemporalPicker {
 public:
  static constexpr bool kResolves = true, kKnowsSources = true;

  TemporalPicker(const SampleSpec& spec, const TemporalTables<Time>& tables, bool last)
      : spec_(spec), tables_(tables), last_(last) {}

  void request(std::size_t /*row*/) const {}

  void draw(Picks& block) {
    search(block);
    for (std::size_t i = 0; i < block.targets.size(); ++i) {
      const Target& t = block.targets[i];
      const std::int64_t count = picks_of(known_[i], spec_);
      std::int64_t* mine = block.add(count);
      if (last_)
        for (std::int64_t j = 0; j < count; ++j) mine[j] = known_[i] - count + j;
      else
        pick_positions(t.stream, known_[i], count, spec_, mine, picked_);
      for (std::int64_t j = 0; j < count; ++j) {
        mine[j] += t.begin;
        __builtin_prefetch(&tables_.edges[mine[j]]);
      }
    }
    asm volatile("");
  }

  void resolve(Picks& block) const {
    const std::uint64_t position = (std::uint64_t{1} << tables_.shift) - 1;
    block.sources.resize(block.positions.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < block.targets.size(); ++i)
      for (std::int32_t j = 0; j < block.counts[i]; ++j, ++at) {
        const std::uint64_t edge = tables_.edges[block.positions[at]];
        block.sources[at] = static_cast<std::int64_t>(edge >> tables_.shift);
        block.positions[at] = block.targets[i].begin + static_cast<std::int64_t>(edge & position);
      }
  }

 private:
  // known_[i]: how many edges of target i are not later than its time. The binary searches of all rows run in step: the
  // line of one row is requested while other rows are compared.
  void search(const Picks& block) {
    const std::size_t n = block.targets.size();
    known_.assign(n, 0);
    left_.resize(n);
    until_.resize(n);
    bool open = false;
    for (std::size_t i = 0; i < n; ++i) {
      left_[i] = block.targets[i].degree;
      const std::int64_t time = block.targets[i].time;
      if (time == kEndOfTime) known_[i] = std::exchange(left_[i], 0);
      if (time < tables_.origin) left_[i] = 0;
      const std::uint64_t since = static_cast<std::uint64_t>(time) - static_cast<std::uint64_t>(tables_.origin);
      until_[i] = static_cast<Time>(std::min<std::uint64_t>(since, std::numeric_limits<Time>::max()));
      open |= left_[i] > 0;
      request_middle(block.targets[i], i);
    }
    while (open) {
      open = false;
      for (std::size_t i = 0; i < n; ++i) {
        if (left_[i] == 0) continue;
        const Target& t = block.targets[i];
        // There is no branch: the processor cannot predict the half.
        const std::int64_t half = left_[i] / 2, later = left_[i] - half - 1;
        const std::int64_t upper = -static_cast<std::int64_t>(tables_.times[t.begin + known_[i] + half] <= until_[i]);
        known_[i] += (half + 1) & upper;
        left_[i] = half ^ ((half ^ later) & upper);
        request_middle(t, i);
        open |= left_[i] > 0;
      }
    }
  }

  void request_middle(const Target& t, std::size_t i) const {
    if (left_[i] > 0) __builtin_prefetch(&tables_.times[t.begin + known_[i] + left_[i] / 2]);
    asm volatile("");
  }

  SampleSpec spec_;
  TemporalTables<Time> tables_;
  bool last_;
  Picked picked_;
  std::vector<std::int64_t> known_, left_;
  std::vector<Time> until_;
};

// The method, see method.hpp: uniform among the edges up to the row's time, or the last of them.
class Temporal {
 public:
  static constexpr bool kReadsEveryEdge = false;

  static Temporal made(Longs indptr, Vector indices, Longs times, bool last, std::size_t threads) {
    if (indptr.size() == 0) bad("indptr", "is empty");
    if (indices.size() != times.size()) bad("times", "must be as many as indices");
    check_threads(threads);
    std::int64_t first = 0, latest = 0;
    if (times.size() > 0) {
      const auto [least, most] = std::minmax_element(times.data(), times.data() + times.size());
      first = *least, latest = *most;
    }
    const bool narrow = static_cast<std::uint64_t>(latest) - static_cast<std::uint64_t>(first) < UINT32_MAX;
    return with_ids("indices", indices, [&](const auto* sources) {
      return narrow ? Temporal(sorted<std::uint32_t>(indptr, sources, times, first, threads), last)
                    : Temporal(sorted<std::uint64_t>(indptr, sources, times, first, threads), last);
    });
  }

  std::size_t edges() const {
    return std::visit([](const auto& t) { return t.edges.size(); }, sorted_);
  }
  std::size_t nbytes() const {
    return std::visit([](const auto& t) { return t.times.nbytes() + t.edges.nbytes(); }, sorted_);
  }
  bool may_replace() const { return !last_; }

  // How many edges of each row are not later than its time.
  nb::object timely(Longs indptr, Vector rows, Longs times) const {
    if (rows.size() != times.size()) bad("times", "must be as many as rows");
    if (indptr.size() == 0 || indptr.data()[indptr.size() - 1] != static_cast<std::int64_t>(edges()))
      bad("method", "its tables were made for other edges");
    Buffer<std::int64_t> counts(rows.size());
    with_ids("rows", rows, [&](const auto* row) {
      nb::gil_scoped_release unlocked;
      check_rows("rows", row, rows.size(), indptr.size() - 1);
      std::visit(
          [&]<class Time>(const Sorted<Time>& t) {
            for (std::size_t i = 0; i < rows.size(); ++i) {
              check_rows_of(indptr, t.edges.size(), static_cast<std::size_t>(row[i]));
              const Time *first = t.times.data() + indptr.data()[row[i]], *last = t.times.data() + indptr.data()[row[i] + 1];
              const std::uint64_t since = static_cast<std::uint64_t>(times.data()[i]) - static_cast<std::uint64_t>(t.origin);
              const auto until = static_cast<Time>(std::min<std::uint64_t>(since, std::numeric_limits<Time>::max()));
              counts.data[i] = times.data()[i] == kEndOfTime ? last - first
                               : times.data()[i] < t.origin  ? 0
                                                             : std::upper_bound(first, last, until) - first;
            }
          },
          sorted_);
    });
    return counts.release();
  }

  template <class F>
  void with_picker(const SampleSpec& spec, F f) const {
    std::visit(
        [&]<class Time>(const Sorted<Time>& t) {
          f([&] { return TemporalPicker(spec, TemporalTables<Time>{t.times.data(), t.edges.data(), t.shift, t.origin}, last_); });
        },
        sorted_);
  }

  template <class Method>
  static void bind(nb::class_<Method>& methods) {
    methods.def_static(
        "temporal",
        [](Longs indptr, Vector indices, Longs times, bool last, std::size_t threads) {
          return Method(made(indptr, indices, times, last, threads));
        },
        "indptr"_a, "indices"_a, "times"_a, "last"_a, "threads"_a);
    methods.def(
        "timely",
        [](const Method& method, Longs indptr, Vector rows, Longs times) {
          const auto* temporal = method.template as<Temporal>();
          if (temporal == nullptr) bad("method", "has no times");
          return temporal->timely(indptr, rows, times);
        },
        "indptr"_a, "rows"_a, "times"_a);
  }

 private:
  // What `TemporalTables` points to.
  template <class Time>
  struct Sorted {
    Lines<Time> times;
    Lines<std::uint64_t> edges;
    int shift;
    std::int64_t origin;
  };

  template <class Time>
  Temporal(Sorted<Time> sorted, bool last) : sorted_(std::move(sorted)), last_(last) {}

  template <class Time, class Id>
  static Sorted<Time> sorted(const Longs& indptr, const Id* sources, const Longs& times, std::int64_t origin, std::size_t threads) {
    const std::size_t n = indptr.size() - 1, edges = times.size();
    nb::gil_scoped_release unlocked;
    std::int64_t degree = 1, most = 0;
    for (std::size_t row = 0; row < n; ++row) {
      check_rows_of(indptr, edges, row);
      degree = std::max(degree, indptr.data()[row + 1] - indptr.data()[row]);
    }
    for (std::size_t i = 0; i < edges; ++i) {
      if (sources[i] < 0) bad("indices", ("edge " + std::to_string(i) + " comes from no vertex").c_str());
      most = std::max(most, static_cast<std::int64_t>(sources[i]));
    }
    const int shift = std::bit_width(static_cast<std::uint64_t>(degree));
    if (degree > UINT32_MAX || shift + std::bit_width(static_cast<std::uint64_t>(most)) > 64)
      bad("indices", "has too many vertices and too long rows for temporal sampling");
    Sorted<Time> made{Lines<Time>(edges), Lines<std::uint64_t>(edges), shift, origin};
    split(by_edges({indptr.data(), n + 1}, threads), [&](std::size_t, std::size_t a, std::size_t b) {
      std::vector<std::pair<std::int64_t, std::uint32_t>> scratch;
      for (std::size_t row = a; row < b; ++row) {
        const std::int64_t begin = indptr.data()[row];
        sort_by_time(times.data() + begin, sources + begin, static_cast<std::size_t>(indptr.data()[row + 1] - begin), origin, shift,
                     made.times.data() + begin, made.edges.data() + begin, scratch);
      }
    });
    return made;
  }

  std::variant<Sorted<std::uint32_t>, Sorted<std::uint64_t>> sorted_;
  bool last_;
};

}  // namespace atta
