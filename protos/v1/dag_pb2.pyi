from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EdgeUse(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOIN: _ClassVar[EdgeUse]
    WITHIN: _ClassVar[EdgeUse]
    ROWS: _ClassVar[EdgeUse]
    BUDGET: _ClassVar[EdgeUse]

class Frontier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FRONTIER_NEW: _ClassVar[Frontier]
    FRONTIER_ALL: _ClassVar[Frontier]
JOIN: EdgeUse
WITHIN: EdgeUse
ROWS: EdgeUse
BUDGET: EdgeUse
FRONTIER_NEW: Frontier
FRONTIER_ALL: Frontier

class DagSpec(_message.Message):
    __slots__ = ("version", "operators", "disjoint", "edge_tables", "edge_weights", "dependency")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    DISJOINT_FIELD_NUMBER: _ClassVar[int]
    EDGE_TABLES_FIELD_NUMBER: _ClassVar[int]
    EDGE_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCY_FIELD_NUMBER: _ClassVar[int]
    version: int
    operators: _containers.RepeatedCompositeFieldContainer[Operator]
    disjoint: bool
    edge_tables: _containers.RepeatedCompositeFieldContainer[EdgeTableRef]
    edge_weights: _containers.RepeatedCompositeFieldContainer[EdgeWeights]
    dependency: int
    def __init__(self, version: _Optional[int] = ..., operators: _Optional[_Iterable[_Union[Operator, _Mapping]]] = ..., disjoint: _Optional[bool] = ..., edge_tables: _Optional[_Iterable[_Union[EdgeTableRef, _Mapping]]] = ..., edge_weights: _Optional[_Iterable[_Union[EdgeWeights, _Mapping]]] = ..., dependency: _Optional[int] = ...) -> None: ...

class EdgeWeights(_message.Message):
    __slots__ = ("edge_type", "norm", "unbiased", "summed")
    class Norm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[EdgeWeights.Norm]
        ROW: _ClassVar[EdgeWeights.Norm]
        BOTH: _ClassVar[EdgeWeights.Norm]
        GCN: _ClassVar[EdgeWeights.Norm]
    NONE: EdgeWeights.Norm
    ROW: EdgeWeights.Norm
    BOTH: EdgeWeights.Norm
    GCN: EdgeWeights.Norm
    EDGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    UNBIASED_FIELD_NUMBER: _ClassVar[int]
    SUMMED_FIELD_NUMBER: _ClassVar[int]
    edge_type: str
    norm: EdgeWeights.Norm
    unbiased: bool
    summed: bool
    def __init__(self, edge_type: _Optional[str] = ..., norm: _Optional[_Union[EdgeWeights.Norm, str]] = ..., unbiased: _Optional[bool] = ..., summed: _Optional[bool] = ...) -> None: ...

class Operator(_message.Message):
    __slots__ = ("id", "inputs", "seed", "positive", "negative", "neighborhood", "feature", "batch")
    ID_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    POSITIVE_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_FIELD_NUMBER: _ClassVar[int]
    NEIGHBORHOOD_FIELD_NUMBER: _ClassVar[int]
    FEATURE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    id: str
    inputs: _containers.RepeatedScalarFieldContainer[str]
    seed: SeedOp
    positive: PositiveOp
    negative: NegativeOp
    neighborhood: NeighborhoodOp
    feature: FeatureOp
    batch: BatchOp
    def __init__(self, id: _Optional[str] = ..., inputs: _Optional[_Iterable[str]] = ..., seed: _Optional[_Union[SeedOp, _Mapping]] = ..., positive: _Optional[_Union[PositiveOp, _Mapping]] = ..., negative: _Optional[_Union[NegativeOp, _Mapping]] = ..., neighborhood: _Optional[_Union[NeighborhoodOp, _Mapping]] = ..., feature: _Optional[_Union[FeatureOp, _Mapping]] = ..., batch: _Optional[_Union[BatchOp, _Mapping]] = ...) -> None: ...

class SeedOp(_message.Message):
    __slots__ = ("node_type", "links", "others")
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    node_type: str
    links: str
    others: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node_type: _Optional[str] = ..., links: _Optional[str] = ..., others: _Optional[_Iterable[str]] = ...) -> None: ...

class PositiveOp(_message.Message):
    __slots__ = ("edge_type",)
    EDGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    edge_type: str
    def __init__(self, edge_type: _Optional[str] = ...) -> None: ...

class NegativeOp(_message.Message):
    __slots__ = ("edge_type", "count", "links")
    EDGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    edge_type: str
    count: int
    links: NegativeLinks
    def __init__(self, edge_type: _Optional[str] = ..., count: _Optional[int] = ..., links: _Optional[_Union[NegativeLinks, _Mapping]] = ...) -> None: ...

class NegativeLinks(_message.Message):
    __slots__ = ("triplet", "amount", "strategy")
    class Strategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNIFORM: _ClassVar[NegativeLinks.Strategy]
        DEGREE: _ClassVar[NegativeLinks.Strategy]
        IN_BATCH: _ClassVar[NegativeLinks.Strategy]
        EXACT: _ClassVar[NegativeLinks.Strategy]
    UNIFORM: NegativeLinks.Strategy
    DEGREE: NegativeLinks.Strategy
    IN_BATCH: NegativeLinks.Strategy
    EXACT: NegativeLinks.Strategy
    TRIPLET_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    triplet: bool
    amount: float
    strategy: NegativeLinks.Strategy
    def __init__(self, triplet: _Optional[bool] = ..., amount: _Optional[float] = ..., strategy: _Optional[_Union[NegativeLinks.Strategy, str]] = ...) -> None: ...

class NeighborhoodOp(_message.Message):
    __slots__ = ("hop", "fan_outs", "replace", "frontier", "method", "use", "budgets", "table", "method_name")
    HOP_FIELD_NUMBER: _ClassVar[int]
    FAN_OUTS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    METHOD_NAME_FIELD_NUMBER: _ClassVar[int]
    hop: int
    fan_outs: _containers.RepeatedCompositeFieldContainer[FanOut]
    replace: bool
    frontier: Frontier
    method: int
    use: EdgeUse
    budgets: _containers.RepeatedCompositeFieldContainer[Budget]
    table: str
    method_name: str
    def __init__(self, hop: _Optional[int] = ..., fan_outs: _Optional[_Iterable[_Union[FanOut, _Mapping]]] = ..., replace: _Optional[bool] = ..., frontier: _Optional[_Union[Frontier, str]] = ..., method: _Optional[int] = ..., use: _Optional[_Union[EdgeUse, str]] = ..., budgets: _Optional[_Iterable[_Union[Budget, _Mapping]]] = ..., table: _Optional[str] = ..., method_name: _Optional[str] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ("node_type", "count")
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    node_type: str
    count: int
    def __init__(self, node_type: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class BatchOp(_message.Message):
    __slots__ = ("name", "options", "edge_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    EDGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    options: str
    edge_type: str
    def __init__(self, name: _Optional[str] = ..., options: _Optional[str] = ..., edge_type: _Optional[str] = ...) -> None: ...

class FanOut(_message.Message):
    __slots__ = ("edge_type", "count")
    EDGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    edge_type: str
    count: int
    def __init__(self, edge_type: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class FeatureOp(_message.Message):
    __slots__ = ("tables", "reduce")
    class Reduce(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[FeatureOp.Reduce]
        SUM: _ClassVar[FeatureOp.Reduce]
        MEAN: _ClassVar[FeatureOp.Reduce]
        GCN: _ClassVar[FeatureOp.Reduce]
    NONE: FeatureOp.Reduce
    SUM: FeatureOp.Reduce
    MEAN: FeatureOp.Reduce
    GCN: FeatureOp.Reduce
    TABLES_FIELD_NUMBER: _ClassVar[int]
    REDUCE_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableRef]
    reduce: FeatureOp.Reduce
    def __init__(self, tables: _Optional[_Iterable[_Union[TableRef, _Mapping]]] = ..., reduce: _Optional[_Union[FeatureOp.Reduce, str]] = ...) -> None: ...

class EdgeTableRef(_message.Message):
    __slots__ = ("edge_type", "name")
    EDGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    edge_type: str
    name: str
    def __init__(self, edge_type: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class TableRef(_message.Message):
    __slots__ = ("node_type", "name")
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    node_type: str
    name: str
    def __init__(self, node_type: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...
