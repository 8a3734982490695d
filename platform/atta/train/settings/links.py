"""Settings of ``--task link``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from atta.errors import ConfigError
from atta.observe.settings import Option
from atta.train.settings.common import TrainSettings

__all__ = ["DECODERS", "LINK", "LinkSettings", "check_links"]

LINK = "link"
DECODERS = ("dot", "distmult", "mlp")
NEGATIVES = ("uniform", "degree", "in_batch", "exact")


@dataclass(frozen=True)
class LinkSettings(TrainSettings):
    """What strategies that can predict links have."""

    edge_type: Annotated[
        str | None, Option("--task link: the edges to predict.", metavar="SRC__REL__DST", unset="the only type")
    ] = None
    decoder: Annotated[str, Option("--task link: scores a pair from the embeddings of its ends.", choices=DECODERS)] = (
        "dot"
    )
    edge_split: Annotated[
        str, Option("--task link: shares of edges for training, validation and test.", metavar="SHARES")
    ] = "0.8,0.1,0.1"
    negatives: Annotated[
        str, Option("--task link: how pairs that are no edges are drawn in training.", choices=NEGATIVES)
    ] = "uniform"
    negatives_per_edge: Annotated[int, Option("--task link: how many of them per edge.", at_least=1)] = 1
    eval_negatives: Annotated[
        str,
        Option("--task link: other targets that an edge of validation is ranked among; all: every vertex.",
               metavar="K|all"),
    ] = "100"  # fmt: skip


def check_links(settings: LinkSettings) -> None:
    """Refuse settings of link prediction that make no sense, or belong to no other task. Raises ConfigError."""
    from atta.train.tasks.links.candidates import parse_eval_negatives, parse_shares

    if settings.task == LINK:
        parse_shares(settings.edge_split)
        parse_eval_negatives(settings.eval_negatives)
        return
    common = {field.name for field in dataclasses.fields(TrainSettings)}
    for field in dataclasses.fields(LinkSettings):
        if field.name not in common and getattr(settings, field.name) != field.default:
            option = f"--{field.name.replace('_', '-')}"
            raise ConfigError(f"{option}: belongs to --task {LINK}, not {settings.task}")
