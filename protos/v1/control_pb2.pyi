from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("reach",)
    REACH_FIELD_NUMBER: _ClassVar[int]
    reach: bool
    def __init__(self, reach: _Optional[bool] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("version", "dataset_id", "part", "num_parts", "schema", "host", "pid", "incarnation", "parts", "contract", "oldest_protocol", "newest_protocol", "draining", "unreached", "tables_epoch", "tables_replicated", "files", "broken", "answers")
    class ContractEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    NUM_PARTS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NEWEST_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    TABLES_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLES_REPLICATED_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    version: str
    dataset_id: str
    part: int
    num_parts: int
    schema: str
    host: str
    pid: int
    incarnation: str
    parts: int
    contract: _containers.ScalarMap[str, str]
    oldest_protocol: int
    newest_protocol: int
    draining: bool
    unreached: _containers.RepeatedScalarFieldContainer[str]
    tables_epoch: int
    tables_replicated: bool
    files: str
    broken: bool
    answers: bool
    def __init__(self, version: _Optional[str] = ..., dataset_id: _Optional[str] = ..., part: _Optional[int] = ..., num_parts: _Optional[int] = ..., schema: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., incarnation: _Optional[str] = ..., parts: _Optional[int] = ..., contract: _Optional[_Mapping[str, str]] = ..., oldest_protocol: _Optional[int] = ..., newest_protocol: _Optional[int] = ..., draining: _Optional[bool] = ..., unreached: _Optional[_Iterable[str]] = ..., tables_epoch: _Optional[int] = ..., tables_replicated: _Optional[bool] = ..., files: _Optional[str] = ..., broken: _Optional[bool] = ..., answers: _Optional[bool] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("counters",)
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    counters: _containers.ScalarMap[str, float]
    def __init__(self, counters: _Optional[_Mapping[str, float]] = ...) -> None: ...

class SessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionsReply(_message.Message):
    __slots__ = ("uptime_s", "sessions", "jobs")
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    uptime_s: float
    sessions: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    jobs: _containers.RepeatedCompositeFieldContainer[JobInfo]
    def __init__(self, uptime_s: _Optional[float] = ..., sessions: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ...) -> None: ...

class JobInfo(_message.Message):
    __slots__ = ("job", "epoch", "direction", "sent_bytes", "crossed_bytes", "rows", "age_min", "age_mean", "age_max", "broadcasts", "skipped", "layer", "predicted_error", "stale_error")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CROSSED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    AGE_MIN_FIELD_NUMBER: _ClassVar[int]
    AGE_MEAN_FIELD_NUMBER: _ClassVar[int]
    AGE_MAX_FIELD_NUMBER: _ClassVar[int]
    BROADCASTS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_ERROR_FIELD_NUMBER: _ClassVar[int]
    STALE_ERROR_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    direction: str
    sent_bytes: int
    crossed_bytes: int
    rows: int
    age_min: float
    age_mean: float
    age_max: float
    broadcasts: int
    skipped: int
    layer: int
    predicted_error: float
    stale_error: float
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., direction: _Optional[str] = ..., sent_bytes: _Optional[int] = ..., crossed_bytes: _Optional[int] = ..., rows: _Optional[int] = ..., age_min: _Optional[float] = ..., age_mean: _Optional[float] = ..., age_max: _Optional[float] = ..., broadcasts: _Optional[int] = ..., skipped: _Optional[int] = ..., layer: _Optional[int] = ..., predicted_error: _Optional[float] = ..., stale_error: _Optional[float] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("keep_s", "rows")
    KEEP_S_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    keep_s: float
    rows: _containers.RepeatedCompositeFieldContainer[JobInfo]
    def __init__(self, keep_s: _Optional[float] = ..., rows: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("session", "job", "epoch", "rank", "world_size", "batches", "taken", "seeds", "queued", "in_flight", "queued_bytes", "lent_bytes", "score", "sigma", "sample_ms", "train_ms", "error")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SIGMA_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_MS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    session: str
    job: str
    epoch: int
    rank: int
    world_size: int
    batches: int
    taken: int
    seeds: int
    queued: int
    in_flight: int
    queued_bytes: int
    lent_bytes: int
    score: float
    sigma: float
    sample_ms: float
    train_ms: float
    error: str
    def __init__(self, session: _Optional[str] = ..., job: _Optional[str] = ..., epoch: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., batches: _Optional[int] = ..., taken: _Optional[int] = ..., seeds: _Optional[int] = ..., queued: _Optional[int] = ..., in_flight: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., lent_bytes: _Optional[int] = ..., score: _Optional[float] = ..., sigma: _Optional[float] = ..., sample_ms: _Optional[float] = ..., train_ms: _Optional[float] = ..., error: _Optional[str] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("last_s",)
    LAST_S_FIELD_NUMBER: _ClassVar[int]
    last_s: float
    def __init__(self, last_s: _Optional[float] = ...) -> None: ...

class TraceChunk(_message.Message):
    __slots__ = ("header", "entries")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    header: TraceHeader
    entries: str
    def __init__(self, header: _Optional[_Union[TraceHeader, _Mapping]] = ..., entries: _Optional[str] = ...) -> None: ...

class TraceHeader(_message.Message):
    __slots__ = ("part", "now", "offset_ns", "capacity", "full")
    PART_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    OFFSET_NS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    part: int
    now: float
    offset_ns: int
    capacity: int
    full: bool
    def __init__(self, part: _Optional[int] = ..., now: _Optional[float] = ..., offset_ns: _Optional[int] = ..., capacity: _Optional[int] = ..., full: _Optional[bool] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
