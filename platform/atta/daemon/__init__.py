"""The sampler daemon: a long-running process that serves one partition.

Reading order: ``daemon`` (from start to exit), ``config``, ``services`` (what a daemon answers), ``engine`` (how it
makes batches) and ``peers`` (how it talks to other daemons).
"""
