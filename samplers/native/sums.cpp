// Bindings of the sums of neighbours' rows. Typed and documented in atta.samplers.kernels.
#include "sums.hpp"

#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "arrays.hpp"
#include "parallel.hpp"

using namespace atta;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Counts = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Shifts = nb::ndarray<const std::int16_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Edges by target: those into v are order[starts[v]] to order[starts[v + 1] - 1], in their own order.
struct ByTarget {
  std::vector<std::size_t> starts;
  std::vector<std::uint32_t> order;
};

// Only edges that are `wanted` count.
template <class Id, class Wanted>
ByTarget by_target(const Id* col, std::size_t edges, std::size_t targets, Wanted wanted) {
  if (edges > UINT32_MAX) bad("col", "has more than 2^32 - 1 edges");
  check_rows("col", col, edges, targets);
  ByTarget found{std::vector<std::size_t>(targets + 1), {}};
  for (std::size_t i = 0; i < edges; ++i) found.starts[static_cast<std::size_t>(col[i]) + 1] += wanted(i);
  for (std::size_t v = 0; v < targets; ++v) found.starts[v + 1] += found.starts[v];
  found.order.resize(found.starts[targets]);
  std::vector<std::size_t> next(found.starts.begin(), found.starts.end() - 1);
  for (std::size_t i = 0; i < edges; ++i)
    if (wanted(i)) found.order[next[static_cast<std::size_t>(col[i])]++] = static_cast<std::uint32_t>(i);
  return found;
}

constexpr std::size_t kMostAddends = 1 << 16;  // of one sum on the way; a vertex may have several

// Which rows of other owners come as they are, and which as sums. A group has the edges into one target whose sources
// one owner has; its sum costs `price` rows. A row comes if one group takes all of its rows so, and then costs the others
// nothing.
class Choice {
 public:
  Choice(double price, std::size_t vertices) : price_(price), uses_(vertices), takers_(vertices) {}

  struct Group {
    std::size_t target, first, stop;  // of `members`
    std::int32_t owner;
    bool takes = false;  // its rows as they are
  };

  std::vector<Group> groups;           // by target, then by owner
  std::vector<std::uint32_t> members;  // edges

  bool raw(std::size_t vertex) const { return takers_[vertex] > 0; }

  // `source(edge)`: the vertex that it leads from, 0 to the number of vertices.
  template <class Source>
  void decide(Source source) {
    for (const std::uint32_t edge : members) ++uses_[source(edge)];
    // At first a row costs each group that wants it a part. Then a group changes its mind where that costs less.
    for (int round = 0; round < kRounds; ++round)
      for (Group& group : groups) {
        double cost = 0;
        for (std::size_t i = group.first; i < group.stop; ++i)
          if (const std::size_t u = source(members[i]); takers_[u] == (group.takes ? 1U : 0U))
            cost += round == 0 ? 1.0 / uses_[u] : 1.0;
        if (group.takes ? cost > price_ : cost <= price_) turn(group, source);
      }
    const auto rows = static_cast<double>(std::count_if(uses_.begin(), uses_.end(), [](std::uint32_t n) { return n > 0; }));
    const auto taken = static_cast<double>(std::count_if(takers_.begin(), takers_.end(), [](std::uint32_t n) { return n > 0; }));
    const auto sums = static_cast<double>(std::count_if(groups.begin(), groups.end(), [](const Group& g) { return !g.takes; }));
    double apart = 0;  // where no group thinks of the others
    for (const Group& group : groups) apart += std::min(price_, static_cast<double>(group.stop - group.first));
    const double cost = taken + price_ * sums;
    if (std::min(rows, apart) >= cost) return;
    for (Group& group : groups)
      if (group.takes != (rows < apart || group.stop - group.first == 1)) turn(group, source);
  }

 private:
  static constexpr int kRounds = 4;

  template <class Source>
  void turn(Group& group, Source source) {
    group.takes = !group.takes;
    for (std::size_t i = group.first; i < group.stop; ++i) takers_[source(members[i])] += group.takes ? 1U : -1U;
  }

  double price_;
  std::vector<std::uint32_t> uses_, takers_;  // by vertex: groups that want it, and those of them that take it as it is
};

// Returns raw uint8 [vertices]; starts int64 [parts + 1]: the sums of each owner; their targets int64 [sums]; how many
// edges each has int32 [sums]; and these int64, positions in `row`.
nb::tuple plan_sums(Vector row, Vector col, std::size_t first, std::size_t targets, Counts owners, std::size_t parts,
                    double price) {
  if (col.size() != row.size()) bad("col", "must be as long as row");
  const std::size_t vertices = owners.size(), edges = row.size();
  for (std::size_t i = 0; i < vertices; ++i)
    if (owners.data()[i] >= static_cast<std::int64_t>(parts)) bad("owners", "must be below parts");
  return with_ids("row", row, [&](const auto* r) {
    if (col.dtype() != row.dtype()) bad("col", "must have the type of row");
    const auto* c = static_cast<decltype(r)>(col.data());
    check_rows("row", r, edges, first + vertices);
    Choice choice(price, vertices);
    const auto source = [&](std::size_t edge) { return static_cast<std::size_t>(r[edge]) - first; };
    const auto owner = [&](std::size_t edge) { return owners.data()[source(edge)]; };
    std::vector<std::size_t> starts(parts + 1);
    std::vector<Choice::Group> chosen;
    std::size_t total = 0;
    {
      nb::gil_scoped_release unlocked;
      ByTarget found = by_target(c, edges, targets,
                                 [&](std::size_t edge) { return static_cast<std::size_t>(r[edge]) >= first && owner(edge) >= 0; });
      choice.members = std::move(found.order);
      for (std::size_t v = 0; v < targets; ++v) {
        const auto begin = choice.members.begin() + static_cast<std::ptrdiff_t>(found.starts[v]),
                   end = choice.members.begin() + static_cast<std::ptrdiff_t>(found.starts[v + 1]);
        const auto by_owner = [&](std::uint32_t a, std::uint32_t b) { return owner(a) < owner(b); };
        if (!std::is_sorted(begin, end, by_owner)) std::stable_sort(begin, end, by_owner);  // which allocates
        for (std::size_t at = found.starts[v]; at < found.starts[v + 1];) {
          std::size_t stop = at;
          while (stop < found.starts[v + 1] && owner(choice.members[stop]) == owner(choice.members[at])) ++stop;
          choice.groups.push_back({v, at, stop, owner(choice.members[at]), false});
          at = stop;
        }
      }
      choice.decide(source);
      for (Choice::Group& group : choice.groups) {
        const auto begin = choice.members.begin() + static_cast<std::ptrdiff_t>(group.first),
                   end = choice.members.begin() + static_cast<std::ptrdiff_t>(group.stop);
        group.stop = static_cast<std::size_t>(
            std::remove_if(begin, end, [&](std::uint32_t edge) { return choice.raw(source(edge)); }) - choice.members.begin());
        total += group.stop - group.first;
        for (std::size_t at = group.first; at < group.stop; at += kMostAddends) {
          chosen.push_back({group.target, at, std::min(group.stop, at + kMostAddends), group.owner, false});
          ++starts[static_cast<std::size_t>(group.owner) + 1];
        }
      }
      for (std::size_t p = 0; p < parts; ++p) starts[p + 1] += starts[p];
      std::stable_sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) { return a.owner < b.owner; });
    }
    Buffer<std::uint8_t> raw(vertices);
    Buffer<std::int64_t> bounds(parts + 1), of(chosen.size()), members(total);
    Buffer<std::int32_t> counts(chosen.size());
    for (std::size_t v = 0; v < vertices; ++v) raw.data[v] = choice.raw(v);
    std::copy(starts.begin(), starts.end(), bounds.data);
    std::size_t at = 0;
    for (std::size_t g = 0; g < chosen.size(); ++g) {
      of.data[g] = static_cast<std::int64_t>(chosen[g].target);
      counts.data[g] = static_cast<std::int32_t>(chosen[g].stop - chosen[g].first);
      for (std::size_t i = chosen[g].first; i < chosen[g].stop; ++i) members.data[at++] = choice.members[i];
    }
    return nb::make_tuple(raw.release(), bounds.release(), of.release(), counts.release(), members.release());
  });
}

// The edges into `count` vertices, vertex by vertex, of answers (positions of vertices, numbers of their edges, sources).
// Returns starts int64 [count + 1]; rows int64 [edges]: -1 - the row of a source in [low, high), the ids of the
// partition's own; of the others, int64: the positions of the edges, the vertices that they go into, the sources' ids.
nb::tuple last_edges(nb::list groups, std::size_t count, std::int64_t low, std::int64_t high) {
  struct Group {
    Longs positions;
    Counts counts;
    Vector sources;
  };
  std::vector<Group> given;
  for (nb::handle item : groups) {
    auto [positions, counts, sources] = nb::cast<std::tuple<Longs, Counts, Vector>>(item);
    if (counts.size() != positions.size()) bad("counts", "must be as long as positions");
    if (!is_int32(sources.dtype()) && !is_int64(sources.dtype())) bad("sources", "must be int32 or int64");
    given.push_back({std::move(positions), std::move(counts), std::move(sources)});
  }
  Buffer<std::int64_t> starts(count + 1);
  std::fill_n(starts.data, count + 1, 0);
  for (const Group& group : given) {
    check_rows("positions", group.positions.data(), group.positions.size(), count);
    std::size_t total = 0;
    for (std::size_t i = 0; i < group.counts.size(); ++i) {
      if (group.counts.data()[i] < 0) bad("counts", "must not be negative");
      starts.data[group.positions.data()[i] + 1] = group.counts.data()[i];
      total += static_cast<std::size_t>(group.counts.data()[i]);
    }
    if (total != group.sources.size()) bad("counts", "must add up to the sources");
  }
  std::partial_sum(starts.data, starts.data + count + 1, starts.data);
  Buffer<std::int64_t> rows(static_cast<std::size_t>(starts.data[count]));
  std::vector<std::int64_t> others, targets, ids;
  std::size_t written = 0;
  for (const Group& group : given)
    with_ids("sources", group.sources, [&](const auto* source) {
      nb::gil_scoped_release unlocked;
      for (std::size_t i = 0; i < group.counts.size(); ++i) {
        const std::int64_t target = group.positions.data()[i];
        const std::int64_t first = starts.data[target], stop = first + group.counts.data()[i];
        if (stop > starts.data[target + 1]) bad("positions", "repeat");
        for (std::int64_t at = first; at < stop; ++at) {
          const std::int64_t id = *source++;
          rows.data[at] = low - 1 - id;
          if (id < low || id >= high) others.push_back(at), targets.push_back(target), ids.push_back(id);
        }
        written += static_cast<std::size_t>(stop - first);
      }
    });
  if (written != rows.size) bad("positions", "repeat");
  const auto released = [](const std::vector<std::int64_t>& numbers) {
    Buffer<std::int64_t> out(numbers.size());
    std::copy(numbers.begin(), numbers.end(), out.data);
    return out.release();
  };
  return nb::make_tuple(starts.release(), rows.release(), released(others), released(targets), released(ids));
}

enum class Reduce : std::uint8_t { kSum = 1, kMean = 2, kGcn = 3 };

// Sums that came from owners: rows of `bytes`, of `width` bytes per column, for `targets`.
struct Sums {
  Table bytes;
  Longs targets;
  std::size_t width;
};

// Edges of the last hop that never join the batch: those into target `first` + i are rows[starts[i]] to
// rows[starts[i + 1] - 1]. A row is a vertex, or -1 - a row of `own`.
struct LastEdges {
  std::size_t first = SIZE_MAX;
  Longs starts, rows;
};

// out[v] = what `reduce` makes of the rows of the sources of the edges into v. Vertices below `first` have theirs in
// `known`; others where `parts` (table, rows, positions) say, or in a sum.
void reduce_rows(Vector row, Vector col, std::optional<Floats> weights, Table known, std::size_t first, std::size_t vertices,
                 nb::list parts, nb::list sums, Shifts shifts, std::size_t how, OutTable out, std::size_t threads,
                 std::optional<std::tuple<std::size_t, Longs, Longs>> last_edges, std::optional<Table> own_rows) {
  const std::size_t edges = row.size(), row_bytes = row_bytes_of(known), columns = row_bytes / 4;
  if (col.size() != edges) bad("col", "must be as long as row");
  if (weights && weights->size() != edges) bad("weights", "must be as long as row");
  if (how < 1 || how > 3) bad("reduce", "must be 1 (sum), 2 (mean) or 3 (gcn)");
  if (out.ndim() < 1 || row_bytes_of(out) != row_bytes) bad("out", "has rows of another size than the table");
  const auto reduce = static_cast<Reduce>(how);
  const std::size_t targets = out.shape(0);
  check_sums(shifts.data(), shifts.size(), columns, kWideSum), check_threads(threads);
  if (known.shape(0) < first) bad("known", "has fewer rows than vertices");
  if (reduce == Reduce::kGcn && targets > first) bad("out", "has more vertices than are known");
  LastEdges last;
  if (last_edges) {
    std::tie(last.first, last.starts, last.rows) = *last_edges;
    if (weights || reduce == Reduce::kGcn || last.first > targets || last.starts.size() != targets - last.first + 1)
      bad("last", "does not fit the targets, or how rows are reduced");
    check_starts(last.starts, last.rows.size());
  }
  const std::byte* const own = own_rows ? static_cast<const std::byte*>(own_rows->data()) : nullptr;
  if (own_rows && (own_rows->ndim() < 1 || row_bytes_of(*own_rows) != row_bytes)) bad("own", "has rows of another size");
  std::vector<const std::byte*> from(vertices, nullptr);
  std::vector<std::tuple<Table, Vector, Longs>> held;
  for (nb::handle item : parts) {
    auto [table, rows, positions] = nb::cast<std::tuple<Table, Vector, Longs>>(item);
    if (table.ndim() < 1 || row_bytes_of(table) != row_bytes) bad("parts", "a table has rows of another size");
    if (positions.size() != rows.size()) bad("positions", "must be as long as rows");
    with_ids("rows", rows, [&](const auto* r) {
      nb::gil_scoped_release unlocked;
      check_rows("rows", r, rows.size(), table.shape(0));
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto at = static_cast<std::uint64_t>(positions.data()[i]) - first;
        if (at >= vertices) bad("positions", "a position is outside the new vertices");
        from[at] = static_cast<const std::byte*>(table.data()) + static_cast<std::size_t>(r[i]) * row_bytes;
      }
    });
    held.emplace_back(std::move(table), std::move(rows), std::move(positions));
  }
  std::vector<Sums> given;
  std::vector<std::size_t> sum_starts(targets + 1);
  for (nb::handle item : sums) {
    auto [bytes, of, width] = nb::cast<std::tuple<Table, Longs, std::size_t>>(item);
    check_sums(shifts.data(), shifts.size(), columns, width);
    if (bytes.ndim() < 1 || bytes.shape(0) != of.size() || row_bytes_of(bytes) != width * columns) bad("sums", "have another size");
    check_rows("targets of sums", of.data(), of.size(), targets);
    for (std::size_t g = 0; g < of.size(); ++g) ++sum_starts[static_cast<std::size_t>(of.data()[g]) + 1];
    given.push_back({std::move(bytes), std::move(of), width});
  }
  with_ids("row", row, [&](const auto* r) {
    if (col.dtype() != row.dtype()) bad("col", "must have the type of row");
    const auto* c = static_cast<decltype(r)>(col.data());
    const float* const w = weights ? weights->data() : nullptr;
    nb::gil_scoped_release unlocked;
    check_rows("row", r, edges, first + vertices);
    const auto own_count = own_rows ? static_cast<std::int64_t>(own_rows->shape(0)) : 0;
    const auto all = static_cast<std::int64_t>(first + vertices);
    for (std::size_t i = 0; i < last.rows.size(); ++i)
      if (last.rows.data()[i] < -own_count || last.rows.data()[i] >= all) bad("last", "a row is outside");
    // A GCN without weights has an edge of weight 1 from every vertex to itself, in place of those that there are.
    const bool loops = reduce == Reduce::kGcn && w == nullptr, weighed = loops || w != nullptr;
    const ByTarget found = by_target(c, edges, targets, [&](std::size_t edge) { return !loops || r[edge] != c[edge]; });
    std::partial_sum(sum_starts.begin(), sum_starts.end(), sum_starts.begin());
    std::vector<std::pair<const std::byte*, std::size_t>> of_targets(sum_starts[targets]);
    std::vector<std::size_t> next(sum_starts.begin(), sum_starts.end() - 1);
    for (const Sums& some : given)
      for (std::size_t g = 0; g < some.targets.size(); ++g)
        of_targets[next[static_cast<std::size_t>(some.targets.data()[g])]++] = {
            static_cast<const std::byte*>(some.bytes.data()) + g * some.width * columns, some.width};
    std::vector<float> left;  // of a GCN's sources; those that no edge leads to have 1
    if (loops) {
      left.resize(first, 1.0F);
      for (std::size_t v = 0; v < targets; ++v)
        left[v] = 1.0F / std::sqrt(static_cast<float>(found.starts[v + 1] - found.starts[v] + 1));
    }
    const auto* const inner = static_cast<const std::byte*>(known.data());
    auto* const to = static_cast<float*>(out.data());
    const Ahead ahead(std::max<std::size_t>(1, row_bytes));
    const auto row_of = [&](std::size_t s) { return s < first ? inner + s * row_bytes : from[s - first]; };
    const auto address = [&](std::size_t i) { return row_of(static_cast<std::size_t>(r[found.order[i]])); };
    const auto last_address = [&](std::size_t i) {
      const std::int64_t s = last.rows.data()[i];
      return s < 0 ? own + static_cast<std::size_t>(-1 - s) * row_bytes : row_of(static_cast<std::size_t>(s));
    };
    // Where the edges into v are, among those that joined or those of the last hop.
    const auto edges_of = [&](std::size_t v) {
      if (v < last.first) return std::pair(found.starts[v], found.starts[v + 1]);
      const std::int64_t* const at = last.starts.data() + (v - last.first);
      return std::pair(static_cast<std::size_t>(at[0]), static_cast<std::size_t>(at[1]));
    };
    const bool cold = targets * row_bytes >= kColdBytes;
    const Bounds bounds = by_cost(targets, threads, [&](std::size_t v) {
      const auto [begin, end] = edges_of(v);
      return 1.0 + static_cast<double>(end - begin);
    });
    split(bounds, [&](std::size_t, std::size_t begin, std::size_t end) {
      UnitSum sum(shifts.data(), columns);
      std::vector<float> row(columns);
      std::vector<const std::byte*> group;
      std::vector<double> factors;
      for (std::size_t v = begin; v < end; ++v) {
        sum.clear(), group.clear(), factors.clear();
        const auto [first_edge, last_edge] = edges_of(v);
        for (std::size_t i = first_edge; v >= last.first && i < last_edge; ++i) {
          if (i + ahead.read < last.rows.size())
            if (const std::byte* later = last_address(i + ahead.read); later != nullptr) ahead.request(later, row_bytes);
          if (const std::byte* one = last_address(i); one != nullptr) group.push_back(one);
        }
        for (std::size_t i = first_edge; v < last.first && i < last_edge; ++i) {
          if (i + ahead.read < found.order.size())
            if (const std::byte* later = address(i + ahead.read); later != nullptr) ahead.request(later, row_bytes);
          const std::byte* const one = address(i);
          if (one == nullptr) continue;  // in a sum
          const auto s = static_cast<std::size_t>(r[found.order[i]]);
          group.push_back(one);
          if (weighed) factors.push_back(w != nullptr ? w[found.order[i]] : s < first ? left[s] : 1.0F);
        }
        if (loops) group.push_back(inner + v * row_bytes), factors.push_back(left[v]);
        sum.add(group.data(), weighed ? factors.data() : nullptr, group.size());
        for (std::size_t g = sum_starts[v]; g < sum_starts[v + 1]; ++g) sum.add_sum(of_targets[g].first, of_targets[g].second);
        const auto degree = static_cast<double>(std::max<std::size_t>(1, last_edge - first_edge));
        const double right = reduce == Reduce::kMean ? 1 / degree : loops ? left[v] : 1.0;
        if (!cold) {
          sum.finish(to + v * columns, right);
          continue;
        }
        sum.finish(row.data(), right);
        copy_streaming(reinterpret_cast<std::byte*>(to + v * columns), reinterpret_cast<const std::byte*>(row.data()), row_bytes);
      }
      if (cold) stream_end();
    });
  });
}

// `prefix`, then the sums of the groups of each table: see sum_groups.
nb::bytes pack_sums(nb::bytes prefix, nb::list tables_in, Vector rows, Counts counts, std::optional<Floats> weights, Shifts shifts,
                    std::size_t width) {
  std::vector<Table> tables;
  std::size_t columns = 0, total = 0;
  for (nb::handle item : tables_in) {
    tables.push_back(nb::cast<Table>(item));
    if (tables.back().ndim() < 1 || row_bytes_of(tables.back()) % 4 != 0) bad("tables", "must have rows of float32");
    columns += row_bytes_of(tables.back()) / 4;
  }
  check_sums(shifts.data(), shifts.size(), columns, width);
  std::vector<std::size_t> starts{0};
  for (std::size_t g = 0; g < counts.size(); ++g) {
    if (counts.data()[g] < 0) bad("counts", "must not be negative");
    starts.push_back(total += static_cast<std::size_t>(counts.data()[g]));
  }
  if (total != rows.size()) bad("counts", "must add up to the rows");
  if (weights && weights->size() != rows.size()) bad("weights", "must be as long as rows");
  return with_ids("rows", rows, [&](const auto* r) {
    for (const Table& table : tables) check_rows("rows", r, rows.size(), table.shape(0));
    PyObject* message =
        PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(prefix.size() + counts.size() * columns * width));
    if (message == nullptr) throw nb::python_error();
    auto done = nb::steal<nb::bytes>(message);
    auto* to = reinterpret_cast<std::byte*>(PyBytes_AsString(message));
    std::memcpy(to, prefix.c_str(), prefix.size());
    to += prefix.size();
    {
      nb::gil_scoped_release unlocked;  // no other thread knows the object yet
      for (const std::int16_t* of_table = shifts.data(); const Table& table : tables) {
        const std::size_t own = row_bytes_of(table) / 4;
        sum_groups(static_cast<const std::byte*>(table.data()), own, r, weights ? weights->data() : nullptr, starts.data(), 0,
                   counts.size(), of_table, width, to);
        to += counts.size() * own * width, of_table += own;
      }
    }
    return done;
  });
}

}  // namespace

void bind_sums(nb::module_& m) {
  m.def("plan_sums", &plan_sums, "row"_a, "col"_a, "first"_a, "targets"_a, "owners"_a, "parts"_a, "price"_a);
  m.def("reduce_rows", &reduce_rows, "row"_a, "col"_a, "weights"_a.none(), "known"_a, "first"_a, "vertices"_a, "parts"_a, "sums"_a,
        "shifts"_a, "reduce"_a, "out"_a, "threads"_a, "last"_a.none(), "own"_a.none());
  m.def("last_edges", &last_edges, "groups"_a, "count"_a, "low"_a, "high"_a);
  m.def("pack_sums", &pack_sums, "prefix"_a, "tables"_a, "rows"_a, "counts"_a, "weights"_a.none(), "shifts"_a, "width"_a);
}
