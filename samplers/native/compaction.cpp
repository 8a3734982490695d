// Binding of the numbering of vertices, by first appearance in a batch and by owner; typed and documented in atta.samplers.kernels.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "arrays.hpp"
#include "compact.hpp"
#include "gather.hpp"

using namespace atta;

namespace {

nb::object compactor_insert(atta::Compactor& self, Vector ids) {
  Buffer<std::int32_t> local(ids.size());
  with_ids("ids", ids, [&](const auto* p) {
    nb::gil_scoped_release unlocked;
    self.insert(p, ids.size(), local.data);
  });
  return local.release();
}

// Local ids, without inserting; -1: unknown.
nb::object compactor_find(const atta::Compactor& self, Vector ids) {
  constexpr std::size_t kAhead = 16;
  Buffer<std::int32_t> local(ids.size());
  with_ids("ids", ids, [&](const auto* p) {
    nb::gil_scoped_release unlocked;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + kAhead < ids.size()) self.request(static_cast<std::int64_t>(p[i + kAhead]));
      local.data[i] = self.find(static_cast<std::int64_t>(p[i]));
    }
  });
  return local.release();
}

nb::object compactor_ids(atta::Compactor& self, std::size_t start, std::size_t stop) {
  if (start > stop || stop > self.size()) bad("stop", "passes the number of ids");
  Buffer<std::int64_t> out(stop - start);
  std::copy(self.ids().begin() + static_cast<std::ptrdiff_t>(start), self.ids().begin() + static_cast<std::ptrdiff_t>(stop),
            out.data);
  return out.release();
}

// The same for ids of the form tree * sources + vertex: returns vertices and trees. A multiplication and a correction
// replace divisions.
nb::tuple compactor_in_trees(atta::Compactor& self, std::size_t start, std::size_t stop, std::uint64_t sources) {
  if (start > stop || stop > self.size()) bad("stop", "passes the number of ids");
  if (sources == 0) bad("sources", "must be at least 1");
  Buffer<std::int64_t> vertices(stop - start);
  Buffer<std::int32_t> trees(stop - start);
  const std::uint64_t inverse = UINT64_MAX / sources;
  for (std::size_t i = start; i < stop; ++i) {
    const auto id = static_cast<std::uint64_t>(self.ids()[i]);
    auto tree = static_cast<std::uint64_t>((static_cast<unsigned __int128>(id) * inverse) >> 64);
    while (id - tree * sources >= sources) ++tree;
    vertices.data[i - start] = static_cast<std::int64_t>(id - tree * sources);
    trees.data[i - start] = static_cast<std::int32_t>(tree);
  }
  return nb::make_tuple(vertices.release(), trees.release());
}

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
using Counts = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Factors of sources by internal id: 1, these numbers, or 1 / root of (a degree + `more`), 0 for 0. Degrees take a quarter or
// half of the lines that their roots would take.
struct SourceFactors {
  std::variant<std::monostate, Floats, Counts<std::uint8_t>, Counts<std::uint16_t>, Counts<std::uint32_t>, Counts<std::uint64_t>>
      kept;
  float more = 0;
  std::vector<float> staged = {};

  SourceFactors(nb::handle given, float added) : more(added) {
    if (!given.is_none() && !(took<2>(given) || took<3>(given) || took<4>(given) || took<5>(given))) kept = nb::cast<Floats>(given);
  }

  std::size_t size() const {
    return std::visit(
        [](const auto& of) -> std::size_t {
          if constexpr (std::is_same_v<std::decay_t<decltype(of)>, std::monostate>)
            return SIZE_MAX;
          else
            return of.size();
        },
        kept);
  }

  // Multiplies `n` weights by the factors of the sources that `id_of(i)` names.
  __attribute__((noinline)) void multiply(float* weights, std::size_t n, const auto& id_of) {
    const auto by = [&](const auto& of) {
      using Kept = std::decay_t<decltype(of)>;
      if constexpr (std::is_same_v<Kept, Floats>) {
        for (std::size_t i = 0; i < n; ++i) weights[i] *= of.data()[id_of(i)];
      } else if constexpr (!std::is_same_v<Kept, std::monostate>) {
        if (staged.size() < n) staged.resize(n);
        float* const degrees = staged.data();
        for (std::size_t i = 0; i < n; ++i) degrees[i] = static_cast<float>(of.data()[id_of(i)]) + more;
        for (std::size_t i = 0; i < n; ++i) weights[i] *= 1 / std::sqrt(degrees[i] > 0 ? degrees[i] : kInfinity);
      }
    };
    std::visit(by, kept);
  }

 private:
  template <std::size_t Which>
  bool took(nb::handle given) {
    std::variant_alternative_t<Which, decltype(kept)> found;
    if (!nb::try_cast(given, found, false)) return false;
    kept = std::move(found);
    return true;
  }
};

// What edges weigh as they are stitched: the product of factors of both ends. Edges of a vertex to itself weigh 0 with
// `no_loops`.
struct Weighing {
  OutFloats out;
  Floats right;  // by place in the frontier
  SourceFactors left;
  bool no_loops;
};

struct Group {
  Longs positions;
  nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> counts;
  Vector neighbors;
  std::optional<Vector> edge_ids;
};

using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr std::size_t kStage = 4096;  // ids compacted at a time

// Staged values. The caller fills the room that it asks for. Requests for a few entries are frequent, and a vector
// would clear the entries first.
template <class T>
class Stage {
 public:
  T* more(std::size_t count) {
    if (size_ + count > room_) grow(size_ + count);
    T* const free = data_.get() + size_;
    size_ += count;
    return free;
  }
  const T* data() const { return data_.get(); }
  T* data() { return data_.get(); }
  std::size_t size() const { return size_; }
  void clear() { size_ = 0; }

 private:
  void grow(std::size_t least) {
    const std::size_t room = std::max(least, 2 * room_);
    auto bigger = std::make_unique_for_overwrite<T[]>(room);
    std::copy_n(data_.get(), size_, bigger.get());
    data_ = std::move(bigger), room_ = room;
  }

  std::size_t size_ = 0, room_ = kStage + 64;
  std::unique_ptr<T[]> data_ = std::make_unique_for_overwrite<T[]>(room_);
};

// An output while it fills. One block at a time is staged, so that it stays in the cache. Then it is written as int32
// or int64.
template <class Staged>
class Column {
 public:
  Column(const char* name, const OutVector& out, std::size_t count) : out_(out.data()), wide_(is_int64(out.dtype())) {
    if (!wide_ && !is_int32(out.dtype())) bad(name, "must be int32 or int64");
    if (out.size() < count) bad(name, "is shorter than the number of edges");
    cold_ = count * sizeof(std::int64_t) >= atta::kColdBytes;
  }

  void flush() {
    if (wide_)
      atta::widen_ids(staged.data(), static_cast<std::int64_t*>(out_) + done_, staged.size(), cold_);
    else
      std::transform(staged.data(), staged.data() + staged.size(), static_cast<std::int32_t*>(out_) + done_,
                     [](Staged id) { return static_cast<std::int32_t>(id); });
    done_ += staged.size();
    staged.clear();
  }

  Stage<Staged> staged;

 private:
  void* out_;
  bool wide_, cold_;
  std::size_t done_ = 0;
};

// Where the answer of each frontier vertex lies.
struct Segment {
  std::uint32_t group;
  std::int32_t count;
  std::size_t begin;
};

std::size_t compactor_stitch(atta::Compactor& self, nb::list groups_in,
                             nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> frontier_local,
                             OutVector out_row, OutVector out_col, std::optional<OutVector> out_edges, std::optional<Ints> trees,
                             std::int64_t sources, nb::object weights) {
  if (trees && trees->size() != frontier_local.size()) bad("trees", "must be as long as frontier_local");
  if (trees && self.limit() > 0) bad("trees", "need a compactor for any ids");
  std::vector<Group> groups;
  for (nb::handle item : groups_in) {
    auto t = nb::cast<nb::tuple>(item);
    if (t.size() != 4) bad("groups", "every group is (positions, counts, neighbors, edge_ids)");
    Group g{nb::cast<Longs>(t[0]), nb::cast<decltype(Group::counts)>(t[1]), nb::cast<Vector>(t[2]), std::nullopt};
    if (!t[3].is_none()) g.edge_ids = nb::cast<Vector>(t[3]);
    if (g.positions.size() != g.counts.size()) bad("groups", "positions and counts differ in length");
    if (!is_int32(g.neighbors.dtype()) && !is_int64(g.neighbors.dtype())) bad("groups", "neighbors must be int32 or int64");
    if (g.edge_ids && g.edge_ids->size() != g.neighbors.size()) bad("groups", "edge_ids and neighbors differ in length");
    if (out_edges && !g.edge_ids) bad("groups", "edge_ids are missing");
    if (g.edge_ids && !is_int32(g.edge_ids->dtype()) && !is_int64(g.edge_ids->dtype()))
      bad("groups", "edge_ids must be int32 or int64");
    groups.push_back(std::move(g));
  }
  std::int32_t last_tree = 0;
  for (std::size_t i = 0; trees && i < trees->size(); ++i) {
    if (trees->data()[i] < 0) bad("trees", "must not be negative");
    last_tree = std::max(last_tree, trees->data()[i]);
  }
  if (sources < 0 || (sources > 0 && last_tree >= INT64_MAX / sources)) bad("sources", "must be 0 (unknown) or fit the trees");
  if (trees && sources == 0) bad("sources", "must be known for trees");
  std::optional<Weighing> weighing;
  if (!weights.is_none()) {
    auto t = nb::cast<nb::tuple>(weights);
    if (t.size() != 5) bad("weights", "are (out, right, left, more, no_loops)");
    weighing.emplace(nb::cast<OutFloats>(t[0]), nb::cast<Floats>(t[1]), SourceFactors(t[2], nb::cast<float>(t[3])),
                     nb::cast<bool>(t[4]));
    if (!t[2].is_none() && (sources == 0 || weighing->left.size() < static_cast<std::size_t>(sources)))
      bad("weights", "need a factor for each source");
    if (weighing->right.size() != frontier_local.size()) bad("weights", "need a factor for each vertex of the frontier");
  }
  const std::uint64_t limit = sources > 0 ? static_cast<std::uint64_t>(sources) : std::uint64_t{1} << 63;
  nb::gil_scoped_release unlocked;
  const std::size_t frontier = frontier_local.size();
  std::vector<Segment> segments(frontier, Segment{0, 0, 0});
  std::size_t total = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < groups[g].positions.size(); ++i) {
      const std::int64_t position = groups[g].positions.data()[i];
      const std::int32_t count = groups[g].counts.data()[i];
      if (position < 0 || static_cast<std::size_t>(position) >= frontier) bad("groups", "a position is outside the frontier");
      if (count < 0 || at + static_cast<std::size_t>(count) > groups[g].neighbors.size())
        bad("groups", "counts and neighbors do not match");
      segments[static_cast<std::size_t>(position)] = Segment{static_cast<std::uint32_t>(g), count, at};
      at += static_cast<std::size_t>(count);
    }
    if (at != groups[g].neighbors.size()) bad("groups", "counts and neighbors do not match");
    total += at;
  }
  // Ids are numbered in frontier order.
  Stage<std::int64_t> staged;
  Column<std::int32_t> row("out_row", out_row, total), col("out_col", out_col, total);
  std::optional<Column<std::int64_t>> kept;
  if (out_edges) kept.emplace("out_edge_ids", *out_edges, total);
  if (weighing && weighing->out.size() < total) bad("weights", "are fewer than the edges");
  Stage<float> weighed;
  float* weight = weighing ? weighing->out.data() : nullptr;
  const bool cold = total * sizeof(float) >= atta::kColdBytes;
  const auto weigh = [&]() __attribute__((noinline)) {  // `weighed` has the factors of targets
    const std::size_t n = weighed.size();
    const std::int32_t *r = row.staged.data(), *c = col.staged.data();
    float* const w = weighed.data();
    const std::int64_t* const ids = staged.data();
    if (trees)
      weighing->left.multiply(w, n, [&](std::size_t i) { return ids[i] % sources; });
    else
      weighing->left.multiply(w, n, [&](std::size_t i) { return ids[i]; });
    if (weighing->no_loops)
      for (std::size_t i = 0; i < n; ++i) w[i] = r[i] == c[i] ? 0.0F : w[i];
    if (cold)
      atta::copy_streaming(reinterpret_cast<std::byte*>(weight), reinterpret_cast<const std::byte*>(w), n * sizeof(float));
    else
      std::copy_n(w, n, weight);
    weight += n;
    weighed.clear();
  };
  const auto flush = [&] {
    self.insert(staged.data(), staged.size(), row.staged.more(staged.size()));
    if (weighing) weigh();
    staged.clear();
    row.flush();
    col.flush();
    if (kept) kept->flush();
  };
  const auto emit = [&](const auto* neighbors, const auto* edges, const Segment& s, std::int32_t target, std::int64_t base,
                        float right) {
    const auto n = static_cast<std::size_t>(s.count);
    bool outside = false;  // answers come from other daemons
    for (std::size_t j = 0; j < n; ++j) outside |= static_cast<std::uint64_t>(neighbors[s.begin + j]) >= limit;
    if (outside) bad("groups", "a neighbour is not a vertex of the graph");
    std::int64_t* const ids = staged.more(n);
    for (std::size_t j = 0; j < n; ++j) ids[j] = base + static_cast<std::int64_t>(neighbors[s.begin + j]);
    std::fill_n(col.staged.more(n), n, target);
    if (weighing) std::fill_n(weighed.more(n), n, right);
    if (kept) std::copy_n(edges + s.begin, n, kept->staged.more(n));
  };
  for (std::size_t i = 0; i < frontier; ++i) {
    const Segment& s = segments[i];
    if (s.count == 0) continue;
    const Group& g = groups[s.group];
    const std::int32_t target = frontier_local.data()[i];
    const std::int64_t base = trees ? trees->data()[i] * sources : 0;
    const float right = weighing ? weighing->right.data()[i] : 0.0F;
    const bool wide_edges = g.edge_ids && is_int64(g.edge_ids->dtype());
    const void* edges = g.edge_ids ? g.edge_ids->data() : nullptr;
    const auto with_edges = [&](const auto* neighbors) {
      if (wide_edges)
        emit(neighbors, static_cast<const std::int64_t*>(edges), s, target, base, right);
      else
        emit(neighbors, static_cast<const std::int32_t*>(edges), s, target, base, right);
    };
    if (is_int32(g.neighbors.dtype()))
      with_edges(static_cast<const std::int32_t*>(g.neighbors.data()));
    else
      with_edges(static_cast<const std::int64_t*>(g.neighbors.data()));
    if (staged.size() >= kStage) flush();
  }
  flush();
  if (weighing && cold) atta::stream_end();
  return total;
}

// The part whose range holds `id`: the number of later parts that begin at or before it, found without branches, because
// the processor cannot predict them.
std::uint16_t owner_of(std::int64_t id, std::span<const std::int64_t> offsets) {
  std::size_t owner = 0;
  for (std::size_t left = offsets.size() - 1; left > 1;) {
    const std::size_t half = left / 2;
    owner += (offsets[owner + half] <= id) * half;
    left -= half;
  }
  return static_cast<std::uint16_t>(owner);
}

// Ids by owner, those of `home` last. Returns rows (ids, but positions in the home range for home), positions
// (`first` + index), and starts[p] = first entry of part p, where home counts as empty.
nb::tuple group_by_owner(Longs ids, Longs offsets, std::size_t home, std::int64_t first) {
  if (offsets.size() < 2) bad("offsets", "must have at least two entries");
  const std::size_t n = ids.size(), parts = offsets.size() - 1;
  if (parts > 65535) bad("offsets", "at most 65535 parts");
  if (home >= parts) bad("home", "is not a part");
  Buffer<std::int64_t> rows(n), positions(n), starts(parts + 1);
  {
    nb::gil_scoped_release unlocked;
    const std::int64_t* o = offsets.data();
    const auto owner = std::make_unique_for_overwrite<std::uint16_t[]>(n);
    std::vector<std::size_t> at(parts, 0);
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t id = ids.data()[i];
      if (id < o[0] || id >= o[parts]) bad("ids", ("id " + std::to_string(id) + " belongs to no part").c_str());
      owner[i] = owner_of(id, {o, parts + 1});
      ++at[owner[i]];
    }
    std::size_t begin = 0;
    for (std::size_t p = 0; p < parts; ++p) {
      starts.data[p] = static_cast<std::int64_t>(begin);
      if (p != home) begin += std::exchange(at[p], begin);
    }
    starts.data[parts] = static_cast<std::int64_t>(begin);
    at[home] = begin;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t p = owner[i], to = at[p]++;
      rows.data[to] = p == home ? ids.data()[i] - o[home] : ids.data()[i];
      positions.data[to] = first + static_cast<std::int64_t>(i);
    }
  }
  return nb::make_tuple(rows.release(), positions.release(), starts.release());
}

}  // namespace

void bind_compaction(nb::module_& m, nb::class_<Compactor>& compactor) {
  m.def("group_by_owner", &group_by_owner, "ids"_a, "offsets"_a, "home"_a, "first"_a);
  compactor.def(nb::init<std::size_t>(), "num_ids"_a = 0)
      .def_prop_ro("size", &Compactor::size)
      .def("reset", &Compactor::reset)
      .def("insert", &compactor_insert, "ids"_a)
      .def("find", &compactor_find, "ids"_a)
      .def("in_trees", &compactor_in_trees, "start"_a, "stop"_a, "sources"_a)
      .def("ids", &compactor_ids, "start"_a, "stop"_a)
      .def("stitch", &compactor_stitch, "groups"_a, "frontier_local"_a, "out_row"_a, "out_col"_a, "out_edge_ids"_a.none(),
           "trees"_a.none(), "sources"_a, "weights"_a.none());
}
