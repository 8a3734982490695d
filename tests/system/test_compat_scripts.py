"""The script of docs/guide/from-distdgl.md on Atta and, with its import line changed, on DGL; the example with two trainers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import atta

pytest.importorskip("dgl")
pytest.importorskip("torch")

from tests.addresses import held_port
from tests.system.distdgl_folders import plain

ROOT = Path(__file__).parents[2]
IMPORT = re.compile(r"^from atta.compat import dgl.*$", re.MULTILINE)


def run(cwd: Path, *command: str, **environment: str) -> str:
    env = {**os.environ, "DGLBACKEND": "pytorch", "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=150, check=False, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_one_script_runs_on_both_and_learns_as_well(tmp_path: Path) -> None:
    config = plain(tmp_path / "toy", parts=1).config
    text = (ROOT / "docs/guide/from-distdgl.md").read_text()
    script = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    script = script.replace('"ip_config.txt"', "None", 1)  # both without daemons of their own
    assert len(IMPORT.findall(script)) == 1
    (tmp_path / "on_atta.py").write_text("import torch\ntorch.manual_seed(1)\n" + script)
    (tmp_path / "on_dgl.py").write_text("import torch\ntorch.manual_seed(1)\n" + IMPORT.sub("import dgl", script))
    assert config == tmp_path / "toy/toy.json"
    found = {}
    for name in ("on_atta", "on_dgl"):
        out = run(tmp_path, f"{name}.py")
        found[name] = float(re.findall(r"validation accuracy ([\d.]+)", out)[0])
    assert found["on_dgl"] > 0.7  # chance is a quarter
    assert found["on_atta"] > found["on_dgl"] - 0.1  # of a hundred vertices, by other draws


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--unsupervised"]])
def test_two_trainers_run_the_example(tmp_path: Path, options: list[str]) -> None:
    from atta.compat.dgl.job import dataset_of

    port = str(held_port())
    dataset = dataset_of(plain(tmp_path / "toy").config)
    with atta.local(dataset, threads=1) as cluster:
        started = [
            subprocess.Popen(
                [sys.executable, str(ROOT / "examples/distdgl_sage.py"), "--ip_config", str(cluster.cluster_file),
                 "--batch_size", "50", "--lr", "0.02", "--num_epochs", "8", "--fan_out", "5,5", *options],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={
                    **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port, "DGLBACKEND": "pytorch",
                    "OMP_NUM_THREADS": "1",
                },
            )
            for rank in range(2)
        ]  # fmt: skip
        outs = [process.communicate(timeout=150) for process in started]
    assert [process.returncode for process in started] == [0, 0], outs
    for out, _ in outs:
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

    from atta.compat.dgl.job import dataset_of

    (tmp_path / "shared.py").write_text(SHARED_ROWS)
    port = str(held_port())
    with atta.local(dataset_of(plain(tmp_path / "toy").config), threads=1) as cluster:
        command = [sys.executable, "shared.py", str(cluster.cluster_file)]
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **place, "RANK": str(rank)}) for rank in range(2)
        ]
        assert [process.wait(150) for process in started] == [0, 0]
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
