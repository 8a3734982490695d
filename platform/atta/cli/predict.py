"""``atta predict`` and ``atta check``: use a trained model, and see whether one can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import atta
from atta.cli.options import command, config_option, plugin_option, settings_options
from atta.cli.output import check_folder, echo, json_option, need_torch, quiet_option, say, work_progress, write_json
from atta.errors import ConfigError
from atta.observe.lastwords import counted
from atta.observe.packages import need
from atta.train.settings.common import check_places
from atta.train.settings.predict import PredictConfig

if TYPE_CHECKING:
    from atta.train.launching.predictors import PredictReport

_GROUPS = {
    "Model and data": "checkpoint plugin data cluster",
    "What is computed": "what split ids links top relation node-type",
    "Output": "out overwrite table format files json quiet",
    "How": "processes device threads batch-size mode num-neighbors seed follow tolerance",
    "Other options": "config help",
}


@command(groups=_GROUPS)
@config_option
@plugin_option
@settings_options(PredictConfig)
@click.option("--overwrite", is_flag=True, help="Remove what --out holds of earlier predictions first.")
@json_option
@quiet_option
def predict(settings: dict[str, Any], overwrite: bool, json_file: str | None, quiet: bool) -> None:
    """Compute embeddings, scores or classes of vertices with a trained model.

    Every layer is computed for all vertices over all their in-neighbours before the next layer begins. A command that
    was broken off can be repeated: files that are finished stay, the others are computed.

    Example: atta predict --data data/demo-2p --checkpoint runs/a --out predictions --what classes

    Example: atta predict --data data/demo-2p --checkpoint runs/a --out scores --links pairs.txt

    Example: atta predict --data data/shop-2p --checkpoint runs/shop --out for-you --split test --top 10

    Example: atta predict --cluster cluster.toml --checkpoint runs/a --table embeddings --processes 4

    Example: atta predict --cluster cluster.toml --checkpoint runs/a --table embeddings --follow"""
    need_torch("prediction", quiet=quiet)
    config = PredictConfig(**settings, verbose=not quiet)
    check_places(config.data, config.cluster, checkpoint=config.checkpoint, ids=config.ids, links=config.links)
    if config.follow and json_file is not None:
        raise ConfigError("--json: does not go with --follow, which has no end")
    if config.out:
        check_folder("--out", config.out)
        if config.format == "parquet":
            need("--format parquet (npy and csv need nothing)", "pyarrow")
    if config.cluster is not None:
        atta.connect(config.cluster).close()  # loading torch takes seconds
    from atta.train.launching.predictors import follow_as, predict_as

    if config.follow:
        for done in follow_as(config):
            say(quiet, str(done))
        return
    with work_progress(quiet) as progress:
        report = predict_as(config, progress, overwrite=overwrite)
    write_json(json_file, report.to_json())
    if json_file != "-":
        say(quiet, _summary(report))


def _summary(report: PredictReport) -> str:
    config = report.config
    where = f"{counted(len(report.files), 'file')} in {config.out}" if config.out else f"table {config.table}"
    what = f"at most {counted(config.top, 'target')} for each" if config.top else config.what
    if config.links and config.what != "classes":
        what = "scores"
    of = ("pair", "pairs") if config.links else ("vertex", "vertices")
    return f"{counted(report.vertices, *of)}: {what} in {where}, {report.seconds:.1f} s"


@command()
@click.argument("model", metavar="MODULE:NAME")
@click.option("--data", type=click.Path(file_okay=False), help="Partitioned dataset; its daemons are started here.")
@click.option("--cluster", "target", help="Cluster file, or host:port,host:port, of running daemons.")
@click.option("--hops", type=click.IntRange(1, 32), show_default="as many as the model reads", help="Of the batches.")
@click.option("--features", default="x", metavar="TABLE", help="Node table that the model reads.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the choice of vertices.")
@json_option
def check(
    *,
    model: str,
    data: str | None,
    target: str | None,
    hops: int | None,
    features: str,
    seed: int,
    json_file: str | None,
) -> None:
    """Say whether a model gives on batches what it gives on the graph.

    NAME is a torch module in the Python file or package MODULE, or a function or class that gives one without
    arguments. It is called as model(x, edge_index). Where a form of batch differs, the table names the first layer that
    does, and the remedies that were tried and work. Exit code 1: something differs.

    Example: atta check models:net --data data/demo-2p

    Example: atta check models:net --cluster cluster.toml --hops 2 --json report.json"""
    need_torch("checking a model")
    check_places(data, target)
    if (data is None) == (target is None):
        raise ConfigError("give either --data (a partitioned dataset) or --cluster (running daemons)")
    if target is not None:
        atta.connect(target).close()  # loading torch takes seconds
    from atta.partition.deploy import described_dataset
    from atta.train.launching.check import check_graph, imported_model

    own = imported_model(model)
    if data is not None:
        check_graph(described_dataset(data).schema, features)
    with atta.local(data) if data is not None else atta.connect(str(target)) as cluster:
        report = atta.check(own, cluster, hops=hops, features=features, seed=seed)
    write_json(json_file, report.to_json())
    if json_file != "-":
        echo(str(report))
    if not report.ok:
        click.get_current_context().exit(1)


COMMANDS: list[click.Command] = [predict, check]
