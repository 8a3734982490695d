"""``atta simulate``: a whole cluster in simulated time, run by the same scheduler as daemons.

::

    Profile    what work costs on one machine: measured (``measure``) or written by hand
       |
    Scenario   how many machines, cores, which link, policy, trainer ...            -> BatchModel: sizes of every batch
       |
    SimulatedCluster   one Clock, one Switch, and per machine:
                         Scheduler (atta.scheduler, as in a daemon) <-> Machine: Cores, event loop, Pool for others,
       |                                                                         trainer
    Outcome    figures: seeds/s, completion times, utilisation, what limits the rate, what was held

A discrete-event simulation without a real clock and with one source of randomness: the same scenario always gives the
same figures. docs/internals/simulator.md says what is modelled and what is not.

Reading order: ``profile``, ``scenario``, ``resources`` (what tasks compete for), ``machine``, ``cluster``.
"""
