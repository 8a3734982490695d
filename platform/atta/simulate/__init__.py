"""``atta simulate``: a whole cluster in simulated time, run by the very scheduler that runs in daemons.

::

    Profile    what work costs on one machine: measured (``measure``) or written by hand
       |
    Scenario   how many machines, cores, which link, policy, trainer ...            -> Workload: sizes of every batch
       |
    Cluster    one Clock, one Network, and per machine:
                 Scheduler (atta.scheduler, as in a daemon) <-> Machine: Cores, a Pool that serves others, a Trainer
       |
    Outcome    figures: seeds/s, completion times, utilisation, what was held

Discrete events, no clock of the real world, one source of randomness: the same scenario gives the same figures, always. What
is modelled and what is not stands in docs/simulator.md.

Reading order: ``profile``, ``scenario``, ``clock``, ``resources`` (what tasks compete for), ``machine``, ``cluster``, ``report``.
"""

from atta.simulate.cluster import Cluster, Outcome, simulate
from atta.simulate.profile import HopSize, Linear, Profile, Remote, load_profile, save_profile
from atta.simulate.scenario import Scenario

__all__ = [
    "Cluster",
    "HopSize",
    "Linear",
    "Outcome",
    "Profile",
    "Remote",
    "Scenario",
    "load_profile",
    "save_profile",
    "simulate",
]
