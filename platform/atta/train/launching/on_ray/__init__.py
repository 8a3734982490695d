"""Atta on Ray: Ray places, restarts and names daemons and trainers; rows and batches never pass through it.

Users call ``atta.ray.serve``, ``fit`` and ``partition``. Decisions are pure: ``placement`` (which node), ``restarts``
(when a daemon starts again), ``table`` (who is where). ``keepers`` are Ray's actors, each of which keeps one process.
"""
