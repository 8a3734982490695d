"""bf16, torch.compile and CUDA graphs: a step's time on a GPU, and an epoch's with its accuracy.

    python -m bench.gpu.precision --work DIR

`step`: milliseconds of a step of GraphSAGE on batches of 1,024 seeds that are kept on the GPU, medians of 20 after three
(compiled ones after twenty). `graph`: the same step, recorded once as a CUDA graph and replayed. For that every hop of
every batch is padded to the largest one with vertices and edges that no seed reads. `csr` sums neighbours by a sparse
matrix instead of by edge. `epoch`: what `atta train` reports with the same options, the second epoch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from atta.train.models import compile_in_place
from atta_bench.gpu.common import HIDDEN, Record, Step, dataset_of, gpu_arguments, kept, milliseconds, serve, sizes_of

OPTIONS = {"fp32": [], "bf16": ["--precision", "bf16"], "compiled": ["--compile"]}


def padded(data: Any, nodes: list[int], edges: list[int]) -> Any:
    """The batch with ``nodes[hop]`` vertices and ``edges[hop]`` edges in every hop.

    A padding edge leads from the last padding vertex of its hop to the last one of the hop before.
    """
    begins, places = [0, *accumulate(nodes)], [0, *accumulate(data.num_sampled_nodes)]
    new = torch.cat([torch.arange(b - a) + at for a, b, at in zip(places, places[1:], begins, strict=False)])
    x = torch.zeros(begins[-1], data.x.shape[1])
    x[new] = data.x
    columns, at = [], 0
    for hop, count in enumerate(data.num_sampled_edges):
        source, target = new[data.edge_index[:, at : at + count]]
        missing = edges[hop] - count
        filled = torch.full((missing,), begins[hop + 2] - 1), torch.full((missing,), begins[hop + 1] - 1)
        columns.append(torch.stack([torch.cat([source, filled[0]]), torch.cat([target, filled[1]])]))
        at += count
    found = data.clone()
    found.x, found.edge_index = x, torch.cat(columns, dim=1)
    found.num_sampled_nodes, found.num_sampled_edges = nodes, edges
    return found


def captured(batches: list[Any], step: Step) -> Callable[[int], None]:
    """A step as a CUDA graph: ``turn(number)`` copies a batch to where the graph reads, and replays it."""
    still = batches[0].clone()
    seeds = len(still.y)

    def once() -> None:
        scores = step.model(still.x, still.edge_index, still.num_sampled_nodes, still.num_sampled_edges)
        loss = F.cross_entropy(scores[:seeds], still.y)
        step.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        step.optimizer.step()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(4):
            once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()

    def turn(number: int) -> None:
        data = batches[number % len(batches)]
        still.x.copy_(data.x)
        still.edge_index.copy_(data.edge_index)
        still.y.copy_(data.y)
        graph.replay()

    return turn


def by_matrix(model: Any) -> Callable[..., torch.Tensor]:
    """The forward pass of a sampled GraphSAGE that sums neighbours by matrices in CSR on the GPU."""

    def forward(x: torch.Tensor, edge_index: torch.Tensor, nodes: list[int], edges: list[int]) -> torch.Tensor:
        layers = list(model.gnn.convs)
        rows = torch._convert_indices_from_coo_to_csr(edge_index[1], sum(nodes[: len(layers)]))  # type: ignore[attr-defined]
        ones = torch.ones(edge_index.shape[1], device=x.device)
        for done, layer in enumerate(layers):
            hops = len(layers) - done
            read, computed, count = sum(nodes[: hops + 1]), sum(nodes[:hops]), sum(edges[:hops])
            parts = rows[: computed + 1], edge_index[0, :count], ones[:count]
            matrix = torch.sparse_csr_tensor(*parts, size=(computed, read), check_invariants=False)
            x = layer((x[:read], x[:computed]), matrix)
            if hops > 1:
                x = model.gnn.dropout(model.gnn.act(x))
        return x

    return forward


def steps(record: Record, batches: list[Any], sizes: tuple[int, int]) -> None:
    """Record the milliseconds of a step in every way."""
    on_gpu = [data.clone().to("cuda") for data in batches]

    def note(name: str, make: Callable[[], Callable[[int], object]], first: int = 0) -> None:
        try:
            turn = make()
            for number in range(first):
                turn(number)
            found: float | str = milliseconds(turn)
        except Exception as error:  # what this torch cannot do is a result as well
            found = f"{type(error).__name__}: {str(error)[:160]}"
        record.add("steps", {"step": name, "ms": found})

    def eager(precision: str) -> Callable[[int], object]:
        step = Step(*sizes, precision=precision)
        return lambda number: step(on_gpu[number % len(on_gpu)])

    def compiled(precision: str) -> Callable[[int], object]:
        step = Step(*sizes, precision=precision)
        compile_in_place(step.model, torch.device("cuda", 0))
        return lambda number: step(on_gpu[number % len(on_gpu)])

    def as_graph() -> Callable[[int], object]:
        hops = len(batches[0].num_sampled_nodes)
        nodes = [1 + max(data.num_sampled_nodes[hop] for data in batches) for hop in range(hops)]
        edges = [max(data.num_sampled_edges[hop] for data in batches) for hop in range(hops - 1)]
        begun = time.perf_counter()
        even = [padded(data, nodes, edges) for data in batches]
        print(f"padding: {1e3 * (time.perf_counter() - begun) / len(batches):.1f} ms per batch on the CPU")
        return captured([data.to("cuda") for data in even], Step(*sizes))

    def csr() -> Callable[[int], object]:
        step = Step(*sizes)
        forward = by_matrix(step.model)
        step.model.forward = forward
        return lambda number: step(on_gpu[number % len(on_gpu)])

    note("fp32", lambda: eager("fp32"))
    note("csr", csr)
    note("bf16", lambda: eager("bf16"))
    note("graph", as_graph)
    torch.backends.cuda.matmul.allow_tf32 = True
    note("tf32", lambda: eager("fp32"))
    torch.backends.cuda.matmul.allow_tf32 = False
    note("compiled", lambda: compiled("fp32"), 20)
    note("bf16, compiled", lambda: compiled("bf16"), 20)


def epoch(data: Path, name: str, threads: int) -> dict[str, Any]:
    """The second epoch of ``atta train``."""
    words = [sys.executable, "-m", "atta.cli.main", "train", "--data", str(data), "--epochs", "2", "--device", "cuda"]
    words += ["--hidden", str(HIDDEN), "--lr", "0.003", "--threads", str(threads), "--eval-every", "2", "--quiet"]
    said = subprocess.run([*words, *OPTIONS[name], "--json", "-"], capture_output=True, text=True, check=False)
    if said.returncode:
        return {"epoch": name, "error": said.stderr.strip()[-200:]}
    last = json.loads(said.stdout)["epochs"][-1]
    parts = {f"{phase}_s": seconds for phase, seconds in last["breakdown"].items()}
    return {"epoch": name, "seconds": last["seconds"], "test accuracy": last["metrics"]["test_accuracy"], **parts}


def main() -> None:
    """Measure and write the record."""
    arguments = gpu_arguments(__file__, __doc__)
    record = Record("gpu-precision", "Half precision, compiled models and CUDA graphs", __doc__, arguments)
    data = dataset_of(arguments, 1)
    with serve(data, arguments.threads) as cluster:
        steps(record, kept(cluster, 1024, 8), sizes_of(cluster))
    for name in OPTIONS:
        record.add("epochs", epoch(data, name, arguments.threads))


if __name__ == "__main__":
    main()
