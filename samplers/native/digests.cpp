// Binding of the digests of in-edges; typed and documented in atta.samplers.kernels.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "arrays.hpp"
#include "gather.hpp"
#include "hash.hpp"

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

}  // namespace

void bind_digests(nb::module_& m) {
  m.def("edge_digests", &edge_digests, "indptr"_a, "indices"_a, "edge_ids"_a, "vertex_keys"_a, "num_sources"_a, "rows"_a);
}
