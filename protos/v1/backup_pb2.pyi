from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogPlace(_message.Message):
    __slots__ = ("lsn", "chain")
    LSN_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    chain: int
    def __init__(self, lsn: _Optional[int] = ..., chain: _Optional[int] = ...) -> None: ...

class StoreName(_message.Message):
    __slots__ = ("id", "epoch")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    epoch: int
    def __init__(self, id: _Optional[bytes] = ..., epoch: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("store", "about", "reach")
    STORE_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    store: StoreName
    about: str
    reach: LogPlace
    def __init__(self, store: _Optional[_Union[StoreName, _Mapping]] = ..., about: _Optional[str] = ..., reach: _Optional[_Union[LogPlace, _Mapping]] = ...) -> None: ...

class FollowReply(_message.Message):
    __slots__ = ("at",)
    AT_FIELD_NUMBER: _ClassVar[int]
    at: LogPlace
    def __init__(self, at: _Optional[_Union[LogPlace, _Mapping]] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("store", "before", "after", "file_epoch", "new_file", "sizes", "bodies", "more")
    STORE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    FILE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEW_FILE_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    store: StoreName
    before: LogPlace
    after: LogPlace
    file_epoch: int
    new_file: bool
    sizes: _containers.RepeatedScalarFieldContainer[int]
    bodies: bytes
    more: bool
    def __init__(self, store: _Optional[_Union[StoreName, _Mapping]] = ..., before: _Optional[_Union[LogPlace, _Mapping]] = ..., after: _Optional[_Union[LogPlace, _Mapping]] = ..., file_epoch: _Optional[int] = ..., new_file: _Optional[bool] = ..., sizes: _Optional[_Iterable[int]] = ..., bodies: _Optional[bytes] = ..., more: _Optional[bool] = ...) -> None: ...

class PieceRequest(_message.Message):
    __slots__ = ("store", "at", "path", "offset", "data", "complete")
    STORE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    store: StoreName
    at: LogPlace
    path: str
    offset: int
    data: bytes
    complete: bool
    def __init__(self, store: _Optional[_Union[StoreName, _Mapping]] = ..., at: _Optional[_Union[LogPlace, _Mapping]] = ..., path: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., complete: _Optional[bool] = ...) -> None: ...

class PieceReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VoteRequest(_message.Message):
    __slots__ = ("store", "part", "candidate")
    STORE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    store: StoreName
    part: int
    candidate: str
    def __init__(self, store: _Optional[_Union[StoreName, _Mapping]] = ..., part: _Optional[int] = ..., candidate: _Optional[str] = ...) -> None: ...

class VoteReply(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: str
    def __init__(self, refused: _Optional[str] = ...) -> None: ...

class PromoteReply(_message.Message):
    __slots__ = ("lsn", "tables")
    LSN_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    tables: int
    def __init__(self, lsn: _Optional[int] = ..., tables: _Optional[int] = ...) -> None: ...
