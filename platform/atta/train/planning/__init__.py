"""Which training strategy suits the user's machines: sizes are counted, speeds measured, seconds predicted, the choice
explained.

Reading order: ``sizes`` (what is counted, and how fast machines are), ``forecast`` (seconds and memory from these two),
``explain`` (all strategies ranked, and the choice), ``count`` (sizes of a dataset), ``probe`` and ``loopback`` (rates of
this machine).
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
