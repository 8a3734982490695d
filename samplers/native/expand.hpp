// Expands rows in one pass: draw, read, hand over. Several blocks of rows are under way at a time. So every random
// cache line (row bounds, the picker's tables, neighbours, the receiver's tables) is requested well before it is
// needed.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "sample.hpp"

namespace atta {

// The in-edges of some vertices. If `edge_ids` is null, an edge's id is its position, and if `indices` is, its source is. Source
// and id of edge e are at e * `stride`. With a stride of 2 they can lie side by side, so that an edge takes one cache line and not
// two.
template <class Id, class Edge>
struct InEdges {
  std::span<const std::int64_t> indptr;
  const Id* indices;
  std::size_t edges;
  const Edge* edge_ids;
  const std::int64_t* keys;  // user ids of the rows; null: the row number is the user id
  std::int64_t sources;      // source ids are below this
  std::int64_t stride = 1;   // 1 or 2

  // Calls f with the stride as a constant, so that it costs no multiplication.
  template <class F>
  void with_stride(F f) const {
    stride == 2 ? f(std::integral_constant<std::int64_t, 2>()) : f(std::integral_constant<std::int64_t, 1>());
  }
  // Whether the line that has an edge's source has its id too.
  bool side_by_side() const { return stride == 2 && static_cast<const void*>(indices + 1) == static_cast<const void*>(edge_ids); }
};

// A row to expand: its number, the tree that it grows in (-1: none) and its time. No edge may be later than this time.
struct Row {
  std::int64_t row;
  std::int64_t tree = -1;
  std::int64_t time = kEndOfTime;
};

// The data that has been read for one block.
template <class Id, class Edge>
struct Block {
  Picks picks;
  std::size_t first = 0;  // of the rows
  std::vector<Id> sources;
  std::vector<Edge> edge_ids;
};

template <class Id, class Edge>
Target target_of(const InEdges<Id, Edge>& graph, const SampleSpec& spec, const Row& row) {
  const auto n = static_cast<std::int64_t>(graph.indptr.size()) - 1;
  if (row.row < 0 || row.row >= n)
    throw std::invalid_argument("rows: row " + std::to_string(row.row) + " is outside 0.." + std::to_string(n - 1));
  const auto at = static_cast<std::size_t>(row.row);
  const std::int64_t begin = graph.indptr[at], end = graph.indptr[at + 1];
  if (begin < 0 || end < begin || end > static_cast<std::int64_t>(graph.edges))
    throw std::invalid_argument("indptr: row " + std::to_string(row.row) + " spans " + std::to_string(begin) + ".." +
                                std::to_string(end) + " of " + std::to_string(graph.edges) + " edges");
  const std::uint64_t salt = row.tree < 0 ? 0 : mix64(static_cast<std::uint64_t>(row.tree));
  const std::int64_t key = graph.keys != nullptr ? graph.keys[at] : row.row;
  return Target{at, begin, end - begin, VertexStream(spec.key_of(key) ^ salt, key), row.time, row.tree};
}

// Expands rows [first, last); `row_at(i)` gives row i. The sink has three tasks: say whether a block still fits
// (`reserve`), request the memory that it will touch for a source (`request`), and take the block (`take`). Returns
// where it stopped: `last`, or the first row for which the sink had no room.
template <class Id, class Edge, class Picker, class RowAt, class Sink>
std::size_t expand(const InEdges<Id, Edge>& graph, const SampleSpec& spec, Picker& picker, std::size_t first, std::size_t last,
                   const RowAt& row_at, bool want_edges, Sink& sink) {
  constexpr std::size_t kSteps = Picker::kResolves ? 2 : 1;  // from drawing a block to reading it
  constexpr std::size_t kDepth = kSteps + 1;                 // blocks under way
  Block<Id, Edge> blocks[kDepth];
  const bool read_edges = want_edges && graph.edge_ids != nullptr;
  const bool ask_edges = read_edges && (Picker::kKnowsSources || !graph.side_by_side());

  const auto request = [&](std::size_t from) {
    for (std::size_t i = from; i < std::min(last, from + kBlock); ++i) {
      const auto row = static_cast<std::size_t>(row_at(i).row);
      if (row >= graph.indptr.size() - 1) continue;  // a negative row too; `target_of` throws for it later
      __builtin_prefetch(&graph.indptr[row]);
      __builtin_prefetch(&graph.indptr[row + 1]);  // one row in eight ends in the next line
      if (graph.keys != nullptr) __builtin_prefetch(&graph.keys[row]);
      picker.request(row);
    }
    asm volatile("");  // else GCC takes this for a function without effects and drops it
  };
  const auto draw = [&](Block<Id, Edge>& block, std::size_t from) {
    block.first = from;
    block.picks.clear();
    for (std::size_t i = from; i < std::min(last, from + kBlock); ++i)
      block.picks.targets.push_back(target_of(graph, spec, row_at(i)));
    picker.draw(block.picks);
  };
  const auto ask = [&](const Block<Id, Edge>& block) {
    graph.with_stride([&](auto stride) {
      for (const std::int64_t position : block.picks.positions) {
        if (!Picker::kKnowsSources && graph.indices != nullptr) __builtin_prefetch(graph.indices + position * stride);
        if (ask_edges) __builtin_prefetch(graph.edge_ids + position * stride);
      }
      asm volatile("");  // as above
    });
  };
  const auto read = [&](Block<Id, Edge>& block) {
    const std::vector<std::int64_t>& positions = block.picks.positions;
    block.sources.resize(positions.size());
    graph.with_stride([&](auto stride) {
      for (std::size_t i = 0; i < positions.size(); ++i) {
        const Id source = graph.indices == nullptr ? static_cast<Id>(positions[i])
                          : Picker::kKnowsSources  ? static_cast<Id>(block.picks.sources[i])
                                                   : graph.indices[positions[i] * stride];
        if (source < 0 || static_cast<std::int64_t>(source) >= graph.sources)
          throw std::invalid_argument("indices: edge " + std::to_string(positions[i]) + " comes from vertex " +
                                      std::to_string(source) + " of " + std::to_string(graph.sources));
        block.sources[i] = source;
      }
    });
    sink.request(block);
    if (!want_edges) return;
    block.edge_ids.resize(positions.size());
    if (read_edges)
      graph.with_stride([&](auto stride) {
        for (std::size_t i = 0; i < positions.size(); ++i) block.edge_ids[i] = graph.edge_ids[positions[i] * stride];
      });
    else
      for (std::size_t i = 0; i < positions.size(); ++i) block.edge_ids[i] = static_cast<Edge>(positions[i]);
  };

  // Each request is followed by work on another block, and its lines are read before much else comes into the first
  // cache: a block is taken just before the lines of the next one are requested.
  const std::size_t total = (last - first + kBlock - 1) / kBlock;
  const auto at = [&](std::size_t b) -> Block<Id, Edge>& { return blocks[b % kDepth]; };
  request(first);
  for (std::size_t b = 0; b < total + kSteps; ++b) {
    if (b < total) draw(at(b), first + b * kBlock);
    // Unsigned numbers: before there is such a block, its number is beyond the total.
    const std::size_t known = b - (kSteps - 1), done = known - 1;
    if (done < total) sink.take(at(done));
    if (known < total) {  // its positions are final
      Block<Id, Edge>& block = at(known);
      if (Picker::kResolves) picker.resolve(block.picks);
      if (!sink.reserve(block.picks.positions.size())) return block.first;
      ask(block);
    }
    if (b + 1 < total) request(first + (b + 1) * kBlock);
    if (known < total) read(at(known));
  }
  return last;
}

}  // namespace atta
