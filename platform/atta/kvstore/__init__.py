"""The distributed table store.

Each daemon serves the rows of its own partition: those of the graph's tables straight from the mapped files (``store``,
``cache``), and those of mutable tables, which clients pull and push while training goes on (``tables``, ``mutable``).
"""
