"""Which training strategy suits the user's machines: sizes are counted, speeds measured, seconds predicted, the choice
explained.

Reading order: ``sizes`` (what is counted of a partitioned graph), ``rates`` (how fast the machines are), ``forecast``
(seconds and memory from these two), ``ranking`` (the forecasts of all strategies), ``explain`` (the choice in
sentences), ``count`` and ``boundary`` (sizes of a dataset), ``probe`` and ``loopback`` (rates of this machine),
``paper`` (the equations of GraNNDis, section 4).

``sizes``, ``rates``, ``forecast``, ``explain`` and ``paper`` are pure: no files, no clock, no torch.
"""

from atta.train.planning.count import Question, Servers, count_sizes, open_servers
from atta.train.planning.explain import Advice, advise, forecasts
from atta.train.planning.forecast import Forecast
from atta.train.planning.sizes import Expansion, Machines, MeanBatch, PlannedModel, Rates, ServerWork, Sizes

__all__ = [
    "Advice",
    "Expansion",
    "Forecast",
    "Machines",
    "MeanBatch",
    "PlannedModel",
    "Question",
    "Rates",
    "ServerWork",
    "Servers",
    "Sizes",
    "advise",
    "count_sizes",
    "forecasts",
    "open_servers",
]
