// Bindings of the cache of remote rows: the policy `recent`, and what vertices are asked for; see atta.kvstore.cache. And of
// rows on the disk; see atta.kvstore.disk.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "disk_rows.hpp"
#include "gather.hpp"
#include "recent.hpp"

using namespace atta;

namespace {

// Places of ids in an ascending list: a bit per possible id, and how many bits stand before each word.
// A search of the list itself takes some twenty cache misses. This takes one, in two bits of memory per possible id.
class Members {
 public:
  // `ids`: ascending, without repeats, below `limit`.
  Members(const std::int64_t* ids, std::size_t count, std::size_t limit) : limit_(limit), words_(limit / 64 + 1) {
    if (count > UINT32_MAX) throw std::invalid_argument("members: there are too many");
    for (std::size_t i = 0; i < count; ++i) {
      if (static_cast<std::uint64_t>(ids[i]) >= limit) throw std::invalid_argument("members: an id is not below the limit");
      if (i > 0 && ids[i] <= ids[i - 1]) throw std::invalid_argument("members: must ascend");
      words_[static_cast<std::size_t>(ids[i]) / 64].bits |= std::uint64_t{1} << (ids[i] % 64);
    }
    std::uint32_t before = 0;
    for (Word& word : words_) {
      word.before = before;
      before += static_cast<std::uint32_t>(std::popcount(word.bits));
    }
  }

  std::size_t limit() const { return limit_; }

  // Calls f with the place of `id`, which is below the limit, if it is a member.
  template <class F>
  void place(std::size_t id, F f) const {
    const Word& word = words_[id / 64];
    const std::uint64_t bit = std::uint64_t{1} << (id % 64);
    if (word.bits & bit) f(word.before + static_cast<std::size_t>(std::popcount(word.bits & (bit - 1))));
  }

 private:
  struct Word {
    std::uint64_t bits = 0;
    std::uint32_t before = 0;
  };

  std::size_t limit_;
  std::vector<Word> words_;
};

using Slots = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bits = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutDoubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::int64_t> span_of(const Longs& a) { return {a.data(), a.size()}; }
std::span<const std::int32_t> span_of(const Slots& a) { return {a.data(), a.size()}; }

void make_index(RecentIndex* self, std::size_t slots, std::size_t half_life, std::vector<std::int64_t> offsets) {
  if (slots > std::size_t{1} << 30) bad("slots", "must be at most 2**30");
  if (offsets.size() < 2 || !std::is_sorted(offsets.begin(), offsets.end()))
    bad("offsets", "must ascend, with at least two entries");
  new (self) RecentIndex(slots, half_life, std::move(offsets));
}

// As split_cached, but missing rows get `tickets` (int64: ids, or -1) in place of slots.
nb::tuple look_up(RecentIndex& index, Longs ids, Longs positions, Longs starts, std::uint8_t need, std::int64_t turn) {
  const std::size_t n = ids.size();
  if (positions.size() != n) bad("positions", "must be as long as ids");
  if (starts.size() != index.parts() + 1) bad("starts", "must have one entry per partition, and one more");
  std::vector<std::int32_t> found(n);
  std::vector<std::int64_t> wanted(n);
  std::size_t hits = 0;
  {
    nb::gil_scoped_release unlocked;
    check_starts(starts, n);
    for (std::size_t p = 0; p < index.parts(); ++p)
      for (std::int64_t i = starts.data()[p]; i < starts.data()[p + 1]; ++i)
        if (ids.data()[i] < index.base(p) || ids.data()[i] >= index.base(p + 1)) bad("ids", "has an id of another partition");
    hits = index.look_up(span_of(ids), need, turn, found.data(), wanted.data());
  }
  Buffer<std::int32_t> slots(hits);
  Buffer<std::int64_t> hit_positions(hits), miss_ids(n - hits), miss_positions(n - hits), miss_starts(starts.size());
  Buffer<std::int64_t> tickets(n - hits);
  std::size_t hit = 0, miss = 0, i = 0;
  for (std::size_t p = 0; p < starts.size(); ++p) {
    for (; i < static_cast<std::size_t>(starts.data()[p]); ++i) {
      if (found[i] != RecentIndex::kNone) {
        slots.data[hit] = found[i];
        hit_positions.data[hit++] = positions.data()[i];
      } else {
        tickets.data[miss] = wanted[i];
        miss_ids.data[miss] = ids.data()[i];
        miss_positions.data[miss++] = positions.data()[i];
      }
    }
    miss_starts.data[p] = static_cast<std::int64_t>(miss);
  }
  return nb::make_tuple(slots.release(), hit_positions.release(), miss_ids.release(), miss_positions.release(),
                        miss_starts.release(), tickets.release());
}

nb::tuple reserve(RecentIndex& index, Longs ids, std::uint8_t bits) {
  Buffer<std::int32_t> slots(ids.size());
  Buffer<std::uint8_t> todo(ids.size());
  {
    nb::gil_scoped_release unlocked;
    for (const std::int64_t id : span_of(ids))
      if (id < index.base(0) || id >= index.end()) bad("ids", "has an id that nobody owns");
    index.reserve(span_of(ids), bits, slots.data, todo.data);
  }
  return nb::make_tuple(slots.release(), todo.release());
}

void publish(RecentIndex& index, Slots slots, Bits todo, bool written) {
  if (todo.size() != slots.size()) bad("todo", "must be as long as slots");
  nb::gil_scoped_release unlocked;
  for (const std::int32_t at : span_of(slots))
    if (at != RecentIndex::kNone) check_rows("slots", &at, 1, index.capacity());
  index.publish(span_of(slots), todo.data(), written);
}

void unpin(RecentIndex& index, Slots slots) {
  nb::gil_scoped_release unlocked;
  check_rows("slots", slots.data(), slots.size(), index.capacity());
  index.unpin(span_of(slots));
}

void expect(RecentIndex& index, std::int64_t turn, Longs ids) {
  nb::gil_scoped_release unlocked;
  for (const std::int64_t id : span_of(ids))
    if (id < index.base(0) || id >= index.end()) bad("ids", "has an id that nobody owns");
  index.expect(turn, span_of(ids));
}

// How often each of `members` (ascending, below `limit`) occurs among `ids`.
nb::object count_members(Vector ids, Longs members, std::size_t limit) {
  Buffer<std::uint32_t> counts(members.size());
  with_ids("ids", ids, [&](const auto* p) {
    nb::gil_scoped_release unlocked;
    std::fill_n(counts.data, members.size(), 0U);
    check_rows("ids", p, ids.size(), limit);
    const Members places(members.data(), members.size(), limit);
    for (std::size_t i = 0; i < ids.size(); ++i)
      places.place(static_cast<std::size_t>(p[i]), [&](std::size_t at) { ++counts.data[at]; });
  });
  return counts.release();
}

// out[place of indices[e] among members] += weights[row of e], for the edges of all rows in order. Others are left out.
void spread_weights(Longs indptr, Vector indices, Doubles weights, Longs members, std::size_t limit, OutDoubles out) {
  const std::size_t rows = weights.size();
  if (indptr.size() != rows + 1) bad("indptr", "must have one entry more than weights");
  if (out.size() != members.size()) bad("out", "must be as long as members");
  with_ids("indices", indices, [&](const auto* sources) {
    nb::gil_scoped_release unlocked;
    const std::int64_t* starts = indptr.data();
    if (starts[0] != 0 || !std::is_sorted(starts, starts + rows + 1) || starts[rows] != static_cast<std::int64_t>(indices.size()))
      bad("indptr", "must ascend from 0 to the number of edges");
    check_rows("indices", sources, indices.size(), limit);
    const Members places(members.data(), members.size(), limit);
    for (std::size_t row = 0; row < rows; ++row) {
      const double weight = weights.data()[row];
      if (weight == 0.0) continue;
      for (std::int64_t edge = starts[row]; edge < starts[row + 1]; ++edge)
        places.place(static_cast<std::size_t>(sources[edge]), [&](std::size_t at) { out.data()[at] += weight; });
    }
  });
}

// ---- rows on the disk: errors of the disk are OSError, with the file's name ---------------------------------------------------

void make_disk_rows(DiskRows* self, std::string path, std::uint64_t start, std::size_t rows, std::size_t row_bytes,
                    std::size_t slots, std::size_t half_life, bool ring, bool direct) {
  if (slots < 1 || slots > std::size_t{1} << 30) bad("slots", "must be 1 to 2**30");
  if (row_bytes < 1 || rows > std::size_t{1} << 40 || row_bytes > std::size_t{1} << 30)
    bad("rows", "are too many, too large or empty");
  new (self) DiskRows(std::move(path), start, rows, row_bytes, slots, half_life, ring, direct);
}

void gather_from_disk(DiskRows& table, Vector rows, OutTable out, std::optional<Vector> positions, std::int64_t turn) {
  if (out.ndim() < 1 || row_bytes_of(out) != table.row_bytes()) bad("out", "has rows of another size than the table");
  if (!positions && out.shape(0) != rows.size()) bad("out", "must have one row per entry of rows");
  if (positions && positions->size() != rows.size()) bad("positions", "must be as long as rows");
  auto* const to = static_cast<std::byte*>(out.data());
  with_ids("rows", rows, [&](const auto* r) {
    const std::span given(r, rows.size());
    nb::gil_scoped_release unlocked;
    if (!positions) return table.gather(given, to, [](std::size_t i) { return i; }, turn);
    with_ids("positions", *positions, [&](const auto* p) {
      check_rows("positions", p, rows.size(), out.shape(0));
      table.gather(given, to, [p](std::size_t i) { return static_cast<std::size_t>(p[i]); }, turn);
    });
  });
}

// out[i] = the value at byte start + positions[i] * its size. Rows are blocks of the file.
void values_from_disk(DiskRows& blocks, std::uint64_t start, Longs positions, OutVector out) {
  const std::size_t bytes = out.itemsize(), last = blocks.file().size();
  if (out.size() != positions.size()) bad("out", "must be as long as positions");
  if (start % bytes != 0 || blocks.row_bytes() % bytes != 0) bad("start", "values would lie in two blocks");
  if (last < start) bad("start", "is beyond the file");
  nb::gil_scoped_release unlocked;
  check_rows("positions", positions.data(), positions.size(), (last - start) / bytes);
  blocks.values(positions.size(), bytes, static_cast<std::byte*>(out.data()),
                [&](std::size_t i) { return start + static_cast<std::uint64_t>(positions.data()[i]) * bytes; });
}

nb::dict disk_figures(const DiskRows& rows) {
  nb::dict found;
  found["disk_reads"] = static_cast<double>(rows.file().reads());
  found["disk_read_bytes"] = static_cast<double>(rows.file().bytes());
  found["disk_wait_seconds"] = 1e-6 * static_cast<double>(rows.file().waited_us());
  found["disk_rows_asked"] = static_cast<double>(rows.asked());
  found["disk_rows_hit"] = static_cast<double>(rows.hits());
  found["disk_cache_bytes"] = static_cast<double>(rows.nbytes());
  return found;
}

void translate_disk_error(const std::exception_ptr& raised, void* /*unused*/) {
  try {
    std::rethrow_exception(raised);
  } catch (const DiskError& error) {
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, error.path.c_str());
  }
}

}  // namespace

void bind_cache(nb::module_& m) {
  nb::class_<RecentIndex>(m, "RecentIndex")
      .def("__init__", &make_index, "slots"_a, "half_life"_a, "offsets"_a)
      .def("look_up", &look_up, "ids"_a, "positions"_a, "starts"_a, "need"_a, "turn"_a)
      .def("expect", &expect, "turn"_a, "ids"_a)
      .def("close", &RecentIndex::close, "turn"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("reserve", &reserve, "ids"_a, "bits"_a)
      .def("publish", &publish, "slots"_a, "todo"_a, "written"_a)
      .def("unpin", &unpin, "slots"_a)
      .def("content", &RecentIndex::content);
  m.def("count_members", &count_members, "ids"_a, "members"_a, "limit"_a);
  m.def("spread_weights", &spread_weights, "indptr"_a, "indices"_a, "weights"_a, "members"_a, "limit"_a, "out"_a);
  nb::register_exception_translator(translate_disk_error);
  nb::class_<DiskRows>(m, "DiskRows")
      .def("__init__", &make_disk_rows, "path"_a, "start"_a, "rows"_a, "row_bytes"_a, "slots"_a, "half_life"_a, "ring"_a,
           "direct"_a)
      .def("gather", &gather_from_disk, "rows"_a, "out"_a, "positions"_a.none(), "turn"_a)
      .def("values", &values_from_disk, "start"_a, "positions"_a, "out"_a)
      .def(
          "expect",
          [](DiskRows& table, std::int64_t turn, Longs rows) {
            nb::gil_scoped_release unlocked;
            check_rows("rows", rows.data(), rows.size(), table.rows());
            table.index().expect(turn, {rows.data(), rows.size()});
          },
          "turn"_a, "rows"_a)
      .def(
          "close", [](DiskRows& table, std::int64_t turn) { table.index().close(turn); }, "turn"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def("figures", &disk_figures)
      .def_prop_ro("direct", [](const DiskRows& rows) { return rows.file().direct(); });
}
