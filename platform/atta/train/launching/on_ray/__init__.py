"""Atta on Ray: Ray places, restarts and names daemons and trainers; rows and batches never pass through it. Users call
``atta.ray.serve``, ``fit`` and ``partition``. ``keepers`` are actors, each of which keeps one process."""
