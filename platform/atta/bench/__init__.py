"""The code behind ``atta bench``.

============  ==========================================================================================================
output        what every report can do, JSON documents and pictures
results       the report of benchmarks that run several systems: figures, limits, ratios
lab           hosts on one machine (``netlab``), measured processes (``processes``, ``reporter``), limits of the
              machine, settings and ``rounds`` of the benchmarks that compare Atta with other systems
peers         other systems on the same graph
loader        ``atta bench loader``, with its measured process ``consumer``
scale         ``atta bench scale``, with its measured process ``consumer``
train         ``atta bench train``, with its measured process ``worker``; ``run`` starts ``atta train`` on several hosts
scheduler     ``atta bench scheduler``
strategies    ``atta bench strategies``, a package: settings, figures, systems, rounds
sampling, kv  ``atta bench sampling`` and ``atta bench kv``, with their measured processes
partition     ``atta bench partition``, and ``atta partition --compare``
cache         ``atta bench cache``
============  ==========================================================================================================
"""
