"""The command ``atta``. Each sub-command is loaded when it is used, so that ``atta --help`` is quick."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections import namedtuple
from importlib import import_module
from itertools import pairwise
from typing import Any

import click

from atta.cli import INTERRUPTED
from atta.errors import AttaError, ConfigError, DataError, DiskFullError, QuotaExceededError, UnknownNameError
from atta.observe.machine.ending import heed_interrupts, nobody_reads

_COMMANDS = {
    "demo": ("demo", "Show a first run, from a graph to a trained model."),
    "schema": ("graphs.tables", "Guess the schema of a folder of tables."),
    "import": ("graphs.data", "Turn a dataset in another format into a graph folder."),
    "export": ("graphs.tables", "Turn a graph folder into another format."),
    "generate": ("graphs.data", "Generate a graph that a GNN can learn from."),
    "partition": ("graphs.partition", "Cut a graph into partitions."),
    "deploy": ("graphs.tables", "Copy what one daemon needs of a partitioned dataset."),
    "inspect": ("graphs.data", "Verify and describe a graph or a partitioned dataset."),
    "simulate": ("simulate", "Compute what a cluster of any size would do."),
    "plan": ("graphs.partition", "Estimate what partitioning takes, or which training strategy is fastest."),
    "render": ("cluster.rendering.command", "Write what Kubernetes, Slurm or systemd need to run a cluster."),
    "serve": ("cluster.serve", "Serve one partition until SIGTERM."),
    "status": ("cluster.status", "Show what each daemon of a cluster does."),
    "top": ("cluster.top", "Watch the daemons of a cluster and their sessions."),
    "dashboard": ("cluster.dashboard", "Serve a page that shows a cluster and the curves of training."),
    "trace": ("cluster.trace", "Write what the daemons did and decided as a timeline."),
    "stop": ("cluster.status", "Ask every daemon of a cluster to drain and exit."),
    "roll": ("cluster.roll", "Restart the daemons of a cluster one after another."),
    "tables": ("cluster.tables", "List, save, load and drop the mutable tables of a cluster."),
    "update": ("cluster.update", "Publish new rows of a dataset's tables while daemons serve."),
    "token": ("token", "Make, list and revoke tokens, which say who may do what."),
    "cert": ("cert", "Make a test authority and certificates for TLS."),
    "train": ("train", "Train a model on sampled mini-batches, or on whole servers."),
    "compare": ("compare", "Compare training runs: figures, their spread over seeds, and curves."),
    "worker": ("train", "Compute tasks of a trainer of --strategy dorylus, which starts it."),
    "check": ("predict", "Say whether a model gives on batches what it gives on the graph."),
    "predict": ("predict", "Compute embeddings, scores or classes of vertices with a trained model."),
    "bench": ("", "Measure against physical limits and peers."),
    "chaos": ("", "Kill and starve the processes of a small cluster, and check what they deliver."),
    "plugins": ("plugins", "List methods, models and others, and the packages that they come from."),
}
"""By name: the module of a command (empty: another package registers it), and a sentence about it."""
# Headings of the list of commands, each by the first command below it.
_HEADINGS = {
    "demo": "To begin with",
    "schema": "Graphs",
    "simulate": "Clusters",
    "train": "Training",
    "bench": "Atta itself",
}
_BENCH = ("bench", "chaos")
"""Commands that the package in ``bench`` registers."""


class _LazyGroup(click.Group):
    """Sub-commands are imported when they are used. Other packages add commands by entry points in the group
    ``atta.commands``: NAME = "module:command"."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        module, _ = _COMMANDS.get(name, ("", ""))
        if not module:
            return _registered(name)
        return next((c for c in import_module(f"atta.cli.{module}").COMMANDS if c.name == name), None)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # click would print an empty line first
            raise click.Abort from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, summary) for name, (_, summary) in _COMMANDS.items()]
        begins = [place for place, (name, _) in enumerate(rows) if name in _HEADINGS]
        for (begin, end), heading in zip(pairwise([*begins, len(rows)]), _HEADINGS.values(), strict=True):
            with formatter.section(heading):
                formatter.write_dl(rows[begin:end])


def _registered(name: str) -> click.Command:
    """The command that another package registers under ``name``. Raises UnknownNameError: there is none."""
    from importlib.metadata import entry_points

    for point in entry_points(group="atta.commands", name=name):
        command: click.Command = point.load()
        return command
    if name in _BENCH:
        raise ConfigError(f"atta {name} is in a package of its own: pip install ./bench, in a clone of Atta")
    raise UnknownNameError.of("command", name, _COMMANDS)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="atta", prog_name="atta")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def cli(debug: bool) -> None:
    """Sampled mini-batches for graph neural networks, from graphs that outgrow one machine.

    \b
    A first run, which atta demo shows:
      atta generate powerlaw graphs/demo --nodes 120000 --edges 3000000
      atta partition graphs/demo data/demo-2p --parts 2
      atta train --data data/demo-2p --model sage --trainers 2
    """


def main() -> None:
    """Run the command line: exit 0 done, 2 wrong usage or bad input, 1 failure while running, 130 on Ctrl-C, 141
    where nobody reads the output any more."""
    _open_missing_streams()
    debug = "--debug" in sys.argv  # accepted after the sub-command too
    if debug:
        sys.argv.remove("--debug")
    try:
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGINT, signal.default_int_handler)  # from now on there may be something to undo
            heed_interrupts()
        code = cli.main(prog_name="atta", standalone_mode=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, BrokenPipeError | SystemExit) and nobody_reads(1):  # click has made an exit of some
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the flush at exit fails again
            sys.exit(128 + signal.SIGPIPE)  # what shells show of other tools, which this signal ends
        if isinstance(error, SystemExit):
            raise
        if debug and not isinstance(error, click.ClickException):
            raise
        from atta.observe.lastwords import printable  # not needed, and so not imported, where all goes well

        text, code = _verdict(error)
        _leave_last_words(error, code)
        with contextlib.suppress(OSError):  # nobody reads it, or the disk is full; the exit code still says it
            print(printable(text), file=sys.stderr, flush=True)
        # Python remembers an interrupt that has left a text that was executed, such as that of a dataclass. It would end
        # with a signal then, and not with the exit code, unless another such text has been executed since.
        namedtuple("Forgotten", ())
    sys.exit(code if isinstance(code, int) else 0)


def _leave_last_words(error: BaseException, code: int) -> None:
    """Hand the error to the parent process if it asked for that. Wrong usage becomes a ConfigError."""
    from atta.observe import lastwords

    if isinstance(error, click.ClickException):
        error = ConfigError(_line(error.format_message()))
    if code != 130 and isinstance(error, AttaError):
        with contextlib.suppress(OSError):
            lastwords.leave(error)


def _open_missing_streams() -> None:
    """Give a process without standard streams (``2>&-``) empty ones. Otherwise ``print`` would take standard output for
    the missing standard error, and the next file or socket would get its number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def _verdict(error: BaseException) -> tuple[str, int]:
    if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11 wraps what ends the making of a class
        error = error.__cause__
    match error:
        case click.exceptions.Abort() | KeyboardInterrupt():
            return INTERRUPTED, 130
        case click.exceptions.NoArgsIsHelpError():
            return error.format_message(), 2
        case click.UsageError(ctx=click.Context(command_path=command)):
            said = re.sub("a valid integer( range)?", "a whole number", _line(error.format_message()))
            said = re.sub("a valid float( range)?", "a number", said)
            lists = (
                "; numbers of one list have commas between them: 15,10,5" if re.search(r"extra .*\(\d", said) else ""
            )
            data = (
                "; --data names a dataset"
                if re.search(r"extra argument \(\D", said) and command == "atta train"
                else ""
            )
            return f"atta: error: {said}{lists}{data} (see: {command} --help)", 2
        case click.ClickException():
            return f"atta: error: {_line(error.format_message())}", 2
        case DiskFullError():
            return f"atta: error: {_line(error)}", 1
        case ConfigError() | DataError() | QuotaExceededError():
            return f"atta: error: {_line(error)}", 2
        case AttaError() | OSError():
            more = " (--debug shows where)" if hasattr(error, "__notes__") else ""
            return f"atta: error: {_line(error)}{more}", 1
        case _:
            return f"atta: error: {type(error).__name__}: {_line(error)} (--debug shows where)", 1


def _line(message: object) -> str:
    return " ".join(str(message).split())


if __name__ == "__main__":
    main()
