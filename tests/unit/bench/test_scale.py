"""``atta bench scale``: division of processor time, first batches, increase, tables and pictures."""

from __future__ import annotations

import io
import math
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from atta.errors import ConfigError
from atta.observe.machine.threads import named_threads
from atta.partition.dataset import Dataset
from atta_bench.graphs import GraphSource, cut, graph_folder
from atta_bench.scale.benchmark import ScaleBench
from atta_bench.scale.cell import Stretch, check_seeds, counted, epochs_for, figures_of, first_batches, seeds_per_s
from atta_bench.scale.clocks import (
    CODE,
    ProcessorTime,
    count_samples,
    no_perf,
    parse_stat,
    read_times,
    role_of,
    sampled,
    total,
)
from atta_bench.scale.report import ScaleReport, SystemRound, increase, quotients


def answer(start: float, times: list[float], **figures: float) -> dict[str, Any]:
    names = ("seeds", "nodes", "edges", "remote_rows", "make_ms")
    return {"start": start, "times": times, **dict.fromkeys(names, 0.0), **figures}


@pytest.mark.parametrize(
    ("name", "role"),
    [
        *(("atta-worker", "worker"), ("atta-copy", "copy"), ("atta-serve", "serve"), ("atta-io-3", "io")),
        *(("event_engine", "grpc"), ("grpc_global_tim", "grpc"), ("lifeguard", "grpc")),
        *(("python", "unnamed"), ("python3.11", "unnamed"), ("", "unnamed"), ("cuda-EvtHandlr", "cuda-EvtHandlr")),
    ],
)
def test_threads_are_told_apart_by_their_names(name: str, role: str) -> None:
    assert role_of(name, main=False) == role
    assert role_of(name, main=True) == "event_loop"


def test_clocks_of_this_process_agree_with_pythons() -> None:
    me = os.getpid()
    with named_threads(1, "atta-busy") as pool:
        before, cpu = read_times([me]), time.process_time()

        def spin() -> float:
            begun = time.thread_time()
            while time.thread_time() - begun < 0.3:
                pass
            return time.thread_time() - begun

        busy = pool.submit(spin).result()
        spent, cpu = read_times([me]).since(before), time.process_time() - cpu
    assert spent.seconds == pytest.approx(cpu, abs=0.05)
    assert spent.roles()["busy"] == pytest.approx(busy, abs=0.05)
    assert sum(spent.roles().values()) == pytest.approx(spent.seconds, abs=0.06)


def test_time_of_threads_that_have_ended_is_not_lost() -> None:
    before = ProcessorTime(1.0, 1.0, {(7, 7): ("event_loop", 1.0), (7, 8): ("worker", 1.0)})
    now = ProcessorTime(3.0, 2.0, {(7, 7): ("event_loop", 2.0), (7, 9): ("worker", 0.5)})
    spent = now.since(before)
    assert (spent.user_s, spent.system_s) == (2.0, 1.0)
    assert spent.roles() == {"event_loop": 1.0, "worker": 0.5, "ended": 1.5}
    other = ProcessorTime(10.0, 20.0, {(2, 2): ("event_loop", 30.0)})
    assert (total((spent, other)).seconds, total((spent, other)).roles()["event_loop"]) == (33.0, 31.0)
    assert read_times([2**22 + 1]).seconds == 0.0, "nobody has this number"
    fields = ["S", *"1234567890", "250", "50", *"123"]
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert parse_stat(f"17 (a) b (c) {' '.join(fields)}") == ("a) b (c", 250 * tick, 50 * tick)


SCRIPT = """\
   17      7f2255eb6a74 _PyEval_EvalFrameDefault (/opt/lib/libpython3.11.so.1.0)
   17      7f2255eb6a74 method_vectorcall (/opt/bin/python3.11)
   17      ffffffff821f236b tcp_sendmsg_locked ([kernel.kallsyms])
   17      ffffffffc0a1b000 veth_xmit ([veth])
   18      7f2255f82965 __memmove_evex_unaligned_erms (/usr/lib/x86_64-linux-gnu/libc.so.6)
   18      7f2255eb6a74 malloc (/usr/lib/x86_64-linux-gnu/libc.so.6)
   18      7ffd1c1f2a74 __vdso_clock_gettime ([vdso])
   18      7f2253c2deb9 grpc_core::Foo::Bar(int, char (*)(int)) (/x/grpc/_cython/cygrpc.cpython-311-x86_64-linux-gnu.so)
   18      7f2253c2deb9 upb_Decode (/x/google/_upb/_message.abi3.so)
   20      7f2253c2deb9 atta::gather<4>(Rows const&) (/x/atta/_native.cpython-311-x86_64-linux-gnu.so)
   20      7f2253c2deb9 [unknown] (/x/torch/lib/libtorch_cpu.so)
   99      7f2253c2deb9 main (/usr/bin/somebody)
a line that perf did not write
"""


def test_samples_are_counted_by_process_and_code() -> None:
    found = count_samples(SCRIPT.splitlines(keepends=True), {"daemon": [17, 18], "consumer": [20]})
    assert found == {
        "daemon": Counter(interpreter=2, kernel=2, copies=1, other=2, grpc=2),
        "consumer": Counter(native=2),
    }
    assert {kind for counts in found.values() for kind in counts} == set(CODE)


def test_perf_finds_where_this_process_spends_its_time() -> None:
    if why := no_perf():
        pytest.skip(why)
    with sampled({"me": [os.getpid()], "nobody": []}) as found:
        begun = time.process_time()
        while time.process_time() - begun < 0.5:
            pass
    assert found["me"].total() > 20
    assert found["me"]["interpreter"] + found["me"]["kernel"] > found["me"].total() / 2
    assert found["nobody"].total() == 0


def test_figures_of_a_stretch() -> None:
    taken = [
        answer(10.0, [11.0, 12.0], seeds=20, nodes=200, edges=400, remote_rows=60, make_ms=6),
        answer(10.5, [11.0, 14.0], seeds=20, nodes=240, edges=400, remote_rows=20, make_ms=2),
    ]
    daemons = ProcessorTime(3e-3, 1e-3, {(1, 1): ("event_loop", 1e-3), (1, 2): ("worker", 3e-3)})
    consumers = ProcessorTime(4e-3, 0.0, {(5, 5): ("event_loop", 4e-3)})
    counters = {
        "tasks_feature_net_total": 12.0, "tasks_join_cpu_total": 99.0, "requests_SessionService.Next": 77.0,
        "requests_KvService.Pull": 8.0, "link_requests_served": 4.0, "link_requests_asked": 4.0,
        "sent_bytes_KvService.Pull": 600.0, "link_sent_bytes": 200.0, "sent_bytes_SessionService.Next": 5000.0,
    }  # fmt: skip
    samples = {"daemon": Counter(kernel=1, grpc=3), "consumer": Counter(interpreter=2)}
    found = figures_of(Stretch(taken, daemons, consumers, counters, (4000, 40), samples))
    assert found["seeds_per_s"] == 40 / 4
    assert found["cpu_us_per_seed"] == pytest.approx(8e3 / 40)
    assert found["cpu_ms_per_batch"] == pytest.approx(8 / 4)
    assert found["vertices_per_seed"] == 11
    assert found["edges_per_seed"] == 20
    assert found["remote_rows_per_seed"] == 2
    assert found["make_ms"] == 2
    assert (found["remote_tasks_per_batch"], found["remote_requests_per_batch"]) == (3, 3)
    assert found["answer_bytes_per_batch"] == 200
    assert (found["link_bytes_per_batch"], found["link_packets_per_batch"]) == (1000, 10)
    assert found["processes/daemon_user_us_per_seed"] == pytest.approx(75)
    assert found["processes/consumer_system_us_per_seed"] == 0
    assert found["threads/worker_us_per_seed"] == pytest.approx(75)
    assert found["code/daemon_grpc_us_per_seed"] == pytest.approx(75)
    for section in ("processes", "code"):
        parts = [value for name, value in found.items() if name.startswith(f"{section}/")]
        assert sum(parts) == pytest.approx(found["cpu_us_per_seed"])
    without_samples = figures_of(Stretch([answer(0.0, [1.0], seeds=1)], ProcessorTime(1.0, 0.0), ProcessorTime()))
    assert not [name for name in without_samples if name.startswith("code/")]


def test_the_first_batches_of_all_consumers_count_from_the_common_start() -> None:
    # One batch of 8 seeds each second, the first one after 3 seconds. The second consumer is half a second late.
    taken = [answer(100.0 + late, [103.0 + late + i for i in range(60)], seeds=480) for late in (0.0, 0.5)]
    found = first_batches(taken, 8, steady=16.0)
    assert found["first_10_seeds_per_s"] == pytest.approx(2 * 10 * 8 / 12.5)
    assert found["first_10_share"] == pytest.approx(2 * 10 * 8 / 12.5 / 16)
    assert found["first_50_share"] == pytest.approx(2 * 50 * 8 / 52.5 / 16)
    assert found["first_50_share"] > found["first_10_share"]
    short = [answer(0.0, [float(i) for i in range(1, count + 1)], seeds=count) for count in (60, 49)]
    assert set(first_batches(short, 1, steady=1.0)) == {"first_10_seeds_per_s", "first_10_share"}


def test_rates_last_from_the_first_start_to_the_last_batch_and_the_increase_is_counted_from_two_partitions() -> None:
    assert seeds_per_s([answer(1.0, [2.0], seeds=10), answer(3.0, [6.0], seeds=40)]) == 10
    assert counted([{"a": 1.0}, {"a": 10.0}], [{"a": 3.0}, {"a": 15.0, "new": 4.0}]) == {"a": 7.0, "new": 4.0}
    found = increase(cells({(1, 64): 10.0, (2, 64): 20.0, (8, 64): 50.0, (2, 8): 100.0, (8, 8): 300.0}))
    assert found == {"64 seeds, 1 over 2 parts": 0.5, "64 seeds, 8 over 2 parts": 2.5, "8 seeds, 8 over 2 parts": 3.0}
    assert increase(cells({(4, 64): 10.0, (8, 64): 15.0})) == {"64 seeds, 8 over 4 parts": 1.5}
    assert increase({}) == {}


def cells(costs: dict[tuple[int, int], float]) -> SystemRound:
    return {(parts, size): {"cpu_us_per_seed": c, "seeds_per_s": 1e6 / c} for (parts, size), c in costs.items()}


def test_systems_are_compared_within_a_round_and_with_the_same_cache() -> None:
    found = {
        "atta": cells({(8, 64): 10.0}),
        "atta-uncached": cells({(8, 64): 20.0}),
        "before": cells({(8, 64): 40.0}),
        "before-uncached": cells({(8, 64): 100.0}),
        "dgl": cells({(8, 64): 80.0}),
    }
    quotients(found)
    key = (8, 64)
    assert found["atta"][key]["cpu_share_of_before"] == 0.25
    assert found["atta-uncached"][key]["cpu_share_of_before"] == 0.2
    assert found["atta-uncached"][key]["seeds_per_s_over_dgl"] == pytest.approx(4)
    assert found["before"][key]["seeds_per_s_over_dgl"] == pytest.approx(2)
    assert "cpu_share_of_before" not in found["before"][key]
    assert set(found["dgl"][key]) == {"cpu_us_per_seed", "seeds_per_s"}


def two_rounds() -> ScaleReport:
    report = ScaleReport("scale", {}, parts=(2, 8), batch_sizes=(64,), notes=("Nothing else ran.",))
    for cost in (10.0, 14.0):
        ours = cells({(2, 64): cost, (8, 64): 2 * cost})
        for figures in ours.values():
            figures |= {f"processes/{n}_us_per_seed": 1.0 for n in ("daemon_user", "daemon_system")}
        ours[8, None] = {"first_10_share": 0.5}
        report.add_round({"atta": ours, "dgl": cells({(2, 64): 30.0, (8, 64): 30.0})})
    return report


def test_a_report_has_all_figures_by_name() -> None:
    document = two_rounds().to_json()
    ours = document["results"]["atta"]
    assert ours["cpu_us_per_seed, 64 seeds/8 parts"] == {"median": 24.0, "min": 20.0, "max": 28.0}
    assert ours["increase/64 seeds, 8 over 2 parts"]["median"] == 2.0
    assert ours["first_10_share, first batches/8 parts"]["median"] == 0.5
    assert ours["seeds_per_s_over_dgl, 64 seeds/2 parts"]["max"] == pytest.approx(3.0)
    assert ours["2 parts, 64 seeds/processes/daemon_user_us_per_seed"]["median"] == 1.0
    assert set(document["costs"]) == {
        *(f"cpu_us_per_seed, 64 seeds/{parts} parts" for parts in (2, 8)),
        *(f"{p} parts, 64 seeds/processes/daemon_{k}_us_per_seed" for p in (2, 8) for k in ("user", "system")),
    }
    # The ratio of a cost says how many times faster ours is.
    assert document["ratios"]["cpu_us_per_seed, 64 seeds/2 parts"]["dgl"] == pytest.approx((3 + 30 / 14) / 2)
    assert document["about"] == "Nothing else ran."


def test_the_main_figures_stand_in_tables_over_the_partitions() -> None:
    report = two_rounds()
    report.fail("dgl", "needs root")
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report.show())
    text = console.export_text()
    assert next(line.split()[3::2] for line in text.splitlines() if "atta" in line) == ["12", "24"]
    assert "first_10_share" in text
    assert "dgl could not run: needs root" in text
    assert "Nothing else ran." in text


def test_pictures_show_costs_and_what_they_are_for(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = two_rounds()
    assert report.series("cpu_us_per_seed", 64)["atta"] == {
        2: {"median": 12.0, "min": 10.0, "max": 14.0},
        8: {"median": 24.0, "min": 20.0, "max": 28.0},
    }
    assert dict(report.layers("atta", 64))["daemon_user"] == [1.0, 1.0]
    assert report.layers("dgl", 64) == ()
    report.plot(str(tmp_path / "scale.png"))
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
    # Where there are samples, layers are kinds of code.
    report = ScaleReport("scale", {}, parts=(2,), batch_sizes=(64,))
    names = {"code/daemon_kernel": 3.0, "code/consumer_kernel": 2.0, "processes/daemon_user": 5.0}
    report.add_round({"atta": {(2, 64): {f"{name}_us_per_seed": value for name, value in names.items()}}})
    assert dict(report.layers("atta", 64))["kernel"] == [5.0]
    assert [label for label, _ in report.layers("atta", 64)] == list(CODE)


@given(st.integers(0, 1000), st.integers(1, 100))
def test_whole_epochs_have_enough_batches_and_not_one_epoch_more(batches: int, per_epoch: int) -> None:
    epochs = epochs_for(batches, per_epoch)
    assert epochs * per_epoch >= batches
    assert epochs == 1 or (epochs - 1) * per_epoch < batches


def test_dgl_takes_about_as_many_batches_as_atta_and_each_consumer_has_one() -> None:
    bench = ScaleBench(warm_up=100, measured=50)
    work = bench.compared(Path("data"), 8, 1024, 19_592)
    assert (work.warm_up, work.epochs) == (10, 25)  # epochs of two batches
    assert (work.seeds, work.drop_last, work.batch_size) == ("global", True, 1024)
    check_seeds(2048, 2, (1024, 128), "train")
    with pytest.raises(ConfigError, match=r"the split 'train' has 2,047 vertices.*needs 2,048"):
        check_seeds(2047, 2, (1024, 128), "train")


def test_graph_and_partitionings_are_made_once(tmp_path: Path) -> None:
    source, said = GraphSource(nodes=2000, edges=8000, features=3, method="random"), list[str]()
    for _ in range(2):
        graph = graph_folder(source, tmp_path, said.append)
        parted = cut(graph, 2, source, tmp_path, said.append)
    assert len(said) == 2
    dataset = Dataset.open(parted)
    assert dataset.num_parts == 2
    assert dataset.schema.node_counts == {"node": 2000}
    assert math.isclose(sum(dataset.schema.edge_counts.values()), 8000, rel_tol=0.1)
    assert graph_folder(GraphSource(graph=str(graph)), tmp_path, said.append) == graph
