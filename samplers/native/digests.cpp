// Binding of the digests of in-edges; typed and documented in atta.samplers.kernels.
#include "arrays.hpp"
#include "checks.hpp"
#include "digest.hpp"
#include "gather.hpp"

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
