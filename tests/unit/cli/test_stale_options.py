"""``atta train`` refuses options of stale rows that make no sense: one line, exit code 2, before anything starts."""

from __future__ import annotations

import sys

import pytest

from atta.cli import main as root
from atta.cli.train import train
from atta.train import TrainConfig

CASES = [
    ("--strategy sancus:eps=nan", "eps=nan: must be a finite number"),
    ("--strategy sancus:eps=-1", "eps=-1: -1.0 is not in the range"),
    ("--strategy sancus:eps=0.5", "eps=0.5: is a number of epochs with bound=epoch"),
    ("--strategy sancus:bound=often", "'often' is not one of 'epoch', 'adaptive', 'gap'"),
    ("--strategy sancus:clip-grad=0", "clip-grad=0.0: must be positive"),
    ("--strategy sancus:clip-grad=inf", "clip-grad=inf: must be a finite number"),
    ("--strategy sancus:warmup=-1", "warmup=-1: -1 is not in the range"),
    ("--strategy pipegcn:smooth=1", "smooth=1.0: must lie in [0, 1)"),
    ("--strategy pipegcn:smooth=nan", "smooth=nan: must be a finite number"),
    ("--strategy pipegcn:codec=int4", "'int4' is not one of"),
    ("--strategy digest:sync-every=0", "sync-every=0: 0 is not in the range"),
    ("--strategy digest:phase=late", "'late' is not one of 'early', 'paper'"),
    ("--strategy digest:codec=delta-int8", "codec=delta-int8"),
    ("--strategy sat:window=1", "window=1: 1 is not in the range"),
    ("--strategy sat:history-codec=polyline:99", "codec 'polyline:99'"),
    ("--strategy sat:history-codec=zip", "zip"),
    ("--strategy digest:max-delay=1", "max-delay: belongs to --strategy digest-async, not digest"),
    ("--strategy digest-async:max-delay=-1", "max-delay=-1: -1 is not in the range"),
    ("--strategy digest-async:lr-scale=0", "lr-scale=0.0: must be positive"),
    ("--strategy digest-async:eval-interval=nan", "'nan' is not a duration such as 2ms"),
    ("--strategy digest-async:lease=inf", "'inf' is not a duration such as 2ms"),
    ("--strategy digest-async:lease=0s", "lease=0.0: must be positive"),
    ("--strategy digest-async:max-updates=0", "max-updates=0: 0 is not in the range"),
    ("--strategy digest-async:restarts=-1", "restarts=-1: -1 is not in the range"),
    ("--strategy digest:restarts=1", "restarts: belongs to --strategy digest-async, not digest"),
    (
        "--strategy digest-async:stale-across=trainers,restarts=1 --trainers 2 --trainers-per-server 2",
        "restarts=1: one trainer of a server cannot start again alone",
    ),
    ("--strategy digest-async --checkpoint x", "--checkpoint: does not go with digest-async"),
    ("--strategy digest-async --lr-schedule cosine", "--lr-schedule: does not go with digest-async"),
    ("--strategy digest-async --clip-grad-norm 1", "--clip-grad-norm: does not go with digest-async"),
    ("--strategy digest-async:average=weights", "average=weights: does not go with digest-async"),
    ("--strategy digest-async --trainers 2 --trainers-per-server 2", "trainers of a server wait for each other"),
    ("--strategy dorylus:intervals=0", "intervals=0: 0 is not in the range"),
    ("--strategy dorylus:staleness=-1", "staleness=-1: -1 is not in the range"),
    ("--strategy dorylus:mode=pipe,staleness=1", "staleness=1: goes with mode=async; pipe reads rows of this"),
    ("--strategy dorylus:mode=fast", "'fast' is not one of 'nopipe', 'pipe', 'async'"),
    ("--strategy dorylus:workers=none", "workers=none: must be auto, or a number from 1 to 256"),
    ("--strategy dorylus:workers=0", "workers=0: must be auto, or a number from 1 to 256"),
    ("--strategy dorylus:worker-timeout=nan", "'nan' is not a duration such as 2ms"),
    ("--strategy dorylus:worker-timeout=0ms", "worker-timeout=0: must be auto, or seconds above 0"),
    ("--strategy dorylus:max-relaunch=-1", "max-relaunch=-1: -1 is not in the range"),
    ("--strategy dorylus:interval-trace=/etc/passwd", "is a file; each trainer writes one into a folder"),
    ("--strategy dorylus --model deepergcn", "--model deepergcn: dorylus cannot split it into gather and apply"),
    ("--strategy dorylus --clip-grad-norm 1", "--clip-grad-norm: does not go with dorylus"),
    ("--strategy dorylus --device cuda", "--device cuda: does not go with dorylus"),
    ("--strategy dorylus --trainers 2", "--trainers-per-server above 1: dorylus has one trainer per partition"),
    ("--strategy digest:intervals=4", "intervals: belongs to --strategy dorylus, not digest"),
    ("--strategy exchange:eps=1", "eps: belongs to --strategy sancus, not exchange"),
    ("--strategy exchange:stale-across=trainers", "stale-across: belongs to --strategy sancus or pipegcn or"),
    ("--strategy pipegcn:sync-every=3", "sync-every: belongs to --strategy digest or sat or digest-async, not pipegcn"),
    ("--strategy digest:window=3", "window: belongs to --strategy sat, not digest"),
    ("--strategy full:rows=all", "rows: belongs to --strategy exchange or"),
    ("--strategy sancus --trainers 3 --trainers-per-server 2", "cannot form servers"),
    ("--strategy digest:sync-evry=3", "unknown setting 'sync-evry'; did you mean 'sync-every'?"),
    ("--strategy digest:batch-size=3", "batch-size: is an option: --batch-size"),
    ("--strategy digest:sync-every", "sync-every: write it as sync-every=VALUE"),
    ("--strategy digest:", "unknown setting ''; there are: average, codec"),
    ("--strategy digest:phase=early,phase=paper", "phase: is given twice"),
    ("--strategy digest:normalize-rows=maybe", "normalize-rows=maybe: 'maybe' is not a valid boolean"),
    ("--strategy digst:phase=paper", "unknown strategy 'digst'; did you mean 'digest'?"),
    ("--strategy full:eas=1,15,eval=most", "'most' is not one of 'trained', 'exact'"),
    (
        "--strategy digest --sync-every 3",
        "--sync-every: is a setting of digest or sat or digest-async: --strategy digest:",
    ),
    ("--strategy digest --sync-evry 3", "No such option"),
    ("--strategy sancus --checkpoint-every 0", "'--checkpoint-every': 0 is not in the range"),
]


@pytest.mark.parametrize(("options", "said"), CASES, ids=[options for options, _ in CASES])
def test_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: str, said: str
) -> None:
    given = ["--data", "there-is-none"] + (["--trainers", "2"] if "--trainers" not in options else [])
    monkeypatch.setattr(sys, "argv", ["atta", "train", *given, *options.split()])
    with pytest.raises(SystemExit) as stopped:
        root.main()
    text = capsys.readouterr().err
    assert stopped.value.code == 2
    assert said in text
    assert len(text.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "field", "seconds"),
    [
        ("--strategy digest-async:lease=2m", "lease", 120.0),
        ("--strategy digest-async:lease=45", "lease", 45.0),
        ("--strategy digest-async:eval-interval=250ms", "eval_interval", 0.25),
        ("--strategy dorylus:worker-timeout=1500ms", "timeout_s", 1.5),
        ("--strategy dorylus:worker-timeout=3", "timeout_s", 3.0),
        ("--strategy dorylus:worker-timeout=auto", "timeout_s", None),
        ("--strategy dorylus", "timeout_s", None),
    ],
)
def test_durations_have_units(options: str, field: str, seconds: float | None) -> None:
    given = train.make_context("atta train", ["--data", "there-is-none", *options.split()]).params
    own = TrainConfig(data=given["data"], trainers_per_server=1, **given["strategy"]).own
    assert getattr(own, field) == seconds
