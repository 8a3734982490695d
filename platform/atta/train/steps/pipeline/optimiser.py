"""The optimiser on the daemon as torch's, so that checkpoints are those of every strategy."""

from __future__ import annotations

import numpy as np
import torch

from atta.client.parameters import JobState

__all__ = ["fill_adam", "moments_of"]


def fill_adam(optimizer: torch.optim.Optimizer, model: torch.nn.Module, state: JobState) -> None:
    """Give torch's Adam what the daemon's has."""
    parameters = list(model.parameters())
    sizes = [one.numel() for one in parameters]
    means, squares = (moment.split(sizes) for moment in torch.from_numpy(np.array(state.moments)).chunk(2))
    for parameter, mean, square in zip(parameters, means, squares, strict=True):
        optimizer.state[parameter] = {
            "step": torch.tensor(float(state.version)),
            "exp_avg": mean.view_as(parameter).clone(),
            "exp_avg_sq": square.view_as(parameter).clone(),
        }


def moments_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> np.ndarray:
    """``JobState.moments`` of an optimiser with a state, [2 * weights]."""
    kept = [optimizer.state[parameter] for parameter in model.parameters()]
    return np.concatenate([one[name].flatten().numpy() for name in ("exp_avg", "exp_avg_sq") for one in kept])
