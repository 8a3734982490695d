// Checks that several bindings make before they work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "arrays.hpp"

namespace atta {

inline void check_rows_of(const Longs& indptr, std::size_t edges, std::size_t row) {
  const std::int64_t begin = indptr.data()[row], end = indptr.data()[row + 1];
  if (begin < 0 || end < begin || end > static_cast<std::int64_t>(edges) || end - begin > INT32_MAX)
    bad("indptr", ("row " + std::to_string(row) + " does not fit the edges").c_str());
}

// Starts of groups: from 0 to the number of rows, ascending.
inline void check_starts(const Longs& starts, std::size_t rows) {
  const std::int64_t *begin = starts.data(), *end = begin + starts.size();
  if (starts.size() == 0 || *begin != 0 || end[-1] != static_cast<std::int64_t>(rows) || !std::is_sorted(begin, end))
    bad("starts", "must ascend from 0 to the number of rows");
}

inline void check_threads(std::size_t threads) {
  if (threads < 1 || threads > 1024) bad("threads", "must be 1 to 1024");
}

}  // namespace atta
