"""Grafana accepts the dashboard. Its queries name exported metrics and use each by its type."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from atta.observe.catalogue import FIGURES, JOB_FIGURES, SESSION_FIGURES, Family, family_of
from atta.observe.metrics import JOB_LABELS

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[3] / "docs/grafana-atta.json").read_text())
QUERIES = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
LABELLED = (
    "tasks_a_b_total",
    "scheduler_ready_a",
    "scheduler_running_a",
    "requests_a.b",
    "request_errors_a.b",
    "sent_bytes_a.b",
)
FAMILIES: dict[str, Family] = {
    family.sample: family
    for family in (
        *FIGURES.values(),
        *SESSION_FIGURES.values(),
        *JOB_FIGURES.values(),
        *(family_of(name).family for name in LABELLED),
    )
}


def test_panels_have_room_and_a_source() -> None:
    assert DASHBOARD["schemaVersion"] >= 38  # Grafana 10
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["x"] + dx, panel["gridPos"]["y"] + dy)
        for panel in panels
        for dx in range(panel["gridPos"]["w"])
        for dy in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


def test_every_variable_is_defined_and_used() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps([DASHBOARD["panels"], DASHBOARD["templating"]])))
    assert used - {"__rate_interval", "__all"} == variables


@pytest.mark.parametrize(("panel", "query"), QUERIES)
def test_queries_fit_the_types_and_labels_of_their_metrics(panel: str, query: str) -> None:
    names = re.findall(r"\b(atta_\w+)\{", query)
    assert names
    assert set(names) <= set(FAMILIES), panel
    assert all(query.count(a) == query.count(b) for a, b in ("()", "{}", "[]"))
    for name in names:
        in_rate = bool(re.search(rf"\b(rate|increase)\({name}\{{", query))
        assert in_rate == FAMILIES[name].counter, f"{panel}: {name}"
    known = {"part", "job", *(label for name in names for label in FAMILIES[name].labels)}
    if all(name.startswith("atta_session_") for name in names):
        known |= {"atta_job", "session"}
    if all(name.startswith("atta_job_") for name in names):
        known |= {*JOB_LABELS}
    asked = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
    assert asked | set(re.findall(r"(\w+)=~", query)) <= known


def test_what_jobs_report_is_shown_by_layer_and_direction() -> None:
    asked = " ".join(query for _, query in QUERIES)
    shown = {family.sample for family in JOB_FIGURES.values() if f"{family.sample}{{" in asked}
    assert shown >= {
        *("atta_job_sent_bytes", "atta_job_age_min_epochs", "atta_job_age_mean_epochs", "atta_job_age_max_epochs"),
        *("atta_job_broadcasts", "atta_job_broadcasts_skipped", "atta_job_predicted_error", "atta_job_stale_error"),
    }
    assert "by (atta_job, layer, direction) (atta_job_sent_bytes{" in asked
