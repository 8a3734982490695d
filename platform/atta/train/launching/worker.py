"""A trainer process: ``python -m atta.train.launching.worker FOLDER``, which ``launch`` starts. ``FOLDER/task.json``
says what to train. The first trainer of a machine writes each epoch (``so-far.jsonl``) and in the end all (``epochs.json``)
into the folder, a rank that fails writes ``failure-RANK.json``."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atta.errors import ConfigError
from atta.observe import lastwords
from atta.observe.machine.ending import PARENT, end_with_parent, heed_interrupts
from atta.observe.machine.memory import keep_freed
from atta.train.config import TrainConfig
from atta.train.launching.failure import failure_file
from atta.train.launching.launch import EPOCHS, SO_FAR, connect_handed
from atta.train.launching.trainers import MEETING, signs_of_life
from atta.train.meeting import announce_run
from atta.train.reports.display import Display
from atta.train.reports.epochs import EpochReport
from atta.train.strategies import STRATEGIES

if TYPE_CHECKING:
    import torch


def run(
    config: TrainConfig,
    addresses: Sequence[str | Sequence[str]],
    tls: Mapping[str, str] | None = None,
    *,
    file: str | None = None,
    kept: Path | None = None,
) -> list[EpochReport]:
    """Train as one rank. Returns the figures of all epochs.

    A process group that exists already is used and left open. Otherwise the environment describes one, as torchrun does.

    addresses: of each partition's daemon, or of all its replicas; tls: the files to bring, if the daemons have TLS; file: a
    cluster file that tells where daemons are, if they move; kept: the file that gets each epoch when it ends.
    """
    import torch
    import torch.distributed as dist

    trainers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(compute_threads(trainers))
    device = choose_device(config.device, int(os.environ.get("LOCAL_RANK", "0")), trainers)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif config.device == "auto" and torch.cuda.is_available():
        alone = config.verbose and os.environ.get("LOCAL_RANK", "0") == "0"
        Display(alone).line(f"fewer GPUs than the {trainers} trainers of this machine: they compute on the CPU")
    joined = dist.is_initialized()
    if not joined:
        limit = timedelta(seconds=config.answer_s)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=limit, **_meeting(limit))
    with connect_handed({"addresses": addresses, "tls": tls, "file": file}) as cluster:
        trainer = STRATEGIES[config.strategy].trainer(config.own, cluster, device)
        trainer.kept = kept
        epochs = trainer.fit()
        del trainer
    if not joined:
        # Torch waits forever when DDP is the last to let go of a gloo group, one of whose threads wants the interpreter.
        gc.collect()
        dist.destroy_process_group()
    return epochs


def _meeting(limit: timedelta) -> dict[str, Any]:
    """The store of the launcher's meeting and this trainer's place, for torch; empty: the environment tells torch itself."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    if MEETING not in os.environ:
        return {}
    host, _, port = json.loads(os.environ[MEETING])["address"].rpartition(":")
    store = PrefixStore("trainers", TCPStore(host.strip("[]"), int(port), None, False, limit))
    return {"store": store, "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}


def compute_threads(trainers: int) -> int:
    """Threads that a trainer computes with: those of ``OMP_NUM_THREADS``, or a share of the machine's cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isascii() and asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return max(1, len(os.sched_getaffinity(0)) // trainers)


def choose_device(wanted: str, local_rank: int, trainers: int) -> torch.device:
    """The CPU, or this trainer's own GPU. With ``auto`` it is the CPU if there are fewer GPUs than trainers. Raises
    ConfigError: ``cuda`` is wanted, and there are too few GPUs."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and gpus < trainers):
        return torch.device("cpu")
    if not gpus:
        raise ConfigError("--device cuda: torch sees no GPU")
    if gpus < trainers:
        raise ConfigError(f"--trainers {trainers}: every trainer needs a GPU, there are {gpus} (or use --device cpu)")
    return torch.device("cuda", local_rank)


def main(folder: str) -> int:
    """Run the task in ``folder``; returns the exit code."""
    _prepare()
    rank, first = os.environ.get("RANK", "0"), os.environ.get("LOCAL_RANK", "0") == "0"
    kept = Path(folder) / SO_FAR if first else None
    try:
        task = json.loads((Path(folder) / "task.json").read_text(encoding="utf-8"))
        config = TrainConfig.from_dict(task["config"])
        announce_run(task)
        meeting = json.loads(os.environ.get(MEETING, "{}"))
        if "life" in meeting:  # any of the trainers of this run may be started again
            from atta.train.meeting import join_meeting

            where, world = meeting.pop("address"), int(os.environ["WORLD_SIZE"])
            join_meeting(where, rank=int(rank), world=world, folder=Path(folder), **meeting)
        with signs_of_life(Path(folder), int(rank), config.rank_timeout):
            epochs = run(config, task["addresses"], task.get("tls"), file=task.get("file"), kept=kept)
    except KeyboardInterrupt:  # sessions are closed now
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        return 130
    except BaseException as error:
        record = {**lastwords.record_of(error), "time": time.time(), "traceback": traceback.format_exc()}
        failure_file(Path(folder), int(rank)).write_text(json.dumps(record), encoding="utf-8")
        return 1
    if first:
        (Path(folder) / EPOCHS).write_text(json.dumps([asdict(e) for e in epochs]), encoding="utf-8")
    return 0


def _prepare() -> None:
    """Before torch is imported: silence C++ warnings, use loopback, keep freed memory, and end when told or orphaned."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if "lo" in (name for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # otherwise gloo resolves the host name, which may fail
    warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
    keep_freed()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the launcher's; sessions would wait for their leases
    heed_interrupts()
    # Who started this process may have ended before: it says who it is.
    threading.Thread(target=end_with_parent, args=(int(os.environ.pop(PARENT, os.getppid())),), daemon=True).start()


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a failed rank must not wait for others in destructors of the process group
