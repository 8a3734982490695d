"""Hosts on one machine, which vanish however their owner ends, and the DistDGL peer, which keeps the graph."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from atta_bench.lab.distdgl import (
    GRAPH_NAME,
    MASK,
    PlainGraph,
    fingerprint,
    mask_of,
    prepare,
    read_plain,
    read_tables,
    run_distdgl,
)
from atta_bench.lab.flow import flow_bytes_per_s
from atta_bench.lab.netlab import Host, NetLab
from atta_bench.lab.workload import BenchWorkload, Recipe
from atta_bench.loader.benchmark import LoaderBench, run

netns = pytest.mark.netns


def namespaces() -> set[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.readlink(entry / "ns/net"))
            except OSError:
                continue
    return found


def output(host: object, *command: str) -> str:
    process = host.popen(command, stdout=subprocess.PIPE)  # type: ignore[attr-defined]
    return process.communicate(timeout=30)[0].decode()


def test_counts_and_rates_out_of_range_and_missing_rights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (0, 251):
        with pytest.raises(ConfigError, match="hosts"):
            NetLab(count)
    for rate in ("fast", "-1gbit", "1gbit; reboot", "0mbit"):
        with pytest.raises(ConfigError, match="rate"):
            NetLab(2, rate=rate)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(AttaError, match=r"root|need the commands"), NetLab(2):
        pass


@pytest.mark.parametrize("kind", ["tcp", "grpc"])
def test_a_sender_that_cannot_listen_says_why(kind: str) -> None:
    nowhere = Host("192.0.2.1")
    with pytest.raises(AttaError, match=rf"measuring {kind}: the sender at 192\.0\.2\.1 ended: .*Error: .*") as caught:
        flow_bytes_per_s(nowhere, nowhere, kind)
    assert "\n" not in str(caught.value)


@netns
def test_hosts_have_their_own_network_and_shared_memory() -> None:
    with NetLab(2, shm_bytes=1 << 24) as lab:
        one, two = lab.hosts
        assert one.address != two.address
        networks = {output(h, "readlink", "/proc/self/ns/net") for h in lab.hosts}
        assert len(networks) == 2
        assert os.readlink("/proc/self/ns/net") + "\n" not in networks
        output(one, "sh", "-c", "echo here > /dev/shm/probe")
        assert output(one, "cat", "/dev/shm/probe") == "here\n"  # processes of one host share it
        assert output(two, "ls", "/dev/shm") == ""
        assert not Path("/dev/shm/probe").exists()
        assert output(one, "sh", "-c", "df -k /dev/shm | tail -1 | awk '{print $2}'") == "16384\n"


@netns
@pytest.mark.parametrize("kind", ["tcp", "grpc"])
def test_bytes_flow_and_a_rate_bounds_them(kind: str) -> None:
    with NetLab(2, rate="80mbit") as lab:
        speed = flow_bytes_per_s(lab.hosts[0], lab.hosts[1], kind, seconds=1.0)
    assert 0 < speed < 2 * 80e6 / 8  # unshaped links of this kind carry hundreds of megabytes per second


TELL = 'print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode())\n'
LISTENER = f"""
import socket
with socket.create_server(("0.0.0.0", 7000)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    {TELL}"""
CALLER = f"import socket, sys\nwith socket.create_connection((sys.argv[1], 7000)) as connection:\n    {TELL}"


@netns
def test_connections_between_hosts_do_not_depend_on_the_machines_congestion_control() -> None:
    with NetLab(2) as lab:
        one, two = lab.hosts
        listener = one.popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE)
        assert listener.stdout.readline() == b"listening\n"
        assert output(two, sys.executable, "-c", CALLER, one.address) == "cubic\n"
        assert listener.communicate(timeout=10)[0] == b"cubic\n"


@netns
def test_several_labs_live_side_by_side() -> None:
    with NetLab(1) as one, NetLab(1) as two:
        assert one.hosts[0].address == two.hosts[0].address
        assert output(one.hosts[0], "readlink", "/proc/self/ns/net") != output(
            two.hosts[0], "readlink", "/proc/self/ns/net"
        )


@netns
def test_nothing_is_left_after_leaving_or_failing() -> None:
    def fail() -> None:
        with NetLab(2):
            raise RuntimeError("the benchmark broke")

    before = namespaces()
    with NetLab(2):
        assert len(namespaces() - before) == 3  # two hosts and the switch
    with pytest.raises(RuntimeError):
        fail()
    assert namespaces() <= before | {os.readlink("/proc/self/ns/net")}


@netns
def test_nothing_is_left_when_the_owner_is_killed() -> None:
    code = """
import sys, time
from atta_bench.lab.netlab import NetLab
with NetLab(1) as lab:
    lab.hosts[0].popen(["sh", "-c", "echo $$; exec sleep 300"])
    time.sleep(300)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child = int(owner.stdout.readline())
    namespace = os.readlink(f"/proc/{child}/ns/net")
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 20
    while namespace in namespaces() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert namespace not in namespaces()


N, M = 400, 6000


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    folder = tmp_path_factory.mktemp("graph") / "graph"
    x = rng.standard_normal((N, 6)).astype(np.float32)
    with GraphWriter(folder) as out:
        tables, order = {"x": x, "y": rng.integers(0, 3, N)}, rng.permutation(N)
        splits = {"train": np.sort(order[:120]), "val": np.sort(order[120:170]), "test": np.sort(order[170:])}
        out.add_nodes("node", N, tables=tables, splits=splits)
        out.add_edges("node__to__node", rng.integers(0, N, M), rng.integers(0, N, M))
    return folder


@pytest.fixture(scope="module")
def parted(graph: Path) -> Path:
    partition_graph(graph, graph.parent / "parted", parts=2, method="random", seed=3)
    return graph.parent / "parted"


def edges_by_features(graph: PlainGraph) -> list[tuple[bytes, bytes]]:
    """The edges, each named by the feature rows of its ends: independent of any numbering."""
    x = np.ascontiguousarray(graph.tables["x"])
    return sorted((x[s].tobytes(), x[d].tobytes()) for s, d in zip(graph.src, graph.dst, strict=True))


def test_a_partitioned_dataset_is_put_together_again(graph: Path, parted: Path) -> None:
    whole, again = read_plain(graph), read_plain(parted)
    assert (again.num_nodes, len(again.src)) == (N, M)
    assert edges_by_features(again) == edges_by_features(whole)
    assert set(whole.splits) == set(again.splits) == {"train", "val", "test"}
    chosen = [(whole.splits[name], again.splits[name]) for name in whole.splits]
    for one, two in ((whole.seeds, again.seeds), *chosen, (np.arange(N), np.arange(N))):
        rows = [np.column_stack([g.tables["x"][ids], g.tables["y"][ids]]) for g, ids in ((whole, one), (again, two))]
        assert np.array_equal(*(np.unique(r, axis=0) for r in rows))


def test_fingerprints_tell_contents(graph: Path, parted: Path, tmp_path: Path) -> None:
    assert fingerprint(graph) == fingerprint(graph)
    assert fingerprint(graph) != fingerprint(parted)
    partition_graph(graph, tmp_path / "other", parts=2, method="random", seed=4)
    assert fingerprint(tmp_path / "other") != fingerprint(parted)


def test_unknown_splits_and_several_node_types_are_refused(graph: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="'trian'; did you mean 'train'"):
        read_plain(graph, "trian")
    with GraphWriter(tmp_path / "typed") as out:
        out.add_nodes("a", 2)
        out.add_nodes("b", 2)
        out.add_edges("a__to__b", [0, 1], [1, 0])
    with pytest.raises(ConfigError, match="one node type"):
        read_plain(tmp_path / "typed")


@pytest.fixture(scope="module")
def partitions(graph: Path) -> Path:
    pytest.importorskip("dgl")
    return prepare(graph, 2, "train", graph.parent / "cache")


def test_conversion_keeps_the_graph(graph: Path, partitions: Path) -> None:
    dgl = pytest.importorskip("dgl")
    plain = read_plain(graph)
    x = np.empty_like(plain.tables["x"])  # by DGL's own vertex numbers
    src, dst, seeds, found = [], [], 0, dict.fromkeys(plain.splits, 0)
    for part in range(2):
        local, tables, _, book, *_ = dgl.distributed.load_partition(str(partitions), part)
        x[book.partid2nids(part).numpy()] = tables["_N/x"].numpy()
        seeds += int(tables[f"_N/{MASK}"].sum())
        found = {name: count + int(tables[f"_N/{mask_of(name)}"].sum()) for name, count in found.items()}
        numbers = local.ndata[dgl.NID].numpy()
        stored_here = local.edata["inner_edge"].bool().numpy()
        ends = [numbers[e.numpy()[stored_here]] for e in local.edges()]
        assert set(book.nid2partid(dgl.backend.tensor(ends[1])).tolist()) == {part}  # with the destination's owner
        src.append(ends[0])
        dst.append(ends[1])
    assert seeds == len(plain.seeds)
    assert found == {name: len(ids) for name, ids in plain.splits.items()}
    assert set(read_tables(partitions)) == {"x", "y"}
    converted = PlainGraph(N, np.concatenate(src), np.concatenate(dst), {"x": x}, {}, plain.seeds)
    assert edges_by_features(converted) == edges_by_features(plain)


def test_a_second_conversion_is_the_first_one_and_one_that_fails_leaves_nothing(
    graph: Path, partitions: Path, tmp_path: Path
) -> None:
    before = partitions.stat().st_mtime_ns
    assert prepare(graph, 2, "train", partitions.parent.parent) == partitions
    assert partitions.stat().st_mtime_ns == before
    assert json.loads(partitions.read_text())["graph_name"] == GRAPH_NAME
    with pytest.raises(AttaError, match="cannot partition"):
        prepare(graph, N * 3, "train", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.netns
@pytest.mark.peer
@pytest.mark.slow
def test_servers_and_trainers_deliver_every_seed(partitions: Path, tmp_path: Path) -> None:
    workload = BenchWorkload((3, 2), 16, warm_up=1, epochs=2, seconds=0, timeout_s=100)
    with NetLab(2, shm_bytes=1 << 28) as lab:
        measured = run_distdgl(partitions, workload, lab.hosts, tmp_path)
    assert measured.total("seeds") == 2 * 120
    assert measured.total("feature_bytes") == 24 * measured.total("nodes") + 8 * measured.total("seeds")
    assert 0 < measured.total("edges") <= measured.total("seeds") * (3 + (1 + 3) * 2)  # DGL expands the seeds again
    assert min(measured.whole.sent_bytes) > 0


@pytest.mark.netns
@pytest.mark.peer
@pytest.mark.slow
def test_trainers_look_at_their_accuracy_outside_of_the_epochs(partitions: Path, tmp_path: Path) -> None:
    workload = BenchWorkload((3, 2), 16, warm_up=1, epochs=3, seconds=0, timeout_s=100)
    recipe = Recipe(channels=6, classes=3, layers=2, hidden=8, dropout=0.5)
    with NetLab(2, shm_bytes=1 << 28) as lab:
        measured = run_distdgl(partitions, workload, lab.hosts, tmp_path, recipe=recipe, eval_every=2)
    assert [e["val_accuracy"] for e in measured.warm_ups] == [None, None]
    for number, looked in ((0, True), (1, False), (2, True)):  # after every second epoch and the last one
        ranks = [e for e in measured.epochs if e["epoch"] == number]
        for name, vertices in (("val_accuracy", 50), ("test_accuracy", 230)):
            assert ranks[0][name] == ranks[1][name]
            assert (ranks[0][name] is not None) == looked
            assert not looked or round(ranks[0][name] * vertices, 6).is_integer()
        assert min(e["sent_bytes"] for e in ranks) > 0


@pytest.mark.slow
def test_without_namespaces_the_peer_is_named_with_the_reason(parted: Path, tmp_path: Path) -> None:
    bench = LoaderBench(
        (2,), 32, data=str(parted), warm_up=1, epochs=1, seconds=0, vs=("dgl",), runs=1, netns="off", deliver="arrays",
        work=str(tmp_path),
    )  # fmt: skip
    document = run(bench).to_json()
    assert "namespaces" in document["results"]["dgl"]["error"]
    figures = document["results"]["atta"]
    assert figures["seeds_per_s"]["median"] > 0
    assert figures["edges_per_seed"]["median"] <= 2
    assert document["limits"].keys() == {f"{n}_bytes_per_s" for n in ("copy", "gather", "link", "grpc")}
