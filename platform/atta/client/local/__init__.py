"""``atta.local``: a cluster of child processes on this machine, which share its memory."""

from __future__ import annotations

from atta.client.local.starting import LocalCluster, local

__all__ = ["LocalCluster", "local"]
