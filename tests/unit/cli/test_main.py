"""The root command: exit codes, one line for every failure; commands check inputs and outputs before they work."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from atta import errors
from atta.cli import main as root
from atta.cli.main import cli
from atta.cli.output import TO_WRITE, _check_file, check_folder, write_json
from atta.daemon.config import DaemonConfig
from atta.errors import ConfigError
from atta_bench import command as measuring
from atta_bench.command import bench
from atta_bench.graphs import GraphSource, graph_folder, work_folder
from atta_bench.pieces.partition import PartitionBench, _measure

FORBIDDEN = (
    *("torch", "grpc", "scipy", "rich", "numpy", "networkx", "ray", "lightning", "fsspec"),
    *("atta.partition", "atta.client", "atta.daemon"),
)


def run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "atta.cli.main", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException, *words: str) -> None:
    @click.command("boom")
    def boom() -> None:
        raise error

    monkeypatch.setattr(root._LazyGroup, "get_command", lambda *_: boom)
    monkeypatch.setattr(sys, "argv", ["atta", "boom", *words])
    root.main()


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (errors.ConfigError("--lr: must be positive"), 2, "atta: error: --lr: must be positive\n"),
        (errors.UnknownNameError.of("split", "trian", ["train"]), 2, "did you mean 'train'?"),
        (errors.DataError("a/b.npy", "truncated"), 2, "atta: error: a/b.npy: truncated\n"),
        (errors.DataError("u.csv", "no column '\x1b]0;x\x07\u202e'"), 2, r"no column '\x1b]0;x\x07\u202e'"),
        (errors.UnavailableError("h:1", "nothing answers"), 1, "atta: error: h:1: nothing answers\n"),
        (errors.QuotaExceededError("too many"), 2, "atta: error: too many\n"),
        (OSError(28, "No space left on device", "x.npy"), 1, "No space left on device"),
        (RuntimeError("two\nlines"), 1, "RuntimeError: two lines (--debug"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (click.BadParameter("bad"), 2, "bad"),
    ],
)
def test_every_failure_has_its_exit_code_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, text: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        fail_with(monkeypatch, error)
    stderr = capsys.readouterr().err
    assert stopped.value.code == code
    assert text in stderr
    assert len(stderr.strip().splitlines()) == 1
    if isinstance(error, errors.AttaError):
        with pytest.raises(type(error)):
            fail_with(monkeypatch, error, "--debug")


def test_wrong_usage_names_the_command_whose_help_to_read() -> None:
    done = run("serve", "--part", "0")
    assert done.returncode == 2
    assert "--data" in done.stderr
    assert "atta serve --help" in done.stderr
    from atta.observe.packages import __version__

    assert run("--version").stdout.strip() == f"atta, version {__version__}"


@pytest.mark.parametrize("name", list(root._COMMANDS))
def test_every_listed_command_exists_and_shows_an_example(name: str) -> None:
    command = root.cli.get_command(click.Context(root.cli), name)
    inner = list(command.commands.values()) if isinstance(command, click.Group) else []
    for verb in [command, *inner]:
        with click.Context(verb, info_name=f"atta {name}") as context:
            assert f"Example: atta {name}" in verb.get_help(context)


@pytest.mark.parametrize(
    "words", ["--help", "inspect --help", "plugins", "plugins --json -", "train --cluster a:1 --explain"]
)
def test_a_command_whose_output_nobody_reads_ends_quietly(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "atta.cli.main", *words.split()]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_figures_are_written_where_nobody_reads_what_is_printed(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "atta.cli.main", "plugins", "--json", str(tmp_path / "plugins.json")]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    assert json.loads((tmp_path / "plugins.json").read_text())["schema"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epochs", "ten"], "'--epochs': 'ten' is not a whole number."),
        (["--epochs", "1.5"], "'--epochs': '1.5' is not a whole number."),
        (["--lr", "x"], "'--lr': 'x' is not a number."),
    ],
)
def test_what_is_no_number_is_said_in_plain_words(words: list[str], said: str) -> None:
    assert said in run("train", "--data", "x", *words).stderr


def test_numbers_of_a_list_without_commas_are_told_of() -> None:
    done = run("train", "--data", "x", "--num-neighbors", "15", "10", "5")
    assert done.returncode == 2
    assert "extra arguments (10 5); numbers of one list have commas between them: 15,10,5 (see:" in done.stderr


def test_another_broken_pipe_is_an_error(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        fail_with(monkeypatch, BrokenPipeError(32, "Broken pipe"))
    assert ended.value.code == 1


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom atta.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        f"print([m for m in {FORBIDDEN!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "[]"
    assert all(name in done.stdout for name in root._COMMANDS)


def test_what_is_not_there_is_told_before_torch_is_loaded(tmp_path: Path) -> None:
    cases = {
        f"train --data {tmp_path}/none": "none: no such folder",
        f"train --cluster {tmp_path}/none.toml": "none.toml: cannot be read",
        "train --data x --logger tsv": "--logger 'tsv': give NAME or NAME:KEY=VALUE",
        "train --data x --logger csv": "argument: 'save_dir'; write --logger csv:save_dir=...",
        f"schema {tmp_path}/a.csv": "a.csv: is a file: name the folder that it is in",
        f"train --cluster a:1 --init-from {tmp_path}/none": "none: --init-from: there is no such file",
        f"train --cluster a:1 --class-weights {tmp_path}/none": "none: --class-weights: there is no such file",
        f"predict --cluster a:1 --out {tmp_path}/o --checkpoint {tmp_path}/none": "none: --checkpoint: there is no such",
        f"predict --data {tmp_path}/none --out {tmp_path}/o --checkpoint {tmp_path}": "none: no such folder",
        f"check models:net --data {tmp_path}/none": "none: no such folder",
        f"plan --strategy auto --data {tmp_path}/none": "none: no such folder",
        f"train --data {tmp_path}/demo-2": f"no such folder, so not a partitioned dataset; did you mean {tmp_path}/demo-2p?",
        f"inspect {tmp_path}/demo-2": f"no such folder; did you mean {tmp_path}/demo-2p?",
        f"import table {tmp_path}/A.cvs x": f"no such file or folder; did you mean {tmp_path}/a.csv?",
        f"schema {tmp_path}/demo2p": f"no such folder; did you mean {tmp_path}/demo-2p?",
        f"status --cluster {tmp_path}/clustr.toml": f"No such file or directory; did you mean {tmp_path}/cluster.toml?",
        f"serve --config {tmp_path}/clustr.toml": f"No such file or directory; did you mean {tmp_path}/cluster.toml?",
        f"predict --cluster a:1 --out {tmp_path}/o --checkpoint {tmp_path}/b.csv": f"folder; did you mean {tmp_path}/a.csv?",
        f"train --data {tmp_path}": "a folder of tables, not a partitioned dataset: run atta schema, import and partition first",
        f"partition {tmp_path}/demo-2p {tmp_path}/x --parts 2": "demo-2p: is a partitioned dataset, not a graph folder",
    }
    (tmp_path / "demo-2p").mkdir()
    (tmp_path / "demo-2p/manifest.json").write_text("{}")
    (tmp_path / "a.csv").write_text("user,item\n")
    (tmp_path / "cluster.toml").touch()
    program = (
        "import sys\nfrom atta.cli.main import cli\nfrom atta.errors import AttaError\n"
        "for words in sys.argv[1:]:\n    try: cli.main(words.split(), standalone_mode=False)\n"
        "    except AttaError as error: print(error)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program, *cases], capture_output=True, text=True, check=True)
    for said, wanted in zip(done.stdout.splitlines(), cases.values(), strict=True):
        assert wanted in said


@pytest.mark.parametrize("name", root._BENCH)
def test_commands_of_the_bench_say_how_to_install_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    with pytest.raises(errors.ConfigError, match=rf"atta {name} .*: pip install \./bench"):
        root.cli.main([name, "--help"], standalone_mode=False)
    with pytest.raises(errors.UnknownNameError, match=r"unknown command 'benches'.*'bench'"):
        root.cli.main(["benches"], standalone_mode=False)


@pytest.mark.parametrize("text", ["", "no key\n"])
def test_a_worker_without_a_key_says_who_starts_workers(text: str) -> None:
    done = run("worker", "127.0.0.1:1", text=text)
    assert done.returncode == 2
    assert done.stderr == (
        "atta: error: standard input holds no key; trainers start their workers, with a key of the job\n"
    )


WRITTEN = {"--json", "--plot", "--out"}
"""Options of files. Where one of them names a folder its type is click.Path, and `check_folder` tries it."""


def verbs(command: click.Command = cli, name: str = "atta") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for inner in command.list_commands(context):
        found = command.get_command(context, inner)
        yield from verbs(found, f"{name} {inner}")


def options() -> list[tuple[str, click.Option]]:
    return [
        (name, option)
        for name, command in verbs()
        for option in command.params
        if isinstance(option, click.Option) and set(option.opts) & WRITTEN and not isinstance(option.type, click.Path)
    ]


def test_there_are_such_options() -> None:
    found = {(name, option.opts[0]) for name, option in options()}
    assert {("atta train", "--json"), ("atta bench kv", "--plot"), ("atta trace", "--out")} <= found


@pytest.mark.parametrize(("name", "option"), options(), ids=lambda v: v if isinstance(v, str) else v.opts[0])
def test_every_file_is_checked_when_the_options_are_read(name: str, option: click.Option, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{option.opts[0]}.*no such folder"):
        option.type.convert(str(tmp_path / "absent" / "file.png"), option, None)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError, match="it is a folder"):
        option.type.convert(str(tmp_path / "folder.png"), option, None)
    (tmp_path / "plain").touch()
    with pytest.raises(ConfigError, match="plain: is not a folder"):
        option.type.convert(str(tmp_path / "plain" / "file.png"), option, None)
    with pytest.raises(ConfigError, match="cannot be written to"):
        option.type.convert("/proc/file.png", option, None)
    target = str(tmp_path / "file.png")
    assert option.type.convert(target, option, None) == target
    assert not Path(target).exists()


@pytest.mark.parametrize("suffix", [".xyz", ""])
def test_pictures_have_a_kind_that_can_be_drawn(suffix: str, tmp_path: Path) -> None:
    (option,) = [o for name, o in options() if name == "atta bench kv" and o.opts[0] == "--plot"]
    with pytest.raises(click.BadParameter, match=r"figure\.png"):
        option.type.convert(str(tmp_path / f"figure{suffix}"), option, None)


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["bench", "kv", "--plot", "figure.png"], "matplotlib", "plot"),
        (["partition", "a", "b", "--parts", "2", "--compare", "ldg", "--plot", "f.png"], "matplotlib", "plot"),
        (["train", "--data", "absent"], "torch_geometric", "train"),
        (["plan", "--strategy", "auto", "--data", "absent"], "torch", "train"),
    ],
)
def test_a_missing_package_is_an_extra_to_install(
    arguments: list[str], package: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs .*{package}.*: install atta\[{extra}\]"):
        cli.main(arguments, standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_folders_to_come_are_checked_and_devices_and_links_stay(tmp_path: Path) -> None:
    check_folder("--checkpoint", tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--checkpoint .*/file/b: .*/file: is not a folder"):
        check_folder("--checkpoint", tmp_path / "file" / "b")
    with pytest.raises(ConfigError, match="--checkpoint /proc/a: /proc: cannot be written to"):
        check_folder("--checkpoint", "/proc/a")
    assert TO_WRITE.convert(os.devnull, None, None) == os.devnull
    write_json(os.devnull, {"a": 1})
    assert Path(os.devnull).is_char_device()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_json(str(tmp_path / "link"), {"a": 1})
    assert (tmp_path / "link").is_symlink()
    assert '"a": 1' in (tmp_path / "real").read_text()


@pytest.mark.parametrize("error", [errno.EACCES, errno.ENAMETOOLONG])
def test_what_cannot_be_looked_at_is_named(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def stat(path: object, **_: object) -> None:
        raise OSError(error, os.strerror(error), path)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(ConfigError, match=f"^file /hidden/x.json: {os.strerror(error)}$"):
        _check_file("file", Path("/hidden/x.json"))
    with pytest.raises(ConfigError, match=f"^--checkpoint /hidden/x: {os.strerror(error)}$"):
        check_folder("--checkpoint", "/hidden/x")


def test_commands_name_the_folder_that_they_cannot_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.observe.logs.configure", lambda **_: None)  # it is for a whole process
    with pytest.raises(ConfigError, match=r"^--work /proc/x: cannot be written to: "):
        cli.main(["bench", "kv", "--quiet", "--work", "/proc/x"], standalone_mode=False)
    with pytest.raises(ConfigError, match="--snapshots /proc/snapshots: /proc: cannot be written to"):
        cli.main(["serve", "--data", "absent", "--part", "0", "--snapshots", "/proc/snapshots"], standalone_mode=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        ConfigError, match=r"^the default of --work, .*/file/atta: cannot be written to: Not a directory"
    ):
        work_folder(None)
    assert work_folder(str(tmp_path / "new" / "work")).is_dir()
    with pytest.raises(
        ConfigError, match=r"^--graph /proc/g: datasets are made beside it, and /proc cannot be written"
    ):
        _measure(PartitionBench("/proc/g"), "random", Path())


NUMBERS = {
    "--seed": ("-1", str(2**63)),
    "--batch-size": ("0", str(DaemonConfig.max_batch_size + 1), "99999999999999999999"),
    "--threads": ("0", "100000"),
    "--parts": ("0",),
    "--nodes": ("0",),
}
"""Options of benchmarks, and numbers that they refuse."""


@pytest.mark.parametrize(
    ("option", "value"),
    [
        pytest.param(option, value, id=f"{name} {option.opts[0]} {value}")
        for name, command in verbs(bench, "bench")
        for option in command.params
        if isinstance(option, click.Option) and option.type.name != "integers"
        for value in NUMBERS.get(option.opts[0], ())
    ],
)
def test_benchmarks_refuse_numbers_that_make_no_sense(option: click.Option, value: str) -> None:
    with pytest.raises(click.BadParameter, match=rf"{value} is not in the range"):
        option.type.convert(value, option, None)


def test_a_bad_graph_is_not_begun_and_figures_are_printed_before_files_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    with pytest.raises(ConfigError, match="--nodes 1: must lie between"):
        graph_folder(GraphSource(nodes=1, edges=0), tmp_path / "work", said.append)
    assert said == list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="no space"):
        measuring.hand_out(Measured(), "x.json", "x.png", quiet=False)
    assert "the figures" in capsys.readouterr().out


def test_files_are_written_even_if_nobody_reads_what_is_printed(tmp_path: Path) -> None:
    class Printed(Measured):
        def show(self) -> str:
            raise BrokenPipeError

        def to_json(self) -> dict[str, Any]:
            return {"figures": 1}

        def plot(self, path: str) -> None:
            Path(path).touch()

    with pytest.raises(BrokenPipeError):
        measuring.hand_out(Printed(), str(tmp_path / "x.json"), str(tmp_path / "x.png"), quiet=False)
    assert {path.name for path in tmp_path.iterdir()} == {"x.json", "x.png"}


class Measured:
    def show(self) -> str:
        return "the figures"

    def to_json(self) -> dict[str, Any]:
        raise OSError("no space left")

    def plot(self, path: str) -> None:
        raise AssertionError
