// Splits a range among a few threads. Threads are short-lived on purpose: a call moves megabytes, and starting a thread
// costs microseconds.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <thread>
#include <vector>

namespace atta {

// Consecutive ranges of [0, bounds.back()): part p is [bounds[p], bounds[p + 1]).
using Bounds = std::vector<std::size_t>;

// `parts` ranges of equal length; a single range if there is little to divide.
inline Bounds evenly(std::size_t count, std::size_t parts) {
  if (parts <= 1 || count < 2 * parts) return {0, count};
  Bounds bounds;
  for (std::size_t part = 0; part <= parts; ++part) bounds.push_back(count * part / parts);
  return bounds;
}

// `parts` ranges of rows with about equally many edges. In a power-law graph a few rows have most of the edges.
inline Bounds by_edges(std::span<const std::int64_t> indptr, std::size_t parts) {
  const std::size_t rows = indptr.size() - 1;
  if (parts <= 1 || rows < 2 * parts) return {0, rows};
  Bounds bounds{0};
  for (std::size_t part = 1; part < parts; ++part) {
    const auto share = static_cast<double>(indptr.back()) * static_cast<double>(part) / static_cast<double>(parts);
    const auto at = std::lower_bound(indptr.begin(), indptr.end(), static_cast<std::int64_t>(share)) - indptr.begin();
    bounds.push_back(std::max(bounds.back(), std::min(rows, static_cast<std::size_t>(at))));
  }
  bounds.push_back(rows);
  return bounds;
}

// `parts` ranges of about equal cost(i).
template <class Cost>
Bounds by_cost(std::size_t count, std::size_t parts, Cost cost) {
  if (parts <= 1 || count < 2 * parts) return {0, count};
  double total = 0, before = 0;
  for (std::size_t i = 0; i < count; ++i) total += cost(i);
  Bounds bounds{0};
  for (std::size_t i = 0; i < count && bounds.size() < parts; ++i) {
    before += cost(i);
    if (before * static_cast<double>(parts) >= total * static_cast<double>(bounds.size())) bounds.push_back(i + 1);
  }
  while (bounds.size() < parts) bounds.push_back(count);
  bounds.push_back(count);
  return bounds;
}

// Calls body(part, begin, end) for each range on a thread of its own; the first exception is rethrown.
template <class Body>
void split(const Bounds& bounds, Body body) {
  const std::size_t parts = bounds.size() - 1;
  if (parts == 1) {
    body(std::size_t{0}, bounds[0], bounds[1]);
    return;
  }
  std::vector<std::exception_ptr> errors(parts);
  std::vector<std::thread> threads;
  const auto run = [&](std::size_t part) {
    try {
      body(part, bounds[part], bounds[part + 1]);
    } catch (...) {
      errors[part] = std::current_exception();
    }
  };
  for (std::size_t part = 1; part < parts; ++part) threads.emplace_back(run, part);
  run(0);
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

// Calls body(begin, end) for pieces of [0, count), `step` long. Each thread takes the next piece when it is free: so none
// waits long for one that started late or lost its core. `body` does not throw. The calling thread first calls `first`.
template <class First, class Body>
void share_beside(std::size_t count, std::size_t step, std::size_t threads, First first, Body body) {
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t at = next.fetch_add(step); at < count; at = next.fetch_add(step)) body(at, std::min(count, at + step));
  };
  std::vector<std::thread> others;
  for (std::size_t helper = 1; helper < std::min(threads, (count + step - 1) / step); ++helper) others.emplace_back(run);
  first();
  run();
  for (auto& other : others) other.join();
}

// The same, where the calling thread has nothing else to do.
template <class Body>
void share(std::size_t count, std::size_t step, std::size_t threads, Body body) {
  share_beside(count, step, threads, [] {}, body);
}

}  // namespace atta
