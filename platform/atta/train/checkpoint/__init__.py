"""Checkpoints: a file from which a later run continues, and the best model so far.

Strategies in which trainers keep something from epoch to epoch also have a file per rank, and so has each checkpoint in
mid-epoch, named after its place. All ranks write theirs before the checkpoint that goes with them, and remove earlier
ones after it. So a crash leaves a checkpoint with the files of all ranks.
"""

from atta.train.checkpoint.files import BEST, BEST_WEIGHTS, LAST, RunPlace, check_folder, seal
from atta.train.checkpoint.ranks import (
    PartialEpoch,
    RankShare,
    load_rank,
    load_shares,
    prune_ranks,
    random_state,
    save_rank,
    set_random_state,
)
from atta.train.checkpoint.run import SavedRun, load_checkpoint, place_in, remove_best, save_best, save_checkpoint
from atta.train.checkpoint.weights import NO_EMBEDDINGS, SavedEmbeddings, SavedModel, load_model, load_weights

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
