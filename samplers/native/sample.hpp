// Uniform in-neighbour sampling over one partition's CSC arrays.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "hash.hpp"

namespace atta {

inline constexpr std::size_t kBlock = 32;       // rows whose memory is requested together
inline constexpr std::size_t kLinearScan = 64;  // up to so many picks, duplicates are found by scanning

struct SampleSpec {
  std::int64_t fan_out;  // -1 = all
  bool replace;
  std::uint64_t stream_key;
};

inline std::int64_t picks_of(std::int64_t degree, const SampleSpec& spec) {
  if (spec.fan_out < 0) return degree;
  if (spec.replace) return degree > 0 ? spec.fan_out : 0;
  return std::min(degree, spec.fan_out);
}

// Which positions of a row have been picked. A few picks are looked through. More set bits: exact ones for short rows, while for
// long rows they only say "perhaps". Many picks from a long row get a hash table.
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

// Row lengths of the answer; throws for a row outside the partition or a row whose bounds make no sense.
template <class Row>
std::int64_t count_picks(std::span<const std::int64_t> indptr, std::span<const Row> rows, const SampleSpec& spec,
                         std::int64_t edges, std::int32_t* counts) {
  const auto n = static_cast<std::int64_t>(indptr.size()) - 1;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i + kBlock < rows.size()) {
      const auto ahead = static_cast<std::int64_t>(rows[i + kBlock]);
      if (ahead >= 0 && ahead < n) __builtin_prefetch(&indptr[static_cast<std::size_t>(ahead)]);
    }
    const auto row = static_cast<std::int64_t>(rows[i]);
    if (row < 0 || row >= n)
      throw std::invalid_argument("rows: row " + std::to_string(row) + " is outside 0.." + std::to_string(n - 1));
    const std::int64_t begin = indptr[static_cast<std::size_t>(row)], end = indptr[static_cast<std::size_t>(row) + 1];
    if (begin < 0 || end < begin || end > edges)
      throw std::invalid_argument("indptr: row " + std::to_string(row) + " spans " + std::to_string(begin) + ".." +
                                  std::to_string(end) + " of " + std::to_string(edges) + " edges");
    const std::int64_t picks = picks_of(end - begin, spec);
    if (picks > INT32_MAX) throw std::invalid_argument("fan_out: more than 2^31 - 1 neighbours of one row");
    counts[i] = static_cast<std::int32_t>(picks);
    total += picks;
  }
  return total;
}

// Fill the answer of rows [first, last): positions of a block of rows are drawn first and their lines requested, then read.
template <class Row, class Id, class Edge>
void fill_picks(std::span<const std::int64_t> indptr, const Id* indices, const Edge* edge_ids, const std::int64_t* keys,
                std::span<const Row> rows, const std::int32_t* counts, const SampleSpec& spec, Id* neighbors, Edge* out_edges) {
  std::vector<std::int64_t> positions;
  Picked picked;
  std::size_t at = 0;
  for (std::size_t block = 0; block < rows.size(); block += kBlock) {
    const std::size_t stop = std::min(rows.size(), block + kBlock);
    for (std::size_t i = stop; i < std::min(rows.size(), stop + kBlock); ++i) {
      __builtin_prefetch(&indptr[static_cast<std::size_t>(rows[i])]);
      __builtin_prefetch(&keys[static_cast<std::size_t>(rows[i])]);
    }
    std::size_t need = 0;
    for (std::size_t i = block; i < stop; ++i) need += static_cast<std::size_t>(counts[i]);
    positions.resize(need);
    std::size_t offset = 0;
    for (std::size_t i = block; i < stop; ++i) {
      const auto row = static_cast<std::size_t>(rows[i]);
      const std::int64_t begin = indptr[row], degree = indptr[row + 1] - begin;
      const VertexStream stream(spec.stream_key, keys[row]);
      std::int64_t* mine = positions.data() + offset;
      pick_positions(stream, degree, counts[i], spec, mine, picked);
      for (std::int32_t j = 0; j < counts[i]; ++j) {
        mine[j] += begin;
        __builtin_prefetch(&indices[mine[j]]);
        if (edge_ids != nullptr) __builtin_prefetch(&edge_ids[mine[j]]);
      }
      offset += static_cast<std::size_t>(counts[i]);
    }
    for (std::size_t i = 0; i < need; ++i) neighbors[at + i] = indices[positions[i]];
    if (edge_ids != nullptr)
      for (std::size_t i = 0; i < need; ++i) out_edges[at + i] = edge_ids[positions[i]];
    at += need;
  }
}

}  // namespace atta
