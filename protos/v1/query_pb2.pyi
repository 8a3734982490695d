from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VertexIds(_message.Message):
    __slots__ = ("numbers", "width", "strings")
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    numbers: bytes
    width: int
    strings: bytes
    def __init__(self, numbers: _Optional[bytes] = ..., width: _Optional[int] = ..., strings: _Optional[bytes] = ...) -> None: ...

class PredictRequest(_message.Message):
    __slots__ = ("ids", "what")
    IDS_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    ids: VertexIds
    what: str
    def __init__(self, ids: _Optional[_Union[VertexIds, _Mapping]] = ..., what: _Optional[str] = ...) -> None: ...

class PredictReply(_message.Message):
    __slots__ = ("values", "width", "version")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    width: int
    version: int
    def __init__(self, values: _Optional[bytes] = ..., width: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class RecommendRequest(_message.Message):
    __slots__ = ("ids", "count", "relation")
    IDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RELATION_FIELD_NUMBER: _ClassVar[int]
    ids: VertexIds
    count: int
    relation: str
    def __init__(self, ids: _Optional[_Union[VertexIds, _Mapping]] = ..., count: _Optional[int] = ..., relation: _Optional[str] = ...) -> None: ...

class RecommendReply(_message.Message):
    __slots__ = ("counts", "targets", "scores", "version")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    counts: bytes
    targets: VertexIds
    scores: bytes
    version: int
    def __init__(self, counts: _Optional[bytes] = ..., targets: _Optional[_Union[VertexIds, _Mapping]] = ..., scores: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...
