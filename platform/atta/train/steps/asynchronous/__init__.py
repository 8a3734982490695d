"""Training without barriers: DIGEST-A's trainer, and the weights that it saves on the way."""

from atta.train.steps.asynchronous.trainer import AsyncDigestTrainer

__all__ = ["AsyncDigestTrainer"]
