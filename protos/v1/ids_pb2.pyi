from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class NumbersRequest(_message.Message):
    __slots__ = ("node_type", "width", "strings")
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    node_type: str
    width: int
    strings: bytes
    def __init__(self, node_type: _Optional[str] = ..., width: _Optional[int] = ..., strings: _Optional[bytes] = ...) -> None: ...

class NumbersReply(_message.Message):
    __slots__ = ("at", "numbers")
    AT_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    at: bytes
    numbers: bytes
    def __init__(self, at: _Optional[bytes] = ..., numbers: _Optional[bytes] = ...) -> None: ...

class StringsRequest(_message.Message):
    __slots__ = ("node_type", "numbers")
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    node_type: str
    numbers: bytes
    def __init__(self, node_type: _Optional[str] = ..., numbers: _Optional[bytes] = ...) -> None: ...

class StringsReply(_message.Message):
    __slots__ = ("width", "at", "strings")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    width: int
    at: bytes
    strings: bytes
    def __init__(self, width: _Optional[int] = ..., at: _Optional[bytes] = ..., strings: _Optional[bytes] = ...) -> None: ...
