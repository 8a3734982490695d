"""Link prediction and classes of edges: ``record`` and ``classes`` are the tasks; the others are what its trainer computes with.

``pairs`` divides edges among training, validation and test, ``candidates`` says which pairs an edge is ranked among,
``ranks`` turns scores into figures, and ``edges`` asks the daemons for the edges of a graph.
"""
