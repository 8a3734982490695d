"""Settings of benchmarks that make no sense are refused, and the message names the option."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from atta.errors import ConfigError, UnknownNameError
from atta_bench.lab.workload import BenchWorkload
from atta_bench.loader.benchmark import LoaderBench
from atta_bench.loader.scheduler import SchedulerBench
from atta_bench.pieces.cache import CacheBench
from atta_bench.pieces.kv import KvBench
from atta_bench.pieces.partition import PartitionBench
from atta_bench.pieces.sampling import SamplingBench
from atta_bench.scale.benchmark import ScaleBench
from atta_bench.train.benchmark import TrainBench
from atta_bench.train.run import StopPattern
from atta_bench.train.settings import StrategiesBench, Variant

TWICE = (Variant("a", ()), Variant("a", ()))
FOREIGN = (Variant("a", (), {"strategy": "exchange", "eps": 1.0}),)
UNEVEN = (Variant("a", (), {"strategy": "exchange", "trainers_per_server": 1}),)
BENCHES: dict[str, Any] = {
    "workload": BenchWorkload,
    "loader": partial(LoaderBench, data="d"),
    "scheduler": partial(SchedulerBench, data="d"),
    "train": partial(TrainBench, data="d"),
    "scale": ScaleBench,
    "kv": KvBench,
    "cache": partial(CacheBench, "d"),
    "sampling": partial(SamplingBench, "d"),
    "partition": partial(PartitionBench, "g"),
    "strategies": partial(StrategiesBench, "d"),
}
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "workload": [
        ({"num_neighbors": (0,)}, "--num-neighbors 0: each must be positive"),
        ({"num_neighbors": ()}, "--num-neighbors"),
        ({"epochs": 0}, "--epochs 0: must be at least 1"),
        ({"seconds": -1.0}, "--seconds -1.0: must be at least 0"),
        ({"timeout_s": 0.0}, "--timeout 0.0: must be at least"),
        ({"seeds": "near"}, "unknown seeds 'near'"),
    ],
    "loader": [
        ({"frontier": "old"}, "'old'"),
        ({"deliver": "pig"}, "did you mean 'pyg'"),
        ({"method": "lavor"}, "did you mean 'labor'"),
        ({"dependency": 0}, "--dependency 0: must be at least 1"),
        ({"runs": 0}, "--runs 0"),
        ({"cache_share": 101}, "--cache-share 101"),
        ({"netns": "maybe"}, "maybe"),
        ({"link": "fast"}, "rate 'fast'"),
        ({"link": "1gbit", "netns": "off"}, "not with --netns off"),
        ({"vs": ("dlg",)}, "did you mean 'dgl'"),
        ({"batch_size": 0}, "--batch-size 0"),
    ],
    "scheduler": [
        ({"policies": ("fifo",)}, "two-level must be among them"),
        ({"policies": ("two-level", "sequentail")}, "sequential"),
        ({"depths": ()}, "--depths"),
        ({"depths": (2, 0)}, "--depths 0"),
        ({"rtt_ms": -1.0}, "--rtt -1"),
        ({"think_ms": -1.0}, "--think -1"),
        ({"think_ms": math.nan}, "--think nan"),
        ({"vs": ("dgl",), "rtt_ms": 1.0}, "--vs dgl: only Atta"),
        ({"link": "fast"}, "rate 'fast'"),
    ],
    "train": [
        ({"hidden": 0}, "--hidden 0"),
        ({"lr": 0.0}, "--lr 0"),
        ({"lr": math.nan}, "--lr nan"),
        ({"cache_share": 101}, "--cache-share 101"),
        ({"link": "1gbit", "netns": "off"}, "not with --netns off"),
    ],
    "scale": [
        ({"parts": ()}, "--parts"),
        ({"parts": (2, 0)}, "--parts 0"),
        ({"parts": (2, 2)}, "--parts 2,2"),
        ({"caches": ()}, "--caches"),
        ({"caches": ("on", "of")}, "did you mean 'off'"),
        ({"vs": ("dgll",)}, "did you mean 'dgl'"),
        ({"rounds": 0}, "--rounds 0"),
        ({"batch_sizes": (8, 8)}, "--batch-sizes 8,8"),
        ({"measured": 0}, "--batches 0"),
        ({"warm_up": 0}, "--warm-up 0"),
        ({"profiled": -1}, "--profiled -1"),
        ({"num_neighbors": (0,)}, "--num-neighbors 0"),
        ({"against": "/nowhere"}, "--against /nowhere"),
        ({"link": "1gbit", "netns": "off"}, "--link"),
    ],
    "kv": [
        ({"batch": -1}, "--batch -1"),
        ({"rows": 10, "batch": 11}, "--batch 11: rows are distinct, and there are 10"),
        ({"threads": ()}, "--threads"),
        ({"threads": (1, 0)}, "--threads 0"),
        ({"threads": (2, 2)}, "--threads 2,2: name different numbers"),
        ({"link": "fast"}, "rate 'fast'"),
        ({"vs": ("dlg",)}, "did you mean 'dgl'"),
    ],
    "cache": [
        ({"epochs": 1}, "--epochs 1: must be at least 2"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"shares": ()}, "--shares: name at least one"),
        ({"shares": (0.0,)}, "--shares 0"),
        ({"ranks": ("hott",)}, "unknown ranks 'hott'"),
    ],
    "sampling": [
        ({"threads": ()}, "--threads : each must be at least 1"),
        ({"num_neighbors": (-1,)}, "--num-neighbors -1: each must be at least 1"),
        ({"variants": ("hetro",)}, "did you mean 'hetero'"),
    ],
    "partition": [({"parts": 0}, "--parts 0"), ({"methods": ()}, "--methods: name at least one")],
    "strategies": [
        ({"strategies": ("ful",)}, "full"),
        ({"strategies": ()}, "--strategies"),
        ({"vs": ("pyg",)}, "pyg"),
        ({"vs": ("dgl",), "model": "gcn"}, "sage"),
        ({"servers": 0}, "--servers 0"),
        ({"external_share": 0.5, "link": "1gbit"}, "one of them"),
        ({"external_share": 1.0}, "--external-share 1.0"),
        ({"external_share": 0.5, "strategies": ("cooperative",)}, "name it"),
        ({"external_share": 0.5, "servers": 1}, "at least 2 servers"),
        ({"external_share": 0.5, "share_of": "sancus"}, "`sancus` between servers"),
        ({"variants": TWICE}, "--variant a: this name is given twice"),
        ({"variants": FOREIGN}, "--variant a: eps: belongs to"),
        ({"variants": UNEVEN}, "--variant a: --trainers 4 --trainers-per-server 1: make 4 servers"),
        ({"link": "fast"}, "fast"),
        ({"target": 1.5}, "--target 1.5"),
        ({"eas": (1,)}, "eas=1"),
        ({"num_neighbors": (5, 5)}, "2 hops for 3 layers"),
        ({"stop": StopPattern(4, 1, 2)}, "no trainer 4; there are 4"),
        ({"worker_faults": "kill=1"}, "kill is out of range"),
        ({"worker_faults": "kill=0.1,seed=3"}, "the seed is that of the round"),
    ],
}


@pytest.mark.parametrize(
    ("bench", "settings", "words"), [(name, *case) for name, cases in WRONG.items() for case in cases]
)
def test_settings_that_make_no_sense_are_refused(bench: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=words):
        BENCHES[bench](**settings)
