// Bindings of the sampling methods beside the uniform one; typed and documented in atta.samplers.methods.
#include <memory>
#include <vector>

#include "arrays.hpp"
#include "parallel.hpp"
#include "sample.hpp"
#include "weighted.hpp"

using namespace atta;

namespace {

using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Slots = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

static_assert(sizeof(Alias) == sizeof(std::uint64_t));

// alias slots uint64 [E] and positive weights per row int64 [n]
nb::tuple alias_tables(Longs indptr, Doubles weights, std::size_t threads) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  if (threads < 1 || threads > 1024) bad("threads", "must be 1 to 1024");
  const std::size_t n = indptr.size() - 1, edges = weights.size();
  Buffer<std::uint64_t> slots(edges);
  Buffer<std::int64_t> positive(n);
  {
    nb::gil_scoped_release unlocked;
    std::fill_n(slots.data, edges, 0U);
    split(n, threads, [&](std::size_t, std::size_t a, std::size_t b) {
      std::vector<double> scaled;
      std::vector<std::uint32_t> small, large;
      for (std::size_t row = a; row < b; ++row) {
        const std::int64_t begin = indptr.data()[row], end = indptr.data()[row + 1];
        if (begin < 0 || end < begin || end > static_cast<std::int64_t>(edges) || end - begin > INT32_MAX)
          bad("indptr", ("row " + std::to_string(row) + " does not fit the weights").c_str());
        positive.data[row] = build_alias(weights.data() + begin, static_cast<std::size_t>(end - begin), begin,
                                         reinterpret_cast<Alias*>(slots.data + begin), scaled, small, large);
      }
    });
  }
  return nb::make_tuple(slots.release(), positive.release());
}

// counts int32 [m] and positions int64 [sum(counts)] of the picked edges
nb::tuple pick_weighted_edges(Longs indptr, Doubles weights, Slots slots, Longs positive, Longs keys, Vector rows,
                              std::int64_t fan_out, bool replace, std::uint64_t stream_key, std::size_t threads) {
  if (indptr.size() == 0) bad("indptr", "is empty");
  const std::size_t n = indptr.size() - 1;
  if (keys.size() != n || positive.size() != n) bad("vertex_keys", "must have one entry per row, as positive");
  if (slots.size() != weights.size()) bad("slots", "must be as long as weights");
  if (fan_out < -1) throw std::invalid_argument("fan_out: " + std::to_string(fan_out) + " must be -1 (all) or >= 0");
  if (threads < 1 || threads > 1024) bad("threads", "must be 1 to 1024");
  const std::size_t m = rows.size();
  Buffer<std::int32_t> counts(m);
  std::vector<std::vector<std::int64_t>> found(threads);
  with_ids("rows", rows, [&](const auto* r) {
    nb::gil_scoped_release unlocked;
    const SampleSpec spec{fan_out, replace, stream_key};
    split(m, threads, [&](std::size_t part, std::size_t a, std::size_t b) {
      Picked picked;
      std::vector<std::int64_t>& mine = found[part];
      std::vector<std::int64_t> positions;
      const auto inside = [&](std::size_t i) { return i < b && r[i] >= 0 && static_cast<std::size_t>(r[i]) < n; };
      for (std::size_t i = a; i < b; ++i) {
        if ((i - a) % kBlock == 0) {
          for (std::size_t j = i + kBlock; j < i + 2 * kBlock; ++j) {
            if (!inside(j)) continue;
            __builtin_prefetch(&indptr.data()[r[j]]);
            __builtin_prefetch(&positive.data()[r[j]]);
            __builtin_prefetch(&keys.data()[r[j]]);
          }
          for (std::size_t j = i + kBlock / 2; j < i + 3 * kBlock / 2; ++j) {
            if (!inside(j)) continue;
            const std::int64_t begin = indptr.data()[r[j]], degree = indptr.data()[r[j] + 1] - begin;
            if (begin < 0 || degree <= 0 || begin + degree > static_cast<std::int64_t>(slots.size())) continue;
            const VertexStream stream(stream_key, keys.data()[r[j]]);
            for (std::int64_t k = 0; k < std::min<std::int64_t>(fan_out, kBlock); ++k)
              __builtin_prefetch(&slots.data()[begin + static_cast<std::int64_t>(stream.below(
                                                           static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(degree)))]);
          }
        }
        if (r[i] < 0 || static_cast<std::size_t>(r[i]) >= n)
          throw std::invalid_argument("rows: row " + std::to_string(r[i]) + " is outside 0.." + std::to_string(n) + " (exclusive)");
        const auto row = static_cast<std::size_t>(r[i]);
        const std::int64_t begin = indptr.data()[row], end = indptr.data()[row + 1];
        if (begin < 0 || end < begin || end > static_cast<std::int64_t>(weights.size()))
          bad("indptr", ("row " + std::to_string(row) + " does not fit the weights").c_str());
        positions.clear();
        const WeightedRow of{weights.data() + begin, reinterpret_cast<const Alias*>(slots.data() + begin), end - begin,
                             positive.data()[row]};
        pick_weighted(of, spec, VertexStream(stream_key, keys.data()[row]), positions, picked);
        counts.data[i] = static_cast<std::int32_t>(positions.size());
        for (const std::int64_t position : positions) mine.push_back(begin + position);
      }
    });
  });
  std::size_t total = 0;
  for (const auto& part : found) total += part.size();
  Buffer<std::int64_t> out(total);
  std::size_t at = 0;
  for (const auto& part : found) {
    std::copy(part.begin(), part.end(), out.data + at);
    at += part.size();
  }
  return nb::make_tuple(counts.release(), out.release());
}

}  // namespace

void bind_methods(nb::module_& m) {
  m.def("alias_tables", &alias_tables, "indptr"_a, "weights"_a, "threads"_a);
  m.def("pick_weighted_edges", &pick_weighted_edges, "indptr"_a, "weights"_a, "slots"_a, "positive"_a, "vertex_keys"_a, "rows"_a,
        "fan_out"_a, "replace"_a, "stream_key"_a, "threads"_a);
}
