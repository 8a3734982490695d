// LABOR-0 (Balin and Catalyurek, "Layer-neighbor sampling", NeurIPS 2023): a row of d in-edges takes each source whose
// number in this stream is below fan_out / d. All rows share these numbers, so they choose the same sources if they
// can.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "memory.hpp"
#include "parallel.hpp"
#include "processor.hpp"
#include "sample.hpp"

namespace atta {

// The number of a source in a stream, uniform over 32 bits: hashed from its mark, which takes four bytes per edge and is made
// once.
struct LaborStream {
  std::uint32_t first, second;

  LaborStream(std::uint32_t of_first, std::uint32_t of_second) : first(of_first), second(of_second) {}
  explicit LaborStream(std::uint64_t stream_key)
      : first(static_cast<std::uint32_t>(mix64(stream_key))), second(static_cast<std::uint32_t>(mix64(stream_key) >> 32)) {}

  std::uint32_t number(std::uint32_t mark) const {
    std::uint32_t x = mark ^ first;
    x ^= x >> 16;
    x *= 0x85EBCA6BU;
    x = (x ^ (x >> 13)) + second;
    x *= 0xC2B2AE35U;
    return x ^ (x >> 16);
  }
};

// The streams of a hop: sources with marks below `renewed` draw from the next one already.
struct LaborStreams {
  LaborStream now, next;
  std::uint32_t renewed;

  explicit LaborStreams(const SampleSpec& spec) : now(spec.stream_key), next(spec.stream_key + kGolden), renewed(spec.renewed) {}

  std::uint32_t number(std::uint32_t mark) const {
    const bool renews = mark < renewed;  // picking numbers, not a stream, lets the compiler use vectors
    return LaborStream(renews ? next.first : now.first, renews ? next.second : now.second).number(mark);
  }
};

// Marks at a time. What is found of them is written without a branch: a processor cannot foresee it.
inline constexpr std::int64_t kMarks = 256;

// Appends base + i for each mark i whose number is below `below`.
inline __attribute__((always_inline)) void scan_marks(const std::uint32_t* marks, std::int64_t count, const LaborStreams& streams,
                                                      std::uint32_t below, std::int64_t base, std::vector<std::int64_t>& out) {
  std::uint32_t hits[kMarks];
  std::int64_t found[kMarks];
  for (std::int64_t i = 0; i < count; i += kMarks) {
    const std::int64_t some = std::min(kMarks, count - i);
    for (std::int64_t j = 0; j < some; ++j) hits[j] = streams.number(marks[i + j]) < below;
    std::size_t size = 0;
    for (std::int64_t j = 0; j < some; ++j) found[size] = base + i + j, size += hits[j];
    out.insert(out.end(), found, found + size);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) inline void scan_by_avx2(const std::uint32_t* marks, std::int64_t count,
                                                         const LaborStreams& streams, std::uint32_t below, std::int64_t base,
                                                         std::vector<std::int64_t>& out) {
  scan_marks(marks, count, streams, below, base, out);
}

// Half the time of `scan_marks`: positions are moved together in a register.
__attribute__((target("avx512f,avx512dq"))) inline void scan_by_avx512(const std::uint32_t* marks, std::int64_t count,
                                                                       const LaborStreams& streams, std::uint32_t below,
                                                                       std::int64_t base, std::vector<std::int64_t>& out) {
  typedef std::uint32_t Marks __attribute__((vector_size(64)));
  typedef std::int64_t Positions __attribute__((vector_size(128)));
  const Marks now[] = {Marks{} + streams.now.first, Marks{} + streams.now.second};
  const Marks next[] = {Marks{} + streams.next.first, Marks{} + streams.next.second};
  const Marks lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  std::int64_t found[kMarks + 16];
  for (std::int64_t i = 0, stop = 0; i < count; i = stop) {
    stop = std::min(count, i + kMarks);
    std::size_t size = 0;
    for (; i < stop; i += 16) {
      const auto here = static_cast<__mmask16>(stop - i >= 16 ? 0xFFFF : (1 << (stop - i)) - 1);
      Marks x = reinterpret_cast<Marks>(_mm512_maskz_loadu_epi32(here, marks + i));
      const auto is_next = x < streams.renewed;
      x ^= is_next ? next[0] : now[0];
      x = (x ^ (x >> 16)) * 0x85EBCA6BU;
      x = ((x ^ (x >> 13)) + (is_next ? next[1] : now[1])) * 0xC2B2AE35U;
      const auto hits = static_cast<__mmask16>(_mm512_movepi32_mask(reinterpret_cast<__m512i>((x ^ (x >> 16)) < below)) & here);
      const auto moved = reinterpret_cast<Marks>(_mm512_maskz_compress_epi32(hits, reinterpret_cast<__m512i>(lanes)));
      const Positions at = __builtin_convertvector(moved, Positions) + (base + i);
      std::memcpy(found + size, &at, sizeof at);
      size += static_cast<std::size_t>(__builtin_popcount(hits));
    }
    out.insert(out.end(), found, found + size);
  }
}
#endif

class LaborPicker {
 public:
  static constexpr bool kResolves = true, kKnowsSources = false;

  LaborPicker(const SampleSpec& spec, const std::uint32_t* marks) : spec_(spec), marks_(marks), streams_(spec) {}

  void request(std::size_t /*row*/) const {}

  void draw(Picks& block) const {
    for (const Target& t : block.targets)
      for (std::int64_t i = 0; i < std::min<std::int64_t>(t.degree, 64); i += 16) __builtin_prefetch(&marks_[t.begin + i]);
    asm volatile("");
  }

  void resolve(Picks& block) {
    for (const Target& t : block.targets) {
      if (spec_.fan_out < 0 || t.degree <= spec_.fan_out) {
        std::int64_t* mine = block.add(t.degree);
        for (std::int64_t i = 0; i < t.degree; ++i) mine[i] = t.begin + i;
        continue;
      }
      const auto below =
          static_cast<std::uint32_t>((static_cast<unsigned __int128>(spec_.fan_out) << 32) / static_cast<std::uint64_t>(t.degree));
      const std::size_t before = block.positions.size();
      if (below > 0) scan(t, below, block.positions);
      block.counts.push_back(static_cast<std::int32_t>(block.positions.size() - before));
    }
  }

 private:
  void scan(const Target& t, std::uint32_t below, std::vector<std::int64_t>& out) const {
#if defined(__x86_64__)
    const Processor& here = Processor::here();
    if (here.avx512) return scan_by_avx512(marks_ + t.begin, t.degree, streams_, below, t.begin, out);
    if (here.avx2) return scan_by_avx2(marks_ + t.begin, t.degree, streams_, below, t.begin, out);
#endif
    scan_marks(marks_ + t.begin, t.degree, streams_, below, t.begin, out);
  }

  SampleSpec spec_;
  const std::uint32_t* marks_;
  LaborStreams streams_;
};

// The method, see method.hpp.
class Labor {
 public:
  static constexpr bool kReadsEveryEdge = true;

  static Labor made(Vector indices, std::optional<Longs> source_keys, std::size_t threads) {
    check_threads(threads);
    Labor made(Lines<std::uint32_t>(indices.size()));
    with_ids("indices", indices, [&](const auto* ids) {
      nb::gil_scoped_release unlocked;
      split(evenly(indices.size(), threads), [&](std::size_t, std::size_t a, std::size_t b) {
        for (std::size_t i = a; i < b; ++i) {
          if (source_keys && (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= source_keys->size()))
            bad("indices", ("edge " + std::to_string(i) + " comes from no vertex").c_str());
          made.marks_.data()[i] = mark_of(source_keys ? source_keys->data()[ids[i]] : static_cast<std::int64_t>(ids[i]));
        }
      });
    });
    return made;
  }

  std::size_t edges() const { return marks_.size(); }
  std::size_t nbytes() const { return marks_.nbytes(); }
  bool may_replace() const { return false; }

  template <class F>
  void with_picker(const SampleSpec& spec, F f) const {
    f([&] { return LaborPicker(spec, marks_.data()); });
  }

  template <class Method>
  static void bind(nb::class_<Method>& methods) {
    methods.def_static(
        "labor",
        [](Vector indices, std::optional<Longs> source_keys, std::size_t threads) {
          return Method(made(indices, source_keys, threads));
        },
        "indices"_a, "source_keys"_a.none(), "threads"_a);
  }

 private:
  explicit Labor(Lines<std::uint32_t> marks) : marks_(std::move(marks)) {}

  Lines<std::uint32_t> marks_;
};

}  // namespace atta
