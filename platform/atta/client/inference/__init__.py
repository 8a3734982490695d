"""Inference layer by layer: every layer is computed for all vertices before the next one begins, so a vertex is computed
once, and each edge is read once per layer (PyG's ``BasicGNN.inference``). The rows between two layers wait in mutable tables.

Reading order: ``stages`` (what is computed), ``task`` (which share comes next; both are pure), ``block`` (what a layer
reads), ``trial`` (whether a layer gives a vertex one row in any block), ``reading``, ``sinks``, ``run``.
"""
