"""Describes the weights of a job: how long they are, who changes them and how. Plain values, sent as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from atta.errors import ConfigError
from atta.kvstore.initial import is_finite
from atta.kvstore.spec import check_name

__all__ = ["JOB_LEASES", "MAX_BOUND", "MAX_MEMBERS", "Applies", "ParameterSpec", "VectorStep"]

MAX_MEMBERS = 4096
MAX_BOUND = 1 << 20
MAX_LAYERS = 1024
JOB_LEASES = 4
"""A job of which nothing is heard for this many leases is dropped."""
MAX_TEXT = 16_384
"""Longest description of weights, in characters of JSON."""
MAX_SIZE = 12 << 20
"""At most this many weights: a vector travels in one message."""
Applies = Literal["arrival", "summed"]


@dataclass(frozen=True, slots=True)
class VectorStep:
    """How a gradient changes the weights: as torch.optim's SGD (no momentum) or Adam.

    Attributes:
        kind: ``"sgd"`` or ``"adam"``.
        lr: learning rate.
        weight_decay: this share of the weights is added to the gradient.
        betas: decay of the means of gradients and of their squares (Adam).
        eps: added to denominators (Adam).
    """

    kind: str
    lr: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.kind not in ("sgd", "adam"):
            raise ConfigError(f"optimiser of weights: kind {self.kind!r} is neither 'sgd' nor 'adam'")
        for name in ("lr", "weight_decay", "eps"):
            _check_number(f"optimiser of weights: {name}", getattr(self, name))
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"optimiser of weights: betas {self.betas!r} are not two numbers from 0 to below 1")

    @property
    def moments(self) -> int:
        """How many arrays, each as long as the weights, the optimiser keeps."""
        return 2 if self.kind == "adam" else 0


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """The weights of one job.

    Attributes:
        name: of the job; letters, digits, dots, dashes and single underscores, at most 100 characters.
        layers: how many weights each layer has. The vector holds them one after the other.
        members: how many members take part: trainers, or intervals of vertices.
        applies: ``"arrival"``: each gradient of a trainer is a step of the optimiser. ``"summed"``: gradients of all
            intervals of an epoch are summed in the order of the intervals, then they are one step.
        optimiser: the step.
        dtype: ``"<f4"`` or ``"<f8"``.
        bound: a member starts a step at most this many steps after the slowest member's; None: no bound.
        lease_s: a member that is silent for so long does not hold the others any more. A job in which all are silent
            for four times as long is dropped.
        max_updates: the job is done after this many updates; 0: no limit.
    """

    name: str
    layers: tuple[int, ...]
    members: int
    applies: Applies
    optimiser: VectorStep
    dtype: str = "<f4"
    bound: int | None = None
    lease_s: float = 30.0
    max_updates: int = 0

    def __post_init__(self) -> None:
        check_name(self.name)
        where = f"weights of {self.name}"
        if not 0 < len(self.layers) <= MAX_LAYERS or not all(type(n) is int and n > 0 for n in self.layers):
            raise ConfigError(f"{where}: must have 1 to {MAX_LAYERS} layers, each with at least one weight")
        if self.size > MAX_SIZE * 4 // self.itemsize:
            raise ConfigError(f"{where}: {self.size} weights; at most {MAX_SIZE * 4 // self.itemsize} fit a message")
        if type(self.members) is not int or not 0 < self.members <= MAX_MEMBERS:
            raise ConfigError(f"{where}: {self.members!r} members; 1 to {MAX_MEMBERS} are possible")
        if self.applies not in get_args(Applies):
            raise ConfigError(f"{where}: gradients are applied on 'arrival' or 'summed', not {self.applies!r}")
        if self.bound is not None and (type(self.bound) is not int or not 0 <= self.bound <= MAX_BOUND):
            raise ConfigError(f"{where}: bound {self.bound!r} is not a number from 0 to {MAX_BOUND}")
        if self.applies == "summed" and self.bound is None:
            raise ConfigError(f"{where}: summed gradients need a bound, because open epochs take memory")
        _check_number(f"{where}: lease in seconds", self.lease_s)
        if self.lease_s == 0:
            raise ConfigError(f"{where}: a lease of 0 s is over at once")
        if type(self.max_updates) is not int or self.max_updates < 0:
            raise ConfigError(f"{where}: max_updates {self.max_updates!r} is not 0 or more")

    @property
    def size(self) -> int:
        """How many weights there are."""
        return sum(self.layers)

    @property
    def itemsize(self) -> int:
        """Bytes of a weight. Raises ConfigError for a dtype that is not possible."""
        if self.dtype not in ("<f4", "<f8"):
            raise ConfigError(f"weights of {self.name}: dtype {self.dtype!r} is neither '<f4' nor '<f8'")
        return int(self.dtype[-1])

    @property
    def nbytes(self) -> int:
        """The most memory that the job takes: weights, moments, temporary arrays of a step, pinned versions, sums."""
        vectors = 1 + self.optimiser.moments + 3
        if self.applies == "summed":
            assert self.bound is not None, "checked when the description was made"
            epochs = self.bound + 1
            vectors += epochs + epochs * (1 + self.members)
        return vectors * self.size * self.itemsize + 256 * self.members

    def check_state(self) -> None:
        """Raise ConfigError where weights and moments together are too long for a message."""
        nbytes = (1 + self.optimiser.moments) * self.size * self.itemsize
        if nbytes > 4 * MAX_SIZE:
            raise ConfigError(
                f"weights of {self.name}: {nbytes} bytes with what the optimiser keeps; at most {4 * MAX_SIZE} fit a message"
            )

    def to_dict(self) -> dict[str, Any]:
        """As ``from_dict`` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, text: str) -> ParameterSpec:
        """Read ``to_dict`` as JSON; raises ConfigError."""
        if len(text) > MAX_TEXT:
            raise ConfigError(f"weights: the description has {len(text)} characters, at most {MAX_TEXT} are possible")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError("weights: the description is not JSON") from None
        return cls.from_dict(value)

    @classmethod
    def from_dict(cls, value: object) -> ParameterSpec:
        """Read what ``to_dict`` made, perhaps after a trip through JSON; raises ConfigError."""
        try:
            found = _known(cls, value)
            step = _known(VectorStep, found["optimiser"])
            if "betas" in step:
                step["betas"] = tuple(step["betas"])
            return cls(**{**found, "layers": tuple(found["layers"]), "optimiser": VectorStep(**step)})
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"weights: the description is not of the weights of a job: {error}") from error


def _known(kind: type[Any], value: object) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    if not isinstance(value, Mapping) or not set(value) <= names:
        raise ConfigError(f"weights: the description has other fields than {', '.join(sorted(names))}")
    return dict(value)


def _check_number(what: str, value: object) -> None:
    if not is_finite(value) or value < 0:
        raise ConfigError(f"{what}: {value!r} is not a finite number from 0")
