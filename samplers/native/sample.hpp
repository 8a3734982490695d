// Draws in-edges of rows: the parts that all methods share, and the uniform method.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "hash.hpp"
#include "processor.hpp"

namespace atta {

inline constexpr std::size_t kBlock = 64;       // number of rows whose memory is requested together
inline constexpr std::size_t kLinearScan = 64;  // up to this many picks, a scan finds duplicates

struct SampleSpec {
  std::int64_t fan_out;  // -1 = all
  bool replace;
  std::uint64_t stream_key;
  std::uint32_t renewed = 0;  // vertices with marks below this draw from the next stream already

  std::uint64_t key_of(std::int64_t vertex_key) const { return stream_key + (mark_of(vertex_key) < renewed ? kGolden : 0); }
};

// A row that is expanded: its edges are [begin, begin + degree).
struct Target {
  std::size_t row;
  std::int64_t begin, degree;
  VertexStream stream;
  std::int64_t time;  // edges later than this do not exist for it
  std::int64_t tree;  // -1: none
};

inline constexpr std::int64_t kEndOfTime = std::numeric_limits<std::int64_t>::max();

// A block of rows and the positions (of edges) picked for them, row after row.
struct Picks {
  std::vector<Target> targets;
  std::vector<std::int32_t> counts;
  std::vector<std::int64_t> positions;
  std::vector<std::int64_t> sources;  // where the picker knows them

  void clear() {
    targets.clear();
    counts.clear();
    positions.clear();
  }
  // Room for the picks of the next row.
  std::int64_t* add(std::int64_t count) {
    if (count > INT32_MAX) throw std::invalid_argument("fan_out: more than 2^31 - 1 neighbours of one row");
    const std::size_t at = positions.size();
    positions.resize(at + static_cast<std::size_t>(count));
    counts.push_back(static_cast<std::int32_t>(count));
    return positions.data() + at;
  }
};

// The positions of a row that have been picked. A few picks are scanned. More picks set bits. The bits are exact for
// short rows, and only say "perhaps" for long rows. Many picks from a long row get a hash table.
class Picked {
 public:
  void reset(std::int64_t degree, std::int64_t picks) {
    exact_ = degree <= static_cast<std::int64_t>(kBits);
    few_ = picks <= kFew;
    if (few_) return;
    hashed_ = !exact_ && picks > static_cast<std::int64_t>(kLinearScan);
    if (!hashed_) {
      std::fill(bits_, bits_ + kBits / 64, 0);
      return;
    }
    std::size_t size = 1;
    while (size < 2 * static_cast<std::size_t>(picks)) size *= 2;
    mask_ = size - 1;
    table_.assign(size, -1);
  }

  bool holds(std::int64_t value, const std::int64_t* picks, std::int64_t count) const {
    if (few_) {
      bool found = false;
      for (std::int64_t i = 0; i < count; ++i) found |= picks[i] == value;
      return found;
    }
    if (hashed_) return table_[slot_of(value)] == value;
    const auto bit = static_cast<std::uint64_t>(value) % kBits;
    if ((bits_[bit / 64] >> (bit % 64) & 1) == 0) return false;
    return exact_ || std::find(picks, picks + count, value) != picks + count;
  }

  void add(std::int64_t value) {
    if (few_) return;
    if (hashed_) {
      table_[slot_of(value)] = value;
      return;
    }
    const auto bit = static_cast<std::uint64_t>(value) % kBits;
    bits_[bit / 64] |= std::uint64_t{1} << (bit % 64);
  }

 private:
  static constexpr std::uint64_t kBits = 512;
  static constexpr std::int64_t kFew = 8;

  // Where `value` is, or belongs.
  std::size_t slot_of(std::int64_t value) const {
    std::size_t slot = mix64(static_cast<std::uint64_t>(value)) & mask_;
    while (table_[slot] != -1 && table_[slot] != value) slot = (slot + 1) & mask_;
    return slot;
  }

  std::uint64_t bits_[kBits / 64];
  std::vector<std::int64_t> table_;
  std::size_t mask_ = 0;
  bool few_ = true, exact_ = true, hashed_ = false;
};

inline std::int64_t picks_of(std::int64_t degree, const SampleSpec& spec) {
  if (spec.fan_out < 0) return degree;
  if (spec.replace) return degree > 0 ? spec.fan_out : 0;
  return std::min(degree, spec.fan_out);
}

// Floyd's algorithm ("A sample of brilliance", Bentley and Floyd 1987): k different positions below `degree` in k draws.
inline void pick_positions(const VertexStream& stream, std::int64_t degree, std::int64_t picks, const SampleSpec& spec,
                           std::int64_t* out, Picked& picked) {
  if (spec.fan_out < 0 || (!spec.replace && picks == degree)) {
    for (std::int64_t i = 0; i < picks; ++i) out[i] = i;
    return;
  }
  const auto bound = static_cast<std::uint64_t>(degree);
  if (spec.replace) {
    for (std::int64_t i = 0; i < picks; ++i) out[i] = static_cast<std::int64_t>(stream.below(static_cast<std::uint64_t>(i), bound));
    return;
  }
  picked.reset(degree, picks);
  for (std::int64_t i = 0; i < picks; ++i) {
    const std::int64_t last = degree - picks + i;
    const auto drawn = static_cast<std::int64_t>(stream.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(last) + 1));
    const std::int64_t chosen = picked.holds(drawn, out, i) ? last : drawn;
    out[i] = chosen;
    picked.add(chosen);
  }
}

#if defined(__x86_64__)
#define ATTA_AVX512 __attribute__((target("avx512f,avx512dq,avx512cd"), always_inline)) inline

// The same numbers as those of `VertexStream`, eight at a time.
class WideStream {
 public:
  // below(index + lane, bound of the lane). Bounds are below 2^32, so the upper half of a product takes two multiplications.
  ATTA_AVX512 static __m512i below(const VertexStream& stream, __m512i index, __m512i bound) {
    const auto golden = _mm512_set1_epi64(static_cast<std::int64_t>(kGolden));
    __m512i x =
        _mm512_add_epi64(_mm512_set1_epi64(static_cast<std::int64_t>(stream.base + kGolden)), _mm512_mullo_epi64(index, golden));
    x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 30));
    x = _mm512_mullo_epi64(x, _mm512_set1_epi64(static_cast<std::int64_t>(0xBF58476D1CE4E5B9ULL)));
    x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 27));
    x = _mm512_mullo_epi64(x, _mm512_set1_epi64(static_cast<std::int64_t>(0x94D049BB133111EBULL)));
    x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 31));
    const __m512i upper = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), bound), lower = _mm512_mul_epu32(x, bound);
    return _mm512_srli_epi64(_mm512_add_epi64(upper, _mm512_srli_epi64(lower, 32)), 32);
  }

  ATTA_AVX512 static __m512i lanes(std::int64_t first) {
    return _mm512_add_epi64(_mm512_set1_epi64(first), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
  }

  // The lanes of `values` that equal any of `others`.
  ATTA_AVX512 static __mmask8 among(__m512i values, __m512i others) {
    __mmask8 found = _mm512_cmpeq_epi64_mask(values, others);
    for (int turn = 1; turn < 8; ++turn) {
      others = _mm512_alignr_epi64(others, others, 1);
      found |= _mm512_cmpeq_epi64_mask(values, others);
    }
    return found;
  }

  // The lanes of `values` that repeat an earlier one.
  ATTA_AVX512 static __mmask8 repeats(__m512i values) {
    const __m512i equal = _mm512_conflict_epi64(values);
    return _mm512_test_epi64_mask(equal, equal);
  }
};
#endif

// A picker turns the targets of a block into positions. `draw` may only request memory; `resolve` is called a block
// later and reads it. `kResolves`: whether the picker has a `resolve` step. `kKnowsSources`: whether it gives the
// sources too. Each thread has its own picker.
class UniformPicker {
 public:
  static constexpr bool kResolves = false, kKnowsSources = false;

  explicit UniformPicker(const SampleSpec& spec) : spec_(spec) {}

  void request(std::size_t /*row*/) const {}

  void draw(Picks& block) {
    const std::size_t rows = block.targets.size();
    std::size_t total = 0;
    block.counts.resize(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      const std::int64_t count = picks_of(block.targets[i].degree, spec_);
      if (count > INT32_MAX) throw std::invalid_argument("fan_out: more than 2^31 - 1 neighbours of one row");
      block.counts[i] = static_cast<std::int32_t>(count);
      total += static_cast<std::size_t>(count);
    }
    block.positions.resize(total);
    const bool few = spec_.fan_out >= 0 && spec_.fan_out <= kShort && !spec_.replace;
#if defined(__x86_64__)
    if (few && spec_.fan_out <= kWide && Processor::here().avx512) return draw_wide(block);
#endif
    std::int64_t* mine = block.positions.data();
    for (std::size_t i = 0; i < rows; ++i) {
      const Target& t = block.targets[i];
      const std::int64_t count = block.counts[i];
      few&& count < t.degree ? draw_short(t, count, mine) : draw_any(t, count, mine);
      mine += count;
    }
  }

  void resolve(Picks& /*block*/) {}

 private:
  static constexpr std::int64_t kShort = 64, kWide = 16;  // picks

  void draw_any(const Target& t, std::int64_t count, std::int64_t* mine) {
    pick_positions(t.stream, t.degree, count, spec_, mine, picked_);
    for (std::int64_t j = 0; j < count; ++j) mine[j] += t.begin;
  }

#if defined(__x86_64__)
  // Floyd's algorithm in one or two registers. A number that was drawn before gives way to the last position of its draw.
  // Where another draw has that position, `draw_short` begins anew, which is rare.
  __attribute__((target("avx512f,avx512dq,avx512cd"))) void draw_wide(Picks& block) {
    using W = WideStream;
    const std::size_t total = block.positions.size();
    block.positions.resize(total + kWide);  // whole registers are stored
    std::int64_t* mine = block.positions.data();
    for (std::size_t i = 0; i < block.targets.size(); ++i) {
      const Target& t = block.targets[i];
      const std::int64_t count = block.counts[i], first = t.degree - count;
      const bool all = first == 0;
      if (t.degree > UINT32_MAX) {
        draw_short(t, count, mine);
      } else {
        const __m512i begin = _mm512_set1_epi64(t.begin), last = W::lanes(first);
        const __m512i drawn = all ? W::lanes(0) : W::below(t.stream, W::lanes(0), W::lanes(first + 1));
        const auto valid = static_cast<__mmask8>(count < 8 ? (1 << count) - 1 : 255);
        const __m512i chosen = _mm512_mask_mov_epi64(drawn, W::repeats(drawn) & valid, last);
        unsigned twice = W::repeats(chosen) & valid;
        _mm512_storeu_si512(mine, _mm512_add_epi64(chosen, begin));
        if (count > 8) {
          const __m512i next = all ? W::lanes(8) : W::below(t.stream, W::lanes(8), W::lanes(first + 9));
          const auto more = static_cast<__mmask8>((1 << (count - 8)) - 1);
          const auto seen = static_cast<__mmask8>((W::repeats(next) | W::among(next, chosen)) & more);
          const __m512i other = _mm512_mask_mov_epi64(next, seen, W::lanes(first + 8));
          twice |= W::repeats(other) & more;
          _mm512_storeu_si512(mine + 8, _mm512_add_epi64(other, begin));
        }
        if (twice != 0) draw_short(t, count, mine);
      }
      mine += count;
    }
    block.positions.resize(total);
  }
#endif

  // Floyd's algorithm for a few picks. All numbers are drawn before the search for repeats, so that the processor works
  // on several of them at a time.
  static void draw_short(const Target& t, std::int64_t count, std::int64_t* mine) {
    constexpr std::uint64_t kBits = 512;
    std::int64_t drawn[kShort];
    std::uint64_t seen[kBits / 64] = {};
    const std::int64_t first = t.degree - count;
    for (std::int64_t i = 0; i < count; ++i)
      drawn[i] =
          static_cast<std::int64_t>(t.stream.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(first + i + 1)));
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t chosen = drawn[i];
      const auto word = static_cast<std::uint64_t>(chosen) % kBits / 64;
      if ((seen[word] >> (chosen % 64) & 1) != 0 &&
          (t.degree <= static_cast<std::int64_t>(kBits) || std::find(mine, mine + i, t.begin + chosen) != mine + i))
        chosen = first + i;
      seen[static_cast<std::uint64_t>(chosen) % kBits / 64] |= std::uint64_t{1} << (chosen % 64);
      mine[i] = t.begin + chosen;
    }
  }

  SampleSpec spec_;
  Picked picked_;
};

}  // namespace atta
