"""What encryption between daemons costs: links and messages, each with and without TLS, in the same rounds.

    python -m bench.transport.encrypted --data DATASET-2p [--rounds 5] [--batch-size 1024]

Two daemons and two consumers in network namespaces of this machine, without a cache: half of the rows and of the
expanded vertices belong to the other daemon. Bound: with TLS at least 70 % of the seeds per second without. Every other
round goes backwards. Needs root and openssl. Writes encrypted.json and encrypted.md.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atta import _native
from atta.cli.security.openssl import make_authority, make_certificate
from atta_bench.lab.netlab import NetLab
from atta_bench.lab.platform_run import cache_options, run_atta
from atta_bench.lab.workload import BenchWorkload
from atta_bench.record import command, document, head, parser_of, rows_of, write

BOUND = 0.7
SETTINGS = {
    "links": (True, False),
    "links, TLS": (True, True),
    "messages": (False, False),
    "messages, TLS": (False, True),
}
"""Whether links carry rows and edges, and whether daemons have certificates."""


def main() -> None:
    """Measure and write the record."""
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="two partitions")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="measured per setting and round, at least")
    parser.add_argument("--batch-size", type=int, default=1024)
    arguments = parser.parse_args()
    if not _native.link_tls:
        sys.exit("this build has no OpenSSL: its links are never encrypted")
    workload = BenchWorkload((15, 10, 5), arguments.batch_size, warm_up=2, epochs=1, seconds=arguments.seconds)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SETTINGS}
    with tempfile.TemporaryDirectory() as folder, NetLab(2) as lab:
        files = certificates(Path(folder), [host.address for host in lab.hosts])
        for round_ in range(arguments.rounds):
            for name in [*SETTINGS][:: 1 if round_ % 2 == 0 else -1]:
                place = Path(folder) / f"{round_}-{name}"
                figures = measure(name, lab, place, data=arguments.data, workload=workload, files=files)
                found[name].append(figures)
                print(
                    f"round {round_ + 1}, {name}: " + ", ".join(f"{k} {v:,.1f}" for k, v in figures.items()), flush=True
                )
    record(found, command(parser, arguments), arguments.out, arguments.batch_size)


def certificates(folder: Path, hosts: list[str]) -> dict[str, str]:
    """Make an authority and one certificate for daemons and consumers; its files by option."""
    made = folder / "certificates"
    make_authority(made, "bench", 1)
    make_certificate(made, "daemon", roles=["peer", "reader", "operator"], hosts=hosts, days=1)
    return {"ca": str(made / "ca.pem"), "cert": str(made / "daemon.pem"), "key": str(made / "daemon.key")}


def measure(
    name: str, lab: NetLab, folder: Path, *, data: Path, workload: BenchWorkload, files: Mapping[str, str]
) -> dict[str, float]:
    """Seeds per second, and microseconds of processor time of daemons and consumers per seed."""
    linked, encrypted = SETTINGS[name]
    folder.mkdir()
    serve = [*cache_options(0.0), *([] if linked else ["--no-links"])]
    if encrypted:
        serve += [word for kind, file in files.items() for word in (f"--tls-{kind}", file)]
    with environment({f"ATTA_TLS_{kind.upper()}": file for kind, file in files.items()} if encrypted else {}):
        measured = run_atta(data, workload, lab.hosts, folder, frontier="all", deliver="arrays", serve=serve)
    seeds = sum(epoch["seeds"] for epoch in measured.epochs)
    return {"seeds_per_s": seeds / measured.window_s, "cpu_us_per_seed": 1e6 * measured.whole.cpu_s / seeds}


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """The variables are set for what is started meanwhile."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


def record(found: Mapping[str, list[dict[str, float]]], typed: str, out: Path, batch_size: int) -> None:
    """Write encrypted.json and encrypted.md."""
    shares = {name: paired(found, name, "links") for name in SETTINGS}
    results: list[dict[str, Any]] = [
        {"setting": name, "rounds": rounds, "of_links": shares[name]} for name, rounds in found.items()
    ]
    written = document("encrypted", command=typed, results=results) | {
        "bound": BOUND,
        "holds": shares["links, TLS"] >= BOUND,
    }
    lines = [
        *head("Encryption between daemons", written),
        f"Two daemons and two consumers of one thread each in network namespaces, batches of {batch_size:,} seeds, fan-outs",
        f"15,10,5, no cache. Medians of {len(found['links'])} rounds; shares are medians of the rounds' quotients.",
        "",
        *rows_of(
            ("setting", "seeds/s", "processor time per seed", "of links' seeds/s"),
            *(
                (
                    name,
                    f"{statistics.median(r['seeds_per_s'] for r in rounds):,.0f}",
                    f"{statistics.median(r['cpu_us_per_seed'] for r in rounds):.0f} µs",
                    f"{shares[name]:.2f}",
                )
                for name, rounds in found.items()
            ),
        ),
        "",
        f"Links with TLS keep {shares['links, TLS']:.0%}; asked: {BOUND:.0%}.",
    ]
    write(out / "encrypted.json", written, lines)


def paired(found: Mapping[str, list[dict[str, float]]], name: str, beside: str) -> float:
    """Median over rounds of the quotient of seeds per second."""
    return statistics.median(
        mine["seeds_per_s"] / other["seeds_per_s"] for mine, other in zip(found[name], found[beside], strict=True)
    )


if __name__ == "__main__":
    main()
