"""A backup that takes over does so wholly, whoever waits for it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from atta.daemon.durable.backup import BackupService, Holder

ABOUT = {"dataset": "d", "parts": [0, 1], "daemons": 1}
STORE = (b"0" * 16, 1)


def test_a_promotion_that_nobody_waits_for_any_more_is_ended(tmp_path: Path) -> None:
    """An operator's call reaches its deadline while the daemon opens the tables. Half a promotion would be tables whose
    changes nobody logs."""

    async def scenario() -> None:
        opening, go_on = asyncio.Event(), asyncio.Event()

        async def open_tables() -> int:
            opening.set()
            await go_on.wait()
            return 3

        holder = Holder(tmp_path / "part-0000", ABOUT, lambda: b"", lambda: None, open_tables)
        nobody: Any = SimpleNamespace()
        service = BackupService(holder, "127.0.0.1:7", keeps=True, neighbours=nobody, votes=nobody)
        service._copy.follow(STORE, ABOUT)
        asked = asyncio.create_task(service.take_over())
        await opening.wait()
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked
        assert asked.cancelled()
        go_on.set()
        assert service._taking is not None
        assert (await service._taking)[1] == 3
        assert (tmp_path / "part-0000" / "store.json").exists(), "it was not given back"
        service.close()

    asyncio.run(scenario())
