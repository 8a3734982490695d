"""Full-graph training in which trainers read each other's hidden rows, so that each row is computed once.

A server extracts its own vertices and their HALO, and no process holds the whole graph. Rows of others are those of this
epoch or stale, as the policy of the strategy says:

    layer ── asks ──► StaleRows ── forward ──► the trainers that read the rows
                                └─ backward ─► the trainers that computed them

Reading order: ``policy`` (which versions may be read) and ``policies`` (one for each strategy), ``messages`` (owners send
to readers), ``codecs`` (how rows look in a message), ``figures`` (what is counted, and what a daemon shows), ``trainer``
(what one rank does in an epoch). For rows that wait on daemons until readers pull them: ``daemons``, ``tables`` and
``digest``. Readers that predict such rows from their past: ``history``, ``predictors`` and ``predictions``. Without
barriers: ``asynchronous``.
"""
