"""Atta on Ray; ``atta.train.launching.on_ray`` says how it works. import atta atta.ray.serve("/data/products-4p",
name="products", insecure=True) report = atta.ray.fit(TrainConfig(cluster="ray:products", trainers=4),
max_failures=3)"""

from __future__ import annotations

from atta.train.launching.on_ray.fitting import fit
from atta.train.launching.on_ray.partitioning import partition
from atta.train.launching.on_ray.serving import Served, serve

__all__ = ["Served", "fit", "partition", "serve"]
