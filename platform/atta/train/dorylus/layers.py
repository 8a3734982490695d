"""What a worker computes of a layer: rows of the next layer from sums, or the loss, or gradients. Stateless.

A worker imports this file, torch and numpy, but not PyG, which takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from atta.errors import ConfigError
from atta.samplers.hashing import hash_string, stream_key
from atta.train.dorylus.links import Arrays
from atta.train.steps.masks import keep_mask

Longs = npt.NDArray[np.int64]
LossOfRows = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_SLOPE = 0.2


@dataclass(frozen=True)
class LayerForm:
    """A layer as a worker must know it.

    Attributes:
        kind: ``gcn``, ``sage`` or ``gat``.
        weights: names and shapes, in the order in which they lie in a vector.
        number: of the layer, from 0.
        last: whether its rows are scores. Rows of other layers pass ReLU and dropout.
        dropout: probability with which a number is dropped.
        heads, concat: of gat.
    """

    kind: str
    weights: tuple[tuple[str, tuple[int, ...]], ...]
    number: int
    last: bool
    dropout: float = 0.0
    heads: int = 1
    concat: bool = True

    @property
    def size(self) -> int:
        """How many weights the layer has."""
        return sum(math.prod(shape) for _, shape in self.weights)

    @property
    def reads(self) -> int:
        """Width of the sums that it takes."""
        return dict(self.weights)["lin_l.weight" if self.kind == "sage" else "lin.weight"][1]

    @property
    def makes(self) -> int:
        """Width of the rows that it makes."""
        return dict(self.weights)["lin_l.bias" if self.kind == "sage" else "bias"][0]

    def to_dict(self) -> dict[str, Any]:
        """As ``from_dict`` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> LayerForm:
        """What ``to_dict`` made, after a trip through JSON. Raises ConfigError for anything else."""
        try:
            if set(value) != {field.name for field in fields(cls)} or value["kind"] not in _KINDS:
                raise ValueError("unknown fields or kind")
            weights = tuple((str(name), tuple(int(n) for n in shape)) for name, shape in value["weights"])
            return cls(**{**value, "weights": weights})
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigError(f"{value!r} describes no layer: {error}") from error

    def named(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """The weights by name, from a vector [size]."""
        pieces = vector.split([math.prod(shape) for _, shape in self.weights])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.weights, pieces, strict=True)}


def computed(part: str, form: LayerForm, about: Mapping[str, Any], arrays: Arrays, loss: LossOfRows) -> dict[str, Any]:
    """The results of a task, by name.

    ``apply``: ``rows``. ``loss``: ``loss`` (a sum, not a mean), ``weights`` and ``sums``: gradients of the mean.
    ``apply-back``: ``weights``, and ``sums`` unless the layer is the first one, whose sums are made of features.

    arrays: ``sums`` [t, channels], ``weights`` [size]; ``keys`` int64 [n], user ids of the interval, for dropout;
    ``edges`` int64 [2, e] and ``edge_keys`` int64 [e] for gat; ``targets`` and their ``places`` int64 [m] for the loss;
    ``gradients`` [n, channels of the next layer] for apply-back. about: ``seed`` and ``epoch`` for dropout, ``divisor``
    of the mean.

    Raises:
        ConfigError: an array has a shape that does not go with the others, or an infinity or NaN.
    """
    given = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    _check(part, form, given)
    sums, vector = given["sums"], given["weights"]
    if part == "apply":
        with torch.no_grad():
            return {"rows": _rows(form, sums, vector, about, given).numpy()}
    sums.requires_grad_(form.number > 0)  # those of the first layer are made of features
    vector.requires_grad_()
    rows = _rows(form, sums, vector, about, given)
    found: dict[str, Any] = {}
    if part == "loss":
        total = loss(rows.index_select(0, given["places"]), given["targets"])
        found["loss"] = total.detach().double().reshape(1).numpy()
        (total / about["divisor"]).backward()
    else:
        rows.backward(given["gradients"])
    for name, tensor in (("weights", vector), ("sums", sums)):
        if tensor.requires_grad:
            gradient = tensor.grad
            found[name] = (torch.zeros_like(tensor).detach() if gradient is None else gradient).numpy()
    return found


def _check(part: str, form: LayerForm, given: Mapping[str, torch.Tensor]) -> None:
    """Refuse arrays that do not go with the layer and each other; raises ConfigError."""
    rows = len(given["keys"])
    wanted = {"sums": (None, form.reads), "weights": (form.size,)}
    if form.kind != "gat":
        wanted["sums"] = (rows * (2 if form.kind == "sage" else 1), form.reads)
    if part == "apply-back":
        wanted["gradients"] = (rows, form.makes)
    for name, shape in wanted.items():
        found = tuple(given[name].shape)
        if len(found) != len(shape) or any(w not in (None, f) for w, f in zip(shape, found, strict=True)):
            raise ConfigError(f"{part} of layer {form.number}: {name} has shape {list(found)}, not {list(shape)}")
        if not bool(torch.isfinite(given[name]).all()):
            raise ConfigError(f"{part} of layer {form.number}: {name} has an infinity or NaN; training has diverged")


def _rows(
    form: LayerForm,
    sums: torch.Tensor,
    vector: torch.Tensor,
    about: Mapping[str, Any],
    given: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """Rows of the interval: [n, channels of the next layer], or scores."""
    h = _KINDS[form.kind](form, sums, form.named(vector), about, given)
    if form.last:
        return h
    h = h.relu()
    # The names and numbers are those of RowDropout, which other strategies use: so masks are the same.
    return _dropped(h, form.dropout, _stream(about, "model", form.number), given["keys"])


def _gcn(form: LayerForm, sums: torch.Tensor, w: Mapping[str, torch.Tensor], about: Any, given: Any) -> torch.Tensor:
    return sums @ w["lin.weight"].T + w["bias"]


def _sage(form: LayerForm, sums: torch.Tensor, w: Mapping[str, torch.Tensor], about: Any, given: Any) -> torch.Tensor:
    means, own = sums.chunk(2)
    return means @ w["lin_l.weight"].T + w["lin_l.bias"] + own @ w["lin_r.weight"].T


def _gat(
    form: LayerForm, sums: torch.Tensor, w: Mapping[str, torch.Tensor], about: Any, given: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    source, target = given["edges"]
    count = len(given["keys"])
    z = (sums @ w["lin.weight"].T).view(len(sums), form.heads, -1)
    logits = (z * w["att_src"]).sum(-1)[source] + (z[:count] * w["att_dst"]).sum(-1)[target]
    logits = torch.nn.functional.leaky_relu(logits, _SLOPE)
    places = target[:, None].expand_as(logits)
    most = logits.new_full((count, form.heads), -math.inf).scatter_reduce(0, places, logits.detach(), "amax")
    shares = (logits - most[target]).exp()
    # As in PyG's softmax: the small number keeps a sum from being 0.
    shares = shares / (shares.new_zeros(count, form.heads).index_add(0, target, shares) + 1e-16)[target]
    shares = _dropped(shares, form.dropout, _stream(about, f"layer {form.number}", 0), given["edge_keys"])
    out = z.new_zeros(count, *z.shape[1:]).index_add(0, target, z[source] * shares[..., None])
    return (out.flatten(1) if form.concat else out.mean(1)) + w["bias"]


_KINDS: dict[str, Callable[..., torch.Tensor]] = {"gcn": _gcn, "sage": _sage, "gat": _gat}


def _stream(about: Mapping[str, Any], place: str, call: int) -> int:
    return stream_key(int(about["seed"]), int(about["epoch"]), 0, call, hash_string(f"dropout in {place}"))


def _dropped(h: torch.Tensor, p: float, stream: int, keys: torch.Tensor) -> torch.Tensor:
    if not p:
        return h
    kept = keep_mask(stream, keys, math.prod(h.shape[1:]), p).view(h.shape)
    return h * kept.to(h.dtype).div_(1 - p)
