"""Types of the native module; what the functions do stands in the modules ``kernels`` of atta.samplers and its neighbours."""

from collections.abc import Sequence
from typing import Any

import numpy as np

def mix64(x: int) -> int: ...
def stream_key(seed: int, epoch: int, batch: int, hop: int, name: int) -> int: ...
def validate_csc(indptr: np.ndarray, indices: np.ndarray, num_sources: int) -> None: ...
def bounds_by_target(targets: np.ndarray, count: int) -> np.ndarray | None: ...
def places_by_source(indices: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]: ...
def edges_from(
    indptr: np.ndarray,
    indices: np.ndarray,
    bounds: np.ndarray,
    places: np.ndarray,
    sources: np.ndarray,
    gone: np.ndarray,
    most: int,
) -> tuple[np.ndarray, np.ndarray] | None: ...
def edges_into(
    indptr: np.ndarray, indices: np.ndarray, sources: np.ndarray, first: int, stop: int, most: int
) -> tuple[np.ndarray, np.ndarray]: ...
def by_source(indptr: np.ndarray, indices: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def sample_neighbors(
    indptr: np.ndarray,
    indices: np.ndarray,
    edge_ids: np.ndarray | None,
    vertex_keys: np.ndarray,
    rows: np.ndarray,
    fan_out: int,
    replace: bool,
    stream_key: int,
    renewed: int,
    threads: int,
    method: Method | None,
    trees: np.ndarray | None,
    times: np.ndarray | None,
    positions: bool,
    unread: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]: ...
def scaled(bits: np.ndarray, bounds: np.ndarray) -> np.ndarray: ...
def has_edges(
    indptr: np.ndarray, indices: np.ndarray, source_keys: np.ndarray, rows: np.ndarray, sources: np.ndarray
) -> np.ndarray: ...
def edge_digests(
    indptr: np.ndarray,
    indices: np.ndarray,
    edge_ids: np.ndarray,
    vertex_keys: np.ndarray,
    num_sources: int,
    rows: np.ndarray,
) -> np.ndarray: ...
def sample_pairs(
    indptr: np.ndarray,
    indices: np.ndarray,
    vertex_keys: np.ndarray,
    rows: np.ndarray,
    count: int,
    stream_key: int,
    negative: bool,
    ids: np.ndarray,
    sorted_internal: np.ndarray,
) -> np.ndarray: ...
def degree_sum(indptr: np.ndarray, rows: np.ndarray) -> int: ...
def group_by_owner(
    ids: np.ndarray, offsets: np.ndarray, home: int, first: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def gather_rows(
    table: np.ndarray, rows: np.ndarray, out: np.ndarray, positions: np.ndarray | None, threads: int
) -> None: ...
def gather_merged(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], out: np.ndarray) -> None: ...
def pack_rows(prefix: bytes, tables: list[np.ndarray], rows: np.ndarray) -> bytes: ...
def reference_gather(
    table: np.ndarray, rows: np.ndarray, out: np.ndarray, ahead: int, stream: bool, threads: int
) -> None: ...
def reference_copy(source: np.ndarray, out: np.ndarray, stream: bool, threads: int) -> None: ...
def scatter_rows(rows: np.ndarray, positions: np.ndarray, out: np.ndarray) -> None: ...
def plan_sums(
    row: np.ndarray, col: np.ndarray, first: int, targets: int, owners: np.ndarray, parts: int, price: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
def reduce_rows(
    row: np.ndarray,
    col: np.ndarray,
    weights: np.ndarray | None,
    known: np.ndarray,
    first: int,
    vertices: int,
    parts: list[Any],
    sums: list[Any],
    shifts: np.ndarray,
    reduce: int,
    out: np.ndarray,
    threads: int,
    last: tuple[int, np.ndarray, np.ndarray] | None,
    own: np.ndarray | None,
) -> None: ...
def last_edges(
    groups: list[tuple[np.ndarray, np.ndarray, np.ndarray]], count: int, low: int, high: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
def pack_sums(
    prefix: bytes,
    tables: list[np.ndarray],
    rows: np.ndarray,
    counts: np.ndarray,
    weights: np.ndarray | None,
    shifts: np.ndarray,
    width: int,
) -> bytes: ...
def split_cached(
    index: Compactor, present: np.ndarray, need: int, ids: np.ndarray, positions: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
def widen_ids(ids: np.ndarray, out: np.ndarray) -> None: ...
def retain_heap() -> bool: ...
def advise_huge(array: np.ndarray) -> bool: ...
def note_map(begin: int, size: int) -> None: ...
def forget_map(begin: int) -> None: ...
def torn_maps() -> list[int]: ...
def outlive_torn_maps() -> bool: ...
def files_damaged() -> bool: ...
def declare_files_damaged(damaged: bool = True) -> None: ...

class Method:
    @staticmethod
    def weighted(indptr: np.ndarray, weights: np.ndarray, threads: int) -> Method: ...
    @staticmethod
    def temporal(indptr: np.ndarray, indices: np.ndarray, times: np.ndarray, last: bool, threads: int) -> Method: ...
    @staticmethod
    def labor(indices: np.ndarray, source_keys: np.ndarray | None, threads: int) -> Method: ...
    def timely(self, indptr: np.ndarray, rows: np.ndarray, times: np.ndarray) -> np.ndarray: ...
    @property
    def nbytes(self) -> int: ...

class Compactor:
    def __init__(self, num_ids: int = 0) -> None: ...
    def in_trees(self, start: int, stop: int, sources: int) -> tuple[np.ndarray, np.ndarray]: ...
    @property
    def size(self) -> int: ...
    def reset(self) -> None: ...
    def insert(self, ids: np.ndarray) -> np.ndarray: ...
    def find(self, ids: np.ndarray) -> np.ndarray: ...
    def ids(self, start: int, stop: int) -> np.ndarray: ...
    def sample_hop(
        self,
        targets: Compactor,
        indptr: np.ndarray,
        indices: np.ndarray,
        edge_ids: np.ndarray | None,
        vertex_keys: np.ndarray | None,
        first: int,
        last: int,
        fan_out: int,
        replace: bool,
        stream_key: int,
        renewed: int,
        out_row: np.ndarray,
        out_col: np.ndarray,
        out_edge_ids: np.ndarray | None,
        method: Method | None,
        sources: int,
        trees: bool,
        tree_times: np.ndarray | None,
    ) -> tuple[int, int]: ...
    def stitch(
        self,
        groups: list[Any],
        frontier_local: np.ndarray,
        out_row: np.ndarray,
        out_col: np.ndarray,
        out_edge_ids: np.ndarray | None,
        trees: np.ndarray | None,
        sources: int,
        weights: tuple[np.ndarray, np.ndarray, np.ndarray | None, int, bool] | None,
    ) -> int: ...

def random_walks(
    indptr: np.ndarray,
    indices: np.ndarray,
    vertex_keys: np.ndarray,
    starts: np.ndarray,
    length: int,
    p: float,
    q: float,
    restart: float,
    stream_key: int,
    threads: int,
) -> np.ndarray: ...
def frequent_visits(
    indptr: np.ndarray, indices: np.ndarray, vertex_keys: np.ndarray, starts: np.ndarray, paths: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def pagerank(
    indptr: np.ndarray,
    indices: np.ndarray,
    vertex_keys: np.ndarray,
    seeds: np.ndarray,
    alpha: float,
    epsilon: float,
    most: int,
    threads: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def admit(
    members: Compactor,
    targets: np.ndarray,
    counts: np.ndarray,
    sources: np.ndarray,
    keys: np.ndarray,
    limit: int,
    stream_key: int,
    scores: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]: ...
def has_padded_number(text: bytes) -> bool:
    """Whether some number in ``text`` begins with a zero that another digit follows."""

def count_ids(ids: np.ndarray, counts: np.ndarray) -> None:
    """Add to ``counts``, int64 [n], how often each id occurs."""

def add_sums(ids: np.ndarray, values: np.ndarray, totals: np.ndarray, scratch: np.ndarray) -> None:
    """Add ``np.bincount(ids, values)`` to ``totals``, float64 [n]. ``scratch``: zeros, which stay zeros."""

def stable_order(keys: np.ndarray, bound: int, values: np.ndarray | None = None) -> np.ndarray:
    """The permutation that sorts ``keys``, integers in ``range(bound)``. Equal keys are ordered by ``values``, if they
    are given, and else as they come. Values of int32 must not be negative; they are sorted faster."""

def dealt(keys: np.ndarray, bound: int, columns: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> np.ndarray:
    """Sort the rows of all ``columns`` by ``keys``, integers in ``range(bound)``, into ``outs``; rows of one key keep
    their order. Returns where each key begins, int64 [bound + 1]."""

def looked_up(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """``table[ids]``; both hold int32 or int64. Cache lines are requested ahead."""

def buckets_of(ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The bucket of each id, int32. Bucket b has the ids from ``starts[b]`` up to ``starts[b + 1]``."""

class Numbering:
    """Numbers ids from 0 in the order in which they first come; one thread at a time."""

    def __init__(self) -> None: ...
    def number(self, ids: np.ndarray) -> np.ndarray: ...
    def ids(self) -> np.ndarray: ...

class Wheel:
    """Draws vertices in proportion to positive weights."""

    def __init__(self, weights: np.ndarray) -> None: ...

def draw_planted(
    wheel: Wheel, row_of: np.ndarray, bounds: np.ndarray, wants: np.ndarray, key: int, first: int
) -> tuple[np.ndarray, np.ndarray]: ...

BLOCK_ROWS: int
"""Number of rows in a block of the union graph."""

def block_sizes(
    src: np.ndarray, dst: np.ndarray, src_start: int, dst_start: int, n: int
) -> tuple[int, np.ndarray, np.ndarray]:
    """Of edges between vertices ``src + src_start`` and ``dst + dst_start``: a sum that is 0 modulo 2**64 if all are
    stored in both directions, and by block of rows the numbers of edges into it and out of it, int64, without loops."""

def fill_blocks(
    src: np.ndarray,
    dst: np.ndarray,
    src_start: int,
    dst_start: int,
    n: int,
    both: bool,
    room: np.ndarray,
    neighbors: np.ndarray,
    places: np.ndarray,
    loops: np.ndarray,
) -> None:
    """Write the neighbours that edges give to ``neighbors``, from ``room[block]`` on, and beside them to ``places``,
    uint16, their rows in the block. ``both``: edges count backwards, too. ``loops``, int64 [n], counts the others."""

def sort_rows(neighbors: np.ndarray, places: np.ndarray, ends: np.ndarray, inward: np.ndarray) -> None:
    """Sort one block by row. ``ends[r]``: the number of neighbours up to row r; ``inward[r]``: of edges into it."""

def merge_rows(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def sparsify(indptr: np.ndarray, indices: np.ndarray, cap: int, seed: int) -> tuple[np.ndarray, np.ndarray]: ...
def breadth_first(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray: ...
def stream_vertices(
    indptr: np.ndarray,
    indices: np.ndarray,
    order: np.ndarray,
    before: np.ndarray | None,
    owners: np.ndarray,
    parts: int,
    weights: np.ndarray,
    capacity: np.ndarray,
    alpha: float,
    gamma: float,
    threads: int = 1,
) -> None: ...
def even_owners(
    indptr: np.ndarray, indices: np.ndarray, owners: np.ndarray, parts: int, weights: np.ndarray, capacity: np.ndarray
) -> int: ...
def even_costs(
    indptr: np.ndarray,
    indices: np.ndarray,
    vertices: np.ndarray,
    owners: np.ndarray,
    parts: int,
    weights: np.ndarray,
    capacity: np.ndarray,
    thing: int,
    strict: bool,
) -> np.ndarray: ...
def even_moves(
    indptr: np.ndarray,
    indices: np.ndarray,
    vertices: np.ndarray,
    owners: np.ndarray,
    parts: int,
    weights: np.ndarray,
    capacity: np.ndarray,
    thing: int,
    strict: bool,
) -> int: ...
def refine_owners(
    indptr: np.ndarray,
    indices: np.ndarray,
    owners: np.ndarray,
    parts: int,
    weights: np.ndarray,
    capacity: np.ndarray,
    threads: int = 1,
) -> int: ...
def grow_blocks(indptr: np.ndarray, indices: np.ndarray, centres: np.ndarray, hops: int) -> np.ndarray: ...
def assign_blocks(
    indptr: np.ndarray,
    indices: np.ndarray,
    block: np.ndarray,
    blocks: int,
    labels: np.ndarray,
    parts: int,
    share: np.ndarray,
    smooth: float,
) -> np.ndarray: ...

class RowLocks:
    def __init__(self) -> None: ...

def read_rows(
    table: np.ndarray,
    rows: np.ndarray,
    out: np.ndarray,
    locks: RowLocks,
    versions: np.ndarray | None = None,
    out_versions: np.ndarray | None = None,
) -> None: ...
def pack_table(
    head: bytes,
    table: np.ndarray,
    rows: np.ndarray,
    locks: RowLocks,
    versions: np.ndarray | None = None,
    middle: bytes = b"",
) -> bytes: ...
def write_rows(
    table: np.ndarray,
    rows: np.ndarray,
    values: np.ndarray,
    locks: RowLocks,
    versions: np.ndarray | None = None,
    version: int = 0,
) -> None: ...
def add_rows(table: np.ndarray, rows: np.ndarray, values: np.ndarray, locks: RowLocks) -> None: ...
def step_rows(
    kind: str,
    table: np.ndarray,
    state: list[np.ndarray],
    rows: np.ndarray,
    grads: np.ndarray,
    locks: RowLocks,
    lr: float,
    beta1: float = 0.0,
    beta2: float = 0.0,
    eps: float = 0.0,
) -> None: ...
def encode_rows(codec: str, values: np.ndarray, out: np.ndarray) -> None: ...
def decode_rows(codec: str, encoded: np.ndarray, out: np.ndarray, positions: np.ndarray | None) -> None: ...
def encoded_bytes(codec: str, width: int) -> int: ...
def fill_rows(out: np.ndarray, ids: np.ndarray, normal: bool, seed: int, a: float, b: float) -> None: ...

class RecentIndex:
    def __init__(self, slots: int, half_life: int, offsets: list[int]) -> None: ...
    def look_up(
        self, ids: np.ndarray, positions: np.ndarray, starts: np.ndarray, need: int, turn: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
    def reserve(self, ids: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]: ...
    def publish(self, slots: np.ndarray, todo: np.ndarray, written: bool) -> None: ...
    def unpin(self, slots: np.ndarray) -> None: ...
    def expect(self, turn: int, ids: np.ndarray) -> None: ...
    def close(self, turn: int) -> None: ...
    def content(self) -> list[tuple[int, int]]: ...

class DiskRows:
    def __init__(
        self, path: str, start: int, rows: int, row_bytes: int, slots: int, half_life: int, ring: bool, direct: bool
    ) -> None: ...
    def gather(self, rows: np.ndarray, out: np.ndarray, positions: np.ndarray | None, turn: int) -> None: ...
    def values(self, start: int, positions: np.ndarray, out: np.ndarray) -> None: ...
    def expect(self, turn: int, rows: np.ndarray) -> None: ...
    def close(self, turn: int) -> None: ...
    def figures(self) -> dict[str, float]: ...
    @property
    def direct(self) -> bool: ...

def count_members(ids: np.ndarray, members: np.ndarray, limit: int) -> np.ndarray: ...
def spread_weights(
    indptr: np.ndarray, indices: np.ndarray, weights: np.ndarray, members: np.ndarray, limit: int, out: np.ndarray
) -> None: ...

class Step:
    @property
    def number(self) -> int: ...
    @property
    def done(self) -> bool: ...
    def sample(
        self,
        edge_type: int,
        ids: np.ndarray,
        owners: np.ndarray,
        starts: np.ndarray,
        firsts: np.ndarray,
        fan_out: int,
        replace: bool,
        key: int,
        renewed: int,
        method: int,
        trees: np.ndarray | None,
        times: np.ndarray | None,
        most_edges: int,
    ) -> int: ...
    def pull(
        self,
        node_type: int,
        tables: int,
        ids: np.ndarray,
        positions: np.ndarray,
        owners: np.ndarray,
        starts: np.ndarray,
        firsts: np.ndarray,
        outs: list[np.ndarray],
    ) -> int: ...
    def sum(
        self,
        node_type: int,
        table: int,
        ids: np.ndarray,
        counts: np.ndarray,
        weights: np.ndarray | None,
        owners: np.ndarray,
        starts: np.ndarray,
        firsts: np.ndarray,
        shifts: np.ndarray,
        width: int,
        out: np.ndarray,
    ) -> int: ...
    def give_up(self, why: str) -> None: ...
    def left(self) -> list[tuple[int, int, int, int, bool, str]]: ...
    def nbytes(self) -> int: ...
    def answers(self, item: int) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]: ...

link_tls: bool

class LinkTls:
    def __init__(self, fd: int, secret: bytes, serves: bool) -> None: ...
    def shake_hands(self, timeout_ms: int) -> str: ...

class Links:
    def __init__(self, threads: int) -> None: ...
    @property
    def fd(self) -> int: ...
    def add_edges(self, indptr: np.ndarray, indices: np.ndarray, edge_ids: np.ndarray, keys: np.ndarray) -> int: ...
    def prepare(self, edge_type: int, number: int, method: Method | None) -> None: ...
    def edges_on_disk(
        self, edge_type: int, indices: DiskRows, indices_at: int, edge_ids: DiskRows, edge_ids_at: int
    ) -> None: ...
    def add_table(self, node_type: int, rows: np.ndarray, disk: DiskRows | None = None) -> None: ...
    def serve(self, fd: int, peer: int = -1, tls: LinkTls | None = None) -> None: ...
    def keep_served(self, most: int) -> None: ...
    def served(self) -> list[tuple[float, float, int, bool, int]]: ...
    def attach(self, owner: int, fd: int, tls: LinkTls | None = None) -> None: ...
    def detach(self, owner: int) -> None: ...
    def attached(self, owner: int) -> int: ...
    def silent(self, seconds: float) -> list[int]: ...
    def step(self) -> Step: ...
    def begin(self, step: Step, age_ms: int) -> None: ...
    def flush(self) -> None: ...
    def finished(self) -> list[int]: ...
    def stats(self) -> dict[str, float]: ...
    def close(self) -> None: ...
