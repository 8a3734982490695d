from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class PullRequest(_message.Message):
    __slots__ = ("node_type", "tables", "rows", "wide_rows", "codec", "version", "age_ms")
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WIDE_ROWS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    node_type: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    rows: bytes
    wide_rows: bool
    codec: str
    version: int
    age_ms: int
    def __init__(self, node_type: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., rows: _Optional[bytes] = ..., wide_rows: _Optional[bool] = ..., codec: _Optional[str] = ..., version: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
