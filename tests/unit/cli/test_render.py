"""``atta render``: the commands are accepted, the objects hang together, and the text says what was meant."""

from __future__ import annotations

import base64
import itertools
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from atta.cli.cluster.rendering.command import render
from atta.cli.cluster.rendering.manifests import (
    DRAIN_S,
    GRACE_S,
    DeploymentPlan,
    KubernetesPlan,
    kubernetes_manifest,
    slurm_script,
    systemd_units,
)
from atta.cli.main import cli
from atta.errors import ConfigError, DataError
from atta.partition import partition_graph
from atta.partition.dataset import Dataset, part_folder
from atta.partition.generate import GenerateOptions, generate
from atta.partition.graph.needs import BARE_BYTES, INDEX_BYTES, Needs, needs_of
from atta.wire.clusterfile import read_cluster, read_credentials

TRAIN = ("--model", "sage", "--epochs", "2")
FILES = {name: name.encode() for name in ("ca.pem", "daemon.pem", "daemon.key", "trainer.pem", "trainer.key")}


def plan(parts: int, nodes: int = 0, *, tls: bool = False, **more: Any) -> DeploymentPlan:
    needs = tuple(Needs((part + 1) << 30, 1 << 20, 1 << 25) for part in range(parts))
    words = TRAIN if nodes else ()
    return DeploymentPlan("atta", "/data", needs, nodes=nodes, trainers=2 * nodes, train=words, tls=tls, **more)


def objects(parts: int, nodes: int, *, tls: bool = False, queue: str = "") -> dict[tuple[str, str], dict[str, Any]]:
    cluster = plan(parts, nodes, tls=tls)
    text = kubernetes_manifest(KubernetesPlan(cluster, "atta:1", "claim", queue, 1, FILES if tls else None))
    assert "<<" not in text
    assert "#?" not in text
    return {(document["kind"], document["metadata"]["name"]): document for document in yaml.safe_load_all(text)}


def accepted(words: list[str]) -> dict[str, Any]:
    """The parameters with which the command line understands ``words``; raises UsageError."""
    assert words[0].endswith("atta")
    command = cli.get_command(click.Context(cli), words[1])
    return command.make_context(words[1], words[2:]).params


@pytest.mark.parametrize(("parts", "nodes", "tls"), [*itertools.product((1, 2, 4), (0, 1, 2), (False, True))])
def test_objects_of_kubernetes_hang_together(
    parts: int, nodes: int, tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    found = objects(parts, nodes, tls=tls, queue="research")
    daemons = found["StatefulSet", "atta-daemon"]["spec"]
    pod = daemons["template"]["spec"]
    (container,) = pod["containers"]
    service = found["Service", daemons["serviceName"]]["spec"]
    assert daemons["replicas"] == parts
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    for selector in (service["selector"], daemons["selector"]["matchLabels"]):
        assert selector.items() <= daemons["template"]["metadata"]["labels"].items()
    assert {p["containerPort"] for p in container["ports"]} == {p["port"] for p in service["ports"]}
    settings = accepted(container["command"] + container["args"])
    assert settings["parts"] == range(1)
    assert settings["drain_s"] == DRAIN_S < pod["terminationGracePeriodSeconds"] == GRACE_S
    assert settings["insecure"] is not tls
    probe = {"tcpSocket": {"port": 7070}} if tls else {"grpc": {"port": 7070}}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert probe.items() <= container[name].items()
    largest = BARE_BYTES + (parts << 30) + (1 << 20) + (1 << 25) + settings["buffer_bytes"] * 3 // 2
    assert container["resources"]["requests"]["memory"] == f"{largest >> 20}Mi"
    pods = [pod]
    assert [kind for kind, _ in found].count("Job") == bool(nodes)
    if nodes:
        job = found["Job", "atta-trainer"]
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
        assert (job["spec"]["completionMode"], job["spec"]["completions"]) == ("Indexed", nodes)
        assert job["spec"]["parallelism"] == nodes  # all at once: they wait for each other
        trainers = job["spec"]["template"]["spec"]
        told = accepted(trainers["containers"][0]["command"] + trainers["containers"][0]["args"])
        assert (told["nnodes"], told["node_rank"], told["trainers"], told["epochs"]) == (nodes, 0, 2 * nodes, 2)
        assert told["rdzv_endpoint"] == ("atta-trainer-0.atta-trainer:29400" if nodes > 1 else None)
        assert ("Service", trainers["subdomain"]) in found
        pods.append(trainers)
    for spec in pods:
        check_volumes(spec, found)
    secrets = {name: set(about["data"]) for (kind, name), about in found.items() if kind == "Secret"}
    who = ["daemon", "trainer"] if tls else []
    assert secrets == {f"atta-{name}-tls": {"ca.pem", f"{name}.pem", f"{name}.key"} for name in who}
    (tmp_path / "cluster.toml").write_text(found["ConfigMap", "atta-cluster"]["data"]["cluster.toml"])
    hosts = {part: f"atta-daemon-{part}.atta-daemon:7070" for part in range(parts)}
    assert read_cluster(tmp_path / "cluster.toml") == hosts
    mine = read_credentials(tmp_path / "cluster.toml")
    assert (mine is not None and Path(mine.key).name == "trainer.key") is tls


def check_volumes(pod: dict[str, Any], found: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Every mount has a volume, every volume a mount and an object (the claim is the user's), every file is there."""
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    files: set[str] = set()
    for volume in pod["volumes"]:
        if "configMap" in volume:
            keys = found["ConfigMap", volume["configMap"]["name"]]["data"]
        elif "secret" in volume:
            keys = found["Secret", volume["secret"]["secretName"]]["data"]
            assert all(base64.b64decode(text) == FILES[name] for name, text in keys.items())
        else:
            assert volume["persistentVolumeClaim"]["claimName"] == "claim"
            continue
        files |= {f"{mounts[volume['name']]}/{key}" for key in keys}
    named = {word for word in container["args"] if word.startswith("/etc/")}
    assert named
    assert named <= files


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("tls", [False, True])
def test_kubernetes_takes_the_objects(parts: int, tls: bool) -> None:
    """Where the packages are installed: the schemas of the three newest versions that the validator knows."""
    validate = pytest.importorskip("kubernetes_validate")
    found = objects(parts, 2, tls=tls, queue="q").values()
    known = {validate.utils.major_minor(version) for version in validate.utils.all_versions()}
    for version in sorted(known, key=lambda v: [*map(int, v.split("."))])[-3:]:
        for document in found:
            validate.validate(document, version, strict=True)


@given(st.lists(st.text(max_size=12), min_size=1, max_size=3), st.text(max_size=12))
def test_any_words_survive_yaml(words: list[str], image: str) -> None:
    cluster = DeploymentPlan("atta", "/d", plan(1).needs, nodes=1, trainers=1, train=("--job", *words))
    *_, job = yaml.safe_load_all(kubernetes_manifest(KubernetesPlan(cluster, image, "c")))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == image
    assert container["args"][-len(words) :] == [word.replace("$", "$$") for word in words]


@pytest.mark.parametrize(("parts", "nodes", "tls"), [(1, 0, False), (2, 2, True), (4, 1, False)])
def test_the_script_of_slurm_is_one_for_bash(
    parts: int, nodes: int, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    files = {"--tls-ca": "/c/ca.pem", "--tls-cert": "/c/d.pem", "--tls-key": "/c/d.key"}
    script = slurm_script(
        plan(parts, nodes, tls=tls), files, {"ca": "/c/ca.pem", "cert": "/c/my cert.pem", "key": "/c/t.key"}
    )
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert f"#SBATCH --nodes={max(parts, nodes)}\n" in script
    lines = [line.strip().rstrip("& ") for line in script.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith(("atta serve", "atta train"))]
    assert [words[1] for words in commands] == ["serve", "train"][: 1 + bool(nodes)]
    assert all(map(accepted, commands))
    assert "[tls]" in script or not tls


def test_units_of_systemd(tmp_path: Path) -> None:
    found = systemd_units(plan(2, 2), ["a", "b"], {}, {}, "/opt/atta")
    assert list(found) == ["cluster.toml", *(f"atta-{w}-{n}.service" for w in ("daemon", "trainer") for n in (0, 1))]
    (tmp_path / "cluster.toml").write_text(found["cluster.toml"])
    assert read_cluster(tmp_path / "cluster.toml") == {0: "a:7070", 1: "b:7070"}
    for name, text in found.items():
        if name.endswith(".service"):
            lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
            number, command = int(name[-9]), shlex.split(lines["ExecStart"])
            settings = accepted(command)
            assert settings.get("node_rank", number) == number
            assert settings.get("parts", range(number, number + 1)) == range(number, number + 1)
            assert f"# Runs on {'ab'[number]}." in text
            assert int(lines["TimeoutStopSec"]) > DRAIN_S
            assert lines["Restart"] == ("always" if "daemon" in name else "on-failure")
            assert lines["ProtectSystem"] == "strict"
            assert (lines["StateDirectory"], lines["WorkingDirectory"]) == ("atta", "%S/atta")
            assert lines.get("PrivateTmp", "no") == ("no" if "daemon" in name else "yes")
            assert lines["PrivateDevices"] == ("yes" if "daemon" in name else "no")
    assert "ExecStart=/opt/atta serve --data /data" in found["atta-daemon-1.service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for name, text in systemd_units(plan(2, 1), ["a", "fd00::2"], {}, {}, shutil.which("true") or "").items():
        (tmp_path / name).write_text(text)
    words = ["systemd-analyze", "verify", "--man=no", *tmp_path.glob("*.service")]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    assert [line for line in told.stderr.splitlines() if str(tmp_path) in line] == []


def test_words_and_ipv6_addresses_survive_systemd(tmp_path: Path) -> None:
    words = ("--save", "a b", "--job", "100%", "--x", "$HOME", "--y", 'q"\\')
    text = systemd_units(DeploymentPlan("atta", "/d", plan(1).needs, nodes=1, trainers=1, train=words), ["h"], {}, {})
    assert '--save "a b" --job 100%% --x $$HOME --y "q\\"\\\\"' in text["atta-trainer-0.service"]
    for host in ("fd00::2", "[fd00::2]"):
        found = systemd_units(plan(2, 2), [host, "10.0.0.1"], {}, {})
        (tmp_path / "cluster.toml").write_text(found["cluster.toml"])
        assert read_cluster(tmp_path / "cluster.toml") == {0: "[fd00::2]:7070", 1: "10.0.0.1:7070"}
        listening = "--listen {0}:7070 --link-port 7071 --metrics {0}:9090"
        assert listening.format("[::]") in found["atta-daemon-0.service"]
        assert listening.format("0.0.0.0") in found["atta-daemon-1.service"]
        assert "--rdzv-endpoint [fd00::2]:29400" in found["atta-trainer-1.service"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("render")
    generate("sbm", folder / "graph", GenerateOptions(nodes=200, edges=1000, features=4, classes=2, seed=1))
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
    return folder / "parts"


def test_the_manifest_tells_what_a_daemon_needs(dataset: Path) -> None:
    for part, needs in enumerate(needs_of(Dataset.open(dataset))):
        files = [path for path in (dataset / part_folder(part)).rglob("*") if path.is_file()]
        assert needs.partition == sum(path.stat().st_size for path in files)
        assert needs.shared == sum(path.stat().st_size for path in (dataset / "shared").rglob("*.npy"))
        halo = Dataset.open(dataset).part(part).halo("node")
        rows = len(halo)
        assert needs.halo_rows == rows * (4 * 4 + 8)  # features and a label
        degrees = np.diff(np.load(dataset / part_folder(1 - part) / "edges/node__to__node/indptr.npy"))
        first = 0 if part else 200 - len(degrees)
        assert needs.halo_edges == pytest.approx(degrees[halo - first].sum() * (4 + 4), rel=0.2)
        others = 200 - (Dataset.open(dataset).part(part).num_core("node"))
        assert needs.remote == pytest.approx(others * 24 + degrees.sum() * (4 + 4), rel=0.1)  # headers of files
        assert needs.index == pytest.approx(INDEX_BYTES / 24)
        assert needs.cached(240) == 240 + 10 * INDEX_BYTES
        assert needs.cached(1 << 40) == needs.cached(needs.remote)
        kept = needs.cached(100)
        assert needs.memory(100, 8) == BARE_BYTES + needs.partition + needs.shared + kept + 8 + 4
    opened = Dataset.open(dataset)  # a daemon of several partitions needs what they need
    (both,), apart = needs_of(opened, [range(2)]), needs_of(opened)
    assert (both.partition, both.shared) == (sum(need.partition for need in apart), apart[0].shared)
    assert both.remote == both.halo_edges == 0


def invoke(*words: str) -> str:
    return CliRunner().invoke(render, words, catch_exceptions=False, standalone_mode=False).output


def test_the_command_line(dataset: Path, tmp_path: Path) -> None:
    data = ("--data", str(dataset))
    text = invoke("kubernetes", *data, "--insecure", "--nnodes", "2", "--trainers", "4", "--", *TRAIN)
    assert text.startswith("# Atta: kubectl apply -f FILE.")
    assert text.count("\n---\n") == 5
    certificates = tmp_path / "certificates"
    certificates.mkdir()
    for name, content in FILES.items():
        (certificates / name).write_bytes(content)
    (certificates / "ca.key").write_text("the authority's key")
    text = invoke("kubernetes", *data, "--certificates", str(certificates))
    assert text.count("kind: Secret") == 2
    assert "ca.key" not in text
    text = invoke("slurm", *data, "--certificates", str(certificates), "--nnodes", "1", "--", "--model", "gat")
    assert f"--tls-key {certificates}/daemon.key" in text
    invoke("systemd", *data, "--insecure", "--host", "a", "--host", "b", "--out", str(tmp_path / "units"))
    assert sorted(os.listdir(tmp_path / "units")) == ["atta-daemon-0.service", "atta-daemon-1.service", "cluster.toml"]
    (certificates / "trainer.key").unlink()
    with pytest.raises(DataError, match=r"trainer\.key: is missing"):
        invoke("slurm", *data, "--certificates", str(certificates))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "--certificates FOLDER, or --insecure"),
        (("--insecure", "--certificates", "c"), "--certificates FOLDER, or --insecure"),
        (("--insecure", "--trainers", "2"), "--nnodes: say how many"),
        (("--insecure", "--", "--model", "sage"), "--nnodes: say how many"),
        (("--insecure", "--nnodes", "2", "--trainers", "3"), "--trainers 3"),
        (("--insecure", "--nnodes", "1", "--", "--cluster=x"), "--cluster: is set by atta render"),
        (
            ("--insecure", "--nnodes", "1", "--", "--modle=gat"),
            "option of atta train '--modle'; did you mean '--model'?",
        ),
        (("--insecure", "--name", "Atta_1"), "--name 'Atta_1'"),
        (("--insecure", "--port", "9090"), "ports 9090, 7071, 9090, 29400: must differ"),
    ],
)
def test_nonsense_is_refused(dataset: Path, words: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        invoke("slurm", "--data", str(dataset), *words)


@pytest.mark.parametrize(
    ("parts", "nodes", "hosts", "told"),
    [
        (2, 3, ["a"], "1 are named"),
        (2, 3, ["a", "a"], "name a machine once"),
        (2, 3, ["fd00::2", "[fd00::2]"], "name a machine once"),
        (2, 3, ["a", "b"], "--nnodes 3"),
        *((1, 0, [host], "is not an address") for host in ("fd00::g", "a:7070", "a b")),
    ],
)
def test_machines_of_units_are_checked(parts: int, nodes: int, hosts: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        systemd_units(plan(parts, nodes), hosts, {}, {})
