"""The distributed table store. Each daemon serves the rows of its own partition. Rows of the graph's tables come
straight from the mapped files (``store``, ``cache``). Clients pull and push rows of mutable tables while training goes
on (``tables``, ``mutable``)."""
