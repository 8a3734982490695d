"""``DistEmbedding``: learnable rows on the daemons, stepped by optimisers where they live."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from atta.client.cluster import Cluster
from atta.client.tables.pulls import RowsPull
from atta.client.tables.pushes import Ticket
from atta.client.tables.rows import ascending_ids, rows_of_all
from atta.errors import ConfigError, DeadlineError, blaming
from atta.kvstore.codecs import check_codec
from atta.kvstore.spec import STATE_NAMES, Initialiser, MutableSpec, Normal, OptimiserSpec
from atta.samplers.arguments import integers

_ROWS = 1 << 16
_STATE_VERSION = 1
_MARKS = 64
"""As many ids per id that is looked up may be marked. So many zeros are written sooner than an id is sorted."""


class Gradients(NamedTuple):
    """Gradients of rows of a table, int64 [n]: their ``sums`` over all uses of a row in a forward pass, float32 [n, columns],
    and the number of ``uses``, int64 [n]."""

    rows: np.ndarray
    sums: np.ndarray
    uses: np.ndarray


class _AskedRows(NamedTuple):
    """Rows that are asked for, int64 [n]: each once, for ids that may repeat. ``uses``: int64 [n]. ``inverse``: int64 [ids],
    the row of each id; None: ids and rows are the same."""

    rows: np.ndarray
    uses: np.ndarray
    inverse: np.ndarray | None
    pull: RowsPull


class DistEmbedding(nn.Module):
    """An embedding whose rows and optimiser state live on the daemons.

        users = atta.DistEmbedding(cluster, 1_000_000, 64, name="users", optimizer="adam", lr=0.01)
        loss = head(users(ids)).sum()
        loss.backward()                # pushes the gradients; the next forward pass waits for them

    Only the rows of a batch are in the memory of the trainer. The gradients of all uses of a row since the last push
    are summed and make one step, as with ``torch.nn.Embedding(sparse=True)`` and ``torch.optim.SparseAdam`` (Adagrad,
    SGD). Several trainers may use the same table. Each row is read and stepped as a whole, but steps of different
    trainers come in any order (Hogwild, Niu et al., 2011). Gradients of trainers are not averaged; to average them,
    divide the learning rate by the number of trainers."""

    def __init__(
        self,
        cluster: Cluster,
        num_embeddings: int,
        embedding_dim: int,
        *,
        name: str,
        optimizer: str | OptimiserSpec = "adam",
        lr: float | None = None,
        policy: str = "range",
        init: Initialiser | None = None,
        push: str = "backward",
        codec: str = "",
        lease_s: float | None = None,
        locate: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        """Create or open the table ``name``.

        Args:
            cluster: from ``atta.connect`` or ``atta.local``.
            num_embeddings: number of rows.
            embedding_dim: number of columns.
            name: of the table.
            optimizer: sgd, adagrad, adam, or an ``OptimiserSpec`` with its settings.
            lr: learning rate of an optimiser given by name; None: its default.
            policy: as for ``DistTensor``. With ``"nodes:TYPE"`` rows lie on the daemons that own the vertices, and ids
                are the users' ids.
            init: initial values; default: standard normal, as of ``torch.nn.Embedding``.
            push: when to push gradients. ``"backward"``: at the end of every backward pass; ``"manual"``: when ``step``
                is called, which sums the gradients of several backward passes.
            lease_s: the daemons drop the table when nobody has asked for it for so many seconds; None: never.
            codec: fp16, bf16 or int8: rows and gradients cross the network in fewer bytes, with less precision.
            locate: gives the rows of ids, int64 [n]; None: the daemons are asked.

        Raises:
            ConfigError: the table exists with another specification, or an argument makes no sense.
            UnknownNameError: a daemon has lost its rows of the table.
            QuotaExceededError: the daemons have no room for it.
        """
        super().__init__()
        if push not in ("backward", "manual"):
            raise ConfigError(f"push {push!r}: must be 'backward' or 'manual'")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        spec = MutableSpec(
            name,
            num_embeddings,
            row_shape=(embedding_dim,),
            optimiser=_optimiser(optimizer, lr),
            init=init or Normal(0.0, 1.0),
            policy=policy,
            lease_s=lease_s,
        )
        check_codec(spec, codec)
        self._table = cluster.tables.create(spec)
        self._cluster = cluster  # daemons of ``atta.local`` end when nobody holds it
        self._push, self._codec = push, codec
        self._locate = locate or self._table.locate
        # Rows, their gradients, uses: until they are pushed.
        self._ready: list[tuple[np.ndarray, Tensor, np.ndarray]] = []
        self._queued = False
        self._ticket: Ticket | None = None
        self._ahead: tuple[weakref.ref[Tensor], _AskedRows] | None = None

    @property
    def name(self) -> str:
        """Of the table."""
        return self._table.spec.name

    def forward(self, ids: Tensor) -> Tensor:
        """Rows [*ids.shape, embedding_dim] of ``ids`` (any integers), float32 on the device of ``ids``. Raises
        ConfigError: ``ids`` are not integers, or one does not exist."""
        (rows, uses, inverse, _), values = self._pulled(ids)
        leaf = torch.from_numpy(values).to(ids.device)
        if torch.is_grad_enabled() and self.training:
            leaf.requires_grad_()
            leaf.register_post_accumulate_grad_hook(partial(self._take_gradient, rows, uses))
        if inverse is None:
            return leaf.clone().reshape(*ids.shape, self.embedding_dim)
        found = nn.functional.embedding(torch.from_numpy(inverse).to(ids.device), leaf)
        return found.reshape(*ids.shape, self.embedding_dim)

    def prefetch(self, ids: Tensor) -> None:
        """Begin to pull the rows of ``ids``. The next forward pass takes them, if it is of this very tensor and no push
        of this embedding comes before it. Steps of other trainers in between do not show. Raises as a forward pass."""
        self.forget()
        self._ahead = weakref.ref(ids), self._ask(ids)

    def forget(self) -> None:
        """Give up what ``prefetch`` has begun: the next forward pass pulls rows as they are then."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead[1].pull.abandon()

    def _pulled(self, ids: Tensor) -> tuple[_AskedRows, np.ndarray]:
        """What was asked for ``ids``, now or ahead, and the values."""
        if self._ahead is not None and self._ahead[0]() is ids:
            asked, self._ahead = self._ahead[1], None
            with contextlib.suppress(DeadlineError):  # nobody has read the answer for so long
                return asked, asked.pull.wait().values
        asked = self._ask(ids)
        return asked, asked.pull.wait().values

    def _ask(self, ids: Tensor) -> _AskedRows:
        self.flush()
        flat = integers(f"table {self._table.spec.name}: ids", ids.detach().reshape(-1).cpu().numpy())
        distinct, inverse, uses = _distinct(flat, self.num_embeddings)
        rows = self._locate(distinct)
        return _AskedRows(rows, uses, inverse, self._table.begin_pull(rows, codec=self._codec))

    def step(self) -> None:
        """Begin to push the gradients since the last push; do nothing if there are none."""
        found = self.gradients()
        if len(found.rows):
            self.push(found.rows, found.sums)

    def gradients(self) -> Gradients:
        """The gradients since the last push, in place of pushing them. A row may come several times."""
        ready, self._ready = self._ready, []
        if not ready:
            none = np.empty(0, np.int64)
            return Gradients(none, np.empty((0, self.embedding_dim), np.float32), none)
        rows, gradients, uses = zip(*ready, strict=True)
        values = np.concatenate([gradient.detach().cpu().numpy() for gradient in gradients])
        return Gradients(np.concatenate(rows), values, np.concatenate(uses))

    def push(self, rows: np.ndarray, gradients: np.ndarray) -> None:
        """Begin a step with ``gradients`` (float32 [n, embedding_dim]) of rows of the table (int64 [n])."""
        self.forget()
        self.flush()
        self._ticket = self._table.push(rows, gradients, "step", step=None, codec=self._codec)

    def flush(self) -> None:
        """Wait until the owners have applied what was pushed; raises their errors."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.wait()

    def _take_gradient(self, rows: np.ndarray, uses: np.ndarray, leaf: Tensor) -> None:
        """A backward pass has reached the rows of a forward pass; another one may reach them again."""
        assert leaf.grad is not None
        self._ready.append((rows, leaf.grad, uses))
        leaf.grad = None
        if self._push == "backward" and not self._queued:  # once per backward pass, after the last gradient
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        self._queued = False
        self.step()

    @property
    def steps(self) -> int:
        """Number of the optimiser's steps. Set it to go on from a state that was saved."""
        self._table.refresh()
        return self._table.step

    @steps.setter
    def steps(self, steps: int) -> None:
        self._table.refresh()  # a snapshot that was loaded before must not set the step back later
        self._table.step = int(steps)

    def pull_state(self, rows: range | np.ndarray) -> dict[str, Tensor]:
        """What the owners keep of some rows of the table: ``weight`` and the optimiser's arrays under torch's names.

        Each is float32 [rows, embedding_dim], in the order of ``rows`` (int64 [n]). Read it while nobody pushes:
        the arrays are not read at one moment."""
        return {name: self._read(rows, array) for name, array in _arrays(self._table.spec).items()}

    def _read(self, rows: range | np.ndarray, array: str = "") -> Tensor:
        self.flush()
        found = torch.empty(len(rows), self.embedding_dim)
        for first in range(0, len(rows), _ROWS):
            piece = np.asarray(rows[first : first + _ROWS])
            found[first : first + len(piece)] = torch.from_numpy(self._table.pull(piece, array=array).values)
        return found

    def _write(self, rows: range | np.ndarray, values: Tensor, array: str = "") -> None:
        for first in range(0, len(rows), _ROWS):
            piece = values[first : first + _ROWS].detach().cpu().numpy()
            self._table.push(np.asarray(rows[first : first + _ROWS]), piece, array=array).wait()

    def _drop_gradients(self) -> None:
        self._ready = []
        self.forget()
        self.flush()

    def push_state(self, rows: range | np.ndarray, state: Mapping[str, Tensor]) -> None:
        """Write what ``pull_state`` has returned, or some of its arrays. Raises ConfigError: an array is none of the
        optimiser's, or has another shape."""
        self._drop_gradients()
        names = _arrays(self._table.spec)
        for name, values in state.items():
            if name not in names or tuple(values.shape) != (len(rows), self.embedding_dim):
                shape = f"{len(rows)} x {self.embedding_dim}"
                raise ConfigError(
                    f"table {self._table.spec.name}: {name} {list(values.shape)} is none of {', '.join(names)} {shape}"
                )
            self._write(rows, values, names[name])

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"{self.num_embeddings}, {self.embedding_dim}, table={self._table.spec.name!r}"

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Pull all rows, by ascending ids. The optimiser's state stays on the daemons; ``cluster.tables.save`` saves both."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self._read(self._rows_of(destination[prefix + "_extra_state"]))

    def get_extra_state(self) -> dict[str, Any]:
        """The number of steps, and whose rows they are: int64 [num_embeddings], ascending; None: 0, 1, 2, ..."""
        ids = ascending_ids(self._cluster, policy := self._table.spec.policy)
        rows = None if ids is None else torch.from_numpy(ids)
        return {"version": _STATE_VERSION, "steps": self.steps, "policy": policy, "ids": rows}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Set the number of steps; raises ConfigError if there are other vertices or edges, or it is of another version."""
        self._rows_of(state)
        self.steps = state["steps"]

    def _rows_of(self, state: Mapping[str, Any]) -> np.ndarray:
        """int64 [num_embeddings]: where the table has the rows of a state."""
        policy, about = self._table.spec.policy, f"table {self._table.spec.name}"
        if state.get("version") != _STATE_VERSION:
            raise ConfigError(f"{about}: state version {state.get('version')!r}; this release reads {_STATE_VERSION}")
        if state["policy"] != policy:
            raise ConfigError(f"{about}: the state's rows are {state['policy']}, these are {policy}")
        if policy == "range":
            return np.arange(self.num_embeddings)
        ids = None if state["ids"] is None else state["ids"].cpu().numpy()
        with blaming(ConfigError, f"{about}: the state is of another graph", of=ConfigError):
            return rows_of_all(self._cluster, policy, self.num_embeddings if ids is None else len(ids), ids)

    def _load_from_state_dict(  # noqa: PLR0917 - as torch calls it
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        weight = state_dict.pop(prefix + "weight", None)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if weight is None:
            missing_keys.append(prefix + "weight")
            return
        state_dict[prefix + "weight"] = weight
        if tuple(weight.shape) != (self.num_embeddings, self.embedding_dim):
            error_msgs.append(f"{prefix}weight: {list(weight.shape)} for {self.num_embeddings} x {self.embedding_dim}")
            return
        self._drop_gradients()
        self._write(self._rows_of(state_dict.get(prefix + "_extra_state") or self.get_extra_state()), weight)


def _distinct(ids: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """``ids`` without repeats, where each of ``ids`` is among these (None: they are ``ids``), and how often each comes.
    To mark them takes far less time than to sort them, if ``rows``, the ids that could be, are not many more."""
    if rows <= _MARKS * len(ids):
        known = np.zeros(rows, dtype=bool)
        known[ids[(ids >= 0) & (ids < rows)]] = True
        if np.count_nonzero(known) == len(ids):
            return ids.copy(), None, np.ones(len(ids), dtype=np.int64)  # theirs may be memory of a batch that goes
    return np.unique(ids, return_inverse=True, return_counts=True)


def _arrays(spec: MutableSpec) -> dict[str, str]:
    """The arrays of a table as the owners call them, by the names that torch gives them."""
    kept = () if spec.optimiser is None else spec.optimiser.state_names
    return {"weight": "", **{name: name for name in kept}}


def _optimiser(optimizer: str | OptimiserSpec, lr: float | None) -> OptimiserSpec:
    if isinstance(optimizer, OptimiserSpec):
        if lr is not None:
            raise ConfigError("lr: is part of the OptimiserSpec")
        return optimizer
    if optimizer not in STATE_NAMES:
        raise ConfigError(f"optimizer {optimizer!r}: must be one of {', '.join(STATE_NAMES)}, or an OptimiserSpec")
    make: Callable[..., OptimiserSpec] = getattr(OptimiserSpec, optimizer)
    return make() if lr is None else make(lr)
