"""Neighbour methods: how the in-edges of a vertex are drawn. A method reads one vertex and its edges only, so the owner
of a vertex can answer alone. Each of Atta has a file of its name with ``METHOD``, a description that all other code
reads."""

from __future__ import annotations

import enum
from importlib import import_module

from atta.errors import ConfigError, blaming
from atta.observe.plugins import OpenRegistry
from atta.samplers.methods.base import BY_NAME, InEdges, NeighborMethod, Tables


class Method(enum.Enum):
    """How ``fan_out`` of a vertex' d in-edges are drawn. The value is the name of the file that describes the method,
    and the attributes are those of its ``NeighborMethod``. ``Method("first")`` is a plug-in's, once and the same, though
    iteration gives those of Atta alone. In messages it is ``number``, and ``sent_name`` for a plug-in's. ``linked``: links
    carry its draws."""

    UNIFORM = "uniform"
    WEIGHTED = "weighted"
    TEMPORAL = "temporal"
    LAST = "last"
    LABOR = "labor"

    def __init__(self, name: str) -> None:
        self._describe(import_module(f"{__name__}.{name}").METHOD)

    def _describe(self, rules: NeighborMethod, sent_name: str = "") -> None:
        self.rules = rules
        self.number, self.sent_name = BY_NAME if sent_name else rules.number, sent_name
        self.table, self.needs_table = rules.table, rules.needs_table
        self.temporal, self.bounded, self.may_replace = rules.temporal, rules.bounded, rules.may_replace
        self.linked = rules.draw is None and not sent_name

    @classmethod
    def _missing_(cls, name: object) -> Method:
        """The method of a plug-in. Raises UnknownNameError, PluginError."""
        if not isinstance(name, str):
            raise METHODS.unknown(name)
        member = object.__new__(cls)
        member._name_ = member._value_ = name
        member._describe(METHODS[name], name)
        return cls._value2member_map_.setdefault(name, member)  # type: ignore[return-value]  # it holds members

    def __reduce_ex__(self, protocol: object) -> tuple[type[Method], tuple[str]]:
        return Method, (self.value,)  # Python 3.11.2 would pickle names of attributes, and plug-ins' methods are none

    @classmethod
    def sent(cls, number: int, name: str) -> Method:
        """The method that a message names. Raises ConfigError: this process has none with this number or name."""
        if number == BY_NAME:
            return cls(name)
        if number not in BY_NUMBER:
            raise ConfigError(f"unknown method {number}")
        return BY_NUMBER[number]


BY_NUMBER = {method.number: method for method in Method}
"""Those of Atta by their numbers in messages."""
METHODS: OpenRegistry[NeighborMethod] = OpenRegistry(
    "neighbour method",
    "atta.methods",
    {method.value: method.rules for method in Method},
    "a NeighborMethod",
    lambda part: isinstance(part, NeighborMethod),
)


def tables_for(method: Method, edges: InEdges) -> Tables | None:
    """Prepare a method for the edges of a CSC. None means that edges are drawn uniformly, which needs no preparation.
    The tables take 16 bytes per edge (weighted), 12 (temporal) or 4 (LABOR). Raises
    ConfigError: the weights are missing, a weight is NaN, infinite or negative, or times are not integers."""
    with blaming(ConfigError, of=ValueError):
        return method.rules.tables(edges, f"method {METHODS.plugins().get(method.value, method.value)}")
