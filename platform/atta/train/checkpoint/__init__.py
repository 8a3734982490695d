"""Checkpoints: a file from which a later run continues, files of ranks that go with it, and the best model so far.

All ranks write theirs before the checkpoint, and remove earlier ones after it. So a crash leaves a checkpoint with the
files of all ranks.
"""

from atta.train.checkpoint.files import (
    BEST,
    BEST_WEIGHTS,
    LAST,
    NO_EMBEDDINGS,
    RunPlace,
    SavedEmbeddings,
    SavedModel,
    check_folder,
    load_model,
    load_weights,
    seal,
)
from atta.train.checkpoint.run import (
    PartialEpoch,
    RankShare,
    SavedRun,
    load_checkpoint,
    load_rank,
    load_shares,
    place_in,
    prune_ranks,
    random_state,
    remove_best,
    save_best,
    save_checkpoint,
    save_rank,
    set_random_state,
)

__all__ = [
    "BEST",
    "BEST_WEIGHTS",
    "LAST",
    "NO_EMBEDDINGS",
    "PartialEpoch",
    "RankShare",
    "RunPlace",
    "SavedEmbeddings",
    "SavedModel",
    "SavedRun",
    "check_folder",
    "load_checkpoint",
    "load_model",
    "load_rank",
    "load_shares",
    "load_weights",
    "place_in",
    "prune_ranks",
    "random_state",
    "remove_best",
    "save_best",
    "save_checkpoint",
    "save_rank",
    "seal",
    "set_random_state",
]
