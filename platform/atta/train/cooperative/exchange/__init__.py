"""Rows of other trainers in forward, and their gradients in backward.

A layer knows its number and asks a ``Source`` for the rows that it reads and does not compute (``source``). ``exact``
is the source that exchanges the rows of the present step; sources can be joined, each for a part of the rows.
``pending`` ties a source to autograd. ``dropout`` comes after the exchange, with the ``masks`` that all trainers agree
on. ``graph`` holds a trainer's edges and its source, and takes the place of ``edge_index`` in a model.
"""

from atta.train.cooperative.exchange.dropout import RowDropout
from atta.train.cooperative.exchange.exact import ExactSource, source_inside
from atta.train.cooperative.exchange.graph import CooperativeGraph, RowRange, exchange, start_exchange
from atta.train.cooperative.exchange.pending import PendingExchange
from atta.train.cooperative.exchange.source import Arrival, Direction, JoinedSource, Source, UnchangedRows

__all__ = [
    "Arrival",
    "CooperativeGraph",
    "Direction",
    "ExactSource",
    "JoinedSource",
    "PendingExchange",
    "RowDropout",
    "RowRange",
    "Source",
    "UnchangedRows",
    "exchange",
    "source_inside",
    "start_exchange",
]
