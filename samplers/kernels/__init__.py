"""The native kernels, typed and documented. They take and return numpy arrays, and release the interpreter lock.

Ids and rows may be int32 or int64 unless a docstring says otherwise. Bad input raises a ValueError that names the
argument: a row outside its range, arrays that contradict each other, an impossible fan-out. It never causes a read out
of bounds.
"""

from atta.samplers.kernels.compactor import Compactor, Weighing, admit
from atta.samplers.kernels.resident import advise_huge, resident, resident_beside, zeros_beside
from atta.samplers.kernels.rows import (
    gather_ids,
    gather_merged,
    gather_rows,
    pack_rows,
    retain_heap,
    scatter_rows,
    split_cached,
    widen_ids,
)
from atta.samplers.kernels.sampling import (
    bounds_by_target,
    by_source,
    degree_sum,
    edge_digests,
    group_by_owner,
    has_edges,
    sample_neighbors,
    sample_pairs,
    scaled,
    split_by_owner,
    validate_csc,
)

__all__ = [
    "Compactor",
    "Weighing",
    "admit",
    "advise_huge",
    "bounds_by_target",
    "by_source",
    "degree_sum",
    "edge_digests",
    "gather_ids",
    "gather_merged",
    "gather_rows",
    "group_by_owner",
    "has_edges",
    "pack_rows",
    "resident",
    "resident_beside",
    "retain_heap",
    "sample_neighbors",
    "sample_pairs",
    "scaled",
    "scatter_rows",
    "split_by_owner",
    "split_cached",
    "validate_csc",
    "widen_ids",
    "zeros_beside",
]
