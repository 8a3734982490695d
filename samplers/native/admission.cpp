// Binding of the choice of external neighbours; typed and documented in atta.samplers.kernels.

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "compact.hpp"
#include "hash.hpp"

// The in-neighbours that a vertex admits to a server's subgraph (expansion-aware sampling): the best few that no vertex
// has admitted yet.
namespace atta {

// A neighbour that may be admitted. Lower scores come first, and user ids decide between equal scores. Parallel edges
// make equal candidates.
struct Candidate {
  std::uint64_t score;
  std::int64_t key;
  std::int64_t vertex;

  auto operator<=>(const Candidate&) const = default;
};

// The `limit` lowest of the candidates offered, without repeats. About twice as many are kept before they are sorted
// and cut. So a vertex of degree d costs d comparisons and few sorts, in any order of its edges.
class Lowest {
 public:
  explicit Lowest(std::int64_t limit)
      : limit_(static_cast<std::size_t>(limit)),
        room_(limit_ > std::numeric_limits<std::size_t>::max() / 4 ? limit_ : 2 * limit_ + 64) {}

  void clear() {
    kept_.clear();
    full_ = false;
  }

  void offer(const Candidate& candidate) {
    if (limit_ == 0 || (full_ && !(candidate < kept_[limit_ - 1]))) return;
    kept_.push_back(candidate);
    if (kept_.size() >= room_) cut();
  }

  // In ascending order; valid until the next call.
  std::span<const Candidate> found() {
    cut();
    return kept_;
  }

 private:
  void cut() {
    std::sort(kept_.begin(), kept_.end());
    kept_.erase(std::unique(kept_.begin(), kept_.end()), kept_.end());
    if (kept_.size() < limit_) return;
    kept_.resize(limit_);
    full_ = true;  // kept_[limit_ - 1] stays the worst of the best: later candidates stand behind it
  }

  std::size_t limit_, room_;
  std::vector<Candidate> kept_;
  bool full_ = false;
};

}  // namespace atta

using namespace atta;

namespace {

using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Scores = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr std::size_t kAhead = 16;  // number of sources whose cache lines are requested ahead

void check_vertices(const char* name, const Longs& ids, std::size_t vertices) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (static_cast<std::uint64_t>(ids.data()[i]) >= vertices)
      bad(name, ("vertex " + std::to_string(ids.data()[i]) + " of " + std::to_string(vertices)).c_str());
}

// Counts int32 [m] and vertices int64 [sum(counts)]: what each target admits, best first.
nb::tuple admit(const Compactor& members, Longs targets, Ints counts, Longs sources, Longs keys, std::int64_t limit,
                std::uint64_t stream_key, std::optional<Scores> scores) {
  const std::size_t m = targets.size(), edges = sources.size(), vertices = keys.size();
  if (counts.size() != m) bad("counts", "must be as long as targets");
  if (scores && scores->size() != edges) bad("scores", "must be as long as sources");
  if (limit < 0) bad("limit", "must not be negative");
  Buffer<std::int32_t> admitted(m);
  std::vector<std::int64_t> chosen;
  {
    nb::gil_scoped_release unlocked;
    std::size_t total = 0;
    for (std::size_t i = 0; i < m; ++i) {
      if (counts.data()[i] < 0) bad("counts", "must not be negative");
      total += static_cast<std::size_t>(counts.data()[i]);
    }
    if (total != edges) bad("counts", "do not add up to the number of sources");
    check_vertices("targets", targets, vertices);
    check_vertices("sources", sources, vertices);
    Lowest lowest(limit);
    for (std::size_t i = 0, edge = 0; i < m; ++i) {
      // Each pair of vertices has a number of its own: the source's user id says which draw of the target's stream it
      // is.
      const VertexStream stream(stream_key, keys.data()[targets.data()[i]]);
      lowest.clear();
      for (const std::size_t end = edge + static_cast<std::size_t>(counts.data()[i]); edge < end; ++edge) {
        if (edge + kAhead < edges) {
          const std::int64_t ahead = sources.data()[edge + kAhead];
          members.request(ahead);
          __builtin_prefetch(&keys.data()[ahead]);
        }
        const std::int64_t source = sources.data()[edge], key = keys.data()[source];
        if (members.find(source) >= 0) continue;
        lowest.offer(Candidate{scores ? scores->data()[edge] : stream.draw(static_cast<std::uint64_t>(key)), key, source});
      }
      const auto found = lowest.found();
      admitted.data[i] = static_cast<std::int32_t>(found.size());  // at most counts[i]
      for (const Candidate& candidate : found) chosen.push_back(candidate.vertex);
    }
  }
  Buffer<std::int64_t> out(chosen.size());
  std::copy(chosen.begin(), chosen.end(), out.data);
  return nb::make_tuple(admitted.release(), out.release());
}

}  // namespace

void bind_admission(nb::module_& m) {
  m.def("admit", &admit, "members"_a, "targets"_a, "counts"_a, "sources"_a, "keys"_a, "limit"_a, "stream_key"_a, "scores"_a.none());
}
