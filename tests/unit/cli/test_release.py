"""What a release has: versions that agree, the image of ``deploy/Dockerfile`` without Docker, and the list of packages."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner

from atta.cli.cluster.rendering.command import render
from atta.cli.main import cli

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "deploy/Dockerfile").read_text()
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, TOOL = SETTINGS["project"], SETTINGS["tool"]
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


def arguments() -> dict[str, str]:
    return dict(words.split("=", 1) for name, words in instructions() if name == "ARG")


def test_the_wheel_and_the_pinned_versions_are_copied() -> None:
    copied = [words.split() for name, words in instructions() if name in ("COPY", "ADD")]
    ((wheel, pins, target),) = copied
    assert wheel == "${WHEEL}"
    assert fnmatch.fnmatch(WHEEL, arguments()["WHEEL"])
    assert (ROOT / pins).is_file()
    assert "--wheel-dir dist" in (ROOT / "tools/wheel.sh").read_text()
    hidden, *shown = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert hidden == "*"
    assert all(any(fnmatch.fnmatch(file, line.removeprefix("!")) for line in shown) for file in (WHEEL, pins))
    installed = re.search(r"ls (\S+)\)", TEXT)
    assert installed
    assert fnmatch.fnmatch(target + Path(WHEEL).name, installed[1])


def test_pip_installs_the_wheel_with_an_extra_that_it_has() -> None:
    (pip,) = (command for command in shell_commands() if command.startswith("pip "))
    assert {"BASE", "TORCH_INDEX", "WHEEL"} == arguments().keys()
    assert '--extra-index-url "${TORCH_INDEX}" -c /tmp/atta/constraints.txt' in pip
    extra = re.search(r"\)\[(\w+)\]\"$", pip)
    assert extra
    wanted = PROJECT["optional-dependencies"][extra[1]]
    assert any(requirement.startswith("torch>") for requirement in wanted)


def test_python_is_one_that_the_wheel_is_for() -> None:
    base = re.search(r"BASE=python:(\d+)\.(\d+)", TEXT)
    assert base
    assert f"cp{base[1]}{base[2]}-" in WHEEL
    assert f"{base[1]}.{base[2]}" in pythons()


def pythons() -> list[str]:
    """The versions of Python that Atta says it works with."""
    prefix = "Programming Language :: Python :: 3."
    return ["3." + line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(prefix)]


def test_all_agree_on_the_versions_of_python() -> None:
    first, *later = pythons()
    assert [first, *later] == [f"3.{minor}" for minor in range(11, 11 + len(later) + 1)]
    bench = tomllib.loads((ROOT / "bench/pyproject.toml").read_text())["project"]
    assert PROJECT["requires-python"] == bench["requires-python"] == f">={first}"
    tags = [version.replace(".", "") for version in pythons()]
    assert TOOL["cibuildwheel"]["build"] == [f"cp{tag}-*" for tag in tags]
    assert TOOL["scikit-build"]["wheel"]["py-api"] == f"cp{tags[1]}"
    assert TOOL["mypy"]["python_version"] == first
    assert TOOL["ruff"]["target-version"] == f"py{tags[0]}"
    assert f"find_package(Python {first} REQUIRED" in (ROOT / "CMakeLists.txt").read_text()
    for page in ("README.md", "docs/index.md", "CHANGELOG.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert f"Python {first} to {later[-1]}" in text, page
    assert f"python:{first}" in TEXT


@pytest.mark.parametrize("name", ["cluster.yaml", "data.yaml"])
def test_kubernetes_takes_the_example(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all((ROOT / "deploy/kubernetes" / name).read_text()):
        if document:
            validate.validate(document, validate.utils.latest_version(), strict=True)


FILES_WITH_THE_VERSION = ("pyproject.toml", "bench/pyproject.toml", "CITATION.cff", "deploy/Dockerfile",
                          "deploy/kubernetes/cluster.yaml", "deploy/kubernetes/data.yaml")  # fmt: skip


def test_one_command_writes_a_new_version_wherever_it_stands(tmp_path: Path) -> None:
    version = PROJECT["version"]
    for name in (*FILES_WITH_THE_VERSION, "tools/version.sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    before = {name: (tmp_path / name).read_text().count(version) for name in FILES_WITH_THE_VERSION}
    subprocess.run([tmp_path / "tools/version.sh", "7.8.9"], check=True)
    for name, count in before.items():
        assert (tmp_path / name).read_text().count("7.8.9") == count > 0, name
        assert version not in (tmp_path / name).read_text(), name


def test_the_source_archive_has_what_is_built_and_tested_and_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = pytest.importorskip("scikit_build_core.build")
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / build.build_sdist(str(tmp_path))) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    there = {name.partition("/")[0] for name in names}
    assert there >= {
        "platform",
        "samplers",
        "partition",
        "protos",
        "tests",
        "bench",
        "CMakeLists.txt",
        "constraints.txt",
    }
    assert not there & {"findings", ".ci", ".gitignore", ".pre-commit-config.yaml", ".venv", "build", "dist"}
    assert not [name for name in names if name.startswith("bench/results/") or name.endswith((".so", ".pyc"))]


def test_citation_and_changelog_are_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    found = re.search(r"^## \[(.+)\] \S (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert found
    assert found.groups() == (citation["version"], citation["date-released"])


def test_the_example_for_kubernetes_is_what_render_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data's Job makes the dataset here as it does there, and its claim is the one that daemons read."""
    monkeypatch.chdir(tmp_path)
    folder = ROOT / "deploy/kubernetes"
    claim, job, policy = yaml.safe_load_all((folder / "data.yaml").read_text())
    text = (folder / "cluster.yaml").read_text()
    first, _, _ = text.partition("\n")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    made = [shlex.split(line) for line in container["args"][0].splitlines()]
    rendered = shlex.split(first.removeprefix("# Written by: "))
    assert [words[:2] for words in (*made[:2], rendered)] == [["atta", n] for n in ("generate", "partition", "render")]
    for words in (*made[:2], rendered):
        done = CliRunner().invoke(cli, words[1:], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert done.output == text.partition("\n")[2]
    objects = [document for document in yaml.safe_load_all(text) if document]
    (pod,) = (found["spec"]["template"] for found in objects if found["kind"] == "StatefulSet")
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert claims == [claim["metadata"]["name"]]
    assert made[2] == ["cp", "-r", "parts/.", "/data"]
    assert container["image"] == pod["spec"]["containers"][0]["image"]
    allowed = policy["spec"]["podSelector"]["matchLabels"]
    assert allowed.items() <= pod["metadata"]["labels"].items()
    ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule.get("ports", [])} <= ports


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
