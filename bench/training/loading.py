"""Loading of links and of typed graphs beside DistDGL: batches and their features, without a model.

    python -m bench.training.loading [--only links,typed] [--rounds 3]

``links``: edges as seeds with a uniform negative each (DGL's ``DistEdgeDataLoader``), on 100,000 vertices with
4,000,000 edges. ``typed``: papers of a graph with three vertex types and five edge types (``DistNodeDataLoader``). Both
systems read the same partition folder, which ``dgl.distributed.partition_graph`` wrote, and run on the same two hosts
(network namespaces; root): a server or daemon and a trainer on each, every one with one thread. Atta runs twice:
through ``atta.compat.dgl``, with the script of DistDGL, and by its own loaders. All draw with the same fan-outs, each
hop for all vertices known so far.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from atta.errors import AttaError
from atta_bench.lab.netlab import NetLab
from atta_bench.record import command, document, head, parser_of, rows_of, write
from atta_bench.training.loading_worker import BATCH, EPOCHS, FAN_OUTS, SEEDS, WARM
from atta_bench.training.published import DAEMON_PORT, HOSTS, MEETING_PORT, PORT, _of_dgl, daemons, partitioned, servers

TIMEOUT_S = 300.0
FASTER = 3.0
"""Seeds per second of DistDGL."""
GRAPHS = {"links": "plain", "typed": "typed"}
SYSTEMS = ("native", "compat", "dgl")


def run(task: str, system: str, lab: NetLab, work: Path) -> dict[str, float]:
    """Figures of a run with a trainer on each host: rates of all trainers together, from the first start to the last
    end."""
    config = partitioned(GRAPHS[task], work)
    with tempfile.TemporaryDirectory(prefix="atta-loading-") as temporary:
        folder = Path(temporary)
        addresses, port = folder / "machines.txt", PORT if system == "dgl" else DAEMON_PORT
        addresses.write_text("".join(f"{host.address} {port}\n" for host in lab.hosts))
        worker = Path(__file__).with_name("loading_worker.py")
        program = [sys.executable, str(worker), system, task, str(addresses), str(config), str(folder / "out")]
        env = {
            "DGLBACKEND": "pytorch", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "eth0",
            "TORCH_CPP_LOG_LEVEL": "ERROR", **_of_dgl(config, addresses),
        }  # fmt: skip
        of_dgl = system == "dgl"
        supports = servers(lab.hosts, program, env, folder) if of_dgl else daemons(lab.hosts, config, env, folder)
        trainers = []
        for rank, host in enumerate(lab.hosts):
            place = {
                "DGL_ROLE": "client", "RANK": str(rank), "WORLD_SIZE": str(HOSTS),
                "MASTER_ADDR": lab.hosts[0].address, "MASTER_PORT": str(MEETING_PORT),
            }  # fmt: skip
            with (folder / f"rank{rank}.log").open("wb") as log:
                trainers.append(host.popen(program, env={**env, **place}, stdout=log, stderr=subprocess.STDOUT))
        try:
            ended = [trainer.wait(TIMEOUT_S) for trainer in trainers]
        finally:
            for process in (*trainers, *supports):
                process.kill()
                process.wait()
        if any(ended):
            logs = "\n".join((folder / f"rank{rank}.log").read_text(errors="replace")[-1500:] for rank in range(HOSTS))
            raise AttaError(f"{task} on {system}: exit codes {ended}: {logs}")
        found = [json.loads((folder / f"out{rank}.json").read_text()) for rank in range(HOSTS)]
    seconds = max(of["end"] for of in found) - min(of["start"] for of in found)
    seeds, edges, rows = (sum(of[name] for of in found) for name in ("seeds", "edges", "rows"))
    return {"seeds_per_s": seeds / seconds, "edges_per_seed": edges / seeds, "rows_per_seed": rows / seeds}


def main() -> None:
    """Run all, in turn, and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--only", default=",".join(GRAPHS))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "atta-published")
    given = parser.parse_args()
    given.work.mkdir(exist_ok=True)
    results: list[dict[str, Any]] = []
    with NetLab(HOSTS) as lab:
        for number in range(given.rounds):
            for task in given.only.split(","):
                for system in given.systems.split(",")[:: 1 if number % 2 == 0 else -1]:
                    found = run(task, system, lab, given.work.absolute())
                    results.append({"task": task, "system": system, "round": number, **found})
                    print(f"{task} on {system}: {json.dumps(found)}", flush=True)
    about = document("loading-tasks", results=results, command=command(parser, given))
    write(given.out / "loading-tasks.json", about, _lines(about, results))


def _lines(about: dict[str, Any], results: list[dict[str, Any]]) -> list[str]:
    rows = []
    for task in dict.fromkeys(result["task"] for result in results):
        of = {s: [r for r in results if (r["task"], r["system"]) == (task, s)] for s in SYSTEMS}
        rate = {s: statistics.median(r["seeds_per_s"] for r in runs) for s, runs in of.items() if runs}
        for system, runs in of.items():
            if not runs:
                continue
            rates = [r["seeds_per_s"] for r in runs]
            beside = rate[system] / rate["dgl"] if "dgl" in rate else float("nan")
            rows.append((
                task, {"native": "Atta's loaders", "compat": "atta.compat.dgl", "dgl": "DistDGL"}[system],
                f"{rate[system]:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})", f"{beside:.2f}",
                "" if system == "dgl" else "yes" if beside >= FASTER else "**no**",
                f"{statistics.median(r['edges_per_seed'] for r in runs):.1f}",
                f"{statistics.median(r['rows_per_seed'] for r in runs):.1f}",
            ))  # fmt: skip
    titles = ("task", "by", "seeds/s (of the rounds)", "of DistDGL", f"≥ {FASTER:g}", "edges per seed", "rows per seed")
    seeds = ", ".join(f"{count:,} seeds of {task}" for task, count in SEEDS.items())
    return [
        *head("Loading of links and of typed graphs beside DistDGL", about),
        f"Medians of the rounds; rates of both trainers together. Fan-outs {FAN_OUTS}, batches of {BATCH} seeds. Each trainer has",
        f"{seeds} in an epoch; {EPOCHS} measured, {WARM} before. Two hosts (namespaces on one",
        "machine, links not shaped), on each a server or daemon and a trainer, with one thread each. Edges and rows of features",
        "per seed show that all do the same work.",
        "",
        *rows_of(titles, *rows),
    ]


if __name__ == "__main__":
    main()
