"""``schema.json`` from GraphStorm's configuration of graph construction (``gconstruct-v0.1``)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atta.errors import ConfigError, DataError
from atta.observe.packages import load
from atta.partition.importers.table import schema as rules
from atta.partition.importers.table.guess import SHARES, Guess, names_of
from atta.partition.names import join_edge_type

_FILES = {"files", "format"}
_NEEDED = {
    "nodes": _FILES | {"node_type", "node_id_col"},
    "edges": _FILES | {"relation", "source_id_col", "dest_id_col"},
}
_IDS = {"node_id_col": "id", "source_id_col": "src", "dest_id_col": "dst"}
_WAYS: dict[str, dict[str, bool]] = {"no-op": {}, "max_min_norm": {"scale": True}, "to_categorical": {"onehot": True}}
"""The transforms that a schema has, and what it says of their columns."""
_LABEL = {"label_col", "split_pct", "label_stats_type"}
_TASKS = {"link_prediction": "link", "classification": "edge-classes"}
"""What tasks of edges are called here."""


def schema_from_graphstorm(path: Path, folder: Path) -> Guess:
    """The schema for ``folder`` that the configuration ``path`` describes, whose files are relative to the current folder.
    Raises DataError that names everything that a schema cannot say."""
    load("reading tables", "pyarrow", "pyarrow.dataset")
    said, guess, refusals = rules.read_json(path), Guess([]), rules.Refusals(path)
    if not isinstance(said, dict) or not isinstance(said.get("nodes"), list):
        raise DataError(path, "wanted are lists 'nodes' and 'edges', as GraphStorm's construct_graph takes them")
    for kind, needed in _NEEDED.items():
        for number, block in enumerate(said.get(kind, [])):
            with refusals.held():
                _check(f"{kind}[{number}]", block, needed, {"features", "labels"})
                try:
                    name = block["node_type"] if kind == "nodes" else join_edge_type(*block["relation"])
                    if name in guess.schema[kind]:
                        raise ConfigError(f"{name}: has two blocks, and a schema has one table for each type")
                    guess.schema[kind][name] = _entry(name, block, folder, guess.lines)
                except (AttributeError, KeyError, TypeError) as error:
                    raise ConfigError(f"{kind}[{number}]: is not as GraphStorm takes it: {error}") from None
    refusals.check()
    return guess


def _check(where: str, said: Any, needed: set[str], more: set[str]) -> None:
    if not isinstance(said, dict) or not needed <= said.keys():
        raise ConfigError(f"{where}: needs {', '.join(sorted(needed))}")
    if strange := sorted(said.keys() - needed - more):
        raise ConfigError(f"{where}: a schema has nothing for {', '.join(strange)}")


def _entry(name: str, block: Mapping[str, Any], folder: Path, lines: list[str]) -> dict[str, Any]:
    form, entry = block["format"], {ours: block[theirs] for theirs, ours in _IDS.items() if theirs in block}
    _check(f"{name}: format", form, {"name"}, {"separator"})
    if form["name"] not in ("parquet", "csv"):
        raise ConfigError(f"{name}: format {form['name']!r}: tables are Parquet or CSV")
    files = [block["files"]] if isinstance(block["files"], str) else block["files"]
    files = [one if os.path.isabs(one) else os.path.relpath(one, folder) for one in files]
    tables: dict[str, Any] = {}
    for feature in block.get("features", []):
        _check(f"{name}: a feature", feature, {"feature_col"}, {"feature_name", "transform"})
        table = "x" if "id" in entry else feature.get("feature_name", feature["feature_col"])
        tables[table] = [*tables.get(table, []), *_columns(name, feature, lines)]
    used = {one if isinstance(one, str) else one["column"] for table in tables.values() for one in table}
    tables = {table: said if "id" in entry or len(said) > 1 else said[0] for table, said in tables.items()}
    for label in block.get("labels", []):
        _check(f"{name}: a label", label, {"task_type"}, _LABEL)
        task, shares = label["task_type"], dict(zip(SHARES, label.get("split_pct", SHARES.values()), strict=False))
        if "y" in tables or task not in (("classification", "regression") if "id" in entry else _TASKS):
            raise ConfigError(f"{name}: a label of task_type {task!r}: a type has one, for a task that Atta has")
        if "id" in entry:
            entry["splits"] = {split: share for split, share in shares.items() if share}
        else:
            split = ",".join(map(str, shares.values()))
            lines.append(f"{name}: train with --task {_TASKS[task]} --edge-type {name} --edge-split {split}")
        tables |= {"y": label["label_col"]} if "label_col" in label else {}
    found = rules.paths_of(folder / rules.SCHEMA, files)
    used |= {tables.get("y"), *(entry[key] for key in _IDS.values() if key in entry)}
    ignore = [one for one in names_of(found[0]) if one not in used] if found else []
    entry = {"files": files[0] if len(files) == 1 else files, **entry, "tables": tables, "ignore": ignore}
    return {key: given for key, given in {**entry, "delimiter": form.get("separator")}.items() if given}


def _columns(name: str, feature: Mapping[str, Any], lines: list[str]) -> list[Any]:
    """What the schema says of the columns of a feature."""
    given, transform = feature["feature_col"], feature.get("transform") or {}
    columns, way = [given] if isinstance(given, str) else given, transform.get("name") or "no-op"
    if way not in _WAYS or len(transform) > 1:
        cause = f"{name}: {', '.join(columns)}: a schema has nothing for the transform {json.dumps(transform)}"
        raise ConfigError(f"{cause}: store what it gives as numbers, or lists of numbers in Parquet")
    if way == "max_min_norm":
        lines.append(f"{name}: {', '.join(columns)}: scaled to mean 0 and deviation 1, where max_min_norm gives 0 to 1")
    return [{"column": one, **_WAYS[way]} if _WAYS[way] else one for one in columns]
