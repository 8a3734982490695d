from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PullRequest(_message.Message):
    __slots__ = ("node_type", "tables", "rows", "wide_rows", "codec", "version", "age_ms", "sums")
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WIDE_ROWS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    node_type: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    rows: bytes
    wide_rows: bool
    codec: str
    version: int
    age_ms: int
    sums: Sums
    def __init__(self, node_type: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., rows: _Optional[bytes] = ..., wide_rows: _Optional[bool] = ..., codec: _Optional[str] = ..., version: _Optional[int] = ..., age_ms: _Optional[int] = ..., sums: _Optional[_Union[Sums, _Mapping]] = ...) -> None: ...

class Sums(_message.Message):
    __slots__ = ("counts", "weights", "shifts", "width")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    SHIFTS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    counts: bytes
    weights: bytes
    shifts: bytes
    width: int
    def __init__(self, counts: _Optional[bytes] = ..., weights: _Optional[bytes] = ..., shifts: _Optional[bytes] = ..., width: _Optional[int] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ("largest", "node_type", "table", "version")
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    largest: bool
    node_type: str
    table: str
    version: int
    def __init__(self, largest: _Optional[bool] = ..., node_type: _Optional[str] = ..., table: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class ListTablesReply(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    def __init__(self, tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("node_type", "name", "dtype", "row_shape", "rows", "largest")
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ROW_SHAPE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    node_type: str
    name: str
    dtype: str
    row_shape: _containers.RepeatedScalarFieldContainer[int]
    rows: int
    largest: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, node_type: _Optional[str] = ..., name: _Optional[str] = ..., dtype: _Optional[str] = ..., row_shape: _Optional[_Iterable[int]] = ..., rows: _Optional[int] = ..., largest: _Optional[_Iterable[float]] = ...) -> None: ...
