"""Parts of one's own: how they are found, and what happens with those that are not there, broken or called like Atta's."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import atta
from atta.cli.main import cli
from atta.errors import AttaError, ConfigError, PluginError, UnknownNameError
from atta.observe import plugins
from atta.observe.plugins import VARIABLE, named, registries, use
from atta.observe.progress import Silent
from atta.partition import Graph, GraphWriter
from atta.partition.importers import IMPORTERS, guess, import_graph
from atta.partition.methods import METHODS as PARTITION_METHODS
from atta.partition.methods import make_method
from atta.protos.v1 import dag_pb2
from atta.samplers import LocalGraph, LocalSampler, Method
from atta.samplers.dag.spec import Hops, check_spec, neighbor_spec
from atta.samplers.local.contract import sampling_contract
from atta.samplers.methods import METHODS
from atta.samplers.operators import OPERATORS, make_operator
from atta.train import TrainConfig
from atta.train.models import build_model, whole_model
from atta.train.strategies import STRATEGIES
from tests.unit.dag.test_spec import PLAIN
from tests.unit.train.test_models import batch

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/own_parts"
BROKEN = "raise OSError('no such\\nlibrary')\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder where packages are installed in this test alone."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    for cached in (plugins._installed, plugins._placed, plugins._loaded, sampling_contract):
        cached.cache_clear()
    for name in ("first", "crash", "late"):
        Method._value2member_map_.pop(name, None)


def install(folder: Path, package: str, group: str, **points: str) -> None:
    """The files that pip leaves behind for a package that announces parts."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    plugins._installed.cache_clear()


def test_installed_parts_stand_beside_atta_s_and_never_replace_them(place: Path) -> None:
    metis = PARTITION_METHODS["metis"]
    chunks = "atta_own_parts.chunks:Chunks"
    install(place, "cuts", "atta.partition_methods", chunks=chunks, metis=chunks)
    assert type(make_method("chunks", {"alpha": "2"})).__name__ == "Chunks"
    assert PARTITION_METHODS["metis"] is metis
    assert "chunks" in PARTITION_METHODS
    assert "chunks" not in [*PARTITION_METHODS], "iteration loads and gives no plug-in"
    assert [str(plugin) for plugin in PARTITION_METHODS.plugins().values()] == [f"'chunks' ({chunks}, of cuts 1.0)"]
    told = json.loads(CliRunner().invoke(cli, ["plugins", "--json", "-"]).output)["plugins"]
    fault = "not used, as Atta has one of this name: announce yours by another"
    assert {plugin["name"]: plugin["fault"] for plugin in told} == {"chunks": "", "metis": fault}
    cure = "one of your own needs its package or --plugin: atta plugins lists all"
    with pytest.raises(UnknownNameError, match=rf"^unknown partition method 'chunk'; did you mean 'chunks'\? {cure}$"):
        make_method("chunk")
    with pytest.raises(UnknownNameError, match=f"^unknown neighbour method 'zz'; there are: .*, weighted; {cure}$"):
        Method("zz")
    with pytest.raises(UnknownNameError, match="unknown option of the method chunks 'beta'"):
        make_method("chunks", {"beta": 1})


def test_a_package_that_does_not_load_breaks_nothing_else(place: Path) -> None:
    (place / "broken_part.py").write_text(BROKEN)
    for number, group in enumerate(sorted(registry.group for registry in registries())):
        install(place, f"broken{number}", group, broken="broken_part:part", odd="os:path")
    (place / "lines.txt").write_text("1 2\n3 4\n")
    assert guess(place / "lines.txt") == "edges"
    (place / "words.txt").write_text("neither\nnor 3\n")
    with pytest.raises(atta.DataError, match="not recognised"):
        guess(place / "words.txt")
    for registry in registries():
        with pytest.raises(
            PluginError, match=r"'broken' \(broken_part:part, of broken\d 1.0\) does not load: OSError: no such library"
        ):
            registry["broken"]
        with pytest.raises(PluginError, match=r"'odd' \(os:path, of broken\d 1.0\) is not a"):
            registry["odd"]
    loaded = plugins._loaded.cache_info()
    document = json.loads(CliRunner().invoke(cli, ["plugins", "--json"]).output)
    assert document["names"] == {registry.kind: [*registry] for registry in registries()}
    listed = document["plugins"]
    assert len(listed) == 2 * len(registries())
    assert {plugin["fault"] for plugin in listed} == {""}
    assert plugins._loaded.cache_info() == loaded, "a list loads nothing"
    shown = CliRunner().invoke(cli, ["plugins", "--check", "--json", "-"])
    assert shown.exit_code == 0
    assert shown.output.count("does not load: OSError") == len(registries())
    assert sampling_contract()["operator broken"].startswith("broken_part:part of broken")


def test_two_packages_with_one_name_are_told_apart_by_nobody(place: Path) -> None:
    install(place, "one", "atta.methods", first="atta_own_parts.first:first", other="atta_own_parts.first:first")
    install(place, "two", "atta.methods", first="elsewhere:first")
    with pytest.raises(PluginError, match=r"'first': (one 1.0 and two|two 1.0 and one) 1.0 announce it: remove one"):
        Method("first")
    assert METHODS["other"].draw is not None
    use("atta_own_parts.first:first")  # whoever names a place means it
    assert Method("first").rules.draw is not None


def test_named_parts_are_handed_on_to_processes() -> None:
    assert use("atta_own_parts.first:first").group == "atta.methods"
    use("gin=atta_own_parts.gin:Gin")
    use("atta_own_parts.first:first")
    assert (
        os.environ[VARIABLE] == "atta.models/gin=atta_own_parts.gin:Gin,atta.methods/first=atta_own_parts.first:first"
    )
    code = (
        "from atta.samplers import Method; import sys; print(Method('first').rules.may_replace, 'torch' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(EXAMPLE)}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"], "a model that somebody named is not imported by others"
    assert {plugin.group for plugin in named()} == {"atta.models", "atta.methods"}


def test_the_variable_may_be_written_by_hand(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "broken_part.py").write_text(BROKEN)
    monkeypatch.setenv(VARIABLE, "atta_own_parts.first:first, broken_part:part,cuts=atta_own_parts.chunks:Chunks")
    assert "first" in METHODS
    assert "first" not in PARTITION_METHODS
    assert type(make_method("cuts")).__name__ == "Chunks"
    with pytest.raises(PluginError, match=r"'part' \(broken_part:part, by --plugin\) does not load"):
        make_operator("part", "")
    assert isinstance(Method("uniform"), Method)
    monkeypatch.setenv(VARIABLE, "last=atta_own_parts.first:first")
    with pytest.raises(PluginError, match="Atta has a neighbour method 'last': call yours NAME="):
        assert "first" in METHODS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("first", "give MODULE:OBJECT or NAME=MODULE:OBJECT"),
        ("a b:c", "give MODULE:OBJECT"),
        ("=os:path", "give MODULE:OBJECT"),
        ("nowhere:part", "does not load: ModuleNotFoundError: No module named 'nowhere'"),
        ("os:nothing", "does not load: AttributeError"),
        ("os:path", "is none of these: a Format, "),
        ("ldg=atta_own_parts.chunks:Chunks", "Atta has a partition method 'ldg': call yours NAME="),
    ],
)
def test_what_is_wrong_with_a_named_part_is_said_at_once(text: str, words: str) -> None:
    with pytest.raises(PluginError, match=words):
        use(text)
    shown = CliRunner().invoke(cli, ["partition", "--plugin", text, "src", "dst", "--parts", "2"])
    assert shown.exit_code == 2
    assert words in " ".join(shown.output.split())
    assert os.environ[VARIABLE] == ""


def test_a_file_of_options_may_name_parts(place: Path) -> None:
    (place / "run.toml").write_text(
        'strategy = "late:exact-epochs=3"\nplugin = ["late=atta_own_parts.stale:stale"]\ncluster = "a:1"\n'
    )
    shown = CliRunner().invoke(cli, ["train", "--config", str(place / "run.toml"), "--explain"])
    assert shown.exit_code == 0, shown.output
    assert "epochs 0 to 2 are exact" in shown.output
    shown = CliRunner().invoke(cli, ["train", "--strategy", "late", "--help"])
    assert "exact-epochs=N" in shown.output


def test_help_and_import_look_for_no_parts() -> None:
    code = """
import sys
import atta
from click.testing import CliRunner
from atta.cli.main import cli
from atta.observe import plugins
for words in (["--help"], ["train", "--help"], ["partition", "--help"], ["import", "--help"]):
    assert CliRunner().invoke(cli, words).exit_code == 0
assert plugins._installed.cache_info().misses == 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_settings_of_a_strategy_of_one_s_own() -> None:
    use("atta_own_parts.stale:stale")
    given = {"data": "x", "strategy": "stale", "codec": "bf16", "exact_epochs": 4, "epochs": 9}
    config = TrainConfig.from_dict(given)
    assert (config.codec, config.more) == ("bf16", {"exact_epochs": 4})
    assert config.own.exact_epochs == 4  # type: ignore[attr-defined]
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert TrainConfig(data="x", strategy="stale").own.exact_epochs == 2  # type: ignore[attr-defined]
    assert STRATEGIES["stale"].explain(config.own)[1].startswith("from epoch 4 on")
    for wrong, words in (
        ({"exact_epochs": 0}, "exact-epochs=0: must be at least 1"),
        ({"exact_epoch": 1}, "unknown setting 'exact_epoch'; did you mean 'exact_epochs'"),
        ({"sync_every": 3}, "sync-every: belongs to --strategy digest or sat or digest-async, not stale"),
        ({"strategy": "minibatch", "codec": "none"}, "unknown setting 'exact_epochs'"),
        ({"model": "hgt"}, "--model hgt: belongs to"),
    ):
        with pytest.raises(ConfigError, match=words):
            TrainConfig.from_dict({**given, **wrong})


def test_messages_name_methods_that_have_no_number() -> None:
    use("atta_own_parts.first:first")
    method = Method("first")
    assert method is Method("first") is pickle.loads(pickle.dumps(method))
    assert method not in [*Method]
    spec = neighbor_spec(PLAIN, Hops([3], method=method), seed_type="node")
    (sent,) = (op.neighborhood for op in spec.operators if op.HasField("neighborhood"))
    assert (sent.method, sent.method_name) == (255, "first")
    assert check_spec(spec, PLAIN).neighborhoods[0].method is method
    usual = neighbor_spec(PLAIN, Hops([3], method=Method.LABOR), seed_type="node")
    (known,) = (op.neighborhood for op in usual.operators if op.HasField("neighborhood"))
    assert (known.method, known.method_name) == (Method.LABOR.number, "")
    assert dag_pb2.NeighborhoodOp(method=4).SerializeToString() == b"\x28\x04", "as before there were names"
    for number, name, words in ((255, "last-k", "unknown neighbour method 'last-k'"), (77, "", "unknown method 77")):
        sent.method, sent.method_name = number, name
        with pytest.raises(ConfigError, match=words):
            check_spec(spec, PLAIN)


def test_daemons_with_other_methods_have_other_contracts(place: Path) -> None:
    found = [sampling_contract()]
    for module in ("own_one", "own_two"):
        (place / f"{module}.py").write_text((EXAMPLE / "atta_own_parts/first.py").read_text() + f"# of {module}\n")
        use(f"first={module}:first")
        sampling_contract.cache_clear()
        found.append(sampling_contract())
    assert found[1] == found[2], "comments change no draw"
    assert {*found[1]} - {*found[0]} == {"neighbour method first"}
    use("atta_own_parts.stale:stale")
    sampling_contract.cache_clear()
    assert sampling_contract() == found[2], "daemons run no strategies"


CRASH = """from atta.samplers.methods.base import NeighborMethod

def draw(hop):
    import numpy as np
    return np.zeros(2).reshape(3) if hop.fan_out == 1 else error(hop)

def error(hop):
    raise {}

crash = NeighborMethod(draw=draw)
"""


def test_an_error_of_a_method_names_the_method_and_the_line(place: Path) -> None:
    graph = LocalGraph.from_edges(np.array([0]), np.array([1]), 2)
    (place / "bad_method.py").write_text(CRASH.format("ValueError('oops')"))
    use("bad_method:crash")
    said = r"method 'crash' \(bad_method:crash, by --plugin\): ValueError: "
    with pytest.raises(AttaError, match=said + r"oops \(bad_method.py line 8\)") as caught:
        LocalSampler(graph, method="crash").sample(np.array([1]), [2])
    assert not isinstance(caught.value, ConfigError), "it is no mistake in what was asked"
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(AttaError, match=said + r"cannot reshape.* \(bad_method.py line 5\)"):
        LocalSampler(graph, method="crash").sample(np.array([1]), [1])
    (place / "bound_method.py").write_text(CRASH.format("MemoryError"))
    use("late=bound_method:crash")
    with pytest.raises(MemoryError):  # the machine's, not the method's
        LocalSampler(graph, method="late").sample(np.array([1]), [2])


# -- the parts of the example, against code that shares nothing with them ----------------------------------------------


@pytest.mark.parametrize("fan_out", [1, 3, -1])
def test_first_takes_the_lowest_user_ids(fan_out: int) -> None:
    use("atta_own_parts.first:first")
    rng = np.random.default_rng(0)
    src, dst, keys = rng.integers(0, 50, 400), rng.integers(0, 50, 400), rng.permutation(500)[:50]
    graph = LocalGraph.from_edges(src, dst, 50, keys=keys)
    sampled = LocalSampler(graph, method="first").sample(np.arange(50), [fan_out])
    for vertex in range(50):
        expected = np.sort(keys[src[dst == vertex]])
        found = sampled.n_id[sampled.row[sampled.n_id[sampled.col] == keys[vertex]]]
        assert found.tolist() == expected[: None if fan_out < 0 else fan_out].tolist()


@pytest.mark.parametrize("alpha", [0, 1, 100])
def test_chunks_are_consecutive_and_even(place: Path, alpha: int) -> None:
    use("chunks=atta_own_parts.chunks:Chunks")
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 500, 3000), (500 * rng.random(3000) ** 2).astype(int)
    with GraphWriter(place / "graph") as out:
        out.add_nodes("node", 500)
        out.add_edges("node__to__node", src, dst)
    method = make_method("chunks", {"alpha": alpha})
    owners = method.assign(Graph.open(place / "graph"), 4, seed=0, progress=Silent())["node"]
    assert (np.diff(owners) >= 0).all()
    cost = (alpha or 24) + np.bincount(dst, minlength=500)
    shares = np.bincount(owners, weights=cost, minlength=4)
    assert abs(shares - cost.sum() / 4).max() <= cost.max()


def test_adjacency_lists_are_those_of_networkx(place: Path) -> None:
    nx = pytest.importorskip("networkx")
    use("atta_own_parts.adjlist:adjlist")
    drawn = nx.relabel_nodes(nx.gnp_random_graph(80, 0.05, seed=3, directed=True), lambda n: 7 * n + 2)
    path = place / "graph.adjlist"
    nx.write_adjlist(drawn, path)
    assert guess(path) == "adjlist"
    assert "adjlist" not in [*IMPORTERS]
    import_graph("adjlist", path, place / "graph")
    graph = Graph.open(place / "graph")
    ids, edges = graph.user_ids("node"), graph.edges("node__to__node")
    assert ids is not None
    assert sorted(ids.tolist()) == sorted(drawn.nodes)
    assert sorted(zip(ids[edges.src].tolist(), ids[edges.dst].tolist(), strict=True)) == sorted(drawn.edges)
    path.write_text("1 2 3\n4 b\n")
    with pytest.raises(atta.DataError, match="not adjacency lists"):
        import_graph("adjlist", path, place / "other")
    with pytest.raises(ConfigError, match="only the format edges has"):
        import_graph("adjlist", path, place / "other", string_ids=True)


def test_gin_adds_up_rows_on_batches_and_graphs(rng: np.random.Generator) -> None:
    use("gin=atta_own_parts.gin:Gin")
    config = TrainConfig(data="x", model="gin", num_neighbors=(4, 3), hidden=8, dropout=0.0)
    model = build_model(config, 5, 3).double()
    edge_index, nodes, edges = batch(rng, 6, (4, 3))
    x = torch.from_numpy(rng.standard_normal((sum(nodes), 5)))
    h, weights = x, dict(model.named_parameters())
    for layer in range(2):
        summed = h.clone()
        for source, target in edge_index.T.tolist():
            summed[target] += h[source]
        first, second = ([weights[f"gnn.convs.{layer}.nn.{n}.{what}"] for what in ("weight", "bias")] for n in (0, 2))
        h = (summed @ first[0].T + first[1]).relu() @ second[0].T + second[1]
        h = h if layer else h.relu()
    torch.testing.assert_close(model(x, edge_index, nodes, edges), h[:6])


NET = """
from torch_geometric.nn import GIN, GCNConv
class Net(GIN):
    def __init__(self, *given, **more):
        super().__init__(*given, **more, {more})
    def init_conv(self, inputs, outputs, **_):
        return {conv}
"""
OF_GIN, OF_GCN = "super().init_conv(inputs, outputs)", "GCNConv(inputs, outputs)"


@pytest.mark.parametrize(
    ("name", "more", "conv", "words"),
    [
        ("normed", "norm='layer'", OF_GIN, "a normalisation"),
        ("jumping", "jk='cat'", OF_GIN, "jumping knowledge"),
        ("paired", "", OF_GCN, "a layer that takes no pair"),
    ],
)
def test_a_model_is_its_layers_alone(place: Path, name: str, more: str, conv: str, words: str) -> None:
    (place / f"{name}.py").write_text(NET.replace("{more}", more).replace("{conv}", conv))
    use(f"net={name}:Net")
    with pytest.raises(PluginError, match=f"model 'net': has {words}"):
        whole_model(TrainConfig(data="x", model="net"), 5, 3)


def test_an_operator_of_the_example_is_found_by_its_entry_point(place: Path) -> None:
    install(place, "balls", "atta.operators", snowball="atta_own_parts.snowball:Snowball")
    assert make_operator("snowball", '{"rounds": 3}') == OPERATORS["snowball"](rounds=3)
