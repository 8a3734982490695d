// One hop of a batch on a whole graph in this process. Sources are numbered as they are read, and nothing is written
// twice.
#pragma once

#include <cstdint>
#include <vector>

#include "compact.hpp"
#include "expand.hpp"

namespace atta {

// The output of a hop: local ids of sources and targets, edge ids. It has room for `capacity` edges.
template <class Edge>
struct HopOut {
  std::int32_t* row;
  std::int32_t* col;
  Edge* edge_ids;  // null: not wanted
  std::size_t capacity;
};

// Numbers new sources in the order in which their first edge is written, as `sample_neighbors` and `stitch` do. With
// trees it numbers tree x sources + source.
template <class Id, class Edge>
class HopSink {
 public:
  HopSink(Compactor& known, const HopOut<Edge>& out, std::int64_t trees_of) : known_(known), out_(out), trees_of_(trees_of) {}

  std::size_t written() const { return written_; }

  bool reserve(std::size_t edges) {
    reserved_ += edges;
    return reserved_ <= out_.capacity;
  }

  void request(Block<Id, Edge>& block) {
    if (trees_of_ == 0) return known_.request_entries(block.sources.data(), block.sources.size());
    const auto& in_tree = ids_in_tree(block);
    known_.request_entries(in_tree.data(), in_tree.size());
  }

  void take(Block<Id, Edge>& block) {
    const std::size_t count = block.sources.size();
    if (trees_of_ == 0)
      known_.number(block.sources.data(), count, out_.row + written_);
    else
      known_.number(ids_in_tree(block).data(), count, out_.row + written_);
    std::size_t at = written_;
    for (std::size_t i = 0; i < block.picks.counts.size(); ++i) {
      const auto picks = static_cast<std::size_t>(block.picks.counts[i]);
      std::fill_n(out_.col + at, picks, static_cast<std::int32_t>(block.first + i));
      at += picks;
    }
    if (out_.edge_ids != nullptr) std::copy_n(block.edge_ids.data(), count, out_.edge_ids + written_);
    written_ += count;
  }

 private:
  const std::vector<std::int64_t>& ids_in_tree(const Block<Id, Edge>& block) {
    scratch_.resize(block.sources.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < block.picks.counts.size(); ++i) {
      const std::int64_t base = block.picks.targets[i].tree * trees_of_;
      for (std::int32_t j = 0; j < block.picks.counts[i]; ++j, ++at)
        scratch_[at] = base + static_cast<std::int64_t>(block.sources[at]);
    }
    return scratch_;
  }

  Compactor& known_;
  HopOut<Edge> out_;
  std::int64_t trees_of_;
  std::vector<std::int64_t> scratch_;
  std::size_t written_ = 0, reserved_ = 0;
};

}  // namespace atta
