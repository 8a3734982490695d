"""Models of typed graphs: PyG's layers over whole batches give the same, and what no layer needs has no weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from atta.errors import ConfigError, UnknownNameError
from atta.partition.schema import Schema, TableSpec
from atta.train import TrainConfig
from atta.train.launching.launch import with_task
from atta.train.models.typed import TypedModel
from atta.train.settings.common import TYPED_MODELS
from atta.train.tasks.choice import task_on
from atta.train.tasks.types import TypeReach, fan_outs_of
from tests.hetero import over_all_vertices

CITES, WRITES, ASKS, IN = (
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("reader", "asks", "author"),
    ("paper", "in", "venue"),
)
WIDTHS = {"author": 3, "paper": 5, "reader": 4, "venue": None}
HOPS = 2


def schema(**changes: Any) -> Schema:
    """Nothing leads from a venue to a paper; readers are two hops away; no edge ends at a reader."""
    tables = {t: {"x": TableSpec("<f4", (w,))} if w else {} for t, w in WIDTHS.items()}
    tables["paper"]["y"] = TableSpec("<i8")
    return Schema(
        node_types=tuple(WIDTHS),
        edge_types=tuple(sorted("__".join(e) for e in (CITES, WRITES, ASKS, IN))),
        node_counts=dict.fromkeys(WIDTHS, 20),
        edge_counts=dict.fromkeys(("__".join(e) for e in (CITES, WRITES, ASKS, IN)), 40),
        node_tables=tables,
        splits={"paper": {"train": 5, "val": 5}},
        num_classes=3,
        **changes,
    )


def config(model: str, **settings: Any) -> TrainConfig:
    return TrainConfig(data="x", model=model, **{"num_neighbors": (4, 3), "hidden": 8, "heads": 2, **settings})


def model_of(kind: str, **settings: Any) -> TypedModel:
    torch.manual_seed(0)
    given = config(kind, **settings)
    return TypedModel(given.own, TypeReach.of(schema(), "paper", given.depth), 3)


def typed_batch(rng: np.random.Generator, seeds: int = 6) -> HeteroData:
    """A sampled batch around papers: at each hop every vertex that the hop before reached gets up to three new or known
    neighbours along each edge type."""
    data, counts = HeteroData(), {t: [0] * (HOPS + 1) for t in WIDTHS}
    counts["paper"][0] = seeds
    edges: dict[Any, list[list[Any]]] = {e: [] for e in (CITES, WRITES, ASKS, IN)}
    for hop in range(1, HOPS + 1):
        fresh = {t: range(sum(c[: hop - 1]), sum(c[:hop])) for t, c in counts.items()}
        for e, found in edges.items():
            if e is IN:
                found.append([])
                continue
            pairs = []
            for vertex in fresh[e[2]]:
                for _ in range(int(rng.integers(0, 4))):
                    known = sum(counts[e[0]][: hop + 1])
                    source = known if rng.random() < 0.6 or not known else int(rng.integers(known))
                    counts[e[0]][hop] += source == known
                    pairs.append((source, vertex))
            found.append(pairs)
    for t, width in WIDTHS.items():
        data[t].x = torch.from_numpy(rng.standard_normal((sum(counts[t]), width or 8)).astype(np.float32))
    for e, hops in edges.items():
        flat = [pair for hop in hops for pair in hop]
        data[e].edge_index = torch.tensor(flat, dtype=torch.int64).reshape(-1, 2).T
    data.num_sampled_nodes, data.num_sampled_edges = counts, {e: [len(h) for h in hops] for e, hops in edges.items()}
    return data


def run(model: TypedModel, data: HeteroData) -> torch.Tensor:
    return model(data.x_dict, data.edge_index_dict, data.num_sampled_nodes, data.num_sampled_edges)


@pytest.mark.parametrize("kind", TYPED_MODELS)
def test_scores_and_gradients_are_those_over_all_vertices(rng: np.random.Generator, kind: str) -> None:
    model, data = model_of(kind, dropout=0.0), typed_batch(rng)
    data["author"].x.requires_grad_()
    found = []
    for scores in (run(model, data), over_all_vertices(model, data.x_dict, data.edge_index_dict)[:6]):
        assert scores.shape == (6, 3)
        wanted = [p for p in model.parameters() if p.requires_grad]
        grads = torch.autograd.grad(scores.square().sum(), [*wanted, data["author"].x])
        found.append([scores, *grads])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    alone = HeteroData({t: {"x": torch.ones((4 if t == "paper" else 0, w or 8))} for t, w in WIDTHS.items()})
    for e in (CITES, WRITES, ASKS, IN):
        alone[e].edge_index = torch.empty((2, 0), dtype=torch.int64)
    alone.num_sampled_nodes = {t: [4 if t == "paper" else 0, 0, 0] for t in WIDTHS}
    alone.num_sampled_edges = {e: [0, 0] for e in (CITES, WRITES, ASKS, IN)}
    scores = run(model, alone)
    assert torch.isfinite(scores).all()
    torch.testing.assert_close(scores, scores[:1].expand(4, 3))
    exact = run(model, data)
    with torch.autocast("cpu", torch.bfloat16):
        near = run(model, data)
    near.float().square().sum().backward()
    assert torch.nn.functional.cosine_similarity(exact.flatten(), near.float().flatten(), dim=0) > 0.99
    # Every weight gets a gradient: otherwise trainers would wait for each other's for ever.
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    assert not any("venue" in name for name, _ in model.named_parameters())
    idle = [n for n, p in model.named_parameters() if not p.requires_grad]
    assert bool(idle) == (kind == "hgt")  # PyG's HGTConv has weights for types that no edge ends at


@pytest.mark.filterwarnings("ignore:There exist node types")
def test_hetero_sage_is_what_pyg_s_hetero_conv_computes(rng: np.random.Generator) -> None:
    """PyG's usual way: SAGEConv with root weights per edge type. Its sum of root weights is our layer per type."""
    model, data = model_of("hetero-sage", dropout=0.0, num_neighbors=(4,)), typed_batch(rng)
    (layer,) = model.layers
    convs = {e: SAGEConv((8, 8), 8) for e in model.reach.edges(0)}
    pyg = HeteroConv(dict(convs), aggr="sum")
    own = layer.own["paper"]  # type: ignore[index, union-attr]
    with torch.no_grad():
        for e, conv in convs.items():
            conv.lin_l.load_state_dict(layer.conv.convs[e].lin_l.state_dict())  # type: ignore[union-attr, index]
            conv.lin_r.weight.copy_(own.weight / len(convs))
            conv.lin_l.bias.add_(own.bias / len(convs))
    h = {t: F.relu(model.encoders[t](data[t].x)) for t in ("paper", "author")}
    edges = {e: data[e].edge_index[:, : data.num_sampled_edges[e][0]] for e in convs}
    expected = model.decoder(F.relu(pyg(h, edges)["paper"][:6]))
    torch.testing.assert_close(run(model, data), expected, rtol=1e-4, atol=1e-5)


def test_layers_read_what_later_ones_need() -> None:
    reach = TypeReach.of(schema(), "paper", 2)
    assert [reach.read(n) for n in (0, 1)] == [("author", "paper", "reader"), ("author", "paper")]
    assert [reach.computed(n) for n in (0, 1)] == [("author", "paper"), ("paper",)]
    assert [set(reach.edges(n)) for n in (0, 1)] == [{CITES, WRITES, ASKS}, {CITES, WRITES}]
    assert reach.learnt == ()
    assert TypeReach.of(schema(), "venue", 1).learnt == ("venue",)
    with pytest.raises(ConfigError, match=r"--target reader: no edge type ends at it.*; atta import --reverse adds"):
        TypeReach.of(schema(), "reader", 2)
    with pytest.raises(ConfigError, match=r"no neighbours; nor does one begin at it$"):
        TypeReach.of(replace(schema(), edge_types=("__".join(CITES),)), "reader", 2)


@pytest.mark.parametrize("kind", TYPED_MODELS)
def test_names_of_types_do_not_matter(kind: str) -> None:
    """Signs that torch and PyG refuse or read as separators, and names that their classes have."""
    plain = ("a", "b", "c", "d", "e"), ("r", "s")
    free = ("% .<b>", "a#b", "a.b", "a__b", "keys"), ("__has / side__", "führt.zu")
    found = []
    for types, relations in (plain, free):
        triples = [(t, r, u) for t in types for u in types for r in relations]
        reach = TypeReach(types[0], 2, tuple(triples), dict.fromkeys(types, 3))
        torch.manual_seed(1)
        model = TypedModel(config(kind).own, reach, 2).eval()
        x = {t: torch.randn(6, 3) for t in types}
        edges = {e: torch.randint(4, (2, 4)) % torch.tensor([[4], [2]]) for e in triples}
        sizes = {t: [2, 2, 2] for t in types}, {e: [4, 0] for e in triples}
        found.append(model(x, edges, *sizes))
        copy = TypedModel(config(kind).own, reach, 2).eval()
        copy.load_state_dict(model.state_dict())
        assert torch.equal(copy(x, edges, *sizes), found[-1])
    assert torch.equal(*found)


def test_fan_outs_by_edge_type() -> None:
    types = tuple("__".join(e) for e in (WRITES, CITES, ("author", "cites", "paper")))
    graph = Schema(("author", "paper"), types, {"author": 9, "paper": 9}, dict.fromkeys(types, 9))

    def found(text: str) -> dict[str, tuple[int, ...]]:
        own: Any = config("rgcn", num_neighbors=(5, 5), num_neighbors_by_type=text).own
        return fan_outs_of(graph, own)

    assert found("writes = 3,0; paper__cites__paper=-1;") == {types[0]: (3, 0), types[1]: (-1, -1), types[2]: (5, 5)}
    with pytest.raises(UnknownNameError, match="edge type 'write'"):
        found("write=1")
    with pytest.raises(ConfigError, match="'cites' may be paper__cites__paper or author__cites__paper"):
        found("cites=1")
    with pytest.raises(ConfigError, match="names author__writes__paper twice"):
        found(f"writes=1;{types[0]}=2")
    for text in ("writes", "writes=", "=3", "writes=a", "writes=-2", "writes=1,2,3", "a=1;a=2"):
        with pytest.raises(ConfigError, match="--num-neighbors-by-type"):
            config("rgcn", num_neighbors_by_type=text)


def test_which_type_is_learnt() -> None:
    assert task_on(schema(), config("rgcn").own).node_type == "paper"
    for target, said in (("papr", "paper"), ("author", "--target author: has no table y to learn from; paper has")):
        with pytest.raises(ConfigError, match=said):
            task_on(schema(), config("rgcn", target=target).own)
    two = schema()
    two.node_tables["author"]["y"] = TableSpec("<i8")
    assert task_on(two, config("rgcn").own).node_type == "paper"  # the other one has no training vertices
    two.splits["author"]["train"] = 3
    with pytest.raises(ConfigError, match="--target: name the node type to learn, one of author, paper"):
        task_on(two, config("rgcn").own)
    assert task_on(two, config("rgcn", target="author").own).node_type == "author"
    for node_type in ("author", "paper"):
        del two.node_tables[node_type]["y"]
    with pytest.raises(ConfigError, match="no node type has table y"):
        task_on(two, config("rgcn").own)
    with pytest.raises(ConfigError, match="--model sage: takes graphs with one node type and one edge type, this one"):
        task_on(schema(), config("sage").own)
    with pytest.raises(ConfigError, match="--model hgt: takes typed graphs, this one has one node type"):
        task_on(UNTYPED, config("hgt").own)


TABLES = {"node": {"x": TableSpec("<f4", (3,)), "y": TableSpec("<i8")}}
UNTYPED = Schema(("node",), ("node__to__node",), {"node": 3}, {"node__to__node": 3}, TABLES, num_classes=2)


def test_the_usual_model_is_one_that_fits_the_graph(capfd: pytest.CaptureFixture[str]) -> None:
    usual = TrainConfig(data="x")
    assert with_task(usual, UNTYPED, 1).model == "sage"
    assert capfd.readouterr().err == ""
    assert with_task(usual, schema(), 1).model == "rgcn"
    assert capfd.readouterr().err == "atta: the graph has types, so the model is rgcn; --model names another\n"
    assert with_task(replace(usual, target="paper", num_neighbors_by_type="cites=5"), schema(), 1).model == "rgcn"
    assert with_task(replace(usual, task="link", edge_type="paper__cites__paper"), schema(), 1).model == "rgcn"
    assert "no edge type ends" not in capfd.readouterr().err
    with_task(replace(usual, task="link", edge_type="__".join(ASKS)), schema(), 1)
    told = "no edge type ends at reader, so a model sees no neighbours there; atta import --reverse adds edges"
    assert told in capfd.readouterr().err
    assert with_task(replace(usual, model="hgt"), schema(), 1).model == "hgt"
    with pytest.raises(ConfigError, match="--model rgcn: belongs to --strategy minibatch, not full"):
        with_task(replace(usual, strategy="full"), schema(), 1)
    with pytest.raises(ConfigError, match="--target: goes with --model rgcn, hetero-sage, hetero-gat, hgt, not sage"):
        with_task(replace(usual, target="node"), UNTYPED, 1)
