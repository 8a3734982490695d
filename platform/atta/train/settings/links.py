"""Settings of the tasks without a table ``y`` of vertices: ``link``, ``edge-classes``, ``unsupervised``, ``dgi``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from atta.errors import ConfigError
from atta.observe.settings import Option
from atta.train.settings.common import TrainSettings

__all__ = ["DECODERS", "EDGE_CLASSES", "INFOMAX", "LINK", "UNSUPERVISED", "UNTABLED", "LinkSettings", "check_links"]

LINK, EDGE_CLASSES, UNSUPERVISED, INFOMAX = "link", "edge-classes", "unsupervised", "dgi"
UNTABLED = (LINK, EDGE_CLASSES, UNSUPERVISED, INFOMAX)
"""Tasks whose targets are no table of vertices; the model's outputs are embeddings."""
DECODERS = ("dot", "distmult", "mlp")
NEGATIVES = ("uniform", "degree", "in_batch", "exact")
SPLITS_BY = ("hash", "time")
JUDGES = ("auto", "classes", "links")
_WALKS = ("uniform", "in_batch", "exact")  # the DAG of three branches draws no in-neighbours: uniform is exact there


@dataclass(frozen=True)
class LinkSettings(TrainSettings):
    """What strategies that can train tasks without a table of vertices have."""

    edge_type: Annotated[
        str | None, Option("Edges to predict (link, edge-classes).", metavar="TYPE", unset="only type")
    ] = None
    reverse_type: Annotated[
        str | None, Option("Typed graphs: reverses of --edge-type.", metavar="TYPE", unset="only one")
    ] = None
    decoder: Annotated[str, Option("Scores of pairs: dot, distmult, mlp.", choices=DECODERS)] = "dot"
    edge_split: Annotated[str, Option("Shares to train, validate, test on.", metavar="SHARES")] = "0.8,0.1,0.1"
    split_by: Annotated[
        str,
        Option("Split edges by their ends, or by table time.",
               choices=SPLITS_BY)
    ] = "hash"  # fmt: skip
    negatives: Annotated[
        str, Option("How pairs without an edge are drawn: uniform, degree, in_batch, exact.", choices=NEGATIVES)
    ] = "uniform"
    negatives_per_edge: Annotated[int, Option("Of them per edge, or per seed.", at_least=1)] = 1
    walk_length: Annotated[int, Option("Steps of walks to positive samples.", at_least=1, at_most=100)] = 1
    eval_negatives: Annotated[
        str,
        Option("Other targets that an edge is ranked among.",
               metavar="K|all")
    ] = "100"  # fmt: skip
    evaluate_by: Annotated[str, Option("What judges embeddings (unsupervised, dgi).", choices=JUDGES)] = "auto"


_TASKS = {
    "edge_type": (LINK, EDGE_CLASSES),
    "reverse_type": (LINK, EDGE_CLASSES),
    "decoder": (LINK,),
    "edge_split": UNTABLED,
    "split_by": (LINK, EDGE_CLASSES, INFOMAX),
    "negatives": (LINK, UNSUPERVISED),
    "negatives_per_edge": (LINK, UNSUPERVISED),
    "walk_length": (UNSUPERVISED,),
    "eval_negatives": (LINK, UNSUPERVISED, INFOMAX),
    "evaluate_by": (UNSUPERVISED, INFOMAX),
}
"""The tasks that a setting belongs to."""


def check_links(settings: LinkSettings) -> None:
    """Refuse settings of these tasks that make no sense, or belong to another task. Raises ConfigError."""
    from atta.train.tasks.links.candidates import parse_eval_negatives, parse_shares

    for name, tasks in _TASKS.items():
        if settings.task not in tasks and getattr(settings, name) != getattr(LinkSettings, name):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: belongs to --task {' or '.join(tasks)}, not {settings.task}")
    if settings.task in UNTABLED:
        parse_shares(settings.edge_split)
        parse_eval_negatives(settings.eval_negatives)
    if settings.task == UNSUPERVISED and settings.walk_length == 1 and settings.negatives not in _WALKS:
        raise ConfigError(
            f"--negatives {settings.negatives}: --task {UNSUPERVISED} takes {', '.join(_WALKS)} with walks of one step"
        )
