"""One session's figures: what the daemon knows of its consumer, and the scheduler of its batches."""

from __future__ import annotations

from atta.daemon.engine.session import Session
from atta.observe.figures import SessionFigures
from atta.scheduler import SessionView

__all__ = ["session_figures"]


def session_figures(session: Session, view: SessionView | None) -> SessionFigures:
    """The figures of ``session``; ``view`` is None if it failed, as the scheduler has then closed it."""
    request = session.request
    return SessionFigures(
        session=session.id,
        job=request.job,
        epoch=request.epoch,
        rank=request.seeds.rank,
        world_size=request.seeds.world,
        batches=session.batches,
        taken=session.sequence + 1,
        seeds=session.seeds_taken,
        queued=view.finished if view else 0,
        in_flight=view.in_flight if view else 0,
        queued_bytes=view.finished_bytes if view else 0,
        lent_bytes=session.lent_bytes,
        score=view.score if view and view.launched < view.batches else None,
        sigma=view.sigma if view else None,
        sample_ms=view.sample_ms if view else None,
        train_ms=view.train_ms if view else None,
        error=str(session.error or ""),
    )
