"""Every file that is read and has no fuzzer of its own: bytes changed, and contents changed under a right checksum.

A file ends as what was read, or as one of Atta's errors. Contents are changed under a right checksum because a checksum
finds accidents only: whoever can write the file can write the checksum.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from atta.errors import AttaError
from atta.kvstore.durable.backup import Ballot, VoteBook
from atta.kvstore.durable.entries import ChangeKind, TableChange, decode_entry
from atta.kvstore.durable.frames import LogHeader
from atta.kvstore.durable.logfile import STORE_FILE, TABLES_FILE, LogRead
from atta.kvstore.durable.saved import Contents, TablesFile, TablesWriter
from atta.kvstore.durable.store import TableStore
from atta.kvstore.live.folder import MANIFEST as VERSION_MANIFEST
from atta.kvstore.live.folder import VersionFolder
from atta.kvstore.live.writing import NewRows, write_version
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.generate import GenerateOptions, generate
from atta.partition.graph import Graph
from atta.partition.schema import Schema, TableSpec
from atta.simulate.profile import HopSize, Linear, Profile, load_profile, save_profile
from atta.train import EpochReport, TrainConfig
from atta.train.checkpoint.files import BEST, LAST, RunPlace, SavedEmbeddings, fill, load_first, load_model, seal
from atta.train.checkpoint.run import load_checkpoint, load_rank, place_in, save_best, save_checkpoint, save_rank
from atta.train.models import build_model
from atta.wire.clusterfile import read_cluster, read_credentials, write_cluster
from atta.wire.credentials import Credentials
from atta.wire.tokens import Role, TokenFile, issue, read_token, read_tokens
from tests.fuzz.drawing import change_value, mutated
from tests.fuzz.targets import HANG_S, Finding

__all__ = ["Files"]

CPU = torch.device("cpu")
CONFIG = TrainConfig(data="x", num_neighbors=(2, 2), hidden=4)
WORDS = ["[", "]", "[[daemon]]", "[tls]", "part = 1", "parts = [0, 1]", "= 1", "= []", "= {}", "= 1979-05-27", "\0", '""',
         "9" * 5000, "= nan", "[" * 3000, "{" * 3000, "é", "0x", "'''", "[[token]]", "-1"]  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """One kind of file: ``path``, read by ``read``. ``changed``: contents under a right checksum, if it has one."""

    path: Path
    read: Callable[[], Any]
    changed: Callable[[bytes, random.Random], bytes]


class Files:
    """A target; see ``tests.fuzz.targets.Target``. ``folder``: it makes the files there."""

    name = "files"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.kinds = {**small(folder / "small"), **kept_tables(folder / "tables"), **datasets(folder / "data"),
                      **checkpoints(folder / "train")}  # fmt: skip
        self._good = {name: kind.path.read_bytes() for name, kind in self.kinds.items()}
        for kind in self.kinds.values():
            kind.read()

    def once(self, rng: random.Random) -> str:
        return self.changed(rng.choice(sorted(self.kinds)), rng)

    def changed(self, name: str, rng: random.Random) -> str:
        change = mutated if rng.random() < 0.4 else self.kinds[name].changed
        return self.again(name, change(self._good[name], rng))

    def again(self, what: str, data: bytes) -> str:
        """Read these bytes as a file of the kind ``what``. What takes long is read again: the machine may be busy."""
        kind = self.kinds[what]
        for _ in range(3):
            began = time.monotonic()
            kind.path.write_bytes(data)
            try:
                kind.read()
                end = "OK"
            except AttaError as error:
                end = type(error).__name__
            except Exception as error:
                told = "".join(traceback.format_exception(error)[-3:])
                raise Finding(what, data, f"{type(error).__name__}: {told}") from error
            finally:
                kind.path.write_bytes(self._good[what])
            seconds = time.monotonic() - began
            if seconds <= HANG_S:
                return end
        raise Finding(what, data, f"takes {seconds:.1f} s each time")

    def close(self) -> None:
        """Nothing is open."""


def text_changed(raw: bytes, rng: random.Random) -> bytes:
    lines = raw.decode().splitlines()
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(lines) + 1)
        match rng.randrange(4):
            case 0:
                del lines[at : at + 1]
            case 1:
                lines[at:at] = lines[at : at + 2]
            case 2:
                lines[at:at] = [rng.choice(WORDS)]
            case _ if at < len(lines):
                key, equals, value = lines[at].partition("=")
                lines[at] = f"{key}{rng.choice(WORDS)}" if equals else f"{value}{rng.choice(WORDS)}"
            case _:
                rng.shuffle(lines)
    return "\n".join(lines).encode()


def json_changed(raw: bytes, rng: random.Random) -> bytes:
    return json.dumps(change_value(json.loads(raw), rng, rng.choice([0.02, 0.1]))).encode()


def sealed_changed(raw: bytes, rng: random.Random) -> bytes:
    """Another JSON document of the same format with a right checksum."""
    value = json.loads(raw)
    about = {name: value[name] for name in ("format", "version")}
    rest = {k: v for k, v in value.items() if k not in {*about, "checksum"}}
    changed = change_value(rest, rng, rng.choice([0.02, 0.1]))
    return sealed({**about, **(changed if isinstance(changed, dict) else {})})


def sealed(value: dict[str, Any]) -> bytes:
    text = json.dumps({"checksum": "0" * 16, **value}, indent=1) + "\n"
    return text.replace("0" * 16, xxhash.xxh3_64(text.encode()).hexdigest(), 1).encode()


def state_changed(raw: bytes, rng: random.Random) -> bytes:
    """A checkpoint with other contents, or a damaged archive, under a right checksum."""
    if rng.random() < 0.3:
        return seal(mutated(raw, rng) + raw[-22:])
    state = torch.load(io.BytesIO(raw), weights_only=True)
    content = io.BytesIO()
    torch.save(change_value(state, rng, rng.choice([0.02, 0.1])), content)
    return seal(content.getvalue())


# -- the kinds ---------------------------------------------------------------------------------------------------------


def small(folder: Path) -> dict[str, Kind]:
    folder.mkdir()
    cluster, tokens, token, profile, votes = (folder / n for n in ("c.toml", "t.toml", "token", "p.json", "v.votes"))
    write_cluster(cluster, ["a:1", ("b:1", "c:1")], Credentials("ca.pem", "me.pem", "me.key"))
    secret, entry = issue("alice", {Role.READER, Role.WRITER}, datetime(2027, 1, 1, tzinfo=UTC))
    tokens.write_text(TokenFile.of([entry, issue("bob", {Role.PEER}, datetime(2027, 1, 1, tzinfo=UTC))[1]]).text())
    token.write_text(secret)
    save_profile(profile, Profile(8, (3,), (HopSize(8.0), HopSize(20.0, 0.5)), {"seed": Linear(1.0, 0.1)}))
    ballot = Ballot(b"0" * 16, 3, "a:1")
    VoteBook(votes).give(ballot)
    good = votes.read_bytes()

    def vote() -> None:
        try:
            VoteBook(votes).give(Ballot(b"0" * 16, 4, "b:1"))
        finally:
            votes.write_bytes(good)

    return {
        "cluster.toml": Kind(cluster, lambda: (read_cluster(cluster), read_credentials(cluster)), text_changed),
        "tokens.toml": Kind(tokens, lambda: read_tokens(tokens).find(secret, datetime.now(UTC)), text_changed),
        "token": Kind(token, lambda: read_token(token), text_changed),
        "profile": Kind(profile, lambda: load_profile(profile), json_changed),
        "votes": Kind(votes, vote, sealed_changed),
    }


def kept_tables(folder: Path) -> dict[str, Kind]:
    """What a daemon keeps of its mutable tables: the store, its log, a checkpoint of it, and a table."""
    about: dict[str, Any] = {"dataset": "0" * 16, "parts": [0, 1], "daemons": 1}
    place, copy = folder / "part-0000", folder / "copy"
    store = TableStore(place, about, forced=False)
    store.open(lambda _: {})
    table = MutableTable(MutableSpec("t", 10, row_shape=(2,), optimiser=OptimiserSpec.adam(), versioned=True), 0, 10)
    table.register(7)
    table.push(np.arange(3), np.ones((3, 2), np.float32), "step", client=7, sequence=1)

    def write(into: Path, header: LogHeader, _: Path) -> None:
        with TablesWriter(into, Contents(["t"]), header) as file:
            table.write_to(file)

    changes = [TableChange(ChangeKind.REGISTERED, 1, (client,)).encode() for client in (7, 8)]
    store.append(changes[:1])
    store.checkpoint(store.rotate(), write)
    store.close()
    other = TableStore(folder / "other", about, forced=False)
    other.open(lambda _: {})
    other.append(changes)
    other.close()
    (checkpoint,), (log,) = place.glob("checkpoint-*"), (folder / "other").glob("log-*")

    def opened() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place, copy)
        TableStore(copy, about, forced=False).open(lambda _: {})

    def entries() -> None:
        for record in LogRead(log):
            try:
                decode_entry(record.body)
            except ValueError:  # a replay makes a DataError of it
                continue

    def loaded() -> None:
        file = TablesFile(checkpoint)
        for saved in file.tables():
            file.arrays(saved)

    return {
        "store.json": Kind(place / STORE_FILE, opened, sealed_changed),
        "log": Kind(log, entries, mutated),
        "tables.log": Kind(checkpoint / TABLES_FILE, loaded, mutated),
    }


def datasets(folder: Path) -> dict[str, Kind]:
    folder.mkdir()
    generate("powerlaw", folder / "g", GenerateOptions(nodes=50, edges=200, features=3, classes=2))
    partition_graph(folder / "g", folder / "d", parts=2, method="random")
    dataset = Dataset.open(folder / "d")
    versions = VersionFolder(folder / "d", dataset.dataset_id)
    with versions.updating():
        write_version(versions, dataset, {("node", "x"): NewRows(np.ones((50, 3), np.float32), None)})
    versions.commit(1)
    manifest = folder / "d" / "manifest.json"

    def live() -> None:
        found = VersionFolder(folder / "d", dataset.dataset_id)
        for number in found.committed():
            found.load(dataset, 0, ("node", "x"), number)
            found.edge_bytes(dataset, 0, "node__to__node", number)

    return {
        "version.json": Kind(versions.place(1) / VERSION_MANIFEST, live, sealed_changed),
        "manifest.json": Kind(manifest, lambda: Dataset.open(folder / "d"), sealed_changed),
        "graph.json": Kind(folder / "g" / "graph.json", lambda: Graph.open(folder / "g"), sealed_changed),
    }


def checkpoints(folder: Path) -> dict[str, Kind]:
    def built() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = build_model(CONFIG, 3, 2)
        return model, torch.optim.Adam(model.parameters(), 0.01)

    def first(path: Path, model: torch.nn.Module) -> None:
        found = load_first(path, CPU, schema)
        fill(model, found.weights, found.path)

    tables = {"node": {"x": TableSpec("<f4", (3,)), "y": TableSpec("<i8")}}
    schema = Schema(("node",), ("node__to__node",), {"node": 3}, {"node__to__node": 2}, tables,
                    classes={"node": {"y": ["a", "b"]}}, columns={"node": {"x": ["u", "v", "w"]}})  # fmt: skip
    epoch = EpochReport(0, 1.0, 0.5, 10.0, 20.0, 30.0, {"wait": 0.1}, val_accuracy=0.25)
    save_checkpoint(folder, CONFIG, *built(), [epoch], schema=schema)
    save_rank(folder, 0, 1, RunPlace(1), {"random": {"cpu": torch.get_rng_state()}})
    (rank,) = folder.glob("rank-*.pt")
    learnt = {"author": torch.zeros(3, 2)}
    save_best(folder / "best", CONFIG, built()[0], epoch,
              embeddings=SavedEmbeddings(learnt, {"author": torch.tensor([3, 5, 9])}), schema=schema)  # fmt: skip

    def best() -> None:
        first(folder / "best", built()[0])
        load_model(folder / "best")

    def run() -> None:
        model, optimizer = built()
        found = [lambda: load_checkpoint(folder, CONFIG, model, optimizer, CPU, schema=schema), lambda: place_in(folder),
                 lambda: load_model(folder), lambda: first(folder, model)]  # fmt: skip
        errors = []
        for read in found:
            try:
                read()
            except AttaError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    return {
        "best": Kind(folder / "best" / BEST, best, state_changed),
        "checkpoint": Kind(folder / LAST, run, state_changed),
        "rank": Kind(rank, lambda: load_rank(folder, 0, 1, RunPlace(1), CPU), state_changed),
    }
