"""``atta trace``: what the daemons of a cluster did and decided, as a timeline."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import click

from atta.cli.options import command
from atta.cli.output import DURATION, TO_WRITE, cluster_option, echo, plot_option, write_text
from atta.client.control import Connection, Description
from atta.client.every import DaemonAnswer, ask_all, check_together, down
from atta.errors import AttaError, ConfigError
from atta.observe.packages import __version__
from atta.observe.recording import Recording
from atta.observe.timeline import covered_s, document, trace_events
from atta.wire.clusterfile import credentials_for, resolve_target
from atta.wire.credentials import Credentials
from atta.wire.parts import Addresses

DEADLINE_S, TRANSFER_S = 5.0, 30.0
"""How long a daemon may take to describe itself, and to send its recording."""


@command()
@cluster_option
@click.option("--out", type=TO_WRITE, metavar="FILE", help="Where to write the trace; - for stdout.")
@plot_option("Draw how much was under way at once.")
@click.option(
    "--seconds",
    type=DURATION,
    default=0.0,
    show_default="all that the daemons still remember",
    help="How long to record.",
)
def trace(target: str, out: str | None, plot: str | None, seconds: float) -> None:
    """Write what the daemons did and decided as a trace for https://ui.perfetto.dev, or as a picture.

    Daemons always record, so nothing has to be switched on before. Exit code 1: a daemon is down; the trace has the
    others.

    Example: atta trace --cluster cluster.toml --out trace.json --seconds 5
    """
    if out is None and plot is None:
        raise click.UsageError("Missing option '--out' or '--plot'.")
    text, told, failure = recorded(target, seconds)
    if out is not None:
        write_text("--out", out, text)
    shown = out in (None, "-") or "nothing happened" in told
    echo(told if shown else f"{told}: open {out} in https://ui.perfetto.dev", err=True)
    if plot is not None:
        from atta.cli.pictures import draw_timeline

        draw_timeline(plot, json.loads(text)["traceEvents"])
    if failure is not None:
        raise failure


def recorded(target: str, seconds: float = 0.0) -> tuple[str, str, AttaError | None]:
    """What daemons record in the next ``seconds`` (0: what they still have), as a trace for Perfetto in JSON. Returns
    the trace, a summary for people, and the error of the first daemon that is down. Raises ConfigError: there are no
    daemons, or they record nothing; AttaError: none answers."""

    credentials = credentials_for(target)
    asked = ask_all(resolve_target(target), Connection.describe, deadline_s=DEADLINE_S, credentials=credentials)
    known = check_together(asked)
    answers = _record(known, seconds, credentials)
    recordings = [answer.value for answer in answers if answer.value is not None]
    if not recordings:
        raise down(known) or down(answers) or ConfigError("no daemon is named")
    if not any(recording.capacity for recording in recordings):
        raise ConfigError("the daemons record nothing: they were started with --trace-events 0")
    events = trace_events(recordings)
    text = document(events, {"writer": f"atta {__version__}", **_about(known, credentials)})
    number = sum(event["ph"] != "M" for event in events)  # metadata are names
    return text, _summary(recordings, seconds, events=number), down(known) or down(answers)


def _alive(known: Sequence[DaemonAnswer[Description]]) -> dict[int, Addresses]:
    found: dict[int, tuple[str, ...]] = {}
    for answer in known:
        if answer.error is None:
            found[answer.part] = (*found.get(answer.part, ()), answer.address)
    return {**found}


def _record(
    known: Sequence[DaemonAnswer[Description]], seconds: float, credentials: Credentials | None
) -> list[DaemonAnswer[Recording]]:
    """What the daemons that answer record in the next ``seconds``; 0: what they have recorded so far."""

    alive = _alive(known)
    if not alive:
        return []
    begun = time.monotonic()
    time.sleep(seconds)
    last_s = time.monotonic() - begun if seconds else 0.0
    return ask_all(alive, lambda connection: connection.trace(last_s), deadline_s=TRANSFER_S, credentials=credentials)


def _about(known: Sequence[DaemonAnswer[Description]], credentials: Credentials | None) -> dict[str, Any]:
    """The dataset, and the cores of the largest machine, which `atta simulate` needs to make a profile."""

    answers = ask_all(_alive(known), Connection.stats, deadline_s=DEADLINE_S, credentials=credentials)
    figures = [answer.value for answer in answers]
    cores = max((int(found["machine_cores"]) for found in figures if found is not None), default=1)
    dataset = next(answer.value.dataset_id for answer in known if answer.value is not None and answer.error is None)
    return {"dataset_id": dataset, "cores": cores}


def _summary(recordings: list[Recording], seconds: float, *, events: int) -> str:

    covered = max(map(covered_s, recordings))
    text = f"{events:,} events of {len(recordings)} daemon{'s' if len(recordings) > 1 else ''}, {covered:.3g} seconds"
    if not any(recording.entries for recording in recordings):
        return f"{text}: nothing happened" + ("" if seconds else " yet")
    if seconds and any(r.full and covered_s(r) < 0.9 * seconds for r in recordings):
        text += "; older ones are gone, `atta serve --trace-events` keeps more"
    return text


COMMANDS = [trace]
