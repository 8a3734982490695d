from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SampleRequest(_message.Message):
    __slots__ = ("edge_type", "fan_out", "replace", "stream_key", "rows", "wide_rows", "method", "trees", "times", "tables", "version", "by", "age_ms", "renewed", "method_name")
    EDGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    FAN_OUT_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_KEY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WIDE_ROWS_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    TREES_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    METHOD_NAME_FIELD_NUMBER: _ClassVar[int]
    edge_type: str
    fan_out: int
    replace: bool
    stream_key: int
    rows: bytes
    wide_rows: bool
    method: int
    trees: bytes
    times: bytes
    tables: _containers.RepeatedScalarFieldContainer[str]
    version: int
    by: str
    age_ms: int
    renewed: int
    method_name: str
    def __init__(self, edge_type: _Optional[str] = ..., fan_out: _Optional[int] = ..., replace: _Optional[bool] = ..., stream_key: _Optional[int] = ..., rows: _Optional[bytes] = ..., wide_rows: _Optional[bool] = ..., method: _Optional[int] = ..., trees: _Optional[bytes] = ..., times: _Optional[bytes] = ..., tables: _Optional[_Iterable[str]] = ..., version: _Optional[int] = ..., by: _Optional[str] = ..., age_ms: _Optional[int] = ..., renewed: _Optional[int] = ..., method_name: _Optional[str] = ...) -> None: ...

class SampleReply(_message.Message):
    __slots__ = ("counts", "neighbors", "edge_ids", "wide_neighbors", "wide_edge_ids", "tables")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    NEIGHBORS_FIELD_NUMBER: _ClassVar[int]
    EDGE_IDS_FIELD_NUMBER: _ClassVar[int]
    WIDE_NEIGHBORS_FIELD_NUMBER: _ClassVar[int]
    WIDE_EDGE_IDS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    counts: bytes
    neighbors: bytes
    edge_ids: bytes
    wide_neighbors: bool
    wide_edge_ids: bool
    tables: bytes
    def __init__(self, counts: _Optional[bytes] = ..., neighbors: _Optional[bytes] = ..., edge_ids: _Optional[bytes] = ..., wide_neighbors: _Optional[bool] = ..., wide_edge_ids: _Optional[bool] = ..., tables: _Optional[bytes] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("edge_type", "question", "rows", "operands", "version")
    class Question(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DEGREE: _ClassVar[ProbeRequest.Question]
        STEP: _ClassVar[ProbeRequest.Question]
        CONTAINS: _ClassVar[ProbeRequest.Question]
        DIGEST: _ClassVar[ProbeRequest.Question]
    DEGREE: ProbeRequest.Question
    STEP: ProbeRequest.Question
    CONTAINS: ProbeRequest.Question
    DIGEST: ProbeRequest.Question
    EDGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    edge_type: str
    question: ProbeRequest.Question
    rows: bytes
    operands: bytes
    version: int
    def __init__(self, edge_type: _Optional[str] = ..., question: _Optional[_Union[ProbeRequest.Question, str]] = ..., rows: _Optional[bytes] = ..., operands: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class ProbeReply(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    def __init__(self, values: _Optional[bytes] = ...) -> None: ...

class PairRequest(_message.Message):
    __slots__ = ("edge_type", "count", "negative", "stream_key", "rows", "version")
    EDGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_FIELD_NUMBER: _ClassVar[int]
    STREAM_KEY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    edge_type: str
    count: int
    negative: bool
    stream_key: int
    rows: bytes
    version: int
    def __init__(self, edge_type: _Optional[str] = ..., count: _Optional[int] = ..., negative: _Optional[bool] = ..., stream_key: _Optional[int] = ..., rows: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class PairReply(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: bytes
    def __init__(self, ids: _Optional[bytes] = ...) -> None: ...
