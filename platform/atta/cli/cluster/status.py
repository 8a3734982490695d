"""``atta status`` and ``atta stop``: every daemon of a cluster, including those that are down."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from atta import errors
from atta.cli.options import command
from atta.cli.output import DURATION, cluster_option, duration, echo, json_option, printer, size, tell, write_json
from atta.client.control import Connection, Description
from atta.client.every import DaemonAnswer, ask_all, check_operator, check_together, down
from atta.client.watch import DaemonRates, Watch
from atta.wire.clusterfile import credentials_for, listed, resolve_target

DEADLINE_S = 5.0
"""How long a daemon may take to answer before it counts as down."""
LOOK_AGAIN_S = 0.5
_DIFFERS = errors.WrongDatasetError, errors.SamplingContractError, errors.ProtocolError
"""Errors about a daemon that answers, but serves something else than the others."""
_REFUSED = errors.NotAllowedError, errors.NotAuthenticatedError


@command()
@cluster_option
@click.option("--interval", type=DURATION.at_least("100ms"), default="500ms", help="Rates are means over this.")
@click.option("--wait", type=DURATION, default="0s", help="How long to wait for daemons that are starting.")
@click.option("--all", "everything", is_flag=True, help="Also all counters of each daemon.")
@json_option
def status(target: str, interval: float, wait: float, everything: bool, json_file: str | None) -> None:
    """Show what each daemon of a cluster does, in one line.

    --json also has all counters. Exit code 1: a daemon is down, or serves something else.

    Example: atta status --cluster cluster.toml"""

    addresses, credentials = resolve_target(target), credentials_for(target)
    describe = partial(ask_all, addresses, Connection.describe, deadline_s=DEADLINE_S, credentials=credentials)
    until, answers = time.monotonic() + wait, describe()
    told: list[str] = []
    while (missing := _unavailable(answers)) and time.monotonic() < until:
        if missing != told:
            tell(f"waiting for {listed(told := missing)}")
        time.sleep(LOOK_AGAIN_S)
        answers = describe()
    known = check_together(answers)
    with Watch(target, deadline_s=DEADLINE_S) as watch:
        watch.look()
        time.sleep(interval)
        found = watch.look()
    known = [_as_of_now(answer, daemon) for answer, daemon in zip(known, found, strict=True)]
    now = datetime.now().astimezone()
    write_json(json_file, _document(known, found, now))
    if json_file != "-":
        console = printer()
        console.print(_table(known, found, now))
        if everything:
            console.print(_counters(found))
    if error := down(known):
        silent = [answer for answer in known if "nothing listens there" in answer.reason]
        starts = listed([f"atta serve --part {a.part} --listen {a.address} ..." for a in silent])
        hint = f" (start it with all its options: {starts})" if silent else ""
        raise errors.RemoteError(error.peer, error.cause + hint)


def _unavailable(answers: Sequence[DaemonAnswer[Description]]) -> list[str]:
    lost = (answer for answer in answers if isinstance(answer.error, errors.UnavailableError))
    return [f"part {answer.part} at {answer.address}" for answer in lost]


def _as_of_now(answer: DaemonAnswer[Description], daemon: DaemonRates) -> DaemonAnswer[Description]:
    """``answer``, but an error for a daemon that has described itself and then gave no figures."""
    if answer.error is not None or not daemon.sample.error:
        return answer
    return dataclasses.replace(answer, error=errors.AttaError(daemon.sample.error))


def _document(
    known: Sequence[DaemonAnswer[Description]], found: Sequence[DaemonRates], now: datetime
) -> dict[str, Any]:
    described = [answer.value for answer in known if answer.value is not None]
    daemons = []
    for answer, daemon in zip(known, found, strict=True):
        rates = daemon.to_dict()
        counters, sessions = rates.pop("counters"), rates.pop("sessions")
        since = _up_since(daemon.sample.counters, now)
        files = (answer.value.files or None) if answer.value is not None else None
        up = since.isoformat(timespec="seconds") if since is not None else None
        about = {"error": answer.reason or None, "files": files, "up_since": up, "open_sessions": sessions}
        daemons.append({**counters, **rates, **about})
    return {"schema": 1, "dataset_id": described[0].dataset_id if described else None, "daemons": daemons}


def _table(known: Sequence[DaemonAnswer[Description]], found: Sequence[DaemonRates], now: datetime) -> Table:

    dataset = next((answer.value.dataset_id for answer in known if answer.value is not None), "unknown")
    table = Table(title=f"dataset {dataset}", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("part", "address", "state", "up since"):
        table.add_column(name, overflow="fold")
    for name in ("sessions", "batches/s", "remote", "CPU", "memory", "buffers"):
        table.add_column(name, justify="right", overflow="fold")
    for answer, daemon in zip(known, found, strict=True):
        table.add_row(
            daemon.sample.parts, answer.address, _state(answer), *_figures(daemon, now, shown=answer.value is not None)
        )
    return table


def _state(answer: DaemonAnswer[Description]) -> Text:

    if answer.error is not None:
        broken = answer.value is not None and answer.value.broken
        answers = "differs" if isinstance(answer.error, _DIFFERS) else "does not serve" if broken else ""
        return Text(answers or ("refused" if isinstance(answer.error, _REFUSED) else "down"), style="bold red")
    files = "" if answer.value is None else answer.value.files
    return Text(f"serving; {files}", style="bold yellow") if files else Text("serving")


def _figures(daemon: DaemonRates, now: datetime, *, shown: bool) -> list[str]:

    counters = daemon.sample.counters
    since = _up_since(counters, now)
    if since is None or not shown:
        return ["-"] * 7

    def rate(value: float | None, text: str) -> str:
        return "-" if value is None else text.format(value)

    remote = daemon.remote_bytes_per_s
    return [
        f"{since:%Y-%m-%d %H:%M} ({duration(counters['uptime_seconds'])})",
        f"{len(daemon.sessions)}",
        rate(daemon.batches_per_s, "{:,.1f}"),
        "-" if remote is None else f"{size(remote)}/s",
        rate(daemon.daemon_cpu_percent, "{:.0f} %"),
        size(counters.get("process_resident_bytes", 0.0)),
        f"{size(counters.get('buffer_bytes', 0.0))} of {size(counters.get('buffer_limit_bytes', 0.0))}",
    ]


def _up_since(counters: Mapping[str, float], now: datetime) -> datetime | None:
    return now - timedelta(seconds=counters["uptime_seconds"]) if "uptime_seconds" in counters else None


def _counters(found: Sequence[DaemonRates]) -> Table:

    rows = [daemon.sample.counters for daemon in found]
    table = Table(title="counters", title_justify="left")
    table.add_column("")
    for daemon in found:
        table.add_column(f"part {daemon.sample.parts}\n{daemon.sample.address}", justify="right")
    for name in sorted({name for row in rows for name in row}):
        table.add_row(name, *(f"{row[name]:,.6g}" if name in row else "-" for row in rows))
    return table


@command()
@cluster_option
def stop(target: str) -> None:
    """Ask every daemon of a cluster to drain and exit.

    Exit code 1: a daemon did not answer; the others are stopped all the same.

    Example: atta stop --cluster cluster.toml"""

    addresses, credentials = resolve_target(target), credentials_for(target)
    check_operator(addresses, deadline_s=DEADLINE_S, credentials=credentials)
    answers = ask_all(addresses, Connection.stop, deadline_s=DEADLINE_S, credentials=credentials)
    for answer in answers:
        if answer.error is None:
            echo(f"part {answer.part} at {answer.address}: stopping")
    if error := down(answers):
        raise error


COMMANDS = [status, stop]
