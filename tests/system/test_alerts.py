"""Every metric that the dashboard or an alert names is exported by daemons, or by a training run, while they run."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import atta
from atta.errors import ConfigError
from atta.observe.catalogue import family_of
from atta.train.reports.display import exporting
from atta.train.reports.epochs import EpochReport
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph, read
from tests.unit.platform.figures import job
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
ALERTS = (ROOT / "deploy/prometheus-alerts.yml").read_text()
GRAFANA = ROOT / "deploy/grafana"


def metrics_in(query: str) -> set[str]:
    return set(re.findall(r"\b(atta_\w+)\{", query))


def queries() -> list[str]:
    panels = json.loads((GRAFANA / "dashboards/atta.json").read_text())["panels"]
    return [ALERTS, *(target["expr"] for panel in panels for target in panel["targets"])]


def watched() -> set[str]:
    return set().union(*map(metrics_in, queries()))


def exported(text: str) -> set[str]:
    return set(re.findall(r"^(atta_\w+)", text, re.MULTILINE))


def test_running_daemons_export_what_is_watched(small_graph: SmallGraph) -> None:
    (address,) = held_addresses(1)
    data = small_graph.dataset(2, "metis")
    with atta.local(data, threads=1, daemons=1, options=("--metrics", address)) as cluster:
        loader = atta.NeighborLoader(cluster, [3, 2], "train", batch_size=16)
        batches = iter(loader)
        for _ in range(5):  # the session stays open
            next(batches)
        with pytest.raises(ConfigError, match="is not a vertex"):
            next(iter(atta.NeighborLoader(cluster, [3, 2], [10**12])))
        cluster.report([job(predicted_error=0.5, stale_error=1.5)], 600)
        text = eventually(lambda: shown if "atta_job_" in (shown := read(f"{address}/metrics")) else "")
        unknown = [name for name in cluster.stats()[0] if family_of(name).family.help.startswith("Figure ")]
        assert unknown == [], "describe them in atta/observe/catalogue.py"
        shown = {name.partition("{")[0].removeprefix("atta_session_"): value for name, value in scrape(address).items()}
        assert 5 <= shown["batches_taken_total"] <= 6, "the client asks for one ahead"
        assert (shown["seeds_taken_total"], shown["batches"]) == (16 * shown["batches_taken_total"], len(loader))
        cluster.report([job()], 0)
        batches.close()  # type: ignore[attr-defined]
        assert eventually(lambda: not re.search("atta_(session|job)_", read(f"{address}/metrics")))
    wanted = {name for name in watched() if not name.startswith("atta_training_")}
    assert len(wanted) > 25
    # A peer's first request, a consumer that has been seen to compute, and a batch that is yet to be launched bring
    # these. ``tests/unit/cli/test_dashboard.py`` looks them up where metrics are described.
    sometimes = {
        "atta_sent_bytes_total",
        "atta_session_train_milliseconds",
        "atta_session_launch_score",
        "atta_certificate_days_left",
    }
    assert wanted - exported(text) <= sometimes


@pytest.mark.usefixtures("preloaded_trainers")
def test_a_training_run_exports_what_is_watched(small_graph: SmallGraph, tmp_path: Path) -> None:
    wanted = {name for name in watched() if name.startswith("atta_training_")}
    assert len(wanted) > 4
    (address,) = held_addresses(1)

    def shown() -> set[str]:
        """Nothing before the first epoch has ended."""
        found = exported(read(f"{address}/metrics"))
        return found if "atta_training_loss" in found else set()

    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        words = f"--cluster {cluster.cluster_file} --num-neighbors 3 --batch-size 16 --epochs 10000 --metrics {address}"
        command = [sys.executable, "-m", "atta.cli.main", "train", "--trainers", "1", *words.split()]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as run:
            try:
                found = eventually(shown, 60)
            finally:
                run.send_signal(signal.SIGINT)
            assert run.wait(30) == 130
    assert wanted <= found


def test_grafana_is_provisioned_with_what_is_there() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/atta.yml").read_text())["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/atta.yml").read_text())["providers"]
    assert provider["type"] == "file"
    dashboard = json.loads((GRAFANA / "dashboards/atta.json").read_text())
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["query"] == source["type"]
    used = {name for query in queries()[1:] for name in re.findall(r"\$(\w+)", query)}
    assert used <= {*variables, "__rate_interval"}
    read = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())
    assert all((ROOT / "deploy" / name).exists() for name in read["rule_files"])
    assert set(re.findall(r'job="(\w+)"', ALERTS)) <= {job["job_name"] for job in read["scrape_configs"]}


def test_every_rule_is_complete() -> None:
    (group,) = yaml.safe_load(ALERTS)["groups"]
    rules = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 8
    assert {rule["labels"]["severity"] for rule in rules} == {"critical", "warning", "info"}
    for rule in rules:
        assert rule.keys() | {"for"} == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["annotations"]["summary"]
        assert all(rule["expr"].count(a) == rule["expr"].count(b) for a, b in ("()", "{}", "[]"))
        assert '{job="atta"}' in rule["expr"]


def scrape(address: str) -> dict[str, float]:
    lines = read(f"{address}/metrics").splitlines()
    return {name: float(value) for line in lines if line[0] != "#" for name, value in [line.rsplit(" ", 1)]}


def test_trainers_export_their_epochs() -> None:
    phases, figures = {"wait": 0.5, "compute": 2.0}, {"val_accuracy": 0.5, "test_accuracy": 0.25}
    about: Any = {"peak_memory_bytes": [10, 20], "learning_rate": 0.01}
    epoch = EpochReport(4, 2.5, 0.75, 100.0, 900.0, 1e6, phases, 0.1, **about).evaluated(figures)
    (address,) = held_addresses(1)
    for _ in range(2):  # the port is free again afterwards
        with exporting(address, {"model": "sage", "dataset": 'a"b'}) as show:
            assert [name for name in scrape(address) if "created" not in name] == [
                'atta_training_info{dataset="a\\"b",model="sage"}'
            ]
            show(epoch)
            found = scrape(address)
    wanted = {
        "epochs_total": 5.0,
        "loss": 0.75,
        "seeds_per_second": 100.0,
        'phase_seconds{phase="wait"}': 0.5,
        'phase_seconds{phase="compute"}': 2.0,
        'metric{metric="val_accuracy"}': 0.5,
        'peak_memory_bytes{rank="1"}': 20.0,
    }
    assert found.items() >= {f"atta_training_{name}": value for name, value in wanted.items()}.items()
    with exporting("", {}) as show:
        show(epoch)  # nowhere
    with pytest.raises(ConfigError, match="name a port"), exporting("127.0.0.1:0", {}):
        pass
