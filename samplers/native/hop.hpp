// One hop of a local batch in a single pass: draw, read, number. Three blocks of rows are under way at a time, so that every random
// line (row bounds, neighbours, the compactor's entry) has been requested well before it is needed, and nothing is written twice.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "compact.hpp"
#include "sample.hpp"

namespace atta {

// The in-edges of all vertices of a graph; `edge_ids` null: an edge's id is its position.
template <class Id, class Edge>
struct InEdges {
  std::span<const std::int64_t> indptr;
  const Id* indices;
  std::size_t edges;
  const Edge* edge_ids;
  const std::int64_t* keys;  // user ids; null: a vertex is its own
};

// Where a hop writes: local ids of sources and targets, edge ids; room for `capacity` edges.
template <class Edge>
struct HopOut {
  std::int32_t* row;
  std::int32_t* col;
  Edge* edge_ids;  // null: not wanted
  std::size_t capacity;
};

// Expands the vertices numbered [first, last) of `known`; returns the number of edges. `known` numbers new sources in the order in
// which their first edge is written, as `sample_neighbors` and `stitch` do.
template <class Id, class Edge>
std::size_t sample_hop(Compactor& known, const InEdges<Id, Edge>& graph, std::size_t first, std::size_t last,
                       const SampleSpec& spec, const HopOut<Edge>& out) {
  struct Block {
    std::size_t first = 0, last = 0;
    std::vector<std::int32_t> counts;
    std::vector<std::int64_t> positions;
    std::vector<Id> sources;
    std::vector<Edge> edge_ids;
  };
  const auto n = static_cast<std::int64_t>(graph.indptr.size()) - 1;
  Block blocks[3];
  Picked picked;
  std::size_t written = 0;

  const auto request = [&](std::size_t from) {
    for (std::size_t i = from; i < std::min(last, from + kBlock); ++i) {
      const auto row = static_cast<std::size_t>(known.ids()[i]);
      __builtin_prefetch(&graph.indptr[row]);
      if (graph.keys != nullptr) __builtin_prefetch(&graph.keys[row]);
    }
    asm volatile("");  // else GCC takes this for a function without effects and drops it
  };
  const auto draw = [&](Block& block, std::size_t from) {
    block.first = from;
    block.last = std::min(last, from + kBlock);
    block.counts.clear();
    block.positions.clear();
    for (std::size_t i = block.first; i < block.last; ++i) {
      const std::int64_t row = known.ids()[i];
      const std::int64_t begin = graph.indptr[static_cast<std::size_t>(row)], end = graph.indptr[static_cast<std::size_t>(row) + 1];
      if (begin < 0 || end < begin || end > static_cast<std::int64_t>(graph.edges))
        throw std::invalid_argument("indptr: row " + std::to_string(row) + " spans " + std::to_string(begin) + ".." +
                                    std::to_string(end) + " of " + std::to_string(graph.edges) + " edges");
      const std::int64_t picks = picks_of(end - begin, spec);
      const std::size_t at = block.positions.size();
      block.positions.resize(at + static_cast<std::size_t>(picks));
      block.counts.push_back(static_cast<std::int32_t>(picks));
      std::int64_t* mine = block.positions.data() + at;
      const std::int64_t key = graph.keys != nullptr ? graph.keys[static_cast<std::size_t>(row)] : row;
      pick_positions(VertexStream(spec.stream_key, key), end - begin, picks, spec, mine, picked);
      for (std::int64_t j = 0; j < picks; ++j) {
        mine[j] += begin;
        __builtin_prefetch(&graph.indices[mine[j]]);
        if (out.edge_ids != nullptr && graph.edge_ids != nullptr) __builtin_prefetch(&graph.edge_ids[mine[j]]);
      }
    }
  };
  const auto read = [&](Block& block) {
    const std::size_t count = block.positions.size();
    block.sources.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      block.sources[i] = graph.indices[block.positions[i]];
      if (block.sources[i] < 0 || static_cast<std::int64_t>(block.sources[i]) >= n)
        throw std::invalid_argument("indices: edge " + std::to_string(block.positions[i]) + " comes from vertex " +
                                    std::to_string(block.sources[i]) + " of " + std::to_string(n));
      known.request_entry(static_cast<std::int64_t>(block.sources[i]));
    }
    if (out.edge_ids == nullptr || graph.edge_ids == nullptr) return;
    block.edge_ids.resize(count);
    for (std::size_t i = 0; i < count; ++i) block.edge_ids[i] = graph.edge_ids[block.positions[i]];
  };
  const auto write = [&](Block& block) {
    const std::size_t count = block.positions.size();
    known.number(block.sources.data(), count, out.row + written);
    std::size_t at = written;
    for (std::size_t i = block.first; i < block.last; ++i) {
      const auto picks = static_cast<std::size_t>(block.counts[i - block.first]);
      std::fill_n(out.col + at, picks, static_cast<std::int32_t>(i));
      at += picks;
    }
    if (out.edge_ids != nullptr) {
      if (graph.edge_ids != nullptr)
        std::copy_n(block.edge_ids.data(), count, out.edge_ids + written);
      else
        for (std::size_t i = 0; i < count; ++i) out.edge_ids[written + i] = static_cast<Edge>(block.positions[i]);
    }
    written += count;
  };

  // Block b is drawn while block b - 1 is read and block b - 2 is written. What is not written yet counts against the capacity,
  // too.
  const std::size_t total = (last - first + kBlock - 1) / kBlock;
  request(first);
  std::size_t drawn_ahead = 0;
  for (std::size_t b = 0; b < total + 2; ++b) {
    if (b < total) {
      request(first + (b + 1) * kBlock);
      draw(blocks[b % 3], first + b * kBlock);
      drawn_ahead += blocks[b % 3].positions.size();
      if (written + drawn_ahead > out.capacity) throw std::length_error("out_row: too short for this hop");
    }
    if (b >= 1 && b - 1 < total) read(blocks[(b - 1) % 3]);
    if (b >= 2) {
      drawn_ahead -= blocks[(b - 2) % 3].positions.size();
      write(blocks[(b - 2) % 3]);
    }
  }
  return written;
}

}  // namespace atta
