"""Atta on Ray: Ray places, restarts and names daemons and trainers; rows and batches never pass through it.

    import atta
    atta.ray.serve("/data/products-4p", name="products", insecure=True)
    report = atta.ray.fit(TrainConfig(cluster="ray:products", trainers=4), max_failures=3)

Decisions are pure: ``placement`` (which node), ``restarts`` (when a daemon starts again), ``table`` (who is where).
``keepers`` are Ray's actors, each of which keeps one process. ``serve``, ``fit`` and ``partition`` are what users call.
"""

from __future__ import annotations

from atta.train.launching.on_ray.fitting import fit
from atta.train.launching.on_ray.partitioning import partition
from atta.train.launching.on_ray.serving import Served, serve

__all__ = ["Served", "fit", "partition", "serve"]
