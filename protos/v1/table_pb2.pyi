from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateTableRequest(_message.Message):
    __slots__ = ("dataset_id", "spec")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    spec: str
    def __init__(self, dataset_id: _Optional[str] = ..., spec: _Optional[str] = ...) -> None: ...

class TableInfo(_message.Message):
    __slots__ = ("spec", "first_row", "rows", "bytes", "step")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    spec: str
    first_row: int
    rows: int
    bytes: int
    step: int
    def __init__(self, spec: _Optional[str] = ..., first_row: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class DeleteTableRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteTableReply(_message.Message):
    __slots__ = ("existed",)
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    existed: bool
    def __init__(self, existed: _Optional[bool] = ...) -> None: ...

class ListMutableRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMutableReply(_message.Message):
    __slots__ = ("tables", "used_bytes", "quota_bytes")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableInfo]
    used_bytes: int
    quota_bytes: int
    def __init__(self, tables: _Optional[_Iterable[_Union[TableInfo, _Mapping]]] = ..., used_bytes: _Optional[int] = ..., quota_bytes: _Optional[int] = ...) -> None: ...

class GrowTableRequest(_message.Message):
    __slots__ = ("name", "rows")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ...) -> None: ...

class LocateRequest(_message.Message):
    __slots__ = ("dataset_id", "policy", "ids")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    policy: str
    ids: bytes
    def __init__(self, dataset_id: _Optional[str] = ..., policy: _Optional[str] = ..., ids: _Optional[bytes] = ...) -> None: ...

class LocateReply(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    def __init__(self, rows: _Optional[bytes] = ...) -> None: ...

class PullRowsRequest(_message.Message):
    __slots__ = ("name", "rows", "codec")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: bytes
    codec: str
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[bytes] = ..., codec: _Optional[str] = ...) -> None: ...

class RowsChunk(_message.Message):
    __slots__ = ("first_row", "rows", "versions", "values")
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    first_row: int
    rows: int
    versions: bytes
    values: bytes
    def __init__(self, first_row: _Optional[int] = ..., rows: _Optional[int] = ..., versions: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class PushRowsRequest(_message.Message):
    __slots__ = ("name", "rows", "op", "client", "sequence", "versioned", "version", "step", "codec", "values", "settled")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VERSIONED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: bytes
    op: str
    client: int
    sequence: int
    versioned: bool
    version: int
    step: int
    codec: str
    values: bytes
    settled: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[bytes] = ..., op: _Optional[str] = ..., client: _Optional[int] = ..., sequence: _Optional[int] = ..., versioned: _Optional[bool] = ..., version: _Optional[int] = ..., step: _Optional[int] = ..., codec: _Optional[str] = ..., values: _Optional[bytes] = ..., settled: _Optional[int] = ...) -> None: ...

class PushRowsReply(_message.Message):
    __slots__ = ("applied",)
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    applied: bool
    def __init__(self, applied: _Optional[bool] = ...) -> None: ...

class ForgetClientRequest(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: int
    def __init__(self, client: _Optional[int] = ...) -> None: ...

class ForgetClientReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SnapshotReply(_message.Message):
    __slots__ = ("tables", "bytes")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedScalarFieldContainer[str]
    bytes: int
    def __init__(self, tables: _Optional[_Iterable[str]] = ..., bytes: _Optional[int] = ...) -> None: ...
