// The frames that daemons exchange over a link: a header of 64 bytes, then flat arrays. Little-endian.
//
//   SAMPLE   expand rows                  times int64 [rows]? | rows int32|int64 [rows] | trees int32 [rows]?
//   PULL     send table rows              rows int32|int64 [rows]
//   PULL     send sums of rows of a table  addends of each int32 [rows] | rows int32|int64 [edges] | weights float32 [edges]?
//                                         | shifts int16 [columns]
//   SAMPLED  edges of some of these rows  counts int32 [rows] | neighbors [edges] | edge ids [edges]
//   PULLED   rows of each wanted table    table after table: bytes [rows, row bytes]
//   REFUSED  why a request has no answer  text
//
// Rows are positions in the range of the daemon that owns them. A request is answered by frames for consecutive rows,
// in order. Every length is checked before memory is taken for it.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "hash.hpp"

namespace atta {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

enum class FrameKind : std::uint8_t { kSample = 1, kPull = 2, kSampled = 17, kPulled = 18, kRefused = 19 };

inline constexpr std::uint8_t kWideRows = 1;  // rows are int64, else int32
inline constexpr std::uint8_t kReplace = 2, kTrees = 4, kTimes = 8;
inline constexpr std::uint8_t kWideNeighbors = 16, kWideEdgeIds = 32;
inline constexpr std::uint8_t kSums = 64, kWeights = 128;

struct FrameHeader {
  std::uint32_t magic = kMagic;
  FrameKind kind{};
  std::uint8_t flags = 0;
  std::uint16_t item = 0;       // number of the edge type (SAMPLE) or node type (PULL) in the dataset's schema
  std::uint64_t request = 0;    // number of the request on its link
  std::uint64_t key = 0;        // SAMPLE: stream key; PULL: a bit for each wanted table
  std::uint32_t rows = 0;       // of the request, or of this answer
  std::uint32_t first_row = 0;  // answers: position of their first row in the request; SAMPLE: marks below it are renewed;
                                // PULL of sums: columns of the table
  std::int32_t fan_out = 0;     // -1: all
  std::uint32_t method = 0;     // number of the neighbour method; PULL of sums: bytes of a column
  std::uint64_t edges = 0;      // SAMPLED: number of edges; PULL of sums: of addends
  std::uint64_t bytes = 0;      // of the arrays, without padding
  std::uint32_t age_ms = 0;     // since the batch was begun: the oldest batch is served first
  std::uint32_t check = 0;      // of all fields before

  static constexpr std::uint32_t kMagic = 0x46545441;  // "ATTF"

  std::uint32_t computed_check() const {
    std::uint64_t words[8];
    std::memcpy(words, this, sizeof words);
    words[7] &= 0xffffffff;  // age_ms without `check`
    std::uint64_t sum = 0;
    for (const std::uint64_t word : words) sum = mix64(sum ^ word);
    return static_cast<std::uint32_t>(sum);
  }
  void seal() { check = computed_check(); }
};

static_assert(sizeof(FrameHeader) == 64 && std::is_trivially_copyable_v<FrameHeader>);

inline constexpr std::size_t kMaxRequestRows = std::size_t{1} << 20;  // rows of one request
inline constexpr std::size_t kMaxAddends = std::size_t{1} << 21;      // of the sums of one request
inline constexpr std::size_t kMaxColumns = std::size_t{1} << 24;      // of a table whose rows are summed
inline constexpr std::size_t kMaxRefusal = 512;                       // bytes of the text of a refusal
inline constexpr std::size_t kPieceBytes = std::size_t{128} << 10;    // about the size of an answer, so that it stays in the caches
inline constexpr std::int32_t kMaxFanOut = 1 << 20;

// Bytes that the arrays of a frame take in the stream: frames begin at multiples of 8.
inline constexpr std::uint64_t padded(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// Whether the arrays of a frame may be taken as they come. Others are taken as a whole.
inline bool in_parts(const FrameHeader& head) { return head.kind == FrameKind::kPulled && head.bytes > 0; }

inline std::size_t row_width(const FrameHeader& head) { return head.flags & kWideRows ? 8 : 4; }

// Bytes of the arrays of a request.
inline std::uint64_t request_bytes(const FrameHeader& head) {
  std::uint64_t per_row = row_width(head);
  if (head.flags & kSums)
    return std::uint64_t{4} * head.rows + (per_row + (head.flags & kWeights ? 4 : 0)) * head.edges +
           std::uint64_t{2} * head.first_row;
  if (head.kind == FrameKind::kSample) per_row += (head.flags & kTrees ? 4 : 0) + (head.flags & kTimes ? 8 : 0);
  return per_row * head.rows;
}

inline std::uint64_t sampled_bytes(const FrameHeader& head) {
  return std::uint64_t{4} * head.rows + head.edges * ((head.flags & kWideNeighbors ? 8 : 4) + (head.flags & kWideEdgeIds ? 8 : 4));
}

// Why a header is not that of a request; null: it is one. Numbers of items and rows are checked against the data later.
inline const char* wrong_request(const FrameHeader& head) {
  if (head.magic != FrameHeader::kMagic) return "not a frame";
  if (head.check != head.computed_check()) return "a damaged header";
  if (head.kind != FrameKind::kSample && head.kind != FrameKind::kPull) return "not a request";
  if (head.rows == 0 || head.rows > kMaxRequestRows) return "too many rows, or none";
  if (head.kind == FrameKind::kSample && (head.fan_out < -1 || head.fan_out > kMaxFanOut)) return "an impossible fan-out";
  if (head.flags & kSums && (head.kind != FrameKind::kPull || head.edges > kMaxAddends || head.first_row > kMaxColumns))
    return "impossible sums";
  if (head.kind == FrameKind::kPull && head.flags & kWeights && !(head.flags & kSums)) return "weights without sums";
  if (head.bytes != request_bytes(head)) return "lengths that contradict each other";
  return nullptr;
}

// Why a header is not that of an answer; null: it is one. Whether it fits its request is checked later.
inline const char* wrong_answer(const FrameHeader& head) {
  if (head.magic != FrameHeader::kMagic) return "not a frame";
  if (head.check != head.computed_check()) return "a damaged header";
  switch (head.kind) {
    case FrameKind::kSampled:
      if (head.rows == 0 || head.rows > kMaxRequestRows || head.edges >= std::uint64_t{1} << 40) return "an impossible size";
      return head.bytes == sampled_bytes(head) ? nullptr : "lengths that contradict each other";
    case FrameKind::kPulled:
      return head.rows == 0 || head.rows > kMaxRequestRows ? "an impossible size" : nullptr;
    case FrameKind::kRefused:
      return head.bytes > kMaxRefusal ? "an impossible size" : nullptr;
    default:
      return "not an answer";
  }
}

}  // namespace atta
