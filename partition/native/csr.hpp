// The undirected graph that partitioning works on: the neighbours of each vertex, one vertex after another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "hash.hpp"

namespace atta {

template <class Id>
struct Csr {
  std::span<const std::int64_t> indptr;
  const Id* indices;

  std::size_t size() const { return indptr.size() - 1; }
  std::span<const Id> row(std::size_t v) const {
    return {indices + indptr[v], static_cast<std::size_t>(indptr[v + 1] - indptr[v])};
  }
  std::size_t degree(std::size_t v) const { return static_cast<std::size_t>(indptr[v + 1] - indptr[v]); }
};

// Some edges src[i] + src_start -> dst[i] + dst_start.
template <class A, class B>
struct EdgeList {
  const A* src;
  const B* dst;
  std::size_t count;
  std::int64_t src_start, dst_start;

  template <class F>
  void each(std::size_t n, F f) const {
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t u = src[i] + src_start, v = dst[i] + dst_start;
      if (static_cast<std::uint64_t>(u) >= n || static_cast<std::uint64_t>(v) >= n)
        throw std::invalid_argument("edges: edge " + std::to_string(i) + " leaves the " + std::to_string(n) + " vertices");
      if (u != v) f(static_cast<std::size_t>(u), static_cast<std::size_t>(v));
    }
  }
};

// Calls keep(v, u) for the edges to keep. A vertex with more than `cap` neighbours keeps the `cap` of lowest degree
// (ties by a hash): an edge to a hub says least about where a vertex belongs.
template <class Id, class F>
void sparsify(const Csr<Id>& graph, std::size_t cap, std::uint64_t seed, F keep) {
  std::vector<std::pair<std::uint64_t, Id>> ranked;
  for (std::size_t v = 0; v < graph.size(); ++v) {
    const auto row = graph.row(v);
    if (row.size() <= cap) {
      for (const Id u : row) keep(v, u);
      continue;
    }
    ranked.clear();
    for (const Id u : row) {
      const std::uint64_t degree = std::min<std::uint64_t>(graph.degree(static_cast<std::size_t>(u)), 0xFFFFFFFFULL);
      ranked.emplace_back(degree << 32 | (mix64(seed ^ static_cast<std::uint64_t>(u)) >> 32), u);
    }
    std::nth_element(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(cap), ranked.end());
    for (std::size_t i = 0; i < cap; ++i) keep(v, ranked[i].second);
  }
}

// All vertices in breadth-first order. Each component starts at its first vertex.
template <class Id>
std::vector<std::int64_t> breadth_first(const Csr<Id>& graph) {
  std::vector<std::int64_t> order;
  order.reserve(graph.size());
  std::vector<char> seen(graph.size(), 0);
  for (std::size_t start = 0, at = 0; start < graph.size(); ++start) {
    if (seen[start]) continue;
    seen[start] = 1;
    order.push_back(static_cast<std::int64_t>(start));
    for (; at < order.size(); ++at)
      for (const Id u : graph.row(static_cast<std::size_t>(order[at])))
        if (!seen[static_cast<std::size_t>(u)]) {
          seen[static_cast<std::size_t>(u)] = 1;
          order.push_back(static_cast<std::int64_t>(u));
        }
  }
  return order;
}

}  // namespace atta
