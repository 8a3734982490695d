"""Looks at the cluster and at trainers in the background, for the page."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from types import TracebackType

from atta.cli.cluster.dashboard.curves import MOST_CHARACTERS, TrainerHistory, figures_of
from atta.cli.cluster.dashboard.page import View
from atta.client.watch import Watch

SCRAPE_S = 2.0
"""How long a trainer may take to answer."""


class Watching:
    """Samples once per ``interval_s`` on a thread of its own. A context manager. However many browsers look, daemons are
    asked once.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        trainers: Sequence[str],
        interval_s: float,
        *,
        name: str = "",
        now: bool = True,
    ) -> None:
        """``name``: of the cluster on the page. ``now``: look before this returns; else after the first interval."""
        self._name, self._interval_s = name or str(target), interval_s
        self._watch = Watch(target)
        self._trainers = [TrainerHistory(address) for address in trainers]
        self._end = threading.Event()
        self._view = self._seen() if now else View(self._name, [], self._trainers, max(1.0, interval_s))
        self._thread = threading.Thread(target=self._run, name="atta-dashboard", daemon=True)

    @property
    def view(self) -> View:
        """The latest."""
        return self._view

    def _seen(self) -> View:
        return View(self._name, self._watch.look(), self._trainers, max(1.0, self._interval_s))

    def _run(self) -> None:
        while not self._end.wait(self._interval_s):
            began = time.monotonic()
            for trainer in self._trainers:
                _scrape(trainer)
            self._view = self._seen()
            self._end.wait(
                max(0.0, time.monotonic() - began - self._interval_s)
            )  # slow daemons are not asked more often

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(10)
        self._watch.close()


def _scrape(trainer: TrainerHistory) -> None:
    try:
        with contextlib.closing(
            urllib.request.urlopen(f"http://{trainer.address}/metrics", timeout=SCRAPE_S)
        ) as answer:
            trainer.add(*figures_of(answer.read(MOST_CHARACTERS + 1).decode("utf-8", "replace")))
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        trainer.error = f"no metrics: {reason}"
