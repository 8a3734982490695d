"""The commands with data on object storage give what they give with data in folders."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import atta
from atta.observe.packages import missing
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from tests.addresses import held_port
from tests.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing("fsspec", "torch_geometric")), reason="fsspec or torch_geometric is not installed"),
]
ATTA = (sys.executable, "-m", "atta.cli.main")
TRAIN = ("--trainers", "2", "--num-neighbors", "3,3", "--batch-size", "16", "--hidden", "8", "--device", "cpu")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if lacking := missing("moto", "flask", "s3fs"):
        pytest.skip(f"{', '.join(lacking)} not installed")
    port = held_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with pytest.MonkeyPatch.context() as patch:
        settings = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**settings, "AWS_ENDPOINT_URL": endpoint}.items():
            patch.setenv(name, value)
        log = tmp_path_factory.mktemp("s3") / "log"
        with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as running:
            try:
                assert eventually(lambda: answers(port), 120), log.read_text()
                import s3fs

                s3fs.S3FileSystem().mkdir("bucket")
                yield "s3://bucket"
            finally:
                running.kill()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(params=["file", "s3"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "file":
        return f"file://{tmp_path}/there"
    url: str = request.getfixturevalue("s3")
    return f"{url}/{tmp_path.name}"


def run(*words: str) -> None:
    done = subprocess.run([*ATTA, *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def losses(report: Path) -> list[float]:
    return [epoch["loss"] for epoch in json.loads(report.read_text())["epochs"]]


@pytest.mark.timeout(600)
def test_the_commands_on_storage(classes: Path, tmp_path: Path, bucket: str) -> None:
    """Partition, serve, train in two goes, and predict; everything but caches lies on storage."""
    data, runs, out = (f"{bucket}/{name}" for name in ("data", "runs", "out"))
    run("partition", str(classes / "graph"), data, "--parts", "2", "--method", "metis", "--seed", "0")
    ports = [held_port() for _ in range(2)]
    entries = (f'[[daemon]]\npart = {part}\naddress = "127.0.0.1:{port}"\n' for part, port in enumerate(ports))
    (tmp_path / "cluster.toml").write_text("".join(entries))
    daemons = []
    try:
        for part, port in enumerate(ports):
            place = ("--part", str(part), "--listen", f"127.0.0.1:{port}", "--peers", str(tmp_path / "cluster.toml"))
            command = [*ATTA, "serve", "--data", data, "--data-cache", str(tmp_path / f"disk-{part}"), *place]
            daemons.append(subprocess.Popen([*command, "--threads", "1"], stderr=subprocess.DEVNULL))
        with atta.connect(tmp_path / "cluster.toml", wait=True, deadline_s=120) as cluster:
            assert cluster.dataset_id == Dataset.open(classes / "parts").dataset_id
        for part in range(2):
            folders = {path.name for path in (tmp_path / f"disk-{part}" / cluster.dataset_id).iterdir()}
            assert folders == {"manifest.json", "shared", f"part-{part:04d}"}
        there = ("--cluster", str(tmp_path / "cluster.toml"), *TRAIN)
        run("train", "--data", str(classes / "parts"), *TRAIN, "--epochs", "4", "--json", str(tmp_path / "here.json"))
        run("train", *there, "--epochs", "2", "--checkpoint", runs)
        again = ("--checkpoint", runs, "--resume", "--json", str(tmp_path / "there.json"))
        run("train", *there, "--epochs", "4", *again)
        assert losses(tmp_path / "there.json") == pytest.approx(losses(tmp_path / "here.json"), abs=1e-5)
        words = ("--cluster", str(tmp_path / "cluster.toml"), "--checkpoint", runs, "--format", "npy")
        run("predict", *words, "--out", out)
        run("predict", *words, "--out", str(tmp_path / "out"))
        assert predictions(fetched(out, tmp_path / "fetched")) == predictions(tmp_path / "out")
    finally:
        for daemon in daemons:
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
            daemon.wait(60)


def fetched(url: str, folder: Path) -> Path:
    import fsspec

    files, root = fsspec.core.url_to_fs(url)
    folder.mkdir()
    for path in files.find(root):
        files.get_file(path, str(folder / os.path.basename(path)))
    return folder


def predictions(folder: Path) -> dict[str, bytes]:
    found = {path.name: np.load(path).tobytes() for path in sorted(folder.glob("*.npy"))}
    assert found
    return found


def test_daemons_of_this_process_read_storage(classes: Path, bucket: str) -> None:
    partition_graph(classes / "graph", f"{bucket}/data", parts=2, method="metis", seed=0)
    with atta.local(f"{bucket}/data", threads=1) as there, atta.local(classes / "parts", threads=1) as here:
        batches = [
            [batch.to_pyg() for batch in atta.NeighborLoader(cluster, [3], "train", batch_size=32, seed=1)]
            for cluster in (there, here)
        ]
    for a, b in zip(*batches, strict=True):
        for name in ("n_id", "edge_index", "x"):
            np.testing.assert_array_equal(a[name].numpy(), b[name].numpy())
