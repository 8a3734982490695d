// Python bindings of the native kernels: the one file that knows about Python. Arrays come in as contiguous CPU arrays, are checked
// here, and go to plain functions; the interpreter lock is released while those run.
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "arrays.hpp"
#include "compact.hpp"
#include "gather.hpp"
#include "hash.hpp"
#include "pairs.hpp"
#include "parallel.hpp"
#include "sample.hpp"

using namespace atta;

namespace {

// ---- sampling -------------------------------------------------------------------------------------------------------------------

void validate_csc(Longs indptr, Vector indices, std::int64_t num_sources) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  with_ids("indices", indices, [&](const auto* ids) {
    nb::gil_scoped_release unlocked;
    const std::size_t n = indptr.size() - 1, edges = indices.size();
    const std::int64_t* p = indptr.data();
    if (p[0] != 0) bad("indptr", "does not begin with 0");
    for (std::size_t i = 0; i < n; ++i)
      if (p[i + 1] < p[i]) bad("indptr", ("decreases at row " + std::to_string(i)).c_str());
    if (p[n] != static_cast<std::int64_t>(edges))
      bad("indptr", ("ends at " + std::to_string(p[n]) + ", there are " + std::to_string(edges) + " indices").c_str());
    for (std::size_t i = 0; i < edges; ++i)
      if (ids[i] < 0 || ids[i] >= num_sources)
        bad("indices",
            ("edge " + std::to_string(i) + " comes from vertex " + std::to_string(ids[i]) + " of " + std::to_string(num_sources))
                .c_str());
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

// ---- compaction -----------------------------------------------------------------------------------------------------------------

nb::object compactor_insert(atta::Compactor& self, Vector ids) {
  Buffer<std::int32_t> local(ids.size());
  with_ids("ids", ids, [&](const auto* p) {
    nb::gil_scoped_release unlocked;
    self.insert(p, ids.size(), local.data);
  });
  return local.release();
}

// Local ids without inserting anything; -1: unknown.
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

// The same for ids that are tree * sources + vertex: vertices and trees. A multiplication and a correction instead of divisions.
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

struct Group {
  Longs positions;
  nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> counts;
  Vector neighbors;
  std::optional<Vector> edge_ids;
};

using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr std::size_t kStage = 4096;  // ids compacted at a time

// Where the answer of each frontier vertex lies.
struct Segment {
  std::uint32_t group;
  std::int32_t count;
  std::size_t begin;
};

std::size_t compactor_stitch(atta::Compactor& self, nb::list groups_in,
                             nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> frontier_local,
                             nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> out_row,
                             nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> out_col,
                             std::optional<OutVector> out_edges, std::optional<Ints> trees, std::int64_t sources) {
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
  if (out_edges && !is_int32(out_edges->dtype()) && !is_int64(out_edges->dtype())) bad("out_edge_ids", "must be int32 or int64");
  std::int32_t last_tree = 0;
  for (std::size_t i = 0; trees && i < trees->size(); ++i) {
    if (trees->data()[i] < 0) bad("trees", "must not be negative");
    last_tree = std::max(last_tree, trees->data()[i]);
  }
  if (sources < 0 || (sources > 0 && last_tree >= INT64_MAX / sources)) bad("sources", "must be 0 (unknown) or fit the trees");
  if (trees && sources == 0) bad("sources", "must be known for trees");
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
  if (out_row.size() < total || out_col.size() < total || (out_edges && out_edges->size() < total))
    bad("out_row", "an output is shorter than the number of edges");
  // Ids are staged in frontier order, a block at a time so that the block stays in the cache, and compacted block by block.
  std::vector<std::int64_t> staged;
  staged.reserve(kStage + 64);
  std::size_t at = 0, done = 0;
  const auto flush = [&] {
    self.insert(staged.data(), staged.size(), out_row.data() + done);
    done += staged.size();
    staged.clear();
  };
  const auto emit = [&](const auto* neighbors, const auto* edges, const Segment& s, std::int32_t target, std::int64_t base) {
    const auto n = static_cast<std::size_t>(s.count);
    bool outside = false;  // answers come from other daemons
    for (std::size_t j = 0; j < n; ++j) outside |= static_cast<std::uint64_t>(neighbors[s.begin + j]) >= limit;
    if (outside) bad("groups", "a neighbour is no vertex of the graph");
    if (base == 0)
      staged.insert(staged.end(), neighbors + s.begin, neighbors + s.begin + n);
    else
      for (std::size_t j = 0; j < n; ++j) staged.push_back(base + static_cast<std::int64_t>(neighbors[s.begin + j]));
    std::fill_n(out_col.data() + at, n, target);
    if (!out_edges) return;
    if (is_int32(out_edges->dtype())) {
      auto* to = static_cast<std::int32_t*>(out_edges->data()) + at;
      for (std::size_t j = 0; j < n; ++j) to[j] = static_cast<std::int32_t>(edges[s.begin + j]);
    } else {
      std::copy_n(edges + s.begin, n, static_cast<std::int64_t*>(out_edges->data()) + at);
    }
  };
  for (std::size_t i = 0; i < frontier; ++i) {
    const Segment& s = segments[i];
    if (s.count == 0) continue;
    const Group& g = groups[s.group];
    const std::int32_t target = frontier_local.data()[i];
    const std::int64_t base = trees ? trees->data()[i] * sources : 0;
    const bool wide_edges = g.edge_ids && is_int64(g.edge_ids->dtype());
    const void* edges = g.edge_ids ? g.edge_ids->data() : nullptr;
    const auto with_edges = [&](const auto* neighbors) {
      if (wide_edges)
        emit(neighbors, static_cast<const std::int64_t*>(edges), s, target, base);
      else
        emit(neighbors, static_cast<const std::int32_t*>(edges), s, target, base);
    };
    if (is_int32(g.neighbors.dtype()))
      with_edges(static_cast<const std::int32_t*>(g.neighbors.data()));
    else
      with_edges(static_cast<const std::int64_t*>(g.neighbors.data()));
    at += static_cast<std::size_t>(s.count);
    if (staged.size() >= kStage) flush();
  }
  flush();
  return total;
}

// The part whose range holds `id`. Which of a few it is cannot be guessed, so they are counted without a branch.
std::uint16_t owner_of(std::int64_t id, std::span<const std::int64_t> offsets) {
  if (offsets.size() > 17) return static_cast<std::uint16_t>(std::ranges::upper_bound(offsets, id) - offsets.begin() - 1);
  std::uint16_t passed = 0;
  for (const std::int64_t first : offsets.subspan(1)) passed += first <= id;
  return passed;
}

nb::tuple split_by_owner(Longs ids, Longs offsets) {
  if (offsets.size() < 2) bad("offsets", "must have at least two entries");
  const std::size_t n = ids.size(), parts = offsets.size() - 1;
  std::vector<std::size_t> counts(parts, 0);
  std::vector<std::uint16_t> owner(n);
  if (parts > 65535) bad("offsets", "at most 65535 parts");
  {
    nb::gil_scoped_release unlocked;
    const std::int64_t* o = offsets.data();
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t id = ids.data()[i];
      if (id < o[0] || id >= o[parts]) bad("ids", ("id " + std::to_string(id) + " belongs to no part").c_str());
      owner[i] = owner_of(id, {o, parts + 1});
      ++counts[owner[i]];
    }
  }
  std::vector<Buffer<std::int64_t>> rows, positions;
  for (std::size_t p = 0; p < parts; ++p) {
    rows.emplace_back(counts[p]);
    positions.emplace_back(counts[p]);
  }
  {
    nb::gil_scoped_release unlocked;
    std::vector<std::size_t> at(parts, 0);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t p = owner[i];
      rows[p].data[at[p]] = ids.data()[i] - offsets.data()[p];
      positions[p].data[at[p]++] = static_cast<std::int64_t>(i);
    }
  }
  nb::list row_list, position_list;
  for (std::size_t p = 0; p < parts; ++p) {
    row_list.append(rows[p].release());
    position_list.append(positions[p].release());
  }
  return nb::make_tuple(row_list, position_list);
}

// ---- rows -----------------------------------------------------------------------------------------------------------------------

void gather_rows(Table table, Vector rows, OutTable out, std::optional<Vector> positions, std::size_t threads) {
  if (table.ndim() < 1 || out.ndim() < 1) bad("table", "must have at least one dimension");
  const std::size_t bytes = row_bytes_of(table), n = rows.size();
  if (row_bytes_of(out) != bytes) bad("out", "has rows of another size than the table");
  if (!positions && out.shape(0) != n) bad("out", "must have one row per entry of rows");
  if (positions && positions->size() != n) bad("positions", "must be as long as rows");
  const auto* from = static_cast<const std::byte*>(table.data());
  auto* to = static_cast<std::byte*>(out.data());
  // Several threads use up what the memory can take, and streaming stores get less out of it then (bench/results/kv.md).
  const bool streamed = threads == 1;
  with_ids("rows", rows, [&](const auto* r) {
    nb::gil_scoped_release unlocked;
    atta::check_rows("rows", r, n, table.shape(0));
    const auto source = [r](std::size_t i) { return static_cast<std::size_t>(r[i]); };
    if (!positions) {
      atta::split(atta::evenly(n, threads), [&](std::size_t, std::size_t a, std::size_t b) {
        atta::move_rows(
            from, to + a * bytes, bytes, b - a, streamed, [&, a](std::size_t i) { return source(a + i); },
            [](std::size_t i) { return i; });
      });
      return;
    }
    with_ids("positions", *positions, [&](const auto* p) {
      atta::check_rows("positions", p, n, out.shape(0));
      atta::split(atta::evenly(n, threads), [&](std::size_t, std::size_t a, std::size_t b) {
        atta::move_rows(
            from, to, bytes, b - a, streamed, [&, a](std::size_t i) { return source(a + i); },
            [p, a](std::size_t i) { return static_cast<std::size_t>(p[a + i]); });
      });
    });
  });
}

// `prefix` followed by the rows of each table, as a bytes object filled in place: a message is put together with one copy.
nb::bytes pack_rows(nb::bytes prefix, nb::list tables_in, Vector rows) {
  std::vector<Table> tables;
  std::size_t row_bytes = 0;
  for (nb::handle item : tables_in) {
    tables.push_back(nb::cast<Table>(item));
    if (tables.back().ndim() < 1) bad("tables", "must have at least one dimension");
    row_bytes += row_bytes_of(tables.back());
  }
  const std::size_t n = rows.size(), head = prefix.size();
  return with_ids("rows", rows, [&](const auto* r) {
    for (const Table& table : tables) atta::check_rows("rows", r, n, table.shape(0));
    PyObject* message = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(head + n * row_bytes));
    if (message == nullptr) throw nb::python_error();
    auto* to = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(message));
    std::memcpy(to, prefix.c_str(), head);
    to += head;
    {
      nb::gil_scoped_release unlocked;  // nobody else knows the object yet
      for (const Table& table : tables) {
        const std::size_t bytes = row_bytes_of(table);
        atta::move_rows(
            static_cast<const std::byte*>(table.data()), to, bytes, n, false,
            [r](std::size_t i) { return static_cast<std::size_t>(r[i]); }, [](std::size_t i) { return i; });
        to += n * bytes;
      }
    }
    return nb::steal<nb::bytes>(message);
  });
}

void scatter_rows(Table rows, Vector positions, OutTable out) {
  if (rows.ndim() < 1 || out.ndim() < 1) bad("rows", "must have at least one dimension");
  const std::size_t bytes = row_bytes_of(rows), n = rows.shape(0);
  if (row_bytes_of(out) != bytes) bad("out", "has rows of another size");
  if (positions.size() != n) bad("positions", "must have one entry per row");
  with_ids("positions", positions, [&](const auto* p) {
    nb::gil_scoped_release unlocked;
    atta::check_rows("positions", p, n, out.shape(0));
    auto* to = static_cast<std::byte*>(out.data());
    const auto* from = static_cast<const std::byte*>(rows.data());
    atta::move_rows(
        from, to, bytes, n, true, [](std::size_t i) { return i; }, [p](std::size_t i) { return static_cast<std::size_t>(p[i]); });
  });
}

// ---- cache of remote rows -------------------------------------------------------------------------------------------------------

// Divides rows into those that are here (all bits of `need` present) and those to be fetched; see RowCache.
nb::tuple split_cached(const atta::Compactor& index,
                       nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> present, std::uint8_t need,
                       std::int64_t base, Longs rows, Longs positions) {
  const std::size_t n = rows.size();
  if (positions.size() != n) bad("positions", "must be as long as rows");
  if (present.size() != index.size()) bad("present", "must have one entry per indexed id");
  std::vector<std::int32_t> slots(n);
  std::size_t hits = 0;
  {
    nb::gil_scoped_release unlocked;
    constexpr std::size_t kAhead = 16;
    for (std::size_t i = 0; i < n; ++i) {
      if (i + kAhead < n) index.request(base + rows.data()[i + kAhead]);
      slots[i] = index.find(base + rows.data()[i]);
      // An entry is complemented when its row is here: hits become negative numbers below -1.
      if (slots[i] >= 0 && (present.data()[slots[i]] & need) == need) slots[i] = -2 - slots[i], ++hits;
    }
  }
  Buffer<std::int32_t> hit_slots(hits), miss_slots(n - hits);
  Buffer<std::int64_t> hit_positions(hits), miss_rows(n - hits), miss_positions(n - hits);
  std::size_t hit = 0, miss = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (slots[i] < -1) {
      hit_slots.data[hit] = -2 - slots[i];
      hit_positions.data[hit++] = positions.data()[i];
    } else {
      miss_slots.data[miss] = slots[i];
      miss_rows.data[miss] = rows.data()[i];
      miss_positions.data[miss++] = positions.data()[i];
    }
  }
  return nb::make_tuple(hit_slots.release(), hit_positions.release(), miss_rows.release(), miss_positions.release(),
                        miss_slots.release());
}

// How often each id below `limit` occurs.
nb::object count_ids(Vector ids, std::size_t limit) {
  Buffer<std::uint32_t> counts(limit);
  with_ids("ids", ids, [&](const auto* p) {
    nb::gil_scoped_release unlocked;
    std::fill_n(counts.data, limit, 0U);
    atta::check_rows("ids", p, ids.size(), limit);
    for (std::size_t i = 0; i < ids.size(); ++i) ++counts.data[static_cast<std::size_t>(p[i])];
  });
  return counts.release();
}

// ---- memory ---------------------------------------------------------------------------------------------------------------------

// Freed blocks up to 32 MiB stay mapped: fresh pages cost about eight times a copy, and buffers of the same sizes come back anyway.
void widen_array(nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> ids,
                 nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> out) {
  if (ids.size() != out.size()) bad("out", "must be as long as ids");
  nb::gil_scoped_release unlocked;
  atta::widen_ids(ids.data(), out.data(), ids.size());
}

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

void bind_sampling(nb::module_& m, nb::class_<Compactor>& compactor);
void bind_walks(nb::module_& m);
void bind_admission(nb::module_& m);
void bind_partition(nb::module_& m);
void bind_tables(nb::module_& m);
void bind_reference(nb::module_& m);

NB_MODULE(_native, m) {
  m.doc() = "Atta's native kernels; typed and documented in atta.samplers.kernels.";
  // Objects that threads hold at exit are no leaks; nanobind would print a page about each process that ends in mid-work.
  nb::set_leak_warnings(false);
  m.def("mix64", &atta::mix64, "x"_a);
  m.def("stream_key", &stream_key, "seed"_a, "epoch"_a, "batch"_a, "hop"_a, "name"_a);
  m.def("validate_csc", &validate_csc, "indptr"_a, "indices"_a, "num_sources"_a);
  m.def("sample_pairs", &sample_pairs, "indptr"_a, "indices"_a, "vertex_keys"_a, "rows"_a, "count"_a, "stream_key"_a, "negative"_a,
        "ids"_a, "sorted_internal"_a);
  m.def("degree_sum", &degree_sum, "indptr"_a, "rows"_a);
  m.def("split_by_owner", &split_by_owner, "ids"_a, "offsets"_a);
  m.def("gather_rows", &gather_rows, "table"_a, "rows"_a, "out"_a, "positions"_a.none(), "threads"_a);
  m.def("pack_rows", &pack_rows, "prefix"_a, "tables"_a, "rows"_a);
  m.def("scatter_rows", &scatter_rows, "rows"_a, "positions"_a, "out"_a);
  m.def("count_ids", &count_ids, "ids"_a, "limit"_a);
  m.def("widen_ids", &widen_array, "ids"_a, "out"_a);
  m.def("retain_heap", &retain_heap);
  m.def("advise_huge", &advise_huge, "array"_a);
  nb::class_<atta::Compactor> compactor(m, "Compactor");
  compactor.def(nb::init<std::size_t>(), "num_ids"_a = 0)
      .def_prop_ro("size", &atta::Compactor::size)
      .def("reset", &atta::Compactor::reset)
      .def("insert", &compactor_insert, "ids"_a)
      .def("find", &compactor_find, "ids"_a)
      .def("in_trees", &compactor_in_trees, "start"_a, "stop"_a, "sources"_a)
      .def("ids", &compactor_ids, "start"_a, "stop"_a)
      .def("stitch", &compactor_stitch, "groups"_a, "frontier_local"_a, "out_row"_a, "out_col"_a, "out_edge_ids"_a.none(),
           "trees"_a.none(), "sources"_a);
  m.def("split_cached", &split_cached, "index"_a, "present"_a, "need"_a, "base"_a, "rows"_a, "positions"_a);
  bind_sampling(m, compactor);
  bind_walks(m);
  bind_admission(m);
  bind_partition(m);
  bind_tables(m);
  bind_reference(m);
}
