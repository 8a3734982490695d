from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class CreateWeightsRequest(_message.Message):
    __slots__ = ("spec", "values", "version", "moments")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    spec: str
    values: bytes
    version: int
    moments: bytes
    def __init__(self, spec: _Optional[str] = ..., values: _Optional[bytes] = ..., version: _Optional[int] = ..., moments: _Optional[bytes] = ...) -> None: ...

class WeightsState(_message.Message):
    __slots__ = ("version", "done")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    version: int
    done: bool
    def __init__(self, version: _Optional[int] = ..., done: _Optional[bool] = ...) -> None: ...

class MemberRequest(_message.Message):
    __slots__ = ("name", "member", "life")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    name: str
    member: int
    life: int
    def __init__(self, name: _Optional[str] = ..., member: _Optional[int] = ..., life: _Optional[int] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class BeginStepRequest(_message.Message):
    __slots__ = ("name", "member", "life", "step", "wait_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    member: int
    life: int
    step: int
    wait_s: float
    def __init__(self, name: _Optional[str] = ..., member: _Optional[int] = ..., life: _Optional[int] = ..., step: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class BeginStepReply(_message.Message):
    __slots__ = ("version", "values", "done", "wait")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    version: int
    values: bytes
    done: bool
    wait: bool
    def __init__(self, version: _Optional[int] = ..., values: _Optional[bytes] = ..., done: _Optional[bool] = ..., wait: _Optional[bool] = ...) -> None: ...

class PushGradientRequest(_message.Message):
    __slots__ = ("name", "member", "life", "step", "layer", "version", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    member: int
    life: int
    step: int
    layer: int
    version: int
    values: bytes
    def __init__(self, name: _Optional[str] = ..., member: _Optional[int] = ..., life: _Optional[int] = ..., step: _Optional[int] = ..., layer: _Optional[int] = ..., version: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...

class PushGradientReply(_message.Message):
    __slots__ = ("applied", "version", "done")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    applied: bool
    version: int
    done: bool
    def __init__(self, applied: _Optional[bool] = ..., version: _Optional[int] = ..., done: _Optional[bool] = ...) -> None: ...

class PullWeightsRequest(_message.Message):
    __slots__ = ("name", "version", "moments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    moments: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., moments: _Optional[bool] = ...) -> None: ...

class PullWeightsReply(_message.Message):
    __slots__ = ("version", "values", "done", "moments")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    values: bytes
    done: bool
    moments: bytes
    def __init__(self, version: _Optional[int] = ..., values: _Optional[bytes] = ..., done: _Optional[bool] = ..., moments: _Optional[bytes] = ...) -> None: ...

class DropWeightsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropWeightsReply(_message.Message):
    __slots__ = ("existed",)
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    existed: bool
    def __init__(self, existed: _Optional[bool] = ...) -> None: ...
