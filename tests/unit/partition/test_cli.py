"""The data commands on the command line."""

from __future__ import annotations

import json
import os
import sys

import click
import pytest
from click.testing import CliRunner

from atta.cli.graphs import data, partition
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.partition import Dataset
from atta.samplers.seed_plan import plan_seeds

GENERATE = ["generate", "powerlaw", "g", "--nodes", "500", "--edges", "4000", "--features", "8", "--classes", "3"]


@pytest.fixture
def atta(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    group = click.Group(commands={c.name: c for c in [*data.COMMANDS, *partition.COMMANDS]})

    def run(*args: str):
        result = CliRunner().invoke(group, [str(a) for a in args])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def test_generate_partition_inspect(atta):
    assert atta(*GENERATE).exit_code == 0
    assert atta("partition", "g", "d", "--parts", "2", "--method", "random", "-q").output == ""
    shown = atta("inspect", "d").output
    assert "2 partitions" in shown
    assert "edge cut" in shown
    report = json.loads(atta("inspect", "d", "--json", "-").output)
    assert report["kind"] == "dataset"
    assert report["num_parts"] == 2
    assert report["provenance"]["method"] == "random"
    assert report["provenance"]["graph"]["options"]["nodes"] == 500
    assert report["quality"]["balance"]["nodes"] == 1
    atta("inspect", "g", "--json", "out.json", "-q")
    with open("out.json") as file:
        assert json.load(file)["kind"] == "graph"


def test_placement_of_servers_and_trainers(atta):
    atta(*GENERATE)
    atta("partition", "g", "d", "--parts", "2", "--method", "metis", "-q")
    report = json.loads(atta("inspect", "d", "--trainers-per-server", "3", "--json", "-").output)
    dataset = Dataset.open("d")
    offsets, train = dataset.book.offsets["node"], dataset.split("node", "train")
    for server, place in enumerate(report["placement"]):
        inside = (train >= offsets[server]) & (train < offsets[server + 1])
        part = dataset.part(server)
        assert place["server"] == server
        assert place["vertices"] == offsets[server + 1] - offsets[server]
        assert place["in_edges"] == len(part.csc("node__to__node").indices)
        assert place["training_vertices"] == inside.sum()
        assert place["halo"] == len(part.halo("node"))
        for number, trainer in enumerate(place["trainers"]):
            rank = 3 * server + number
            given = plan_seeds(train, train, batch_size=7, parts=2, rank=rank, world=6, pad=False)
            assert trainer == {"rank": rank, "training_vertices": len(given.seeds)}
    assert len(report["placement"]) == 2
    shown = atta("inspect", "d", "--trainers-per-server", "3").output
    assert "Placement" in shown
    assert "3 to 5" in shown
    alone = json.loads(atta("inspect", "d", "--json", "-").output)["placement"]
    assert [[t["rank"] for t in place["trainers"]] for place in alone] == [[0], [1]]
    for senseless in ("0", "-1", "1025"):
        with pytest.raises(ConfigError, match=f"--trainers-per-server {senseless}: must be 1 to 1024"):
            atta("inspect", "d", "--trainers-per-server", senseless)
    with pytest.raises(ConfigError, match="--trainers-per-server: needs a partitioned dataset"):
        atta("inspect", "g", "--trainers-per-server", "2")


def test_inspect_of_one_part(atta, tmp_path):
    atta(*GENERATE)
    atta("partition", "g", "d", "--parts", "2", "--method", "random")
    (tmp_path / "d/part-0001").rename(tmp_path / "elsewhere")
    assert atta("inspect", "d", "--part", "0").exit_code == 0
    with pytest.raises(DataError, match="part-0001"):
        atta("inspect", "d")
    with pytest.raises(ConfigError, match="--part: needs a partitioned dataset"):
        atta("inspect", "g", "--part", "7")


def test_the_split_that_a_prediction_begins_with(atta):
    atta(*GENERATE)
    atta("partition", "g", "d", "--parts", "2", "--method", "random", "-q")
    inspect, seeds = ("inspect", "d", "--num-neighbors", "2", "--batch-size", "500", "--json", "-"), {}
    for split in ("train", "val", None):
        shown = atta(*inspect, *(("--split", split) if split else ())).output
        seeds[split] = sum(part["seeds"] for part in json.loads(shown)["prediction"]["parts"])
    dataset = Dataset.open("d")
    train, val = (len(dataset.split("node", name)) for name in ("train", "val"))
    assert seeds == {"train": train, "val": val, None: train}
    with pytest.raises(UnknownNameError, match="unknown split 'vall'; did you mean 'val'"):
        atta(*inspect, "--split", "vall")


def test_a_fallback_is_told(atta):
    atta(*GENERATE)
    given = ("partition", "g", "d", "--parts", "2", "--method", "given", "--option", "path=none.npy")
    done = atta(*given, "--fallback", "ldg")
    assert done.stdout == "d: 2 partitions by ldg; look at it with `atta inspect d`\n"
    assert done.stderr == "note: given: none.npy: the file is missing; ldg took its place\n"
    with pytest.raises(ConfigError, match="the method random balances nodes only"):
        atta(*given[:5], "--fallback", "random", "--balance", "edges")


def test_wrong_usage(atta):
    assert atta("partition", "g", "d").exit_code == 2
    assert atta("generate", "lattice", "g", "--nodes", "5", "--edges", "5").exit_code == 2
    with pytest.raises(DataError, match="g: no such folder"):
        atta("partition", "g", "d", "--parts", "2")
    atta(*GENERATE)
    with pytest.raises(ConfigError, match="--overwrite"):
        atta(*GENERATE)
    assert atta(*GENERATE, "--overwrite").exit_code == 0


def test_every_option_of_generate_is_explained(atta):
    shown = atta("generate", "--help").output
    for option in ("--communities", "--inter", "--exponent", "--signal", "--train", "--val", "--test", "Example:"):
        assert option in shown


def test_the_engine_ray_says_what_it_needs(atta, monkeypatch):
    atta(*GENERATE)
    wanted = ("partition", "g", "d", "--parts", "2", "--engine", "ray")
    for others in (("--method", "metis"), (), ("--method", "ldg", "--fallback", "random"), ("--compare", "ldg,random")):
        with pytest.raises(ConfigError, match="--engine ray: takes --method ldg alone"):
            atta(*wanted, *others)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Ray needs ray: install atta\[ray\]"):
        atta(*wanted, "--method", "ldg")


def test_what_a_comparison_balances_and_what_it_refuses(atta):
    atta(*GENERATE)
    compare = ("partition", "g", "d", "--parts", "3", "--compare", "ldg,random", "-q")
    for option in (("--option", "passes=1"), ("--fallback", "random")):
        with pytest.raises(ConfigError, match="--compare: goes without --option and --fallback"):
            atta(*compare, *option)
    with pytest.raises(UnknownNameError, match="nonsense"):
        atta(*(word.replace("random", "fennel") for word in compare), "--balance", "nonsense")
    with pytest.raises(ConfigError, match="--balance nodes,edges: the method random balances nodes only"):
        atta(*compare, "--balance", "nodes,edges")
    assert not os.path.exists("d")
    assert atta(*compare, "--balance", "nodes", "--overwrite").exit_code == 0
    assert [Dataset.open(f"d/{method}").provenance["balance"] for method in ("ldg", "random")] == [["nodes"]] * 2
