from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishRequest(_message.Message):
    __slots__ = ("number", "phase", "id")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PREPARE: _ClassVar[PublishRequest.Phase]
        COMMIT: _ClassVar[PublishRequest.Phase]
        ABORT: _ClassVar[PublishRequest.Phase]
    PREPARE: PublishRequest.Phase
    COMMIT: PublishRequest.Phase
    ABORT: PublishRequest.Phase
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    number: int
    phase: PublishRequest.Phase
    id: str
    def __init__(self, number: _Optional[int] = ..., phase: _Optional[_Union[PublishRequest.Phase, str]] = ..., id: _Optional[str] = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("newest", "bytes")
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    newest: int
    bytes: int
    def __init__(self, newest: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class VersionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VersionsReply(_message.Message):
    __slots__ = ("newest", "versions", "in_use")
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    newest: int
    versions: _containers.RepeatedScalarFieldContainer[int]
    in_use: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, newest: _Optional[int] = ..., versions: _Optional[_Iterable[int]] = ..., in_use: _Optional[_Iterable[int]] = ...) -> None: ...

class ChangesRequest(_message.Message):
    __slots__ = ("since", "until")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    since: int
    until: int
    def __init__(self, since: _Optional[int] = ..., until: _Optional[int] = ...) -> None: ...

class ChangesReply(_message.Message):
    __slots__ = ("known", "changes")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    known: bool
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    def __init__(self, known: _Optional[bool] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("type", "name", "changed")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    changed: bytes
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ..., changed: _Optional[bytes] = ...) -> None: ...

class EdgesFromRequest(_message.Message):
    __slots__ = ("edge_type", "sources", "version", "first", "stop", "edges")
    EDGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    edge_type: str
    sources: bytes
    version: int
    first: int
    stop: int
    edges: int
    def __init__(self, edge_type: _Optional[str] = ..., sources: _Optional[bytes] = ..., version: _Optional[int] = ..., first: _Optional[int] = ..., stop: _Optional[int] = ..., edges: _Optional[int] = ...) -> None: ...

class EdgesFromReply(_message.Message):
    __slots__ = ("counts", "ends", "wide", "more")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    WIDE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    counts: bytes
    ends: bytes
    wide: bool
    more: bool
    def __init__(self, counts: _Optional[bytes] = ..., ends: _Optional[bytes] = ..., wide: _Optional[bool] = ..., more: _Optional[bool] = ...) -> None: ...
