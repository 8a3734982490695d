from atta.protos.v1 import dag_pb2 as _dag_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SeedPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEED_POLICY_LOCAL: _ClassVar[SeedPolicy]
    SEED_POLICY_GLOBAL: _ClassVar[SeedPolicy]
SEED_POLICY_LOCAL: SeedPolicy
SEED_POLICY_GLOBAL: SeedPolicy

class OpenRequest(_message.Message):
    __slots__ = ("dataset_id", "dag", "seeds", "batch_size", "seed", "epoch", "shuffle", "drop_last", "pad", "rank", "world_size", "policy", "shared_memory", "start_batch", "edge_ids", "job", "codec", "share", "wide_ids", "session", "version")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    DAG_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    DROP_LAST_FIELD_NUMBER: _ClassVar[int]
    PAD_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    START_BATCH_FIELD_NUMBER: _ClassVar[int]
    EDGE_IDS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    WIDE_IDS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    dag: _dag_pb2.DagSpec
    seeds: Seeds
    batch_size: int
    seed: int
    epoch: int
    shuffle: bool
    drop_last: bool
    pad: bool
    rank: int
    world_size: int
    policy: SeedPolicy
    shared_memory: bool
    start_batch: int
    edge_ids: bool
    job: str
    codec: str
    share: float
    wide_ids: bool
    session: str
    version: int
    def __init__(self, dataset_id: _Optional[str] = ..., dag: _Optional[_Union[_dag_pb2.DagSpec, _Mapping]] = ..., seeds: _Optional[_Union[Seeds, _Mapping]] = ..., batch_size: _Optional[int] = ..., seed: _Optional[int] = ..., epoch: _Optional[int] = ..., shuffle: _Optional[bool] = ..., drop_last: _Optional[bool] = ..., pad: _Optional[bool] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., policy: _Optional[_Union[SeedPolicy, str]] = ..., shared_memory: _Optional[bool] = ..., start_batch: _Optional[int] = ..., edge_ids: _Optional[bool] = ..., job: _Optional[str] = ..., codec: _Optional[str] = ..., share: _Optional[float] = ..., wide_ids: _Optional[bool] = ..., session: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Seeds(_message.Message):
    __slots__ = ("node_type", "split", "ids", "links", "batches", "all", "part", "times", "sizes", "types")
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    node_type: str
    split: str
    ids: bytes
    links: Links
    batches: int
    all: bool
    part: int
    times: bytes
    sizes: bytes
    types: bytes
    def __init__(self, node_type: _Optional[str] = ..., split: _Optional[str] = ..., ids: _Optional[bytes] = ..., links: _Optional[_Union[Links, _Mapping]] = ..., batches: _Optional[int] = ..., all: _Optional[bool] = ..., part: _Optional[int] = ..., times: _Optional[bytes] = ..., sizes: _Optional[bytes] = ..., types: _Optional[bytes] = ...) -> None: ...

class Links(_message.Message):
    __slots__ = ("edge_type", "sources", "targets", "exclude", "exclude_reverse")
    EDGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_REVERSE_FIELD_NUMBER: _ClassVar[int]
    edge_type: str
    sources: bytes
    targets: bytes
    exclude: bool
    exclude_reverse: str
    def __init__(self, edge_type: _Optional[str] = ..., sources: _Optional[bytes] = ..., targets: _Optional[bytes] = ..., exclude: _Optional[bool] = ..., exclude_reverse: _Optional[str] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("session", "batches", "seeds", "lease_s", "pid", "version", "nearby", "token")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEARBY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    session: str
    batches: int
    seeds: int
    lease_s: float
    pid: int
    version: int
    nearby: str
    token: bytes
    def __init__(self, session: _Optional[str] = ..., batches: _Optional[int] = ..., seeds: _Optional[int] = ..., lease_s: _Optional[float] = ..., pid: _Optional[int] = ..., version: _Optional[int] = ..., nearby: _Optional[str] = ..., token: _Optional[bytes] = ...) -> None: ...

class NextRequest(_message.Message):
    __slots__ = ("session", "sequence", "released", "train_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    TRAIN_MS_FIELD_NUMBER: _ClassVar[int]
    session: str
    sequence: int
    released: _containers.RepeatedScalarFieldContainer[int]
    train_ms: float
    def __init__(self, session: _Optional[str] = ..., sequence: _Optional[int] = ..., released: _Optional[_Iterable[int]] = ..., train_ms: _Optional[float] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sessions: _Optional[_Iterable[str]] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("unknown",)
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    unknown: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, unknown: _Optional[_Iterable[str]] = ...) -> None: ...

class BatchChunk(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: BatchHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[BatchHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ArrayRef(_message.Message):
    __slots__ = ("name", "dtype", "shape", "offset")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ...) -> None: ...

class BatchHeader(_message.Message):
    __slots__ = ("last", "pending", "batch", "arrays", "buffer_bytes", "slot", "stats", "unlaunched", "moving", "version")
    class StatsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    LAST_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    UNLAUNCHED_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    last: bool
    pending: bool
    batch: int
    arrays: _containers.RepeatedCompositeFieldContainer[ArrayRef]
    buffer_bytes: int
    slot: SharedSlot
    stats: _containers.ScalarMap[str, float]
    unlaunched: int
    moving: bool
    version: int
    def __init__(self, last: _Optional[bool] = ..., pending: _Optional[bool] = ..., batch: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[ArrayRef, _Mapping]]] = ..., buffer_bytes: _Optional[int] = ..., slot: _Optional[_Union[SharedSlot, _Mapping]] = ..., stats: _Optional[_Mapping[str, float]] = ..., unlaunched: _Optional[int] = ..., moving: _Optional[bool] = ..., version: _Optional[int] = ...) -> None: ...

class SharedSlot(_message.Message):
    __slots__ = ("path", "capacity", "nonce", "offset", "inode", "made")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    INODE_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    path: str
    capacity: int
    nonce: int
    offset: int
    inode: int
    made: int
    def __init__(self, path: _Optional[str] = ..., capacity: _Optional[int] = ..., nonce: _Optional[int] = ..., offset: _Optional[int] = ..., inode: _Optional[int] = ..., made: _Optional[int] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class CloseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
