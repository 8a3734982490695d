"""``atta deploy``: copy the files of a partitioned dataset that one machine needs."""

from __future__ import annotations

import click

from atta.cli.output import quiet_option
from atta.cli.work import overwrite_option, say, size, work_progress
from atta.partition.deploy import deploy


@click.command("deploy", epilog="Example: atta deploy data/big-2p --part 0 /mnt/machine-0/big-2p")
@click.argument("src", type=click.Path(), metavar="DATA")
@click.argument("dst", type=click.Path())
@click.option(
    "--part",
    "parts",
    type=click.IntRange(0),
    multiple=True,
    required=True,
    help="Partition that will be served there; may be given several times.",
)
@overwrite_option
@quiet_option
def deploy_(src: str, dst: str, *, parts: tuple[int, ...], overwrite: bool, quiet: bool) -> None:
    """Copy what the daemon of one partition needs of the dataset DATA into the folder DST.

    These are the manifest, the files that all daemons read, and the partition. Every checksum is verified. DST appears
    when the copy is complete.
    """
    with work_progress(quiet) as progress:
        copied = deploy(src, dst, parts, overwrite=overwrite, progress=progress)
    told = f"partition{'s' if len(parts) > 1 else ''} {', '.join(map(str, parts))}"
    say(quiet, f"{dst}: {told} of {src}, {size(copied)}, checksums verified")


COMMANDS: list[click.Command] = [deploy_]
