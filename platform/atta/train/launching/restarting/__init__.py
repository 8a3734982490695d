"""Runs trainers of which one that died is started again alone, while the others go on."""

from atta.train.launching.restarting.run import run_restarting

__all__ = ["run_restarting"]
