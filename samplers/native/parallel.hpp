// Splitting a range among a few threads. Threads are short-lived on purpose: a call moves megabytes, starting one costs
// microseconds.
#pragma once

#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace atta {

// Calls body(part, begin, end) for `parts` consecutive ranges of [0, count); the first exception is rethrown.
template <class Body>
void split(std::size_t count, std::size_t parts, Body body) {
  if (parts <= 1 || count < 2 * parts) {
    body(std::size_t{0}, std::size_t{0}, count);
    return;
  }
  std::vector<std::exception_ptr> errors(parts);
  std::vector<std::thread> threads;
  const auto run = [&](std::size_t part) {
    try {
      body(part, count * part / parts, count * (part + 1) / parts);
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

}  // namespace atta
