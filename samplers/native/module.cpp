// The extension module. Bindings (in the .cpp files) know about Python, kernels (in namespace atta, mostly in .hpp files)
// do not. A binding takes contiguous CPU arrays, checks them and calls plain functions. It releases the interpreter lock
// while these run.

#include <malloc.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "compact.hpp"
#include "gather.hpp"
#include "hash.hpp"
#include "mapped.hpp"
#include "parallel.hpp"
#include "sample.hpp"

// Positive and negative samples: in-neighbours of a vertex, and vertices that are not its in-neighbours (ByteGNN's
// operators).
namespace atta {

inline constexpr std::uint64_t kTries = 64;

// The in-neighbours of a vertex, ordered by user id, and the user id of the vertex itself.
template <class Id>
struct Neighborhood {
  const Id* sources;
  std::size_t degree;
  const std::int64_t* user_ids;
  std::int64_t self;

  bool holds(std::int64_t user_id) const {
    const auto* end = sources + degree;
    const auto* found =
        std::lower_bound(sources, end, user_id, [this](Id source, std::int64_t wanted) { return user_ids[source] < wanted; });
    return user_id == self || (found != end && user_ids[*found] == user_id);
  }
};

template <class Id>
Neighborhood(const Id*, std::size_t, const std::int64_t*, std::int64_t) -> Neighborhood<Id>;

template <class Id>
void draw_neighbors(const Neighborhood<Id>& near, const VertexStream& stream, std::size_t count, std::int64_t* out) {
  for (std::size_t i = 0; i < count; ++i)
    out[i] = near.degree == 0 ? -1 : static_cast<std::int64_t>(near.sources[stream.below(i, near.degree)]);
}

// Rejection comes first: it is fast if neighbourhoods are small. After it, the next non-neighbour by rank from a drawn
// start is taken. The result is never a neighbour, and it is -1 only if every vertex is one.
template <class Id, class Rank>
void draw_strangers(const Neighborhood<Id>& near, const VertexStream& stream, const Rank* by_rank, std::size_t total,
                    std::size_t count, std::int64_t* out) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = -1;
    std::size_t rank = 0;
    for (std::uint64_t attempt = 0; attempt < kTries && out[i] < 0 && total > 0; ++attempt) {
      rank = stream.below(i * kTries + attempt, total);
      const auto id = static_cast<std::int64_t>(by_rank[rank]);
      if (!near.holds(near.user_ids[id])) out[i] = id;
    }
    for (std::size_t step = 1; step <= total && out[i] < 0; ++step) {
      const auto id = static_cast<std::int64_t>(by_rank[(rank + step) % total]);
      if (!near.holds(near.user_ids[id])) out[i] = id;
    }
  }
}

}  // namespace atta

// A digest of a row's in-edges: a copy of the row that another daemon holds has the same one.
namespace atta {

// A weighted sum modulo 2^64. All weights are odd, so a change of a single edge always changes the sum. They differ by the
// edge's position, so the order counts, too.
template <class Id, class Edge>
std::uint64_t edges_digest(std::int64_t vertex_key, const Id* sources, const Edge* edge_ids, std::size_t degree) {
  constexpr std::uint64_t kStep = kGolden & ~std::uint64_t{1};
  std::uint64_t sum = mix64(mix64(static_cast<std::uint64_t>(vertex_key)) + degree), weight = 1;
  for (std::size_t i = 0; i < degree; ++i, weight += kStep) {
    const auto source = static_cast<std::uint64_t>(static_cast<std::int64_t>(sources[i]));
    sum += (source + std::rotl(static_cast<std::uint64_t>(static_cast<std::int64_t>(edge_ids[i])), 32)) * weight;
    asm volatile("");  // without it, vectors of 64-bit products in pieces of 32 bits, which take twice as long
  }
  return sum;
}

// Whether all `ids` are at least 0 and below `limit`. It takes half as long as a comparison in 64 bits.
template <class Id>
bool all_below(const Id* ids, std::size_t count, std::uint64_t limit) {
  std::make_unsigned_t<Id> most = 0;
  for (std::size_t i = 0; i < count; ++i) most = std::max(most, static_cast<std::make_unsigned_t<Id>>(ids[i]));
  return count == 0 || most < limit;
}

}  // namespace atta

using namespace atta;

namespace {

nb::object edge_digests(Longs indptr, Vector indices, Vector edge_ids, Longs keys, std::int64_t num_sources, Vector rows) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  if (keys.size() + 1 != indptr.size()) bad("vertex_keys", "must have one key per row");
  if (edge_ids.size() != indices.size()) bad("edge_ids", "must be as long as indices");
  if (num_sources < 0) bad("num_sources", "must not be negative");
  Buffer<std::int64_t> digests(rows.size());
  with_ids("rows", rows, [&](const auto* r) {
    with_ids("indices", indices, [&](const auto* sources) {
      with_ids("edge_ids", edge_ids, [&](const auto* edges) {
        nb::gil_scoped_release unlocked;
        check_rows("rows", r, rows.size(), keys.size());
        for (std::size_t i = 0; i < rows.size(); ++i) {
          const auto row = static_cast<std::size_t>(r[i]);
          check_rows_of(indptr, indices.size(), row);
          const auto begin = static_cast<std::size_t>(indptr.data()[row]);
          const std::size_t degree = static_cast<std::size_t>(indptr.data()[row + 1]) - begin;
          if (!all_below(sources + begin, degree, static_cast<std::uint64_t>(num_sources)))
            bad("indices", ("row " + std::to_string(row) + " has a source that does not exist").c_str());
          digests.data[i] = static_cast<std::int64_t>(edges_digest(keys.data()[row], sources + begin, edges + begin, degree));
        }
      });
    });
  });
  return digests.release();
}

// ---- sampling -------------------------------------------------------------------------------------------------------------------

// Checks that rows begin at 0, do not overlap, and end at the last of `edges`.
void check_bounds(Longs indptr, std::size_t edges) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  const std::size_t n = indptr.size() - 1;
  const std::int64_t* p = indptr.data();
  if (p[0] != 0) bad("indptr", "does not begin with 0");
  for (std::size_t i = 0; i < n; ++i)
    if (p[i + 1] < p[i]) bad("indptr", ("decreases at row " + std::to_string(i)).c_str());
  if (p[n] != static_cast<std::int64_t>(edges))
    bad("indptr", ("ends at " + std::to_string(p[n]) + ", there are " + std::to_string(edges) + " indices").c_str());
}

// Checks that an edge comes from a vertex that exists.
template <typename Id>
void check_source(Id source, std::size_t edge, std::int64_t num_sources) {
  if (source < 0 || source >= num_sources)
    bad("indices",
        ("edge " + std::to_string(edge) + " comes from vertex " + std::to_string(source) + " of " + std::to_string(num_sources))
            .c_str());
}

void validate_csc(Longs indptr, Vector indices, std::int64_t num_sources) {
  with_ids("indices", indices, [&](const auto* ids) {
    nb::gil_scoped_release unlocked;
    check_bounds(indptr, indices.size());
    for (std::size_t i = 0; i < indices.size(); ++i) check_source(ids[i], i, num_sources);
  });
}

// Whether numbers ascend, with repeats. Without a branch per number, so that the compiler compares several at once.
bool ascends(const std::int64_t* numbers, std::size_t count) {
  bool falls = false;
  for (std::size_t i = 1; i < count; ++i) falls |= numbers[i] < numbers[i - 1];
  return !falls;
}

// Where the edges of each target begin, if they are sorted by target; None if not.
nb::object bounds_by_target(Longs targets, std::size_t count) {
  Buffer<std::int64_t> bounds(count + 1);
  bool sorted = true;
  {
    nb::gil_scoped_release unlocked;
    const std::int64_t* t = targets.data();
    const std::size_t edges = targets.size();
    std::int64_t* const ends = bounds.data + 1;
    std::fill(bounds.data, ends + count, 0);
    for (std::size_t first = 0; first < edges; first += 1024) {  // what is compared stays in the cache
      const std::size_t last = std::min(first + 1024, edges), before = first == 0 ? 0 : first - 1;
      sorted = ascends(t + before, last - before);
      if (!sorted) break;
      if (t[first] < 0 || t[last - 1] >= static_cast<std::int64_t>(count)) bad("targets", "have a number outside their range");
      for (std::size_t i = first; i < last; ++i) ends[t[i]] = static_cast<std::int64_t>(i + 1);
    }
    std::partial_sum(bounds.data, ends + count, bounds.data,  // a target without edges ends where it begins
                     [](std::int64_t a, std::int64_t b) { return std::max(a, b); });
  }
  return sorted ? bounds.release() : nb::none();
}

// The same edges by source: where those of each source begin, their targets, and their places among all edges.
nb::object by_source(Longs indptr, Longs indices, std::size_t count) {
  const std::size_t edges = indices.size();
  if (std::max(edges, indptr.size()) >= 1ULL << 32) bad("indices", "are too many");
  Buffer<std::int64_t> bounds(count + 1), targets(edges), places(edges);
  {
    nb::gil_scoped_release unlocked;
    check_bounds(indptr, edges);
    const std::int64_t *p = indptr.data(), *source = indices.data();
    std::vector<std::uint32_t> next(count, 0);  // half the size of `bounds`: it is read in no order
    for (std::size_t i = 0; i < edges; ++i) {
      check_source(source[i], i, static_cast<std::int64_t>(count));
      ++next[static_cast<std::size_t>(source[i])];
    }
    std::uint32_t before = 0;
    for (std::size_t i = 0; i < count; ++i) {
      bounds.data[i] = before;
      before += std::exchange(next[i], before);
    }
    bounds.data[count] = before;
    // Target and place go to distant memory as one number, which is taken apart afterwards.
    for (std::size_t target = 0; target + 1 < indptr.size(); ++target)
      for (std::int64_t i = p[target]; i < p[target + 1]; ++i)
        places.data[next[static_cast<std::size_t>(source[i])]++] =
            static_cast<std::int64_t>(target << 32 | static_cast<std::size_t>(i));
    for (std::size_t i = 0; i < edges; ++i) {
      const auto both = static_cast<std::size_t>(places.data[i]);
      targets.data[i] = static_cast<std::int64_t>(both >> 32);
      places.data[i] = static_cast<std::int64_t>(both & 0xffffffff);
    }
  }
  return nb::make_tuple(bounds.release(), targets.release(), places.release());
}

// Where the edges of each source begin among `places`, and these: the places of all edges, by source, ascending for each.
nb::object places_by_source(Vector indices, std::size_t count) {
  const std::size_t edges = indices.size();
  if (edges >= 1ULL << 32) bad("indices", "are too many");
  Buffer<std::int64_t> bounds(count + 1);
  Buffer<std::uint32_t> places(edges);
  with_ids("indices", indices, [&](const auto* source) {
    nb::gil_scoped_release unlocked;
    std::fill(bounds.data, bounds.data + count + 1, 0);
    for (std::size_t i = 0; i < edges; ++i) {
      check_source(source[i], i, static_cast<std::int64_t>(count));
      ++bounds.data[source[i]];
    }
    std::partial_sum(bounds.data, bounds.data + count + 1, bounds.data);
    for (std::size_t i = edges; i-- > 0;) places.data[--bounds.data[source[i]]] = static_cast<std::uint32_t>(i);
  });
  return nb::make_tuple(bounds.release(), places.release());
}

using Marks = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class To, class From>
nb::object array_of(const std::vector<From>& values) {
  Buffer<To> out(values.size());
  std::copy(values.begin(), values.end(), out.data);
  return out.release();
}

// The edges from marked sources, but for those at `gone`, which ascend: their rows, ascending, and sources. None: there are more
// than `most`. `bounds` and `places` are of places_by_source.
nb::object edges_from(Longs indptr, Vector indices, Longs bounds, Places places, Marks marks, Longs gone, std::size_t most) {
  if (bounds.size() != marks.size() + 1) bad("bounds", "must be one more than sources");
  return with_ids("indices", indices, [&]<class Id>(const Id* source) -> nb::object {
    std::vector<std::uint32_t> found;
    std::vector<std::int64_t> rows;
    std::vector<Id> ends;
    {
      nb::gil_scoped_release unlocked;
      check_bounds(indptr, indices.size());
      for (std::size_t i = 0; i < marks.size() && found.size() <= most; ++i) {
        if (!marks.data()[i]) continue;
        check_rows_of(bounds, places.size(), i);
        found.insert(found.end(), places.data() + bounds.data()[i], places.data() + bounds.data()[i + 1]);
      }
      if (found.size() <= most) {
        std::sort(found.begin(), found.end());
        const std::int64_t *row = indptr.data(), *went = gone.data(), *const last = went + gone.size();
        for (const std::uint32_t place : found) {
          if (place >= indices.size()) bad("places", "have one that does not exist");
          went = std::lower_bound(went, last, place);
          if (went != last && *went == place) continue;
          row = std::upper_bound(row, indptr.data() + indptr.size(), place);
          rows.push_back(row - indptr.data() - 1);
          ends.push_back(source[place]);
        }
      }
    }
    if (found.size() > most) return nb::none();
    return nb::make_tuple(array_of<std::int64_t>(rows), array_of<Id>(ends));
  });
}

// The edges from marked sources into rows from `first` on, before `stop`, until there are `most`: numbers of those of each row,
// and sources.
nb::object edges_into(Longs indptr, Vector indices, Marks marks, std::size_t first, std::size_t stop, std::size_t most) {
  return with_ids("indices", indices, [&]<class Id>(const Id* source) -> nb::object {
    std::vector<std::int64_t> counts;
    std::vector<Id> ends;
    {
      nb::gil_scoped_release unlocked;
      for (std::size_t row = first; row < stop && row + 1 < indptr.size() && ends.size() < most; ++row) {
        check_rows_of(indptr, indices.size(), row);
        const std::size_t before = ends.size();
        for (std::int64_t i = indptr.data()[row]; i < indptr.data()[row + 1]; ++i) {
          check_source(source[i], static_cast<std::size_t>(i), static_cast<std::int64_t>(marks.size()));
          if (marks.data()[source[i]]) ends.push_back(source[i]);
        }
        counts.push_back(static_cast<std::int64_t>(ends.size() - before));
      }
    }
    return nb::make_tuple(array_of<std::int64_t>(counts), array_of<Id>(ends));
  });
}

nb::object sample_pairs(Longs indptr, Vector indices, Longs keys, Vector rows, std::int64_t count, std::uint64_t stream_key,
                        bool negative, Longs ids, Vector sorted_internal) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  if (keys.size() + 1 != indptr.size()) bad("vertex_keys", "must have one key per row");
  if (count < 0) bad("count", "must not be negative");
  if (ids.size() != sorted_internal.size()) bad("sorted_internal", "must be as long as ids");
  const std::size_t m = rows.size();
  Buffer<std::int64_t> out(m * static_cast<std::size_t>(count));
  with_ids("rows", rows, [&](const auto* r) {
    with_ids("indices", indices, [&](const auto* sources) {
      with_ids("sorted_internal", sorted_internal, [&](const auto* by_rank) {
        nb::gil_scoped_release unlocked;
        atta::check_rows("rows", r, m, indptr.size() - 1);
        for (std::size_t i = 0; i < m; ++i) {
          const auto row = static_cast<std::size_t>(r[i]);
          const std::int64_t begin = indptr.data()[row], end = indptr.data()[row + 1];
          if (begin < 0 || end < begin || end > static_cast<std::int64_t>(indices.size()))
            bad("indptr", "spans more edges than there are");
          const atta::Neighborhood near{sources + begin, static_cast<std::size_t>(end - begin), ids.data(), keys.data()[row]};
          const atta::VertexStream stream(stream_key, keys.data()[row]);
          std::int64_t* mine = out.data + i * static_cast<std::size_t>(count);
          if (negative)
            atta::draw_strangers(near, stream, by_rank, ids.size(), static_cast<std::size_t>(count), mine);
          else
            atta::draw_neighbors(near, stream, static_cast<std::size_t>(count), mine);
        }
      });
    });
  });
  return out.release();
}

std::int64_t degree_sum(Longs indptr, Vector rows) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  return with_ids("rows", rows, [&](const auto* r) {
    nb::gil_scoped_release unlocked;
    atta::check_rows("rows", r, rows.size(), indptr.size() - 1);
    std::int64_t total = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int64_t begin = indptr.data()[static_cast<std::size_t>(r[i])];
      const std::int64_t end = indptr.data()[static_cast<std::size_t>(r[i]) + 1];
      if (begin < 0 || end < begin || __builtin_add_overflow(total, end - begin, &total)) bad("indptr", "does not ascend from 0");
    }
    return total;
  });
}

// ---- memory
// -----------------------------------------------------------------------------------------------------------------------

// Keeps freed blocks up to 32 MiB mapped. A fresh page costs about eight times a copy, and buffers of the same sizes
// are needed again.
bool retain_heap() {
#ifdef __GLIBC__
  return mallopt(M_MMAP_THRESHOLD, 32 << 20) == 1 && mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1 && mallopt(M_ARENA_MAX, 4) == 1;
#else
  return false;
#endif
}

bool advise_huge(Table array) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(array.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(array.data()) + array.nbytes()) / page * page;
  return end > begin && madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) == 0;
}

std::uint64_t stream_key(std::uint64_t seed, std::uint64_t epoch, std::uint64_t batch, std::uint64_t hop, std::uint64_t name) {
  std::uint64_t key = atta::mix64(seed);
  for (const std::uint64_t part : {epoch, batch, hop, name}) key = atta::mix64(key ^ part);
  return key;
}

}  // namespace

void bind_compaction(nb::module_& m, nb::class_<Compactor>& compactor);
void bind_sampling(nb::module_& m, nb::class_<Compactor>& compactor);
void bind_rows(nb::module_& m);
void bind_sums(nb::module_& m);
void bind_walks(nb::module_& m);
void bind_admission(nb::module_& m);
void bind_partition(nb::module_& m);
void bind_tables(nb::module_& m);
void bind_reference(nb::module_& m);
void bind_links(nb::module_& m);

NB_MODULE(_native, m) {
  m.doc() = "Atta's native kernels; typed and documented in atta.samplers.kernels.";
  // Objects that threads hold at exit are not leaks. nanobind would print a page for each process that ends during its
  // work.
  nb::set_leak_warnings(false);
  m.def("mix64", &atta::mix64, "x"_a);
  m.def("stream_key", &stream_key, "seed"_a, "epoch"_a, "batch"_a, "hop"_a, "name"_a);
  m.def("validate_csc", &validate_csc, "indptr"_a, "indices"_a, "num_sources"_a);
  m.def("bounds_by_target", &bounds_by_target, "targets"_a, "count"_a);
  m.def("by_source", &by_source, "indptr"_a, "indices"_a, "count"_a);
  m.def("places_by_source", &places_by_source, "indices"_a, "count"_a);
  m.def("edges_from", &edges_from, "indptr"_a, "indices"_a, "bounds"_a, "places"_a, "sources"_a, "gone"_a, "most"_a);
  m.def("edges_into", &edges_into, "indptr"_a, "indices"_a, "sources"_a, "first"_a, "stop"_a, "most"_a);
  m.def("sample_pairs", &sample_pairs, "indptr"_a, "indices"_a, "vertex_keys"_a, "rows"_a, "count"_a, "stream_key"_a, "negative"_a,
        "ids"_a, "sorted_internal"_a);
  m.def("degree_sum", &degree_sum, "indptr"_a, "rows"_a);
  m.def("retain_heap", &retain_heap);
  m.def("advise_huge", &advise_huge, "array"_a);
  m.def("note_map", &atta::note_map, "begin"_a, "size"_a);
  m.def("forget_map", &atta::forget_map, "begin"_a);
  m.def("torn_maps", &atta::torn_maps);
  m.def("outlive_torn_maps", &atta::outlive_torn_maps);
  m.def("files_damaged", [] { return atta::files_damaged.load(); });
  m.def("declare_files_damaged", [](bool damaged) { atta::files_damaged.store(damaged); }, "damaged"_a = true);
  nb::class_<atta::Compactor> compactor(m, "Compactor");
  bind_compaction(m, compactor);
  bind_sampling(m, compactor);
  bind_rows(m);
  bind_sums(m);
  m.def("edge_digests", &edge_digests, "indptr"_a, "indices"_a, "edge_ids"_a, "vertex_keys"_a, "num_sources"_a, "rows"_a);
  bind_walks(m);
  bind_admission(m);
  bind_partition(m);
  bind_tables(m);
  bind_reference(m);
  bind_links(m);
}
