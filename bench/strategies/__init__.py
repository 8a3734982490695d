"""``atta bench strategies``: training strategies over a slow link between servers.

Every system is ``atta train`` on the same partitions. Each host is a server with its trainers:

===========  ==================================================================================================
minibatch    each trainer samples its own batches
full         exact full-graph training that exchanges rows before every layer, also between servers: the baseline of
             GraNNDis
preload      exact full-graph training; each server holds all vertices that its own depend on
cooperative  whole servers with expansion-aware sampling, in one step or in co-batches
===========  ==================================================================================================

A *variant* is a name for options of ``atta train``, measured beside them.

Reading order: ``settings`` (what to run), ``figures`` and ``prices`` (what is reported of a run), ``systems`` (a
strategy on the hosts, and the rate of their links), ``distdgl`` (the peer), ``benchmark`` (all rounds).
"""

from atta_bench.strategies.benchmark import run
from atta_bench.strategies.figures import accuracies, epochs_of, figures
from atta_bench.strategies.prices import read_prices, values
from atta_bench.strategies.settings import STRATEGIES, StrategiesBench, Variant
from atta_bench.strategies.systems import external_rate
from atta_bench.train.straggler import StopPattern

__all__ = [
    "STRATEGIES",
    "StopPattern",
    "StrategiesBench",
    "Variant",
    "accuracies",
    "epochs_of",
    "external_rate",
    "figures",
    "read_prices",
    "run",
    "values",
]
