"""Tables as plain arrays: what pushes do to rows, in numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from atta.kvstore.mutable.table import initial_state
from atta.kvstore.spec import MutableSpec, OptimiserSpec, numbered_from


def coalesced(rows: np.ndarray, grads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    different, which = np.unique(rows, return_inverse=True)
    sums = np.zeros((len(different), *grads.shape[1:]), np.float32)
    np.add.at(sums, which, grads)
    return different, sums


def expected(spec: OptimiserSpec, step: int, x: np.ndarray, state: dict[str, np.ndarray], g: np.ndarray) -> None:
    if spec.kind == "sgd":
        x -= np.float32(spec.lr) * g
    elif spec.kind == "adagrad":
        state["sum"] += g * g
        lr = np.float32(spec.lr / (1 + (step - 1) * spec.lr_decay))
        x -= lr * (g / (np.sqrt(state["sum"]) + np.float32(spec.eps)))
    else:
        b1, b2 = spec.betas
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m += (g - m) * np.float32(1 - b1)
        v += (g * g - v) * np.float32(1 - b2)
        size = np.float32(spec.lr * math.sqrt(1 - b2**step) / (1 - b1**step))
        x -= size * (m / (np.sqrt(v) + np.float32(spec.eps)))


@dataclass
class TableModel:
    spec: MutableSpec
    values: np.ndarray
    versions: np.ndarray
    state: dict[str, np.ndarray]

    @classmethod
    def fresh(cls, spec: MutableSpec, first: int, rows: int) -> Self:
        values = np.empty((rows, *spec.row_shape), spec.dtype)
        spec.init.fill(values, numbered_from(first))
        return cls(spec, values, np.full(rows, -1), initial_state(spec.optimiser, values.shape))

    def change(self, op: Any, rows: np.ndarray, values: np.ndarray, version: int | None = None, step: int = 0) -> None:
        if op == "write":
            for row, value in zip(rows, values, strict=True):  # the last value of a repeated row counts
                if version is not None and self.versions[row] > version:
                    continue
                self.values[row] = value
                self.versions[row] = self.versions[row] if version is None else version
        elif op == "add":
            np.add.at(self.values, rows, values)
        else:
            self.step_rows(rows, values, step)

    def step_rows(self, rows: np.ndarray, gradients: np.ndarray, step: int) -> None:
        different, sums = coalesced(rows, gradients)
        part, state = self.values[different], {name: array[different] for name, array in self.state.items()}
        expected(self.spec.optimiser, step, part, state, sums)
        self.values[different] = part
        for name, array in state.items():
            self.state[name][different] = array

    def grow(self, first: int, rows: int) -> None:
        added = TableModel.fresh(self.spec, first + len(self.values), rows - len(self.values))
        self.values = np.concatenate([self.values, added.values])
        self.versions = np.concatenate([self.versions, added.versions])
        self.state = {key: np.concatenate([array, added.state[key]]) for key, array in self.state.items()}
