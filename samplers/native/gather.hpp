// Moves table rows: gather, scatter, and both at once. The cache lines of the next rows are requested ahead.
#pragma once

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

namespace atta {

inline constexpr std::size_t kRowsAhead = 12;
inline constexpr std::size_t kLine = 64;

template <class Row>
void check_rows(const char* what, const Row* rows, std::size_t count, std::size_t limit) {
  for (std::size_t i = 0; i < count; ++i)
    if (rows[i] < 0 || static_cast<std::size_t>(rows[i]) >= limit)
      throw std::invalid_argument(std::string(what) + ": row " + std::to_string(static_cast<std::int64_t>(rows[i])) +
                                  " is outside 0.." + std::to_string(static_cast<std::int64_t>(limit) - 1));
}

inline void request_row(const std::byte* row, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at);
  asm volatile("");  // else GCC takes this for a function without effects and drops it
}

template <std::size_t Bytes>
void copy_fixed(std::byte* to, const std::byte* from) {
  std::memcpy(to, from, Bytes);
}

// Number of bytes from which a target is treated as not in the caches.
inline constexpr std::size_t kColdBytes = std::size_t{1} << 20;

inline constexpr std::size_t kWord = 16;  // bytes of one streaming store

inline bool in_words(const std::byte* to, std::size_t bytes) {
  return bytes % kWord == 0 && reinterpret_cast<std::uintptr_t>(to) % kWord == 0;
}

// Copies past the caches. A normal store to a target outside the caches reads the target first, which doubles the time
// of a row. `stream_end` orders these stores before later ones. Address and size are multiples of a word (`in_words`).
inline void stream_words(std::byte* to, const std::byte* from, std::size_t bytes) {
#ifdef __SSE2__
  for (std::size_t at = 0; at < bytes; at += kWord)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
#else
  std::memcpy(to, from, bytes);
#endif
}

// The same for rows that begin or end at any address. The calls for both ends cost 10 ns per row, so aligned rows avoid
// them.
inline void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t head = std::min(bytes, -reinterpret_cast<std::uintptr_t>(to) % kWord), words = (bytes - head) / kWord * kWord;
  std::memcpy(to, from, head);
  stream_words(to + head, from + head, words);
  std::memcpy(to + head + words, from + head + words, bytes - head - words);
}

inline void stream_end() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// out[i] = ids[i]. It writes twice as many bytes as it reads. Normal stores read each line before they overwrite it,
// which takes most of the time; streaming stores (`cold`) do not. `out` is aligned to its elements.
inline void widen_ids(const std::int32_t* ids, std::int64_t* out, std::size_t count, bool cold) {
  std::size_t i = 0;
#ifdef __SSE2__
  if (cold) {
    for (; i < count && reinterpret_cast<std::uintptr_t>(out + i) % kWord != 0; ++i) out[i] = ids[i];
    for (; i + 4 <= count; i += 4) {
      const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(ids + i)), sign = _mm_srai_epi32(four, 31);
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i), _mm_unpacklo_epi32(four, sign));
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i + 2), _mm_unpackhi_epi32(four, sign));
    }
    stream_end();
  }
#endif
  for (; i < count; ++i) out[i] = ids[i];
}

// The same for ids that are int64 already.
inline void widen_ids(const std::int64_t* ids, std::int64_t* out, std::size_t count, bool cold) {
  const auto bytes = count * sizeof *out;
  if (!cold) return static_cast<void>(std::copy_n(ids, count, out));
  copy_streaming(reinterpret_cast<std::byte*>(out), reinterpret_cast<const std::byte*>(ids), bytes);
  stream_end();
}

// out[to(i)] = table[from(i)] for i in 0..count. `cold`: the target is large and will not be read soon.
template <class From, class To>
void move_rows(const std::byte* table, std::byte* out, std::size_t row_bytes, std::size_t count, bool cold, From from, To to) {
  const bool wide = row_bytes <= 16 * kLine;
  const auto loop = [&](auto copy) {
    for (std::size_t i = 0; i < count; ++i) {
      if (wide && i + kRowsAhead < count) request_row(table + from(i + kRowsAhead) * row_bytes, row_bytes);
      copy(out + to(i) * row_bytes, table + from(i) * row_bytes);
    }
  };
  switch (row_bytes) {
    case 4:
      return loop(copy_fixed<4>);
    case 8:
      return loop(copy_fixed<8>);
    default:
      if (cold && row_bytes >= kLine && row_bytes * count >= kColdBytes) {
        if (in_words(out, row_bytes))
          loop([row_bytes](std::byte* a, const std::byte* b) { stream_words(a, b, row_bytes); });
        else
          loop([row_bytes](std::byte* a, const std::byte* b) { copy_streaming(a, b, row_bytes); });
        return stream_end();
      }
      return loop([row_bytes](std::byte* a, const std::byte* b) { std::memcpy(a, b, row_bytes); });
  }
}

}  // namespace atta
