from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
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
