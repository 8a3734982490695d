"""DistDGL (dgl 1.1.3) as a peer: ``partition`` converts the graph, ``worker`` and ``train_worker`` are its processes,
``launch`` runs them.

DistDGL takes one address for one machine, and its servers collide in /dev/shm, so every "machine" is a host of a
``NetLab``.
"""
