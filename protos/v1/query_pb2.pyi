from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
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

class NewVertices(_message.Message):
    __slots__ = ("x", "edges")
    X_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    x: bytes
    edges: _containers.RepeatedCompositeFieldContainer[NewEdges]
    def __init__(self, x: _Optional[bytes] = ..., edges: _Optional[_Iterable[_Union[NewEdges, _Mapping]]] = ...) -> None: ...

class NewEdges(_message.Message):
    __slots__ = ("edge_type", "sources", "targets")
    EDGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    edge_type: str
    sources: VertexIds
    targets: bytes
    def __init__(self, edge_type: _Optional[str] = ..., sources: _Optional[_Union[VertexIds, _Mapping]] = ..., targets: _Optional[bytes] = ...) -> None: ...

class PredictRequest(_message.Message):
    __slots__ = ("ids", "what", "new", "node_type")
    IDS_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    ids: VertexIds
    what: str
    new: NewVertices
    node_type: str
    def __init__(self, ids: _Optional[_Union[VertexIds, _Mapping]] = ..., what: _Optional[str] = ..., new: _Optional[_Union[NewVertices, _Mapping]] = ..., node_type: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("ids", "count", "relation", "new")
    IDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RELATION_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    ids: VertexIds
    count: int
    relation: str
    new: NewVertices
    def __init__(self, ids: _Optional[_Union[VertexIds, _Mapping]] = ..., count: _Optional[int] = ..., relation: _Optional[str] = ..., new: _Optional[_Union[NewVertices, _Mapping]] = ...) -> None: ...

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
