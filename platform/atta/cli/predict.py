"""``atta predict``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from atta.cli.options import GroupedCommand, config_option, settings_options
from atta.cli.output import check_folder, json_option, quiet_option, write_json
from atta.cli.work import say, work_progress
from atta.observe.extras import need
from atta.train.settings.predict import PredictConfig

if TYPE_CHECKING:
    from atta.train.launching.predictors import PredictReport


_GROUPS = {
    "Model and data": "checkpoint data cluster",
    "What is computed": "what split ids links top relation node-type",
    "Output": "out table format files json quiet",
    "How": "processes device threads batch-size mode num-neighbors seed",
    "Other options": "config help",
}


@click.command(cls=GroupedCommand, groups=_GROUPS)
@config_option
@settings_options(PredictConfig)
@json_option
@quiet_option
def predict(settings: dict[str, Any], json_file: str | None, quiet: bool) -> None:
    """Compute embeddings, scores or classes of vertices with a trained model.

    Every layer is computed for all vertices over all their in-neighbours before the next layer begins. A command that
    was broken off can be repeated: files that are finished stay, the others are computed.

    Example: atta predict --data data/demo-2p --checkpoint runs/a --out predictions --what classes

    Example: atta predict --data data/demo-2p --checkpoint runs/a --out scores --links pairs.txt

    Example: atta predict --data data/shop-2p --checkpoint runs/shop --out for-you --split test --top 10

    Example: atta predict --cluster cluster.toml --checkpoint runs/a --table embeddings --processes 4
    """
    need("prediction", "torch", "torch_geometric")
    from atta.train.launching.predictors import predict_as

    config = PredictConfig(**settings, verbose=not quiet)
    if config.out:
        check_folder("--out", config.out)
        if config.format == "parquet":
            need("--format parquet (npy needs nothing)", "pyarrow")
    with work_progress(quiet) as progress:
        report = predict_as(config, progress)
    if json_file != "-":
        say(quiet, _summary(report))
    write_json(json_file, report.to_json())


def _summary(report: PredictReport) -> str:
    config = report.config
    where = f"{len(report.files)} files in {config.out}" if config.out else f"table {config.table}"
    of_pairs = "classes" if config.what == "classes" else "scores"
    if config.top:
        return f"{report.vertices:,} vertices: at most {config.top} targets for each in {where}, {report.seconds:.1f} s"
    what = f"pairs: {of_pairs} in {where}" if config.links else f"vertices: {config.what} in {where}"
    return f"{report.vertices:,} {what}, {report.seconds:.1f} s"


COMMANDS = [predict]
