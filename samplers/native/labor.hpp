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

  std::uint32_t number(std::uint32_t mark) const { return (mark < renewed ? next : now).number(mark); }
};

inline void scan_marks(const std::uint32_t* marks, std::int64_t count, const LaborStreams& streams, std::uint32_t below,
                       std::int64_t base, std::vector<std::int64_t>& out) {
  for (std::int64_t i = 0; i < count; ++i)
    if (streams.number(marks[i]) < below) out.push_back(base + i);
}

#if defined(__x86_64__)
template <bool kMixed>
__attribute__((target("avx2"))) inline void scan_marks_avx2(const std::uint32_t* marks, std::int64_t count,
                                                            const LaborStreams& streams, std::uint32_t below, std::int64_t base,
                                                            std::vector<std::int64_t>& out) {
  const __m256i of_now[] = {_mm256_set1_epi32(static_cast<int>(streams.now.first)),
                            _mm256_set1_epi32(static_cast<int>(streams.now.second))};
  const __m256i of_next[] = {_mm256_set1_epi32(static_cast<int>(streams.next.first)),
                             _mm256_set1_epi32(static_cast<int>(streams.next.second))};
  const __m256i renewed = _mm256_set1_epi32(static_cast<int>(streams.renewed - 1));
  __m256i first = of_now[0], second = of_now[1];
  const __m256i m1 = _mm256_set1_epi32(static_cast<int>(0x85EBCA6BU)), m2 = _mm256_set1_epi32(static_cast<int>(0xC2B2AE35U));
  const __m256i most = _mm256_set1_epi32(static_cast<int>(below - 1));
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(marks + i));
    if constexpr (kMixed) {
      const __m256i is_next = _mm256_cmpeq_epi32(_mm256_min_epu32(x, renewed), x);
      first = _mm256_blendv_epi8(of_now[0], of_next[0], is_next), second = _mm256_blendv_epi8(of_now[1], of_next[1], is_next);
    }
    x = _mm256_xor_si256(x, first);
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 16)), m1);
    x = _mm256_add_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 13)), second);
    x = _mm256_mullo_epi32(x, m2);
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    auto hits = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_min_epu32(x, most), x))));
    for (; hits != 0; hits &= hits - 1) out.push_back(base + i + __builtin_ctz(hits));
  }
  scan_marks(marks + i, count - i, streams, below, base + i, out);
}
#endif

class LaborPicker {
 public:
  static constexpr bool kResolves = true, kKnowsSources = false;

  LaborPicker(const SampleSpec& spec, const std::uint32_t* marks) : spec_(spec), marks_(marks), streams_(spec) {
#if defined(__x86_64__)
    wide_ = Processor::here().avx2;
#endif
  }

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
    if (wide_ && spec_.renewed > 0) return scan_marks_avx2<true>(marks_ + t.begin, t.degree, streams_, below, t.begin, out);
    if (wide_) return scan_marks_avx2<false>(marks_ + t.begin, t.degree, streams_, below, t.begin, out);
#endif
    scan_marks(marks_ + t.begin, t.degree, streams_, below, t.begin, out);
  }

  SampleSpec spec_;
  const std::uint32_t* marks_;
  LaborStreams streams_;
  bool wide_ = false;
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
