// The loops that `atta bench kv` compares the table store with: they move rows and do nothing else. They share no code
// with the store, on purpose. Only the benchmark calls them.
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <cstring>
#include <thread>
#include <vector>

#include "arrays.hpp"

using namespace atta;

namespace {

constexpr std::size_t kCacheLine = 64;

void stream_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
#ifdef __SSE2__
  for (std::size_t at = 0; at < bytes; at += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
#else
  std::memcpy(to, from, bytes);
#endif
}

void drain_stores() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// Whether whole rows can be streamed: 16 bytes at a time, to addresses that are multiples of 16.
bool streams(const std::byte* to, std::size_t bytes) { return bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0; }

struct Rows {
  const std::byte* table;
  std::byte* out;
  const std::int64_t* rows;
  std::size_t bytes;
  std::size_t ahead;
};

template <bool Stream>
void gather(const Rows& r, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    if (i + r.ahead < end) {
      const std::byte* next = r.table + static_cast<std::size_t>(r.rows[i + r.ahead]) * r.bytes;
      for (std::size_t at = 0; at < r.bytes; at += kCacheLine) __builtin_prefetch(next + at);
    }
    const std::byte* from = r.table + static_cast<std::size_t>(r.rows[i]) * r.bytes;
    std::byte* to = r.out + i * r.bytes;
    if constexpr (Stream)
      stream_bytes(to, from, r.bytes);
    else
      std::memcpy(to, from, r.bytes);
  }
  if constexpr (Stream) drain_stores();
}

// Calls body(begin, end) for equal shares of 0..count. One share runs on this thread.
template <class Body>
void share(std::size_t count, std::size_t threads, Body body) {
  std::vector<std::thread> others;
  for (std::size_t t = 1; t < threads; ++t) others.emplace_back(body, count * t / threads, count * (t + 1) / threads);
  body(std::size_t{0}, count / threads);
  for (auto& other : others) other.join();
}

void check_threads(std::size_t threads) {
  if (threads < 1 || threads > 1024) bad("threads", "must be 1 to 1024");
}

// out[i] = table[rows[i]]. Rows are NOT checked: the caller makes sure that they exist.
void reference_gather(Table table, Longs rows, OutTable out, std::size_t ahead, bool stream, std::size_t threads) {
  check_threads(threads);
  if (table.ndim() < 1 || out.ndim() < 1) bad("table", "must have at least one dimension");
  if (row_bytes_of(out) != row_bytes_of(table)) bad("out", "has rows of another size than the table");
  if (out.shape(0) != rows.size()) bad("out", "must have one row per entry of rows");
  const Rows all{static_cast<const std::byte*>(table.data()), static_cast<std::byte*>(out.data()), rows.data(), row_bytes_of(table),
                 ahead};
  const bool streamed = stream && streams(all.out, all.bytes);
  nb::gil_scoped_release unlocked;
  share(rows.size(), threads,
        [&](std::size_t a, std::size_t b) { return streamed ? gather<true>(all, a, b) : gather<false>(all, a, b); });
}

// out = source; both have the same number of bytes.
void reference_copy(Table source, OutTable out, bool stream, std::size_t threads) {
  check_threads(threads);
  if (source.nbytes() != out.nbytes()) bad("out", "must have as many bytes as source");
  const auto* from = static_cast<const std::byte*>(source.data());
  auto* to = static_cast<std::byte*>(out.data());
  const std::size_t lines = source.nbytes() / kCacheLine, tail = lines * kCacheLine;
  const bool streamed = stream && streams(to, kCacheLine);
  nb::gil_scoped_release unlocked;
  share(lines, threads, [&](std::size_t a, std::size_t b) {
    if (!streamed) {
      std::memcpy(to + a * kCacheLine, from + a * kCacheLine, (b - a) * kCacheLine);
      return;
    }
    stream_bytes(to + a * kCacheLine, from + a * kCacheLine, (b - a) * kCacheLine);
    drain_stores();
  });
  std::memcpy(to + tail, from + tail, source.nbytes() - tail);
}

}  // namespace

void bind_reference(nb::module_& m) {
  m.def("reference_gather", &reference_gather, "table"_a, "rows"_a, "out"_a, "ahead"_a, "stream"_a, "threads"_a);
  m.def("reference_copy", &reference_copy, "source"_a, "out"_a, "stream"_a, "threads"_a);
}
