"""The sampler daemon: a long-running process that serves one partition.

Reading order: ``server`` (its life), ``session_service`` (what a consumer asks), ``session`` (one stream of batches), ``engine``
(the shell around the scheduler), ``tasks`` (what a task does), ``peers`` and ``data_services`` (both ends of the talk between
daemons), ``opening`` (what a session may ask for), ``slots`` and ``arenas`` (shared memory), ``descriptors`` (of files), ``calls``,
``session_figures`` and ``recorder`` (what operators see).
"""
