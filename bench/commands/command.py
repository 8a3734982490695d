"""``atta bench``: measure Atta against physical limits and peers."""

from __future__ import annotations

import click

from atta_bench.commands import loading, pieces, training


@click.group()
def bench() -> None:
    """Measure Atta, physical limits and peers in one run.

    Example: atta bench loader --data data/demo-2p --num-neighbors 15,10,5 --json loader.json
    """


for _command in (*loading.COMMANDS, *training.COMMANDS, *pieces.COMMANDS):
    bench.add_command(_command)
