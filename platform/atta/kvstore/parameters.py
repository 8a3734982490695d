"""Describes the weights of a job: how long they are, who changes them and how; plain values, sent as JSON. And the
versions that it has of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from atta.errors import ConfigError, NonFiniteError
from atta.kvstore.spec import check_name, check_number, described_fields, read_description

MAX_MEMBERS = 4096
MAX_BOUND = 1 << 20
MAX_LAYERS = 1024
JOB_LEASES = 4
"""A job of which nothing is heard for this many leases is dropped."""
MAX_SIZE = 12 << 20
"""At most this many weights: a vector travels in one message."""
Applies = Literal["arrival", "summed"]


@dataclass(frozen=True, slots=True)
class VectorStep:
    """How a gradient changes the weights: as torch.optim's SGD (no momentum) or Adam.

    Attributes:
        kind: ``"sgd"`` or ``"adam"``.
        weight_decay: this share of the weights is added to the gradient.
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
            check_number(f"optimiser of weights: {name}", getattr(self, name))
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
        check_number(f"{where}: lease in seconds", self.lease_s)
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
        if (nbytes := (1 + self.optimiser.moments) * self.size * self.itemsize) > 4 * MAX_SIZE:
            raise ConfigError(
                f"weights of {self.name}: {nbytes} bytes with what the optimiser keeps; at most {4 * MAX_SIZE} fit a message"
            )

    def to_dict(self) -> dict[str, Any]:
        """As ``from_dict`` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, text: str) -> ParameterSpec:
        """Read ``to_dict`` as JSON; raises ConfigError."""
        return cls.from_dict(read_description("weights", text))

    @classmethod
    def from_dict(cls, value: object) -> ParameterSpec:
        """Read what ``to_dict`` made, perhaps after a trip through JSON; raises ConfigError."""
        try:
            found = described_fields(
                "weights", cls, value, required=("name", "layers", "members", "applies", "optimiser")
            )
            step = described_fields("optimiser of weights", VectorStep, found["optimiser"], required=("kind", "lr"))
            if "betas" in step:
                step["betas"] = tuple(step["betas"])
            return cls(**{**found, "layers": tuple(found["layers"]), "optimiser": VectorStep(**step)})
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"weights: the description is not of the weights of a job: {error}") from error


MAX_VERSION = 1 << 48
"""A job goes on from at most this version."""


class VectorOptimiser:
    """Makes steps as ``torch.optim.SGD`` and ``torch.optim.Adam`` do. It changes no array that it has given out.

    Attributes:
        moments: what it keeps from step to step: means of gradients and of their squares (Adam), each [size].
    """

    def __init__(self, step: VectorStep, count: int, moments: Sequence[np.ndarray]) -> None:
        """``count``: steps that were made before; ``moments``: after them."""
        self._step, self._count, self.moments = step, count, list(moments)

    def stepped(self, values: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """New weights, [size]. A step that gives an infinity or NaN gives None of its effects: raises ArithmeticError."""
        step, count = self._step, self._count + 1
        with np.errstate(over="ignore", invalid="ignore"):
            if step.weight_decay:
                gradient = gradient + step.weight_decay * values
            means = self.moments
            if step.kind == "sgd":
                made = values - step.lr * gradient
            else:
                first, second = step.betas
                mean = means[0] + (gradient - means[0]) * (1 - first)
                square = means[1] * second + gradient * gradient * (1 - second)
                divisor = np.sqrt(square) / math.sqrt(1 - second**count) + step.eps
                made = values - (step.lr / (1 - first**count)) * (mean / divisor)
                means = [mean, square]
        if not all(np.isfinite(array).all() for array in (made, *means)):
            raise ArithmeticError("a step gave an infinity or NaN")
        self.moments, self._count = means, count
        return made


class WeightVersions:
    """The present weights, and the older versions that somebody has pinned.

    Version n has had n updates. A version is one array that nobody changes, so a reader never sees half an update.

    Attributes:
        version: the present version.
    """

    def __init__(
        self, spec: ParameterSpec, values: np.ndarray, version: int = 0, moments: np.ndarray | None = None
    ) -> None:
        """``values``: [size], of ``version``; ``moments``: as the attribute had them at that version, None: all 0.
        Raises the errors of ``checked_vector``, and ConfigError for a version that is out of range."""
        if not 0 <= version <= MAX_VERSION:
            raise ConfigError(f"weights of {spec.name}: version {version} is not from 0 to {MAX_VERSION}")
        first = checked_vector(spec, values, spec.size, member=0, step=0, layer=0)
        length = spec.optimiser.moments * spec.size
        if moments is None:
            moments = np.zeros(length, spec.dtype)
        kept = np.array(checked_vector(spec, moments, length, member=0, step=0, layer=0))
        self.version = version
        self._kept = {version: np.array(first)}
        self._pins: Counter[int] = Counter()
        self._optimiser = VectorOptimiser(spec.optimiser, version, list(kept.reshape(-1, spec.size)))

    @property
    def moments(self) -> np.ndarray:
        """What the optimiser keeps at the present version, one array after the other: [moments of the step * size]."""
        found = self._optimiser.moments
        return np.concatenate(found) if found else np.empty(0, self._kept[self.version].dtype)

    @property
    def stashed(self) -> int:
        """How many old versions are kept because somebody has pinned them."""
        return len(self._kept) - 1

    def of(self, version: int) -> np.ndarray:
        """The weights of a version that is present or pinned. Raises ConfigError: it is kept no more, or not yet there."""
        if version not in self._kept:
            raise ConfigError(f"version {version} of the weights is not kept; the present one is {self.version}")
        return self._kept[version]

    def update(self, gradient: np.ndarray) -> None:
        """Make the next version. Raises ArithmeticError, as ``VectorOptimiser`` does, and then changes nothing."""
        made = self._optimiser.stepped(self._kept[self.version], gradient)
        old, self.version = self.version, self.version + 1
        self._kept[self.version] = made
        self._drop(old)

    def pin(self) -> int:
        """Keep the present version until ``release``; returns its number."""
        self._pins[self.version] += 1
        return self.version

    def release(self, version: int) -> None:
        """Undo one ``pin``."""
        self._pins[version] -= 1
        assert self._pins[version] >= 0, f"version {version} was released more often than pinned"
        if not self._pins[version]:
            del self._pins[version]
        self._drop(version)

    def _drop(self, version: int) -> None:
        if version != self.version and version not in self._pins:
            self._kept.pop(version, None)


def checked_vector(
    spec: ParameterSpec, values: np.ndarray, size: int, *, member: int, step: int, layer: int
) -> np.ndarray:
    """``values`` if they are ``size`` finite numbers of the job's dtype. Raises ConfigError: another dtype or shape;
    NonFiniteError: an infinity or NaN."""
    if values.dtype.str != spec.dtype or values.shape != (size,):
        raise ConfigError(
            f"weights of {spec.name}: {values.dtype.str} {list(values.shape)} came from member {member}, "
            f"layer {layer} takes {spec.dtype} [{size}]"
        )
    if not np.isfinite(values).all():
        raise NonFiniteError(member, step, layer, "gradients or weights")
    return values
