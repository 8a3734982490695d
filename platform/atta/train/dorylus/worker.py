"""A worker: it connects to a trainer, computes one task after another, and keeps nothing (``atta worker``). A task
makes rows of the next layer from sums, or the loss, or gradients. A worker imports no PyG, which takes seconds."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from atta.errors import ConfigError, RemoteError, blaming
from atta.samplers.hashing import hash_string, stream_key
from atta.train.dorylus.links import Arrays, join
from atta.train.steps.masks import dropped
from atta.train.tasks import TASKS
from atta.train.tasks.vertices import Regression

FAULTS_VARIABLE = "ATTA_WORKER_FAULTS"
_EXAMPLE = "write it like link=20e6,delay=0.005:0.05,kill=0.1,late=0.1:2"
_NUMBERS = {"link": 1, "delay": 2, "kill": 1, "late": 2, "seed": 1}
_MOST_S = 3600.0


@dataclass(frozen=True)
class WorkerFaults:
    """What happens to workers.

    Attributes:
        link: bits per second that a worker's own link carries each way; infinity: as fast as this machine.
        delay: seconds that a message takes besides, the least and the most; evenly drawn for each.
        kill: share of tasks in whose middle the worker kills itself (SIGKILL).
        late: share of tasks that take longer, and by how many seconds.
        seed: of all draws.
    """

    link: float = math.inf
    delay: tuple[float, float] = (0.0, 0.0)
    kill: float = 0.0
    late: tuple[float, float] = (0.0, 0.0)
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> WorkerFaults:
        """Read ``link=BITS_PER_S,delay=LEAST:MOST,kill=SHARE,late=SHARE:SECONDS,seed=N``, each of them once or not at
        all. Raises ConfigError: it cannot be read, or a number is out of range."""
        found: dict[str, Any] = {}
        try:
            for word in text.split(","):
                name, _, value = word.strip().partition("=")
                numbers = tuple((int if name == "seed" else float)(number) for number in value.split(":"))
                if name in found or len(numbers) != _NUMBERS[name]:
                    raise ValueError
                found[name] = numbers if len(numbers) > 1 else numbers[0]
        except (KeyError, ValueError):
            raise ConfigError(f"worker faults {text!r}: cannot be read; {_EXAMPLE}") from None
        faults = cls(**found)
        in_range = {
            "link": faults.link > 0,
            "delay": 0 <= faults.delay[0] <= faults.delay[1] <= _MOST_S,
            "kill": 0 <= faults.kill < 1,
            "late": 0 <= faults.late[0] <= 1 and 0 <= faults.late[1] <= _MOST_S,
        }
        for name, fits in in_range.items():
            if not fits:
                raise ConfigError(f"worker faults {text!r}: {name} is out of range")
        return faults

    def of_worker(self, rank: int, number: int) -> FaultyWorker:
        """The faults of the worker with this number, of the trainer with this rank."""
        return FaultyWorker(self, random.Random(f"{self.seed}/{rank}/{number}"))


class FaultyWorker:
    """The draws of one worker. A worker sleeps where a link would make it wait, so nobody computes meanwhile."""

    def __init__(self, faults: WorkerFaults, draw: random.Random) -> None:
        self._faults, self._draw = faults, draw

    def seconds(self, size: int) -> float:
        """How long a message of ``size`` bytes takes."""
        return 8 * size / self._faults.link + self._draw.uniform(*self._faults.delay)

    def task(self, size: int) -> None:
        """A task of ``size`` bytes has come: wait for it, be late with it, or die of it."""
        took, (share, late_s) = self.seconds(size), self._faults.late
        killed, late = self._draw.random() < self._faults.kill, self._draw.random() < share
        time.sleep(took)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if late:
            time.sleep(late_s)

    def result(self, size: int) -> None:
        """A result of ``size`` bytes is to be sent."""
        time.sleep(self.seconds(size))


Longs = npt.NDArray[np.int64]
Tensors = Mapping[str, torch.Tensor]
LossOfRows = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_SLOPE = 0.2


@dataclass(frozen=True)
class LayerForm:
    """A layer as a worker must know it: ``gcn``, ``sage`` or ``gat`` (``heads``, ``concat``).

    Attributes:
        weights: names and shapes, in the order in which they lie in a vector.
        last: whether its rows are scores. Rows of other layers pass ReLU and dropout.
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

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> LayerForm:
        """What ``asdict`` made, after a trip through JSON. Raises ConfigError for anything else."""
        with blaming(ConfigError, f"{value!r} describes no layer", of=(TypeError, ValueError, KeyError)):
            if set(value) != {field.name for field in fields(cls)} or value["kind"] not in _KINDS:
                raise ValueError("unknown fields or kind")
            weights = tuple((str(name), tuple(int(n) for n in shape)) for name, shape in value["weights"])
            return cls(**{**value, "weights": weights})


def computed(part: str, form: LayerForm, about: Mapping[str, Any], arrays: Arrays, loss: LossOfRows) -> dict[str, Any]:
    """The results of a task, by name.

    ``apply``: ``rows``. ``loss``: ``loss`` (a sum, not a mean), ``weights`` and ``sums``: gradients of the mean.
    ``apply-back``: ``weights``, and ``sums`` unless the layer is the first one, whose sums are made of features.

    arrays: ``sums`` [t, channels], ``weights`` [size]; ``keys`` int64 [n], user ids of the interval, for dropout;
    ``edges`` int64 [2, e] and ``edge_keys`` int64 [e] for gat; ``targets`` and their ``places`` int64 [m] for the loss;
    ``gradients`` [n, channels of the next layer] for apply-back. about: ``seed`` and ``epoch`` for dropout, ``divisor``
    of the mean. Raises ConfigError: an array has a shape that does not go with the others, or an infinity or NaN.
    """
    given = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    _check(part, form, given)
    sums, vector = given["sums"], given["weights"]
    if part == "apply":
        with torch.no_grad():
            return {"rows": _rows(form, about, given).numpy()}
    sums.requires_grad_(form.number > 0)  # those of the first layer are made of features
    vector.requires_grad_()
    rows = _rows(form, about, given)
    found: dict[str, Any] = {}
    if part == "loss":
        total = loss(rows.index_select(0, given["places"]), given["targets"])
        found["loss"] = total.detach().double().reshape(1).numpy()
        (total / about["divisor"]).backward()
    else:
        rows.backward(given["gradients"])
    for name, tensor in (("weights", vector), ("sums", sums)):
        if tensor.requires_grad:
            found[name] = (torch.zeros_like(tensor.detach()) if tensor.grad is None else tensor.grad).numpy()
    return found


def _check(part: str, form: LayerForm, given: Mapping[str, torch.Tensor]) -> None:
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


def _rows(form: LayerForm, about: Mapping[str, Any], given: Tensors) -> torch.Tensor:
    """Rows of the interval: [n, channels of the next layer], or scores."""
    pieces = given["weights"].split([math.prod(shape) for _, shape in form.weights])
    w = {name: piece.view(shape) for (name, shape), piece in zip(form.weights, pieces, strict=True)}
    h = _KINDS[form.kind](form, w, about, given)
    # The names and numbers are those of RowDropout, which other strategies use: so masks are the same.
    return h if form.last else _dropped(h.relu(), form, about, ("model", form.number), given["keys"])


def _gcn(form: LayerForm, w: Tensors, about: Mapping[str, Any], given: Tensors) -> torch.Tensor:
    return given["sums"] @ w["lin.weight"].T + w["bias"]


def _sage(form: LayerForm, w: Tensors, about: Mapping[str, Any], given: Tensors) -> torch.Tensor:
    means, own = given["sums"].chunk(2)
    return means @ w["lin_l.weight"].T + w["lin_l.bias"] + own @ w["lin_r.weight"].T


def _gat(form: LayerForm, w: Tensors, about: Mapping[str, Any], given: Tensors) -> torch.Tensor:
    (source, target), sums, count = given["edges"], given["sums"], len(given["keys"])
    z = (sums @ w["lin.weight"].T).view(len(sums), form.heads, -1)
    logits = (z * w["att_src"]).sum(-1)[source] + (z[:count] * w["att_dst"]).sum(-1)[target]
    logits = torch.nn.functional.leaky_relu(logits, _SLOPE)
    places = target[:, None].expand_as(logits)
    most = logits.new_full((count, form.heads), -math.inf).scatter_reduce(0, places, logits.detach(), "amax")
    shares = (logits - most[target]).exp()
    # As in PyG's softmax: the small number keeps a sum from being 0.
    shares = shares / (shares.new_zeros(count, form.heads).index_add(0, target, shares) + 1e-16)[target]
    shares = _dropped(shares, form, about, (f"layer {form.number}", 0), given["edge_keys"])
    out = z.new_zeros(count, *z.shape[1:]).index_add(0, target, z[source] * shares[..., None])
    return (out.flatten(1) if form.concat else out.mean(1)) + w["bias"]


_KINDS: dict[str, Callable[..., torch.Tensor]] = {"gcn": _gcn, "sage": _sage, "gat": _gat}


def _dropped(
    h: torch.Tensor, form: LayerForm, about: Mapping[str, Any], place: tuple[str, int], keys: torch.Tensor
) -> torch.Tensor:
    if not form.dropout:
        return h
    name, call = place
    stream = stream_key(int(about["seed"]), int(about["epoch"]), 0, call, hash_string(f"dropout in {name}"))
    return dropped(h, stream, keys, form.dropout)


def work_for(address: str, key: bytes, number: int) -> None:
    """Compute tasks of the trainer at ``address`` until it needs no more, or ends. ``number``: that the trainer gave
    it. Raises ConfigError: the trainer refuses this worker, or the faults that it is asked for make no sense;
    RemoteError: nobody answers there, or it does not know the key."""
    torch.set_num_threads(1)
    asked = os.environ.get(FAULTS_VARIABLE)
    faults = WorkerFaults.parse(asked) if asked else WorkerFaults()
    faulty = faults.of_worker(int(os.environ.get("RANK", "0")), number)
    weights = torch.ones(4, 4, requires_grad=True)  # what torch does only the first time must not make a task late
    torch.nn.functional.cross_entropy(torch.ones(4, 4) @ weights, torch.arange(4)).backward()
    stream, setting = join(address, key, {"role": "worker", "number": number})
    try:
        loss = loss_of(setting)
        while "end" not in (message := stream.receive())[0]:
            about, arrays = message
            faulty.task(sum(array.nbytes for array in arrays.values()))
            told: dict[str, Any] = {"work": about["work"]}
            results: dict[str, Any] = {}
            try:
                results = computed(about["part"], LayerForm.from_dict(about["layer"]), about, arrays, loss)
            except (ConfigError, RuntimeError, IndexError) as error:
                told["error"] = str(error)
            faulty.result(sum(array.nbytes for array in results.values()))
            stream.send(told, results)
    except RemoteError:
        return  # the trainer has ended
    finally:
        stream.close()


def loss_setting(task: str, regression_loss: str, weights: torch.Tensor | None) -> dict[str, Any]:
    """What a worker must know of the loss. ``weights``: of classes [outputs]."""
    return {"task": task, "regression_loss": regression_loss, "weights": None if weights is None else weights.tolist()}


def loss_of(setting: Mapping[str, Any]) -> LossOfRows:
    """The sum of losses, from ``loss_setting``."""
    task = Regression(setting["regression_loss"]) if setting["task"] == "regression" else TASKS[setting["task"]]
    given = setting["weights"]

    def loss(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        weights = None if given is None else torch.tensor(given, dtype=torch.float32).to(rows.dtype)
        return task.loss(rows, targets, weights)

    return loss
