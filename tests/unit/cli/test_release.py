"""What a release has: the image of ``deploy/Dockerfile``, without Docker, and the list of packages."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from atta.cli.cluster.rendering.command import render
from atta.cli.main import cli

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "deploy/Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WHEEL = f"dist/atta-{PROJECT['version']}-cp311-cp311-manylinux_2_28_x86_64.whl"
"""As ``tools/wheel.sh`` names it."""


def instructions() -> list[tuple[str, str]]:
    """Name and arguments of each instruction. Comments are left out, and lines that a backslash continues joined."""
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith("#"))
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(name, words) for name, _, words in (line.partition(" ") for line in lines if line)]


def only(name: str) -> str:
    (found,) = (words for instruction, words in instructions() if instruction == name)
    return found


def shell_commands() -> list[str]:
    return [part.strip() for name, words in instructions() if name == "RUN" for part in words.split("&&")]


def test_what_is_copied_is_the_wheel() -> None:
    copied = [words.split() for name, words in instructions() if name in ("COPY", "ADD")]
    (((source, target)),) = copied
    assert fnmatch.fnmatch(WHEEL, source)
    assert "--wheel-dir dist" in (ROOT / "tools/wheel.sh").read_text()
    ignored = ROOT / ".dockerignore"
    assert not ignored.exists() or "dist" not in ignored.read_text()
    installed = re.search(r"ls (\S+)\)", TEXT)
    assert installed
    assert fnmatch.fnmatch(target + Path(WHEEL).name, installed[1])


def test_pip_installs_the_wheel_with_an_extra_that_it_has() -> None:
    torch, wheel = (command for command in shell_commands() if command.startswith("pip "))
    assert torch.split()[-1] == "torch"
    assert '"${TORCH_INDEX}"' in torch
    assert {name for name, _ in instructions() if name == "ARG"} == {"ARG"}
    assert {"BASE", "TORCH_INDEX"} == {words.partition("=")[0] for name, words in instructions() if name == "ARG"}
    extra = re.search(r"\)\[(\w+)\]\"$", wheel)
    assert extra
    wanted = PROJECT["optional-dependencies"][extra[1]]
    assert any(requirement.startswith("torch>") for requirement in wanted)


def test_python_is_one_that_the_wheel_is_for() -> None:
    base = re.search(r"BASE=python:(\d+)\.(\d+)", TEXT)
    assert base
    assert f"cp{base[1]}{base[2]}-" in WHEEL
    least = re.fullmatch(r">=(\d+)\.(\d+)", PROJECT["requires-python"])
    assert least
    assert (int(base[1]), int(base[2])) >= (int(least[1]), int(least[2]))


def test_it_does_not_run_as_root() -> None:
    user, group = only("USER").split(":")
    assert "0" not in (user, group)
    (made,) = (command for command in shell_commands() if command.startswith("useradd"))
    assert f"--uid {user} " in made
    names = [name for name, _ in instructions()]
    assert names.index("USER") > max(at for at, name in enumerate(names) if name in ("RUN", "COPY"))
    assert only("WORKDIR") == f"/home/{made.split()[-1]}"


def test_it_runs_a_daemon(tmp_path: Path) -> None:
    assert json.loads(only("ENTRYPOINT")) == []
    program, name, option, place = json.loads(only("CMD"))
    assert (program, name) == ("atta", "serve")
    assert program in PROJECT["scripts"]
    command = cli.get_command(click.Context(cli), name)
    assert Path(place).is_absolute()
    options = tmp_path / "serve.toml"
    options.write_text('data = "/data"\npart = "auto"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOB_COMPLETION_INDEX", "3")
        with command.make_context(name, [option, str(options)]) as context:
            assert context.params["data"] == "/data"


def test_the_image_is_the_one_that_pods_name() -> None:
    tag = re.search(r"docker build -f deploy/Dockerfile -t (\S+) \.", TEXT)
    assert tag
    assert isinstance(render, click.Group)
    (image,) = (option for option in render.commands["kubernetes"].params if option.name == "image")
    assert tag[1] == image.default == f"atta:{PROJECT['version']}"


INSTALLED = {"numpy": "2.0", "grpcio": "1.85"}


def listed(*packages: tuple[str, str]) -> dict[str, Any]:
    return {"components": [{"name": name, "version": version} for name, version in packages]}


@pytest.mark.parametrize(
    ("packages", "text", "faults"),
    [
        ([("numpy", "2.0"), ("grpcio", "1.85")], "", []),
        ([("numpy", "2.0")], "", ["grpcio is missing"]),
        ([("numpy", "2.0"), ("grpcio", "1.0")], "", ["grpcio 1.85 is listed as 1.0"]),
        ([("numpy", "2.0"), ("grpcio", "1.85"), ("torch", "2")], "", ["torch is not installed"]),
        ([("numpy", "2.0"), ("grpcio", "1.85"), ("numpy", "2.0")], "", ["numpy is listed twice"]),
        ([("numpy", "2.0"), ("grpcio", "1.85")], "file:///home/me", ["a path of this machine is in it"]),
    ],
)
def test_what_is_wrong_is_named(
    module_at: Callable[[str], Any], packages: list[tuple[str, str]], text: str, faults: list[str]
) -> None:
    assert module_at("tools/check_sbom.py").faults(listed(*packages), INSTALLED, text) == faults
