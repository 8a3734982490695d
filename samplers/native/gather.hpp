// Moves table rows: gather, scatter, and both at once. The cache lines of the next rows are requested ahead.
#pragma once

#include <time.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "memory.hpp"
#include "processor.hpp"

// Whether large targets are written through the caches or past them. Neither is best everywhere: streaming stores were
// 1.3 times as fast on one make of processor and 0.7 times as fast on another. So both are timed, while they do their
// work.
namespace atta {

// Times pieces of a megabyte or more. The first pieces go through the caches, as many go past them, and then all take
// the way with the lower median. It tries both again, soon at first (a new target costs fresh pages), then after each
// gigabyte (other processes want the memory, too).
class StoreChoice {
 public:
  // Calls move(streams) for a piece of `bytes` bytes. Safe from many threads.
  template <class Move>
  void time(std::size_t bytes, Move move) {
    const auto [piece, streams] = take();
    if (piece >= 2 * kTrials) return move(streams);
    const double start = used();
    move(streams);
    tell(piece, (used() - start) / static_cast<double>(bytes));
  }

 private:
  static constexpr std::size_t kTrials = 4, kLongest = 1024;  // pieces

  // Nanoseconds of processor time that this thread has used. Other processes do not count.
  static double used() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
  }

  // The number of the next piece in this period, and whether it streams.
  std::pair<std::size_t, bool> take() {
    const std::scoped_lock lock(mutex_);
    const std::size_t piece = next_++;
    if (next_ == period_) next_ = 0, told_ = 0, period_ = std::min(2 * period_, kLongest);
    return {piece, piece < 2 * kTrials ? piece >= kTrials : streams_};
  }

  void tell(std::size_t piece, double cost) {
    const std::scoped_lock lock(mutex_);
    costs_[piece] = cost;
    if (++told_ < 2 * kTrials) return;
    const auto middle = [&](std::size_t first) {
      const auto begin = costs_.begin() + static_cast<std::ptrdiff_t>(first), at = begin + kTrials / 2;
      std::nth_element(begin, at, begin + kTrials);
      return *at;
    };
    streams_ = middle(kTrials) < kWorth * middle(0);
  }

  // Streaming leaves the caches to others. So it may cost a little more.
  static constexpr double kWorth = 1.03;

  std::mutex mutex_;
  std::size_t next_ = 0, told_ = 0, period_ = 8 * kTrials;
  bool streams_ = true;
  std::array<double, 2 * kTrials> costs_{};
};

// One thread, and several that share the bandwidth of the memory, choose apart.
inline StoreChoice& one_mover() {
  static StoreChoice choice;
  return choice;
}

inline StoreChoice& several_movers() {
  static StoreChoice choice;
  return choice;
}

inline constexpr std::size_t kLine = 64;

// How rows are requested before they are read. Makers of processors differ. Intel's second cache has more buffers for
// lines under way than its first: requests into it took 0.83 of the time on a Sapphire Rapids. On AMD's Zen 5 the same
// took 1.2 times the time of requests into the first cache. There a request from the second one comes too late to be of use.
// Narrow rows need many requests under way, so that the memory has enough to do. Wide rows fill the caches with fewer.
struct Ahead {
  bool near;                // whether lines come into the first cache
  std::size_t read, write;  // rows to request before they are read, and before they are written

  explicit Ahead(std::size_t row_bytes)
      : near(Processor::here().amd),
        read(std::clamp<std::size_t>((near ? 8192 : 16384) / row_bytes, 1, 128)),
        write(std::clamp<std::size_t>(2048 / row_bytes, 1, 4)) {}

  void request(const std::byte* row, std::size_t bytes) const {
    const std::byte* const end = row + bytes;  // an unaligned row may end in one line more
    row -= reinterpret_cast<std::uintptr_t>(row) % kLine;
    if (near)
      for (; row < end; row += kLine) __builtin_prefetch(row, 0, 3);
    else
      for (; row < end; row += kLine) __builtin_prefetch(row, 0, 2);
    asm volatile("");  // else GCC takes this for a function without effects and drops it
  }
};

// Whether all rows are in 0..limit - 1.
template <class Row>
bool all_within(const Row* rows, std::size_t count, std::size_t limit) {
  if (limit > static_cast<std::uint64_t>(INT64_MAX))
    return std::all_of(rows, rows + count, [limit](Row row) { return static_cast<std::uint64_t>(row) < limit; });
  // The sign of a row, and of its distance to the last one, says the same. Unlike a comparison it is vectorised.
  const std::uint64_t last = static_cast<std::uint64_t>(limit) - 1;
  std::uint64_t signs = limit == 0 && count > 0 ? ~std::uint64_t{0} : 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto row = static_cast<std::uint64_t>(static_cast<std::int64_t>(rows[i]));
    signs |= row | (last - row);
  }
  return signs >> 63 == 0;
}

template <class Row>
void check_rows(const char* what, const Row* rows, std::size_t count, std::size_t limit) {
  if (all_within(rows, count, limit)) return;
  for (std::size_t i = 0; i < count; ++i)
    if (static_cast<std::uint64_t>(rows[i]) >= limit)  // a negative row, too
      throw std::invalid_argument(std::string(what) + ": row " + std::to_string(static_cast<std::int64_t>(rows[i])) +
                                  " is outside 0.." + std::to_string(static_cast<std::int64_t>(limit) - 1));
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

// Requests a row that will be overwritten.
inline void request_target(const std::byte* row, std::size_t bytes) {
  const std::byte* const end = row + bytes;
  for (row -= reinterpret_cast<std::uintptr_t>(row) % kLine; row < end; row += kLine) request_for_write(row);
}

// The loop of `move_from`. `copy(to, from)` copies one row. `Own`: the target's lines are requested, too.
template <bool Own, class At, class To, class Copy>
inline __attribute__((always_inline)) void loop_rows(std::byte* out, std::size_t row_bytes, std::size_t count, At at, To to,
                                                     Copy copy) {
  const Ahead ahead(row_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + ahead.read < count) ahead.request(at(i + ahead.read), row_bytes);
    if (Own && i + ahead.write < count) request_target(out + to(i + ahead.write) * row_bytes, row_bytes);
    copy(out + to(i) * row_bytes, at(i));
  }
}

// Calls move(row_bytes). Rows of one line have their size known to the compiler: their time is mostly instructions.
template <class Move>
void with_size(std::size_t row_bytes, Move move) {
  row_bytes == kLine ? move(std::integral_constant<std::size_t, kLine>{}) : move(row_bytes);
}

#if defined(__x86_64__)
// Rows of at least 16 bytes. A call of memcpy per row costs a tenth more than these loops.
template <class Bytes, class At, class To>
__attribute__((target("avx2"))) void move_by_avx2(std::byte* out, Bytes row_bytes, std::size_t count, At at_source, To to) {
  const Ahead ahead(row_bytes);
  const std::size_t wide = row_bytes / 32 * 32, last = row_bytes - 16;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + ahead.read < count) ahead.request(at_source(i + ahead.read), row_bytes);
    if (i + ahead.write < count) request_target(out + to(i + ahead.write) * row_bytes, row_bytes);
    const std::byte* const source = at_source(i);
    std::byte* const target = out + to(i) * row_bytes;
    for (std::size_t at = 0; at < wide; at += 32)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + at),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at)));
    if (row_bytes - wide > 16)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(target + wide), _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + wide)));
    if (row_bytes != wide)  // it may write some bytes of the row again
      _mm_storeu_si128(reinterpret_cast<__m128i*>(target + last), _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + last)));
  }
}
#endif

// Copies rows through the caches.
template <class At, class To>
void move_cached(std::byte* out, std::size_t row_bytes, std::size_t count, At at, To to) {
#if defined(__x86_64__)
  if (Processor::here().avx2 && row_bytes >= 16)
    return with_size(row_bytes, [=](auto bytes) { move_by_avx2(out, bytes, count, at, to); });
#endif
  loop_rows<true>(out, row_bytes, count, at, to, [row_bytes](std::byte* a, const std::byte* b) { std::memcpy(a, b, row_bytes); });
}

#if defined(__x86_64__)
// Copies rows of whole words past the caches, and whole lines of the target with one store each. On an Intel Sapphire
// Rapids it took 0.82 of the time of four stores per line, when two threads moved rows of 400 bytes.
template <class Bytes, class At, class To>
__attribute__((target("avx512f"))) void stream_by_lines(std::byte* out, Bytes row_bytes, std::size_t count, At at_source, To to) {
  const Ahead ahead(row_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + ahead.read < count) ahead.request(at_source(i + ahead.read), row_bytes);
    const std::byte* const source = at_source(i);
    std::byte* const target = out + to(i) * row_bytes;
    const std::size_t head = std::min<std::size_t>(row_bytes, -reinterpret_cast<std::uintptr_t>(target) % kLine);
    std::size_t at = head;
    stream_words(target, source, head);
    for (; at + kLine <= row_bytes; at += kLine)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(target + at), _mm512_loadu_si512(source + at));
    stream_words(target + at, source + at, row_bytes - at);
  }
}
#endif

// Copies rows past the caches.
template <class At, class To>
void move_streaming(std::byte* out, std::size_t row_bytes, std::size_t count, At at, To to) {
#if defined(__x86_64__)
  if (Processor::here().avx512 && in_words(out, row_bytes)) {
    with_size(row_bytes, [=](auto bytes) { stream_by_lines(out, bytes, count, at, to); });
    return stream_end();
  }
#endif
  if (in_words(out, row_bytes))
    loop_rows<false>(out, row_bytes, count, at, to,
                     [row_bytes](std::byte* a, const std::byte* b) { stream_words(a, b, row_bytes); });
  else
    loop_rows<false>(out, row_bytes, count, at, to,
                     [row_bytes](std::byte* a, const std::byte* b) { copy_streaming(a, b, row_bytes); });
  stream_end();
}

// out[to(i)] = the row at the address at(i), for i in 0..count. `cold`: the target is large and will not be read soon.
// `choice` then says whether rows pass the caches by.
template <class At, class To>
void move_from(std::byte* out, std::size_t row_bytes, std::size_t count, bool cold, At at, To to,
               StoreChoice& choice = one_mover()) {
  if (count == 0 || row_bytes == 0) return;
  if (row_bytes == 4) return loop_rows<false>(out, row_bytes, count, at, to, copy_fixed<4>);
  if (row_bytes == 8) return loop_rows<false>(out, row_bytes, count, at, to, copy_fixed<8>);
  if (!cold || row_bytes < kLine || row_bytes * count < kColdBytes) return move_cached(out, row_bytes, count, at, to);
  const std::size_t step = std::max<std::size_t>(1, kColdBytes / row_bytes);
  for (std::size_t first = 0; first < count;) {
    const std::size_t some = count - first < 2 * step ? count - first : step;
    // By value: what a lambda refers to would be read again after each store.
    const auto a = [at, first](std::size_t i) { return at(first + i); };
    const auto b = [to, first](std::size_t i) { return to(first + i); };
    choice.time(row_bytes * some, [&](bool streams) {
      streams ? move_streaming(out, row_bytes, some, a, b) : move_cached(out, row_bytes, some, a, b);
    });
    first += some;
  }
}

// out[to(i)] = table[from(i)] for i in 0..count; otherwise the same.
template <class From, class To>
void move_rows(const std::byte* table, std::byte* out, std::size_t row_bytes, std::size_t count, bool cold, From from, To to,
               StoreChoice& choice = one_mover()) {
  const auto at = [table, row_bytes, from](std::size_t i) { return table + from(i) * row_bytes; };
  move_from(out, row_bytes, count, cold, at, to, choice);
}

}  // namespace atta
