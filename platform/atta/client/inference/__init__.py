"""Inference layer by layer: every layer is computed for all vertices before the next one begins.

With mini-batches of L hops a vertex is computed again for every seed that it is near to. Layer by layer it is computed
once, and each edge is read once per layer (PyG's ``BasicGNN.inference``; GraphSAGE's authors, too, infer like this).
What lies between two layers are rows of hidden values. They wait in mutable tables on the daemons, so no process needs
memory for a whole layer.

Reading order: ``stages`` (what is computed, in which order), ``plan`` (which share comes next; both are pure), ``block``
(what a layer reads), ``trial`` (whether a layer gives a vertex one row in any block), ``tables`` (rows between layers,
and which shares are done), ``sinks`` and ``files`` (where results go), ``run`` (does what the plan says).
"""
