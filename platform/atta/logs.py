"""Structured logs on standard error."""

from __future__ import annotations

import logging
import sys

import structlog

__all__ = ["configure"]


def configure(*, format: str = "text", level: str = "info") -> None:  # noqa: A002 - the word users know
    """Log at ``level`` and above as ``text`` or ``json`` lines."""
    renderer = structlog.processors.JSONRenderer() if format == "json" else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.StackInfoRenderer(),
            *([structlog.processors.format_exc_info] if format == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
