"""The root command: exit codes, one readable line for every failure, quick start."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from atta import errors
from atta.cli import main as root

FORBIDDEN = (
    *("torch", "grpc", "scipy", "rich", "numpy", "networkx", "ray", "lightning", "fsspec"),
    *("atta.partition", "atta.client", "atta.daemon"),
)


def run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "atta.cli.main", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException, *words: str) -> None:
    """Run the root command with a sub-command that raises ``error``."""

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
    from atta.observe.versions import __version__

    assert run("--version").stdout.strip() == f"atta, version {__version__}"


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


@pytest.mark.parametrize("text", ["", "no key\n"])
def test_a_worker_without_a_key_says_who_starts_workers(text: str) -> None:
    done = run("worker", "127.0.0.1:1", text=text)
    assert done.returncode == 2
    assert done.stderr == (
        "atta: error: standard input holds no key; trainers start their workers, with a key of the job\n"
    )
