"""Point queries of daemons with a model: the rows of `atta predict`, over gRPC and HTTP, together and with tokens."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

import atta
from atta.client.inference.followed import RESULT
from atta.client.inference.stages import Rows
from atta.daemon.config import DaemonConfig
from atta.daemon.services.queries import PointAnswer, PointQuery
from atta.errors import ConfigError, DeadlineError, RemoteError, StaleRowError, UnknownNameError
from atta.partition import Dataset
from atta.train.launching.queries import ModelAnswers
from atta.wire.bulk import UnseenVertices
from atta.wire.clusterfile import write_cluster
from atta.wire.credentials import Credentials
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import daemons
from tests.system.test_inference import checkpoint
from tests.unit.security.authority import Authority

Clusters = Callable[[int], atta.LocalCluster]


@pytest.fixture
def clusters(placements: Mapping[str, atta.LocalCluster]) -> Clusters:
    return lambda parts: placements[f"{parts} parts by random, {2 if parts == 2 else 1} threads"]


def answers_of(cluster: atta.LocalCluster, data: Path, model: Path, **settings: Any) -> ModelAnswers:
    """What a daemon with a model does, in this process, beside daemons without one."""
    config = DaemonConfig(str(data), range(1), peers_file=str(cluster.cluster_file), model=str(model), **settings)
    answers = ModelAnswers(config)
    answers.begin(lambda: Dataset.open(data), cluster.addresses[0], None)
    return answers


def row_of(predictions: atta.client.inference.task.Predictions, ids: np.ndarray) -> np.ndarray:
    """The values of ``ids``, in their order."""
    order = np.argsort(predictions.ids)
    return predictions.values[order][np.searchsorted(predictions.ids[order], ids)]


def test_names_of_classes_are_the_models_where_the_data_has_none(
    small_graph: SmallGraph, clusters: Clusters, tmp_path: Path
) -> None:
    folder, _ = checkpoint(tmp_path, "sage", classes=["ant", "bee", "cat", "dog"])
    answers = answers_of(clusters(2), small_graph.dataset(2, "random"), folder, what="classes")
    (answer,) = answers.answer([PointQuery("classes", small_graph.ids[:3])])
    assert isinstance(answer, PointAnswer)
    assert answer.names == ["ant", "bee", "cat", "dog"]


def test_a_daemon_whose_data_has_other_classes_says_so_at_the_start(small_graph: SmallGraph, tmp_path: Path) -> None:
    folder, _ = checkpoint(tmp_path, "sage", classes=["ant", "bee", "cat", "dog"])
    data = small_graph.dataset(1, "random")
    answers, schema = ModelAnswers(DaemonConfig(str(data), range(1), model=str(folder))), Dataset.open(data).schema
    for names, words in ((["ant", "bee", "cat", "dog"], []), (["ant", "bee", "elk", "dog"], ["it has 'cat', 'dog'"])):
        there: Any = dataclasses.replace(schema, classes={"node": {"y": names}})
        with capture_logs() as lines:
            answers.begin(partial(SimpleNamespace, schema=there), "h:1", None)
        assert [line["event"] for line in lines] == ["classes will be refused"] * len(words)
        assert all(one in line["reason"] for one, line in zip(words, lines, strict=True))


@pytest.mark.parametrize(
    ("model", "parts"),
    [("sage", 2), ("gat", 4), *(pytest.param(*how, marks=pytest.mark.slow) for how in (("gcn", 2), ("deepergcn", 1)))],
)
def test_rows_are_those_of_predict(
    small_graph: SmallGraph, clusters: Clusters, tmp_path: Path, model: str, parts: int
) -> None:
    cluster, (folder, _) = clusters(parts), checkpoint(tmp_path, model)
    answers = answers_of(cluster, small_graph.dataset(parts, "random"), folder)
    asked = [small_graph.ids[[250, 3, 3]], small_graph.ids[[299, 17, 3]], np.array([-7]), small_graph.ids[:40]]
    for what in ("scores", "embeddings", "classes"):
        expected = atta.predict(cluster, folder, what=what)
        assert expected is not None
        found = answers.answer([PointQuery(what, ids) for ids in asked])
        assert isinstance(found[2], UnknownNameError)
        assert "-7 is not a vertex of node type 'node'" in str(found[2])
        for ids, answer in zip(asked, found, strict=True):
            if ids[0] != -7:
                assert isinstance(answer, PointAnswer)
                assert answer.version == 0
                np.testing.assert_allclose(answer.values, row_of(expected, ids), rtol=1e-5, atol=1e-5)
    assert not cluster.tables.specs().keys() & {"queries"}


NAMES = np.array(["a", "b", "c"])


def grown(graph: SmallGraph) -> tuple[UnseenVertices, torch.Tensor, torch.Tensor]:
    """Three new vertices, the last one without an edge, and the features and edges of the graph with them."""
    rng, width, count = np.random.default_rng(7), graph.x.shape[1], len(graph.ids)
    x, sources, targets = rng.standard_normal((3, width)), rng.integers(0, count, 14), rng.integers(0, 2, 14)
    sources[:2], targets[:2] = 5, 0  # an edge that comes twice
    new = UnseenVertices.of(NAMES, {"x": x, "edges": {"to": (graph.ids[sources], NAMES[targets])}})
    edges = np.concatenate([[graph.src, graph.dst], [sources, targets + count]], axis=1)
    return new, torch.from_numpy(np.concatenate([graph.x, new.x])), torch.from_numpy(edges)


@pytest.mark.parametrize(("model", "parts"), [("sage", 2), ("gcn", 2), ("gat", 4), ("deepergcn", 1)])
def test_new_vertices_have_the_rows_of_a_graph_with_them(
    small_graph: SmallGraph, clusters: Clusters, tmp_path: Path, model: str, parts: int
) -> None:
    cluster, (folder, gnn), (new, x, edges) = clusters(parts), checkpoint(tmp_path, model), grown(small_graph)
    answers, known = answers_of(cluster, small_graph.dataset(parts, "random"), folder), small_graph.ids[:5]
    (before,) = answers.answer([PointQuery("scores", known)])
    with torch.no_grad():
        expected = gnn(x, edges)[-3:].numpy()
    answer, classes = (answers.answer([PointQuery(what, NAMES, new=new)])[0] for what in ("scores", "classes"))
    assert (answer.version, classes.values.tolist()) == (0, expected.argmax(1).tolist())
    np.testing.assert_allclose(answer.values, expected, rtol=1e-5, atol=1e-5)
    (after,) = answers.answer([PointQuery("scores", known)])
    np.testing.assert_array_equal(after.values, before.values)


@pytest.mark.parametrize("model", ["sage", "gcn"])
def test_new_vertices_have_embeddings_over_one_hop(
    small_graph: SmallGraph, clusters: Clusters, tmp_path: Path, model: str
) -> None:
    cluster, (folder, gnn), (new, x, edges) = clusters(2), checkpoint(tmp_path, model, 2), grown(small_graph)
    answers = answers_of(cluster, small_graph.dataset(2, "random"), folder)
    with torch.no_grad():
        expected = gnn.act(gnn.convs[0](x, edges))[-3:]
    alone = UnseenVertices.of(NAMES[2:], {"x": new.x[2:], "edges": {"to": [[], []]}})
    (answer,), (last,) = (
        answers.answer([PointQuery("embeddings", names, new=one)]) for names, one in ((NAMES, new), (NAMES[2:], alone))
    )
    np.testing.assert_allclose(answer.values, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(last.values, expected[2:], rtol=1e-5, atol=1e-5)


def test_the_best_targets_of_new_vertices_leave_out_what_their_edges_come_from(
    small_graph: SmallGraph, clusters: Clusters, tmp_path: Path
) -> None:
    cluster, (folder, _), (new, *_) = clusters(2), checkpoint(tmp_path, "sage"), grown(small_graph)
    answers, all_rows = answers_of(cluster, small_graph.dataset(2, "random"), folder), atta.predict(cluster, folder)
    assert all_rows is not None
    (rows,), (best,) = (
        answers.answer([PointQuery(w, NAMES, k, new=new)]) for w, k in (("embeddings", 0), ("targets", 5))
    )
    scores = rows.values @ all_rows.values.T
    sources, targets = new.edges["to"]
    scores[targets, [all_rows.ids.tolist().index(source) for source in sources]] = -np.inf
    order = np.lexsort([np.broadcast_to(all_rows.ids, scores.shape), -scores])[:, :5]
    assert best.counts.tolist() == [5, 5, 5]
    assert best.targets.reshape(3, 5).tolist() == all_rows.ids[order].tolist()
    np.testing.assert_allclose(best.values.reshape(3, 5), np.take_along_axis(scores, order, 1), rtol=1e-4, atol=1e-5)


def test_fan_outs_bound_what_is_read(small_graph: SmallGraph, clusters: Clusters, tmp_path: Path) -> None:
    cluster, (folder, _) = clusters(2), checkpoint(tmp_path, "sage")
    answers = answers_of(cluster, small_graph.dataset(2, "random"), folder, fan_out=(3, 2, 2))
    ids = np.unique(small_graph.ids[:50])
    for what, fan_outs in (("scores", [3, 2, 2]), ("embeddings", [3, 2])):
        expected = atta.predict(cluster, folder, ids, what=what, num_neighbors=fan_outs, files=1)
        (found,) = answers.answer([PointQuery(what, ids)])
        assert expected is not None
        np.testing.assert_allclose(found.values, row_of(expected, ids), rtol=1e-5, atol=1e-5)


def test_the_best_targets_are_those_of_predict(small_graph: SmallGraph, clusters: Clusters, tmp_path: Path) -> None:
    cluster, (folder, _) = clusters(2), checkpoint(tmp_path, "sage")
    ids = small_graph.ids[[7, 250, 3]]
    expected = atta.predict(cluster, folder, ids, top=6)
    assert expected is not None
    atta.predict(cluster, folder, table="ends")
    for settings in ({}, {"table": "ends"}):
        answers = answers_of(cluster, small_graph.dataset(2, "random"), folder, **settings)
        first, second = answers.answer([PointQuery("targets", some, 6) for some in (ids[:2], ids[1:])])
        for answer, own in ((first, ids[:2]), (second, ids[1:])):
            assert answer.counts.tolist() == [6, 6]
            assert answer.version == (-1 if settings else 0)
            pairs = np.stack([np.repeat(own, 6), answer.targets], axis=1)
            at = [np.flatnonzero(expected.ids[:, 0] == source) for source in own]
            np.testing.assert_allclose(answer.values, expected.values[np.concatenate(at)], rtol=1e-4, atol=1e-5)
            assert pairs.tolist() == expected.ids[np.concatenate(at)].tolist()
    with pytest.raises(UnknownNameError, match="edge type 'absent'"):
        answers.answer([PointQuery("targets", ids, 6, "absent")])


def test_a_followed_table_is_read_as_of_one_version(
    small_graph: SmallGraph, clusters: Clusters, tmp_path: Path
) -> None:
    cluster, (folder, _), ids = clusters(2), checkpoint(tmp_path, "sage"), small_graph.ids[[5, 17, 250]]
    follower = atta.InferenceFollower(cluster, folder, table="following")
    answers = answers_of(cluster, small_graph.dataset(2, "random"), folder, table="following")

    def found(what: str = "embeddings") -> Any:
        (answer,) = answers.answer([PointQuery(what, ids, 4 if what == "targets" else 0)])
        return answer

    with pytest.raises(StaleRowError, match="no rows yet"):
        found()
    follower.catch_up()
    first, best, expected = found(), found("targets"), atta.predict(cluster, folder, ids, top=4)
    np.testing.assert_array_equal(first.values, follower.tables.read(ids)[0])
    assert (first.version, best.version) == (0, 0)
    assert expected is not None
    assert best.targets.tolist() == [t for i in ids for s, t in expected.ids.tolist() if s == i]
    tables, rows, state = follower.tables, Rows(RESULT, 8), follower.tables.begin()
    at = tables.rows(rows).locate(ids)
    tables.write(rows, at, first.values + 1, state=state, version=1, tolerance=None)
    np.testing.assert_array_equal(found().values, first.values)
    assert found("targets").targets.tolist() == best.targets.tolist(), "no row of the coming version is read"
    tables.commit(1)
    assert found().version == found("targets").version == 1
    np.testing.assert_array_equal(found().values, first.values + 1)


# -- two daemons with a model, behind tokens ---------------------------------------------------------------------------


@dataclass
class Served:
    """Daemons that ask for a certificate and a token; addresses of gRPC and of HTTP, and what callers bring."""

    addresses: list[str]
    pages: list[str]
    authority: Authority
    tokens: dict[str, str]
    model: Path
    folder: Path

    def connect(self, role: str) -> atta.Cluster:
        own = self.authority.certificate("anybody")
        path = self.folder / f"{role}.token"
        path.write_text(self.tokens[role])
        credentials = Credentials(own.ca, own.cert, own.key, str(path))
        return atta.connect(self.addresses, credentials=credentials, wait=True)

    def post(self, path: str, body: Any, token: str | None, daemon: int = 0) -> tuple[int, Any]:
        """Status and answer of a request over HTTPS. ``body``: bytes as they are, other values as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"https://{self.pages[daemon]}{path}", data)
        if token is not None:
            request.add_header("Authorization", f"Bearer {self.tokens[token]}")
        context = ssl.create_default_context(cafile=str(self.authority.folder / "ca.pem"))
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        assert text.endswith(b"\n")
        return status, json.loads(text)


@pytest.fixture(scope="module")
def served(small_graph: SmallGraph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    authority = Authority.in_folder(folder / "authority")
    own, tokens = authority.certificate("daemon", "peer", "reader", hosts=("127.0.0.1",)), authority.tokens()
    addresses, pages = held_addresses(2), held_addresses(2)
    write_cluster(folder / "cluster.toml", addresses)
    model, _ = checkpoint(folder / "model", "gcn")
    security = f"--tls-ca {own.ca} --tls-cert {own.cert} --tls-key {own.key} --tokens {authority.token_file}"
    queries = f"--model {model} --table followed --what scores --query-wait 5ms"
    with ExitStack() as running:
        for part, (address, page) in enumerate(zip(addresses, pages, strict=True)):
            words = f"serve --data {small_graph.dataset(2, 'metis')} --part {part} --listen {address} --metrics {page}"
            words += f" --peers {folder}/cluster.toml --threads 1 --exit-with-parent {security} {queries}"
            command = [sys.executable, "-m", "atta.cli.main", *words.split(), "--log-level", "warning"]
            process = running.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
            assert process.stdin is not None
            running.callback(process.stdin.close)
        found = Served(addresses, pages, authority, tokens, model, folder)
        found.connect("reader").close()
        yield found


def test_both_transports_agree_and_callers_share_computations(served: Served, small_graph: SmallGraph) -> None:
    ids = small_graph.ids[[5, 17, 5, 250]]
    with served.connect("all") as cluster:
        expected = atta.predict(cluster, served.model, what="embeddings")
        assert expected is not None
        found = cluster.predict(ids)
        assert (found.ids.tolist(), found.version) == (ids.tolist(), 0)
        np.testing.assert_allclose(found.values, row_of(expected, ids), rtol=1e-5, atol=1e-5)
        for daemon in (0, 1):
            status, answer = served.post("/predict", {"ids": ids.tolist()}, "reader", daemon)
            assert (status, answer["ids"], answer["what"], answer["version"]) == (200, ids.tolist(), "embeddings", 0)
            np.testing.assert_allclose(np.array(answer["values"], np.float32), found.values, rtol=1e-5, atol=1e-5)
        before = cluster.stats()
        with ThreadPoolExecutor(24) as callers:
            singles = list(callers.map(lambda place: cluster.predict(small_graph.ids[place : place + 2]), range(96)))
        for place, single in enumerate(singles):
            own = small_graph.ids[place : place + 2]
            np.testing.assert_allclose(single.values, row_of(expected, own), rtol=1e-5, atol=1e-5)
        for earlier, stats in zip(before, cluster.stats(), strict=True):
            answered = stats["queries_answered"] - earlier["queries_answered"]
            assert answered == 48, "clients take daemons in turns"
            assert stats["query_computations"] - earlier["query_computations"] < answered / 2
            assert stats["query_seconds_le_+Inf"] == stats["queries_answered"]
            assert stats["queries_waiting"] == 0
    best = {"ids": ids[:2].tolist(), "k": 3}
    with served.connect("reader") as cluster, pytest.raises(RemoteError, match="certificate daemon has peer, reader"):
        cluster.recommend(ids[:2], 3)  # rows between layers lie in tables, and the daemons may not write any
    assert served.post("/recommend", best, "reader")[0] == 502


def test_new_vertices_come_over_both_transports(served: Served, small_graph: SmallGraph) -> None:
    known, *_ = grown(small_graph)
    (sources, targets), unknown = known.edges["to"], int(np.setdiff1d(np.arange(10_000), small_graph.ids)[0])
    new = {"x": known.x.tolist(), "edges": {"to": [sources.tolist(), NAMES[targets].tolist()]}}
    body = {"ids": NAMES.tolist(), "new": new}
    with served.connect("reader") as cluster:
        found = cluster.predict(NAMES, new=new)
        assert (found.ids.tolist(), found.values.shape, found.version) == (NAMES.tolist(), (3, 8), 0)
        for error, cause, wrong in (
            (UnknownNameError, f"{unknown} is not a vertex", {"edges": {"to": [[unknown], ["a"]]}}),
            (UnknownNameError, "unknown edge type 'form'", {"edges": {"form": [[], []]}}),
            (ConfigError, "is there twice", {"edges": {name: [[], []] for name in ("to", "node__to__node")}}),
            (ConfigError, "x: a row has 2 numbers, the table x of 'node' has rows of shape", {"x": [[1, 2]] * 3}),
        ):
            with pytest.raises(error, match=cause):
                cluster.predict(NAMES, new=new | wrong)
            status, answer = served.post("/predict", {**body, "new": new | wrong}, "reader")
            assert (status, answer["error"]) == (404 if error is UnknownNameError else 400, error.__name__)
    status, answer = served.post("/predict", body, "reader", 1)
    assert (status, answer["ids"], answer["version"]) == (200, NAMES.tolist(), 0)
    np.testing.assert_allclose(np.array(answer["values"], np.float32), found.values, rtol=1e-5, atol=1e-5)
    assert served.post("/predict", body, "writer")[0] == 403


def test_rows_come_from_the_table_as_soon_as_it_is_there(served: Served, small_graph: SmallGraph) -> None:
    ids = small_graph.ids[[5, 17, 250]]
    with served.connect("all") as cluster:
        with pytest.raises(UnknownNameError, match="followed"):
            cluster.predict(ids, "scores")
        atta.predict(cluster, served.model, what="scores", table="followed")
        table = cluster.tables.open("followed")
        for value in (None, 3.5):
            if value is not None:
                rows = np.zeros((3, 4), np.float32)
                rows[:, 2] = value
                table.push(table.locate(ids), rows).wait()
            written = table.pull(table.locate(ids)).values
            found, classes = cluster.predict(ids, "scores"), cluster.predict(ids, "classes")
            assert found.version is None
            np.testing.assert_array_equal(found.values, written)
            assert classes.values.tolist() == written.argmax(axis=1).tolist()
            assert served.post("/predict", {"ids": ids.tolist(), "what": "classes"}, "reader", 1)[1] == {
                "ids": ids.tolist(), "version": None, "what": "classes", "values": classes.values.tolist(),
            }  # fmt: skip
        cluster.tables.delete("followed")
        atta.predict(cluster, served.model, what="scores", table="followed")  # another table of that name
        assert cluster.predict(ids, "scores").values[:, 2].tolist() != [3.5] * 3


def test_what_is_wrong_is_said_and_the_daemons_go_on(served: Served, small_graph: SmallGraph) -> None:
    ids, unknown = small_graph.ids[:3].tolist(), int(np.setdiff1d(np.arange(10_000), small_graph.ids)[0])
    refused = [
        (b'{"ids": [', 400, "ConfigError", "not JSON"),
        ({"ids": [*ids, unknown]}, 404, "UnknownNameError", f"{unknown} is not a vertex"),
        ({"ids": ["alice"]}, 400, "ConfigError", "no string ids"),
        ({"ids": ids, "waht": "scores"}, 400, "ConfigError", "unknown field 'waht'; did you mean 'what'"),
        ({"ids": ids * 2000}, 400, "ConfigError", "6000 vertices"),
        ({"ids": ids, "node_type": "user"}, 400, "ConfigError", "'user': the model computes vertices of node"),
        ({"ids": ids, "deadline_s": 1e-6}, 504, "DeadlineError", "no answer within"),
        (b" " * (1 << 20) + b"{}", 429, "QuotaExceededError", "1048578 bytes"),
    ]
    for body, status, kind, cause in refused:
        code, answer = served.post("/predict", body, "reader")
        assert (code, answer["error"]) == (status, kind)
        assert cause in answer["message"]
    with served.connect("reader") as cluster:
        for asked, options, error, cause in [
            ([unknown], {}, UnknownNameError, f"{unknown} is not a vertex"),
            (ids * 2000, {}, ConfigError, "6000 vertices"),
            (ids, {"node_type": "user"}, ConfigError, "'user': the model computes vertices of node"),
            (ids, {"what": "score"}, UnknownNameError, "did you mean 'scores'"),
            (ids, {"deadline_s": 1e-5}, DeadlineError, "no answer within"),
            (["alice"], {}, ConfigError, "no string ids"),
            ([], {}, ConfigError, "at least one"),
        ]:
            with pytest.raises(error, match=cause):
                cluster.predict(asked, **options)
        assert len(cluster.predict(ids, node_type="node").values) == 3
    assert served.post("/predict", {"ids": ids}, "reader")[0] == 200


def test_callers_need_the_role_of_readers(served: Served, small_graph: SmallGraph) -> None:
    ids = small_graph.ids[:2].tolist()
    statuses = {
        role: served.post("/predict", {"ids": ids}, role)[0] for role in ("reader", "writer", "operator", "peer")
    }
    assert statuses == {"reader": 200, "writer": 403, "operator": 403, "peer": 403}
    refused = [served.post(*asked) for asked in (("/predict", {"ids": ids}, None), ("/x", {}, "writer"))]
    assert [(status, found["error"]) for status, found in refused] == [
        (401, "NotAuthenticatedError"), (403, "NotAllowedError"),
    ]  # fmt: skip
    assert "neither a certificate nor a token" in refused[0][1]["message"]
    with served.connect("writer") as cluster, pytest.raises(atta.NotAllowedError, match="needs the role reader"):
        cluster.predict(ids)


# -- without a model, and without a daemon -----------------------------------------------------------------------------


@pytest.mark.usefixtures("own_interpreters")
def test_daemons_without_a_model_load_no_torch_and_say_what_they_lack(small_graph: SmallGraph) -> None:
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        assert "torch" not in Path(f"/proc/{cluster.pids[0]}/maps").read_text()
        with pytest.raises(ConfigError, match="no daemon has a model to ask: start daemons with atta serve --model"):
            cluster.predict(small_graph.ids[:2])


def test_a_replica_answers_when_a_daemon_is_killed(small_graph: SmallGraph, tmp_path: Path) -> None:
    model, _ = checkpoint(tmp_path, "sage")
    options = ("--model", str(model))
    with atta.local(small_graph.dataset(1, "random"), threads=1, replicas=2, options=options) as cluster:
        before = cluster.predict(small_graph.ids[:5], "scores")
        os.kill(cluster.pids[0], signal.SIGKILL)
        after = cluster.predict(small_graph.ids[:5], "scores")
        np.testing.assert_array_equal(after.values, before.values)


@pytest.mark.slow
def test_callers_see_no_error_while_daemons_are_upgraded(
    small_graph: SmallGraph, tmp_path: Path, own_interpreters: None
) -> None:
    """``atta roll`` restarts both daemons of a partition, one after the other."""
    (model, _), data, ids = checkpoint(tmp_path, "sage"), small_graph.dataset(1, "random"), small_graph.ids[:9]
    roll = [sys.executable, "-m", "atta.cli.main", "roll", "--local", "--json", "-"]
    with (
        atta.local(data, threads=1, replicas=2, options=("--model", str(model))) as cluster,
        atta.connect(cluster.cluster_file) as caller,
        subprocess.Popen([*roll, str(cluster.cluster_file)], stdout=subprocess.PIPE) as rolling,
    ):
        expected, answers = caller.predict(ids, "scores").values, 0
        while rolling.poll() is None:
            np.testing.assert_allclose(caller.predict(ids, "scores").values, expected, rtol=1e-5)
            answers += 1
            time.sleep(0.05)
        assert rolling.stdout is not None
        assert (rolling.returncode, len(json.load(rolling.stdout)["daemons"])) == (0, 2)
        assert answers > 10


def test_a_query_names_the_daemon_that_is_down(small_graph: SmallGraph, tmp_path: Path) -> None:
    (model, _), peers = checkpoint(tmp_path, "sage"), dict(enumerate(held_addresses(2)))
    with daemons() as running:
        for part, address in peers.items():
            running.start(small_graph.dataset(2, "random"), part, address, peers, model=str(model), cache_bytes=0)
        with atta.connect([*peers.values()]) as cluster:
            for _ in peers:
                cluster.recommend(small_graph.ids[:5])
            errors = [stats["request_errors_TableService.Describe"] for stats in cluster.stats()]
            assert errors == [0, 0], "first queries look for tables, and are not refused"
            running.kill(peers[1])
            began = time.monotonic()
            with pytest.raises(atta.PeerLostError) as raised:
                cluster.predict(small_graph.ids[:50])
            assert time.monotonic() - began < 8
            assert str(raised.value) == (
                f"{peers[0]}: another daemon does not answer: {peers[1]}: no daemon answers for partition 1"
            )


def test_a_model_that_is_not_there_is_refused_before_the_daemon_serves(small_graph: SmallGraph, tmp_path: Path) -> None:
    with pytest.raises(atta.DataError, match="absent"):
        atta.local(small_graph.dataset(1, "random"), threads=1, options=("--model", str(tmp_path / "absent")))
    with pytest.raises(ConfigError, match="--table: goes with --model"):
        DaemonConfig("d", range(1), table="t")
    with pytest.raises(ConfigError, match="--fan-out 5,0: one number per layer"):
        DaemonConfig("d", range(1), model="m", fan_out=(5, 0))
