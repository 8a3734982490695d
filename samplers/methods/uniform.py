"""Each set of ``fan_out`` edges is equally likely. With replacement a vertex gets ``fan_out`` independent draws."""

from __future__ import annotations

from atta.samplers.methods.base import NeighborMethod, degree_by_draws

METHOD = NeighborMethod(number=0, weigh_vertices=degree_by_draws)
