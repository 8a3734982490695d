"""The root command: exit codes, one readable line for every failure, quick start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from atta import errors
from atta.cli import main as root

FORBIDDEN = (
    *("torch", "grpc", "scipy", "rich", "numpy", "networkx", "ray", "lightning", "fsspec"),
    *("atta.partition", "atta.client", "atta.daemon"),
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "atta.cli.main", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def fail_with(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException) -> tuple:
    """Run the root command with a sub-command that raises ``error``; return exit code and standard error."""

    @click.command("boom")
    def boom() -> None:
        raise error

    monkeypatch.setattr(root._LazyGroup, "get_command", lambda *_: boom)
    monkeypatch.setattr(sys, "argv", ["atta", "boom"])
    with pytest.raises(SystemExit) as stopped:
        root.main()
    return stopped.value.code, capsys.readouterr().err


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
    actual, stderr = fail_with(monkeypatch, capsys, error)
    assert actual == code
    assert text in stderr
    assert len(stderr.strip().splitlines()) == 1
    assert "Traceback" not in stderr


def test_debug_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command("boom")
    def boom() -> None:
        raise errors.ConfigError("broken")

    monkeypatch.setattr(root._LazyGroup, "get_command", lambda *_: boom)
    monkeypatch.setattr(sys, "argv", ["atta", "boom", "--debug"])
    with pytest.raises(errors.ConfigError, match="broken"):
        root.main()


def test_wrong_usage_names_the_command_whose_help_to_read() -> None:
    done = run("serve", "--part", "0")
    assert done.returncode == 2
    assert "--data" in done.stderr
    assert "atta serve --help" in done.stderr
    assert run("nonsense").returncode == 2


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    done = run("inspect", str(tmp_path / "absent"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "absent" in done.stderr


@pytest.mark.parametrize("name", list(root._COMMANDS))
def test_every_listed_command_exists_and_shows_an_example(name: str) -> None:
    command = root.cli.get_command(click.Context(root.cli), name)
    assert command is not None
    inner = list(command.commands.values()) if isinstance(command, click.Group) else []
    for verb in [command, *inner]:
        with click.Context(verb, info_name=f"atta {name}") as context:
            assert f"Example: atta {name}" in verb.get_help(context)


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom atta.cli.main import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        f"print([m for m in {FORBIDDEN!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "[]"
    assert all(name in done.stdout for name in root._COMMANDS)


@pytest.mark.parametrize("name", list(root._EXTRAS))
def test_commands_of_extras_say_how_to_install_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    with pytest.raises(errors.ConfigError, match=rf"atta {name} .*: pip install 'atta\[bench\]'"):
        root.cli.main([name, "--help"], standalone_mode=False)
    with pytest.raises(click.UsageError, match="No such command"):
        root.cli.main(["benches"], standalone_mode=False)


def test_version() -> None:
    from atta.observe.packages import __version__

    assert run("--version").stdout.strip() == f"atta, version {__version__}"


@pytest.mark.parametrize("text", ["", "no key\n"])
def test_a_worker_without_a_key_says_who_starts_workers(text: str) -> None:
    command = [sys.executable, "-m", "atta.cli.main", "worker", "127.0.0.1:1"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr == (
        "atta: error: standard input holds no key; trainers start their workers, with a key of the job\n"
    )
