"""Full-graph training in which rows travel between servers too, so that each row is computed once.

A server extracts its own vertices and their HALO, and no process holds the whole graph. Rows of others are those of this
epoch or stale, as the decisions of the strategy say (``atta.train.stale.decisions``):

    layer ── asks ──► StaleSource ── forward ──► a way of rows      ──► the trainers that read them
                                  └─ backward ─► a way of gradients ──► the trainers that computed the rows

Reading order: ``meeting`` (which trainer of which server computes each HALO row), ``reads`` (which rows travel),
``source``, ``ways`` (what a way does), ``messages`` (owners send to readers), ``packing`` (how rows look in a message),
``tables`` (rows wait on daemons until readers pull them), ``predictions`` (readers predict such rows from their past),
``figures`` (what is counted), ``trainer`` (what one rank does in an epoch), ``digest`` (what it does with tables).
"""
