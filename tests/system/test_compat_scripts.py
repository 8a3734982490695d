"""The example of DGL's interface with two trainers, and rows that both of them step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import atta

pytest.importorskip("dgl")
pytest.importorskip("torch")

from tests.addresses import held_port
from tests.system.distdgl_folders import plain

ROOT = Path(__file__).parents[2]


def run(cwd: Path, *command: str, **environment: str) -> str:
    env = {**os.environ, "DGLBACKEND": "pytorch", "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=150, check=False, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def by_two_trainers(folder: Path, *command: str) -> list[str]:
    """What two trainers print that run a script on daemons; ``CLUSTER`` stands for the cluster's file."""
    from atta.compat.dgl.job import dataset_of

    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held_port())}
    with atta.local(dataset_of(plain(folder / "toy").config), threads=1) as cluster, ThreadPoolExecutor(2) as pool:
        words = [str(cluster.cluster_file) if word == "CLUSTER" else word for word in command]
        return list(pool.map(lambda rank: run(folder, *words, **place, RANK=rank), "01"))


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--unsupervised"]])
def test_two_trainers_run_the_example(tmp_path: Path, options: list[str]) -> None:
    words = ["--ip_config", "CLUSTER", "--batch_size", "50", "--lr", "0.02", "--num_epochs", "8", "--fan_out", "5,5"]
    for out in by_two_trainers(tmp_path, str(ROOT / "examples/distdgl_sage.py"), *words, *options):
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", out)]
        assert len(losses) == 8
        assert sum(losses[4:]) < sum(losses[:4])  # each is that of one batch, and the first weights are random
        if not options:
            val, test = map(float, re.findall(r"val ([\d.]+), test ([\d.]+)", out)[0])
            assert min(val, test) > 0.7


SHARED_ROWS = """
import sys
import torch
from atta.compat import dgl

dgl.distributed.initialize(sys.argv[1])
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
g = dgl.distributed.DistGraph("toy")
rows = dgl.distributed.DistEmbedding(g.num_nodes(), 2, name="shared")
sparse = dgl.distributed.optim.SparseAdam([rows], lr=0.1)
for step in range(3):
    ids = torch.arange(0, 40, 2) if rank == 0 else torch.arange(0, 40, 3)
    (rows(ids) * (1 + ids[:, None] + 7 * rank + step)).sum().backward()
    sparse.step()
torch.save(rows.weight[torch.arange(40)], f"rows{rank}.pt")
torch.distributed.barrier()
"""


@pytest.mark.slow
def test_a_row_that_two_trainers_use_makes_one_step_with_the_mean_gradient(tmp_path: Path) -> None:
    import torch

    (tmp_path / "shared.py").write_text(SHARED_ROWS)
    by_two_trainers(tmp_path, "shared.py", "CLUSTER")
    expected = torch.nn.Parameter(torch.zeros(40, 2))
    ids = torch.arange(40)[:, None]
    used = [ids % 2 == 0, ids % 3 == 0]
    optimiser = torch.optim.SparseAdam([expected], lr=0.1)
    for step in range(3):
        total = sum(torch.where(of, 1 + ids + 7 * rank + step, 0) for rank, of in enumerate(used))
        touched = (used[0] | used[1]).flatten().nonzero().flatten()
        mean = (total / (used[0].int() + used[1].int()).clamp(min=1))[touched].expand(-1, 2)
        expected.grad = torch.sparse_coo_tensor(touched[None], mean, (40, 2))
        optimiser.step()
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"rows{rank}.pt"), expected.detach(), rtol=1e-5, atol=1e-6)
