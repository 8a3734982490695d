from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("version", "part")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    version: int
    part: int
    def __init__(self, version: _Optional[int] = ..., part: _Optional[int] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("version", "port", "local", "token", "secret")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    version: int
    port: int
    local: str
    token: bytes
    secret: bytes
    def __init__(self, version: _Optional[int] = ..., port: _Optional[int] = ..., local: _Optional[str] = ..., token: _Optional[bytes] = ..., secret: _Optional[bytes] = ...) -> None: ...
