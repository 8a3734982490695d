"""A vector of weights: its optimiser, its versions, and who still needs an old one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from atta.errors import ConfigError, NonFiniteError
from atta.kvstore.parameters.spec import ParameterSpec, VectorStep

__all__ = ["MAX_VERSION", "VectorOptimiser", "WeightVersions", "checked_vector"]

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

        Raises the errors of ``checked_vector``, and ConfigError for a version that is out of range.
        """
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

    def validate(self, pinned: Counter[int]) -> None:
        """Raise AssertionError where an invariant does not hold. ``pinned``: the pins that there should be."""
        assert self._pins == pinned, f"pins are {self._pins}, not {pinned}"
        assert set(self._kept) == {self.version} | set(pinned), f"versions {sorted(self._kept)} are kept"

    def _drop(self, version: int) -> None:
        if version != self.version and version not in self._pins:
            self._kept.pop(version, None)


def checked_vector(
    spec: ParameterSpec, values: np.ndarray, size: int, *, member: int, step: int, layer: int
) -> np.ndarray:
    """``values`` if they are ``size`` finite numbers of the job's dtype.

    Raises:
        ConfigError: another dtype or shape.
        NonFiniteError: an infinity or NaN.
    """
    if values.dtype.str != spec.dtype or values.shape != (size,):
        raise ConfigError(
            f"weights of {spec.name}: {values.dtype.str} {list(values.shape)} came from member {member}, "
            f"layer {layer} takes {spec.dtype} [{size}]"
        )
    if not np.isfinite(values).all():
        raise NonFiniteError(member, step, layer, "gradients or weights")
    return values
