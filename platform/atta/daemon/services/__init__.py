"""What a daemon answers: one module per gRPC service.

Reading order: ``handling`` (what every request passes first), ``sessions`` with ``opening`` and ``seed_ids`` (batches
for consumers), ``data`` (rows for other daemons), ``tables`` with ``table_snapshots`` (mutable tables), ``control``
(for operators).
"""
