"""The code behind ``atta bench``.

Reading order: ``report`` (the JSON and its ratios), ``netlab`` (hosts on one machine), ``stage`` and ``drive`` (how measured
processes and the benchmark talk), ``loader`` (``atta bench loader``), ``peers`` (other systems on the same graph), ``limits``.
"""
