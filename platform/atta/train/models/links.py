"""Scores of pairs of vertices from their embeddings: decoders by name, and a model with one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch

from atta.client.inference.block import Floats
from atta.client.inference.task import PairScore
from atta.errors import ConfigError, DataError
from atta.train.checkpoint.files import SavedModel
from atta.train.models import SampledModel
from atta.train.settings.minibatch import EDGE_CLASSES

DECODER = "link_decoder."
"""How the names of a decoder's weights begin in a checkpoint."""
UNFIT = RuntimeError, KeyError, ValueError, TypeError
"""What is raised of weights that do not fit a model."""
Embedded = Callable[[torch.Tensor], torch.Tensor]
_GRID_NUMBERS = 4 << 20
"""Products of both ends' numbers that are in memory at a time."""


class PairDecoder(torch.nn.Module):
    """Called with embeddings [..., width] of sources and of targets, gives scores [...]; the two shapes are broadcast."""

    def grid(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Scores [n, m] of each of sources [n, width] with each of targets [m, width]."""
        some = max(1, _GRID_NUMBERS // max(1, targets.numel()))
        return torch.cat([self(piece[:, None], targets) for piece in sources.split(some)])


class Dot(PairDecoder):
    """The inner product of both ends."""

    def forward(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Scores; see ``PairDecoder``."""
        return (sources * targets).sum(-1)

    def grid(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return sources @ targets.T


class DistMult(PairDecoder):
    """An inner product whose terms have learnt weights (Yang et al., ICLR 2015, with one relation)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relation = torch.nn.Parameter(torch.ones(width))

    def forward(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Scores [n] of pairs, from embeddings [n, width] of their ends."""
        return (sources * self.relation * targets).sum(-1)

    def grid(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (sources * self.relation) @ targets.T


class PairMlp(PairDecoder):
    """Two layers on the products of both ends' numbers (the link predictor of the Open Graph Benchmark)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden, self.score = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, 1)

    def forward(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Scores [n] of pairs, from embeddings [n, width] of their ends."""
        return cast(torch.Tensor, self.score(self.hidden(sources * targets).relu()).squeeze(-1))


class PairClasses(torch.nn.Module):
    """Scores of classes: two layers on both ends' numbers, sources first."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.hidden, self.score = torch.nn.Linear(2 * width, hidden), torch.nn.Linear(hidden, classes)

    def forward(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Scores [n, classes] of embeddings [n, width]."""
        return cast(torch.Tensor, self.score(self.hidden(torch.cat([sources, targets], dim=-1)).relu()))


def decoder_named(name: str, width: int, hidden: int) -> PairDecoder:
    """The decoder of ``--decoder`` for embeddings of ``width`` numbers; raises ConfigError for an unknown one."""
    match name:
        case "dot":
            return Dot()
        case "distmult":
            return DistMult(width)
        case "mlp":
            return PairMlp(width, hidden)
    raise ConfigError(f"--decoder {name}: there is no such decoder")


def saved_decoder(saved: SavedModel) -> torch.nn.Module:
    """The decoder of a checkpoint with its weights, of pairs' scores or classes. Raises DataError if they do not fit it."""
    try:
        width = int(saved.shape["hidden"])
        found = {name.removeprefix(DECODER): t for name, t in saved.weights.items() if name.startswith(DECODER)}
        if saved.shape.get("task") == EDGE_CLASSES:
            decoder: torch.nn.Module = PairClasses(width, width, len(found["score.bias"]))
        else:
            decoder = decoder_named(str(saved.shape["decoder"]), width, width)
        decoder.load_state_dict(found)
    except UNFIT as error:
        raise DataError(saved.path, f"has no decoder that fits: {' '.join(str(error).split())}") from error
    return decoder


def scorer(decoder: torch.nn.Module) -> PairScore:
    """Scores by a decoder on the CPU: of pairs one number or a row of classes each; of a grid ``PairDecoder`` only."""

    @torch.no_grad()
    def applied(scores: Callable[..., torch.Tensor], sources: Floats, targets: Floats) -> Floats:
        return cast(Floats, scores(torch.from_numpy(sources), torch.from_numpy(targets)).numpy())

    grid = decoder.grid if isinstance(decoder, PairDecoder) else decoder
    return PairScore(partial(applied, decoder), partial(applied, grid))


class EmbeddingModel(SampledModel):
    """A PyG model that makes embeddings of sampled vertices, and scores of some of them: ``link_decoder`` has the weights
    of scores, if there are some."""

    def __init__(self, gnn: torch.nn.Module, decoder: torch.nn.Module | None = None) -> None:
        super().__init__(gnn)
        if decoder is not None:
            self.link_decoder = decoder

    def forward(self, x: torch.Tensor, *batch: Any, places: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
        """Scores of ``places``, as ``scored`` takes them; without these the seeds' embeddings, as of ``SampledModel``."""

        def embedded(rows: torch.Tensor) -> torch.Tensor:
            return SampledModel.forward(self, rows, *batch, **more)

        return embedded(x) if places is None else self.scored(embedded, x, places)

    def scored(self, embedded: Embedded, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Scores, of embeddings that ``embedded`` makes of features."""
        raise NotImplementedError


class LinkModel(EmbeddingModel):
    """Scores pairs by a decoder, which takes embeddings of sources and targets."""

    def scored(self, embedded: Embedded, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Scores [n] of pairs, int64 [2, n] places among the seeds."""
        rows = embedded(x)
        scores: torch.Tensor = self.link_decoder(rows[places[0]], rows[places[1]])
        return scores


class WalkModel(EmbeddingModel):
    """Scores pairs of vertices by the inner product of their embeddings (GraphSAGE, NIPS 2017, section 3.2)."""

    def scored(self, embedded: Embedded, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Scores [n, k] of vertices with k samples each; int64 [n, 1 + k] has the places of both in the batch."""
        rows = embedded(x)
        return (rows[places[:, :1]] * rows[places[:, 1:]]).sum(-1)


class InfomaxModel(EmbeddingModel):
    """Deep Graph Infomax (Velickovic et al., ICLR 2019): tells embeddings of the graph from those of a corrupted one."""

    def __init__(self, gnn: torch.nn.Module, width: int) -> None:
        """The decoder is the bilinear discriminator."""
        super().__init__(gnn, torch.nn.Linear(width, width, bias=False))

    def scored(self, embedded: Embedded, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Scores [seeds, 2] of each seed, against the summary of all: with the graph's features, and in the order ``places``,
        int64 [vertices]."""
        rows, corrupted = embedded(x), embedded(x[places])
        summary = self.link_decoder(rows.mean(0).sigmoid())
        return torch.stack([rows @ summary, corrupted @ summary], dim=1)
