"""``atta render``: a cluster for Kubernetes, Slurm or systemd, as text to edit."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from atta.cli.options import CommandGroup, settings_options
from atta.cli.output import TO_WRITE, echo, write_text
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.observe.packages import __version__
from atta.observe.settings import NoOption, Option

if TYPE_CHECKING:
    from atta.cli.cluster.rendering.manifests import DeploymentPlan

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")

_Port = functools.partial(Option, "", at_least=1024, at_most=65_535)


@dataclass(frozen=True)
class RenderOptions:
    """What all kinds of ``atta render`` are told."""

    data: Annotated[str, Option("Partitioned dataset; its manifest tells the memory.")]
    name: Annotated[str, Option("Begins the names of everything.")] = "atta"
    nnodes: Annotated[int, Option("Machines with trainers.", at_least=0)] = 0
    trainers: Annotated[int | None, Option("Trainers on all of them.", at_least=1, unset="one each")] = None
    cache: Annotated[int, Option("Of each daemon, see atta serve.", unit="bytes")] = 1 << 30
    buffer: Annotated[int, Option("Of each daemon, see atta serve.", unit="bytes")] = 1 << 30
    certificates: Annotated[
        str | None,
        Option(
            "Folder with ca.pem, daemon.pem, daemon.key, trainer.pem, trainer.key, and perhaps tokens.toml.",
            path="folder",
        ),
    ] = None
    insecure: Annotated[bool, Option("No TLS: everybody who reaches the ports is trusted.")] = False
    port: Annotated[int, _Port()] = 7070
    link_port: Annotated[int, _Port()] = 7071
    metrics_port: Annotated[int, _Port()] = 9090
    meeting_port: Annotated[int, _Port()] = 29400
    train: Annotated[tuple[str, ...], NoOption("words after --")] = ()

    def plan(self, data: str | None = None) -> DeploymentPlan:
        """The cluster. ``data``: folder of the dataset where daemons run, if it is another one. Raises ConfigError:
        options make no sense; DataError: the manifest is missing or damaged."""
        from atta.cli.cluster.rendering.manifests import DeploymentPlan
        from atta.partition.dataset import Dataset
        from atta.partition.disk.store import path_here
        from atta.partition.graph.needs import needs_of

        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"--name {self.name!r}: at most 40 of a-z, 0-9 and -, beginning with a letter")
        if self.insecure == (self.certificates is not None):
            raise ConfigError("give either --certificates FOLDER, or --insecure where everybody is trusted")
        if not self.nnodes and (self.trainers or self.train):
            raise ConfigError("--nnodes: say how many machines have trainers")
        here = path_here(self.data, "render")
        needs = needs_of(Dataset.open(here, parts=[], verify=False))
        return DeploymentPlan(
            name=self.name,
            data=data or str(here.absolute()),
            needs=tuple(needs),
            cache=self.cache,
            buffer=self.buffer,
            nodes=self.nnodes,
            trainers=self.trainers or self.nnodes,
            train=self.train,
            tls=not self.insecure,
            **{port: getattr(self, port) for port in _PORTS},
        )

    def paths(self) -> tuple[dict[str, str], dict[str, str]]:
        """Options of daemons with their files, and what trainers bring by key: the files of ``--certificates``. Raises
        DataError: one is missing."""
        if self.certificates is None:
            return {}, {}
        folder = Path(self.certificates).absolute()
        daemon = {"--tls-ca": "ca.pem", "--tls-cert": "daemon.pem", "--tls-key": "daemon.key"}
        if (folder / "tokens.toml").exists():
            daemon["--tokens"] = "tokens.toml"
        callers = {"ca": "ca.pem", "cert": "trainer.pem", "key": "trainer.key"}
        for name in (*daemon.values(), *callers.values()):
            if not (folder / name).is_file():
                raise DataError(folder / name, "is missing; atta cert makes it")
        return {k: str(folder / v) for k, v in daemon.items()}, {k: str(folder / v) for k, v in callers.items()}


_PORTS = ("port", "link_port", "metrics_port", "meeting_port")


def _known(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a misspelt option here: the job would begin, perhaps hours later, and fail."""
    from atta.cli.train import train

    known = {"--debug", *(name for option in train.params for name in (*option.opts, *option.secondary_opts))}
    for name in (word.partition("=")[0] for word in words if word.startswith("--")):
        if name not in known:
            raise UnknownNameError.of("option of atta train", name, known)
    return words


_train = click.argument("train", nargs=-1, type=click.UNPROCESSED, callback=_known, metavar="[-- OPTIONS OF TRAIN]")
_out = click.option("--out", type=TO_WRITE, default="-", show_default="stdout", metavar="FILE", help="Where to write.")


@click.group(cls=CommandGroup)
def render() -> None:
    """Write what Kubernetes, Slurm or systemd need to run a cluster: plain text, to edit.

    Words after -- go to atta train.

    Example: atta render slurm --data products-2p --insecure --nnodes 2 -- --model sage --epochs 5"""


@render.command()
@_train
@settings_options(RenderOptions)
@click.option("--image", default=f"atta:{__version__}", help="Image of containers, see deploy/Dockerfile.")
@click.option("--claim", default="atta-data", help="PersistentVolumeClaim with the dataset.")
@click.option("--kueue", "queue", default="", metavar="QUEUE", help="Queue of Kueue for the trainers.")
@click.option("--cpu", type=click.IntRange(1), default=1, help="Cores of a daemon, and of a trainer.")
@_out
def kubernetes(settings: dict[str, Any], train: tuple[str, ...], *, out: str, **more: Any) -> None:
    """Write a StatefulSet of daemons and an Indexed Job of trainers.

    The claim's volume is the partitioned dataset itself. With --certificates the text has their keys: keep it secret.

    Example: atta render kubernetes --data products-2p --insecure --nnodes 2 --trainers 4 -- --model sage"""
    from atta.cli.cluster.rendering import manifests

    options = RenderOptions(**settings, train=train)
    options.paths()  # refuses a missing file
    files: dict[str, bytes] = {}
    if options.certificates is not None:
        names = {*manifests.DAEMON_FILES, *manifests.CALLER_FILES, "tokens.toml"}
        files = {path.name: path.read_bytes() for path in Path(options.certificates).iterdir() if path.name in names}
    plan = manifests.KubernetesPlan(options.plan(manifests.DATA), **more, files=files)
    write_text("--out", out, manifests.kubernetes_manifest(plan))


@render.command()
@_train
@settings_options(RenderOptions)
@_out
def slurm(settings: dict[str, Any], train: tuple[str, ...], *, out: str) -> None:
    """Write one script for sbatch: daemons on all nodes, trainers on the first ones.

    The folders of --data and --certificates must be seen by all nodes.

    Example: atta render slurm --data products-2p --insecure --nnodes 2 -- --model sage"""
    from atta.cli.cluster.rendering.manifests import slurm_script

    options = RenderOptions(**settings, train=train)
    write_text("--out", out, slurm_script(options.plan(), *options.paths()))


@render.command()
@_train
@settings_options(RenderOptions)
@click.option("--host", "hosts", multiple=True, required=True, help="Machine of each partition's daemon, in order.")
@click.option("--program", default="/usr/local/bin/atta", help="Where atta is installed there.")
@click.option("--out", required=True, type=click.Path(file_okay=False), help="Folder for the units.")
def systemd(
    settings: dict[str, Any], train: tuple[str, ...], *, hosts: tuple[str, ...], program: str, out: str
) -> None:
    """Write a unit per daemon and per machine with trainers, and the cluster file.

    Example: atta render systemd --data products-2p --insecure --host 10.0.0.1 --host 10.0.0.2 --out units"""
    from atta.cli.cluster.rendering.manifests import systemd_units

    options = RenderOptions(**settings, train=train)
    daemon, callers = options.paths()
    found = systemd_units(options.plan(), hosts, daemon, callers, program)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        write_text("--out", str(folder / name), text)
    echo(f"{out}: {', '.join(found)}", err=True)


COMMANDS = [render]
