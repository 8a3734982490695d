"""Free memory is touched page by page, and freed again."""

from __future__ import annotations

import psutil
import pytest

from atta.bench.lab import memory


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.parametrize(("most", "touched"), [(1 << 30, 32 << 20), (16 << 20, 16 << 20)])
def test_a_share_of_the_free_memory_is_touched_and_freed(
    monkeypatch: pytest.MonkeyPatch, most: int, touched: int
) -> None:
    populate, seen = memory.memfiles.populate, []

    def watched(address: int, nbytes: int) -> bool:
        before = resident()
        made = populate(address, nbytes)
        seen.append((nbytes, resident() - before))
        return made

    monkeypatch.setattr(memory, "available_bytes", lambda: 64 << 20)
    monkeypatch.setattr(memory, "MOST_BYTES", most)
    monkeypatch.setattr(memory.memfiles, "populate", watched)
    before = resident()
    assert memory.touch_free(0.5) > 0
    ((nbytes, grown),) = seen
    assert nbytes == touched
    assert grown > 0.9 * touched
    assert resident() - before < 0.1 * touched
