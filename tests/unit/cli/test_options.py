"""Options made from a settings dataclass, TOML files, and settings of strategies that make no sense."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
from click.testing import CliRunner, Result

from atta.cli import main as root
from atta.cli.main import cli
from atta.cli.options import GroupedCommand, _key, config_option, settings_options
from atta.cli.output import INTS
from atta.cli.train import train
from atta.errors import ConfigError, UnknownNameError
from atta.observe.settings import NoOption, Option, check_bounds, settings_of
from atta.train import TrainConfig


@dataclass(frozen=True)
class Kitchen:
    place: Annotated[str, Option("Where it is.")]
    ovens: Annotated[int, Option("How many ovens.", at_least=1, at_most=9, too_many="the wiring")] = 2
    pantry_bytes: Annotated[int, Option("Room.", name="pantry", unit="bytes", at_least=1 << 20)] = 4 << 30
    rest_s: Annotated[float, Option("How long dough rests.", name="rest", unit="s", at_least=0.5)] = 90.0
    filled: Annotated[float | None, Option("Of the pantry.", unit="percent", at_least=0, at_most=1, unset="all")] = None
    heat: Annotated[float, Option("Heat.")] = 0.5
    fuel: Annotated[str, Option("What burns.", choices=("gas", "wood"))] = "gas"
    trays: Annotated[tuple[int, ...], Option("Trays by oven.", at_least=-1)] = (3, 2)
    menu: Annotated[str | None, Option("Menu.", path="file")] = None
    verify: Annotated[bool, Option("Taste first.")] = True
    open_late: Annotated[bool, Option("Open late.")] = False
    door: Annotated[int, Option("Number of the door.", at_least=0, unset="any")] = 0
    staff: Annotated[Mapping[str, int], NoOption("comes from another file")] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_bounds(self)


@click.command(cls=GroupedCommand, groups={"Place": "place fuel", "Ovens": "ovens heat trays"})
@config_option
@settings_options(Kitchen)
@click.option("--tip", type=int, default=3)
@click.option("--guests", type=INTS, multiple=True)
def cook(settings: dict[str, Any], tip: int, guests: tuple[tuple[int, ...]]) -> None:
    click.echo(json.dumps({**asdict(Kitchen(**settings)), "tip": tip, **({"guests": guests} if guests else {})}))


def run(*words: str) -> Result:
    return CliRunner().invoke(cook, words)


def made(*words: str) -> Any:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*words: str) -> str:
    result = run(*words)
    assert result.exit_code != 0
    return result.output + str(result.exception)


def toml(folder: Path, text: str) -> str:
    path = folder / "kitchen.toml"
    path.write_text(text)
    return str(path)


def plain(kitchen: Kitchen, **more: Any) -> Any:
    return json.loads(json.dumps(asdict(kitchen) | {"tip": 3, **more}))


def test_defaults_are_those_of_the_dataclass_and_values_have_units() -> None:
    assert made("--place", "x") == plain(Kitchen("x"))
    assert "Missing option '--place'" in refused()
    sized = ["--pantry", "2MiB", "--rest", "2m", "--filled", "25", "--ovens", "9"]
    words = [*sized, "--trays", "1,-1", "--no-verify", "--open-late", "--fuel", "wood"]
    wanted = Kitchen("x", 9, 2 << 20, 120.0, 0.25, fuel="wood", trays=(1, -1), verify=False, open_late=True)
    assert made("--place", "x", *words) == plain(wanted)


def test_every_field_is_an_option_or_says_why_not() -> None:
    offered = {p.name for p in cook.params} - {"tip", "guests", "config"}
    reasons = {s.field: s.option.reason for s in settings_of(Kitchen) if isinstance(s.option, NoOption)}
    assert offered == {s.field for s in settings_of(Kitchen)} - reasons.keys()
    assert reasons == {"staff": "comes from another file"}

    @dataclass(frozen=True)
    class Silent:
        size: int = 3

    with pytest.raises(TypeError, match=r"Silent\.size"):
        settings_of(Silent)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--ovens 10", "--ovens"),
        ("--ovens two", "--ovens"),
        ("--pantry 1KiB", "'1KiB' is less than 1MiB"),
        ("--rest 1ms", "'1ms' is less than 500ms"),
        ("--filled 101", "--filled"),
        ("--fuel coal", "gas"),
        ("--trays 1,x", "--trays"),
    ],
)
def test_wrong_values_are_refused(words: str, named: str) -> None:
    assert named in refused("--place", "x", *words.split())


def test_help_says_everything() -> None:
    text = " ".join(run("--help").output.split())
    for part in (
        *(
            "Place: --place TEXT Where it is [required] --fuel gas|wood What burns [gas] Ovens: --ovens N How many",
            "[90s]",
        ),
        *(
            "--ovens N How many ovens [2]",
            "[4GiB]",
            "--trays N,N Trays by oven [3,2] Other options:",
            "Of the pantry [all]",
        ),
        *("--[no-]verify Taste first [yes]", "--open-late Open late --door"),
    ):
        assert part in text
    assert "Number of the door [any]" in text, "one default, in words"


@pytest.mark.parametrize(
    ("name", "nearly", "key"),
    [
        ("train", "epoch", "epochs"),
        ("serve", "listten", "listen"),
        ("predict", "checkpont", "checkpoint"),
        ("simulate", "machine", "machines"),
        ("partition", "part", "parts"),
        ("plan", "nodez", "nodes"),
    ],
)
def test_commands_have_short_help_in_groups_and_a_file_of_options(
    tmp_path: Path, name: str, nearly: str, key: str
) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, GroupedCommand)
    shown = command.get_help(click.Context(command, info_name=f"atta {name}", terminal_width=80)).splitlines()
    assert len(shown) <= 110
    assert max(map(len, shown)) <= 80
    keys = sorted(
        _key(option) for option in command.get_params(click.Context(command)) if option.name not in ("src", "dst")
    )
    assert keys == sorted(option for group in command.groups.values() for option in group), "every option is in a group"
    said = CliRunner().invoke(cli, [name, "--config", toml(tmp_path, f"{nearly} = 1")]).exception
    assert str(said).endswith(f"{nearly!r}; did you mean {key!r}?")


def test_bounds_hold_in_python_too() -> None:
    with pytest.raises(ConfigError, match=r"^--ovens 10: must be at most 9 \(the wiring\)$"):
        Kitchen("x", ovens=10)
    with pytest.raises(ConfigError, match="--trays -2: must be at least -1"):
        Kitchen("x", trays=(1, -2))
    with pytest.raises(UnknownNameError, match="did you mean 'wood'"):
        Kitchen("x", fuel="woood")


def test_a_file_fills_the_same_fields_and_the_command_line_wins(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        'place = "y"\novens = 4\npantry = "1GiB"\nrest = 30\nfilled = 50\nheat = 2\nfuel = "wood"\n'
        'trays = [7]\nverify = false\nopen-late = true\nmenu = "menu.txt"\ntip = 8\n',
    )
    wanted = Kitchen("y", 4, 1 << 30, 30.0, 0.5, 2.0, "wood", (7,), "menu.txt", False, True)
    assert made("--config", path) == plain(wanted, tip=8)
    assert made("--config", toml(tmp_path, 'place = "y"\nopen_late = true')) == plain(Kitchen("y", open_late=True))
    several = toml(tmp_path, 'place = "y"\nguests = [[2, 3], [4]]')
    assert made("--config", several)["guests"] == made("--place", "y", "--guests", "2,3", "--guests", "4")["guests"]
    assert made("--config", several, "--guests", "5")["guests"] == [[5]]
    path = toml(tmp_path, 'place = "y"\novens = 4\nverify = false')
    for words in (("--config", path, "--ovens", "5"), ("--ovens", "5", "--config", path)):
        assert made(*words, "--verify") == plain(Kitchen("y", 5))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("oven = 3", "unknown key of {path} 'oven'; did you mean 'ovens'?"),
        ("staff = 3", "unknown key of {path} 'staff'"),
        ('ovens = "3"', "{path}: ovens: '3' is not a whole number"),
        ("ovens = 3.5", "{path}: ovens: 3.5 is not a whole number"),
        ("ovens = true", "{path}: ovens: True is not a whole number"),
        ("ovens = 10", "{path}: ovens: 10 is not in the range"),
        ("verify = 1", "{path}: verify: 1 is not true or false"),
        ("fuel = 3", "{path}: fuel: 3 is not a text in quotes"),
        ('fuel = "coal"', "{path}: fuel: 'coal' is not one of"),
        ('trays = "3,2"', "{path}: trays: '3,2' is not a list"),
        ("trays = [true]", "{path}: trays: [True] is not a list"),
        ("pantry = 5", "{path}: pantry: '5' is less than 1MiB"),
        ("guests = 3", "{path}: guests: 3 is not a list"),
        ('guests = ["x"]', "{path}: guests: 'x' is not a list"),
        ("rest = true", "{path}: rest: True is not a number or a text with a unit"),
        ("[oven]\nheat = 3", "unknown key of {path} 'oven'"),
        ("open-late = true\nopen_late = true", "{path}: open_late: is given twice"),
        ("ovens = ", "{path}: is not a TOML file"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, text: str, named: str) -> None:
    path = toml(tmp_path, text)
    assert named.format(path=path) in refused("--place", "x", "--config", path)


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
