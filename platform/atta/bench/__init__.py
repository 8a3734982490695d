"""The code behind ``atta bench``.

Reading order: ``report`` (the JSON and its ratios), ``netlab`` (hosts on one machine), ``stage`` and ``drive`` (how measured
processes and the benchmark talk), ``beside`` (rounds of several systems), ``loader`` and ``train`` with their measured processes
``consumer`` and ``train_worker``, ``learn`` (what all trainers share), ``peers`` (other systems on the same graph), ``limits``;
``kv`` with its measured processes ``kv_gather``, ``kv_pull`` and ``kv_tables``; ``cache`` with
its ``cache_report``.
"""
