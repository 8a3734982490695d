"""``atta trace``: what the daemons of a cluster did and decided, as a timeline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from atta.cli.output import DURATION, TO_WRITE, write_text
from atta.errors import ConfigError

if TYPE_CHECKING:
    from atta.observe.recording import Recording

__all__ = ["COMMANDS"]


@click.command()
@click.option("--cluster", "target", required=True, help="Cluster file, or host:port,host:port.")
@click.option("--out", required=True, type=TO_WRITE, metavar="FILE", help="Where to write the trace; - for stdout.")
@click.option(
    "--seconds",
    type=DURATION,
    default=0.0,
    help="Wait so long and take what happens meanwhile  [default: all that the daemons still remember].",
)
def trace(target: str, out: str, seconds: float) -> None:
    """Write what the daemons did and decided as a trace for https://ui.perfetto.dev.

    Daemons always record; nothing has to be switched on before.

    Example: atta trace --cluster cluster.toml --out trace.json --seconds 5
    """
    from atta.client.cluster import connect
    from atta.observe.timeline import document, trace_events
    from atta.version import __version__

    with connect(target, deadline_s=30.0) as cluster:
        begun = time.monotonic()
        time.sleep(seconds)
        recordings = cluster.trace(time.monotonic() - begun if seconds else 0.0)
        dataset = cluster.dataset_id
        cores = max(int(figures["machine_cores"]) for figures in cluster.stats())
    if not any(recording.capacity for recording in recordings):
        raise ConfigError("the daemons record nothing: they were started with --trace-events 0")
    events = trace_events(recordings)
    write_text("--out", out, document(events, {"writer": f"atta {__version__}", "dataset_id": dataset, "cores": cores}))
    told = sum(event["ph"] != "M" for event in events)  # the others are names
    click.echo(_summary(out, recordings, seconds, events=told), err=True)


def _summary(out: str, recordings: list[Recording], seconds: float, *, events: int) -> str:
    from atta.observe.timeline import covered_s

    covered = max(map(covered_s, recordings))
    text = f"{events:,} events of {len(recordings)} daemon{'s' if len(recordings) > 1 else ''}, {covered:.3g} seconds"
    if not any(recording.entries for recording in recordings):
        return f"{text}: nothing happened" + ("" if seconds else " yet")
    if seconds and any(r.full and covered_s(r) < 0.9 * seconds for r in recordings):
        text += "; older ones are gone, `atta serve --trace-events` keeps more"
    return text if out == "-" else f"{text}: open {out} in https://ui.perfetto.dev"


COMMANDS = [trace]
