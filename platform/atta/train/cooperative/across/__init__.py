"""Full-graph training in which rows travel between servers too, so that each row is computed once.

A server extracts its own vertices and their HALO, and no process holds the whole graph. ``meeting`` finds out which
trainer of which server computes each HALO row. ``trainer`` is what one rank does.
"""
