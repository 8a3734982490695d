from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateTableRequest(_message.Message):
    __slots__ = ("dataset_id", "spec", "table_id", "whole")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    spec: str
    table_id: int
    whole: bool
    def __init__(self, dataset_id: _Optional[str] = ..., spec: _Optional[str] = ..., table_id: _Optional[int] = ..., whole: _Optional[bool] = ...) -> None: ...

class TableInfo(_message.Message):
    __slots__ = ("spec", "first_row", "rows", "bytes", "step", "table_id", "whole", "load_id")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    LOAD_ID_FIELD_NUMBER: _ClassVar[int]
    spec: str
    first_row: int
    rows: int
    bytes: int
    step: int
    table_id: int
    whole: bool
    load_id: int
    def __init__(self, spec: _Optional[str] = ..., first_row: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., step: _Optional[int] = ..., table_id: _Optional[int] = ..., whole: _Optional[bool] = ..., load_id: _Optional[int] = ...) -> None: ...

class DescribeTableRequest(_message.Message):
    __slots__ = ("name", "if_there")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IF_THERE_FIELD_NUMBER: _ClassVar[int]
    name: str
    if_there: bool
    def __init__(self, name: _Optional[str] = ..., if_there: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("name", "rows", "table_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    table_id: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., table_id: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("name", "rows", "codec", "table_id", "narrow_rows", "version", "array", "memory")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    NARROW_ROWS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: bytes
    codec: str
    table_id: int
    narrow_rows: bool
    version: int
    array: str
    memory: LentMemory
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[bytes] = ..., codec: _Optional[str] = ..., table_id: _Optional[int] = ..., narrow_rows: _Optional[bool] = ..., version: _Optional[int] = ..., array: _Optional[str] = ..., memory: _Optional[_Union[LentMemory, _Mapping]] = ...) -> None: ...

class LentMemory(_message.Message):
    __slots__ = ("pid", "descriptor", "inode", "secret", "offset", "nbytes")
    PID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    INODE_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    pid: int
    descriptor: int
    inode: int
    secret: bytes
    offset: int
    nbytes: int
    def __init__(self, pid: _Optional[int] = ..., descriptor: _Optional[int] = ..., inode: _Optional[int] = ..., secret: _Optional[bytes] = ..., offset: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class RowsChunk(_message.Message):
    __slots__ = ("first_row", "rows", "versions", "values", "lent", "unusable")
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    LENT_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    first_row: int
    rows: int
    versions: bytes
    values: bytes
    lent: bool
    unusable: bool
    def __init__(self, first_row: _Optional[int] = ..., rows: _Optional[int] = ..., versions: _Optional[bytes] = ..., values: _Optional[bytes] = ..., lent: _Optional[bool] = ..., unusable: _Optional[bool] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("name", "table_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    table_id: int
    def __init__(self, name: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("client", "table")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    client: int
    table: TableInfo
    def __init__(self, client: _Optional[int] = ..., table: _Optional[_Union[TableInfo, _Mapping]] = ...) -> None: ...

class PushRowsRequest(_message.Message):
    __slots__ = ("name", "rows", "op", "client", "sequence", "versioned", "version", "step", "codec", "values", "settled", "table_id", "array", "memory")
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
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
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
    table_id: int
    array: str
    memory: LentMemory
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[bytes] = ..., op: _Optional[str] = ..., client: _Optional[int] = ..., sequence: _Optional[int] = ..., versioned: _Optional[bool] = ..., version: _Optional[int] = ..., step: _Optional[int] = ..., codec: _Optional[str] = ..., values: _Optional[bytes] = ..., settled: _Optional[int] = ..., table_id: _Optional[int] = ..., array: _Optional[str] = ..., memory: _Optional[_Union[LentMemory, _Mapping]] = ...) -> None: ...

class PushRowsReply(_message.Message):
    __slots__ = ("applied", "unread", "unusable")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    applied: bool
    unread: bool
    unusable: bool
    def __init__(self, applied: _Optional[bool] = ..., unread: _Optional[bool] = ..., unusable: _Optional[bool] = ...) -> None: ...

class ForgetClientRequest(_message.Message):
    __slots__ = ("clients",)
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, clients: _Optional[_Iterable[int]] = ...) -> None: ...

class ForgetClientReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SnapshotsReply(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ids: _Optional[_Iterable[str]] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("name", "phase", "snapshot", "load_id", "hold_s", "steps", "held")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PREPARE: _ClassVar[SnapshotRequest.Phase]
        COMMIT: _ClassVar[SnapshotRequest.Phase]
        ABORT: _ClassVar[SnapshotRequest.Phase]
        HOLD: _ClassVar[SnapshotRequest.Phase]
    PREPARE: SnapshotRequest.Phase
    COMMIT: SnapshotRequest.Phase
    ABORT: SnapshotRequest.Phase
    HOLD: SnapshotRequest.Phase
    class StepsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    LOAD_ID_FIELD_NUMBER: _ClassVar[int]
    HOLD_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    name: str
    phase: SnapshotRequest.Phase
    snapshot: str
    load_id: int
    hold_s: float
    steps: _containers.ScalarMap[str, int]
    held: bool
    def __init__(self, name: _Optional[str] = ..., phase: _Optional[_Union[SnapshotRequest.Phase, str]] = ..., snapshot: _Optional[str] = ..., load_id: _Optional[int] = ..., hold_s: _Optional[float] = ..., steps: _Optional[_Mapping[str, int]] = ..., held: _Optional[bool] = ...) -> None: ...

class SnapshotReply(_message.Message):
    __slots__ = ("tables", "bytes")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableInfo]
    bytes: int
    def __init__(self, tables: _Optional[_Iterable[_Union[TableInfo, _Mapping]]] = ..., bytes: _Optional[int] = ...) -> None: ...
