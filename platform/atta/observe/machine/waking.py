"""How long this machine takes to wake sleeping threads, and how late timers end. Both take no processor time, so no
count of it shows them."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import threading
import time

_PAUSE_S = 0.002
"""How long both threads sleep before each try, so that cores sleep, too."""
_LEAST_S, _MOST_S = 0.004, 0.012
"""Of the delays that are tried."""
_TIMERS = 2
"""Number of timers at once. One alone ends more punctually than those of an event loop with more to do."""


def wake_s(tries: int = 200) -> float:
    """Median seconds from a write into a pipe until the thread that waits for it runs. Half of it each way and back."""
    there, back = os.pipe(), os.pipe()

    def answer() -> None:
        while os.read(there[0], 1) == b"?":
            os.write(back[1], b"!")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    seconds = []
    try:
        for _ in range(tries):
            time.sleep(_PAUSE_S)
            begun = time.perf_counter()
            os.write(there[1], b"?")
            os.read(back[0], 1)
            seconds.append((time.perf_counter() - begun) / 2)
        os.write(there[1], b".")
        thread.join()
    finally:
        for end in (*there, *back):
            os.close(end)
    return statistics.median(seconds)


def timer_lateness_s(tries: int = 60) -> float:
    """Mean seconds by which timers of an event loop end too late, without the slowest tenth."""
    late: list[float] = []
    draw = random.Random(0)

    async def wait() -> None:
        for _ in range(tries):
            delay, begun = draw.uniform(_LEAST_S, _MOST_S), time.perf_counter()
            await asyncio.sleep(delay)
            late.append(max(0.0, time.perf_counter() - begun - delay))

    async def side_by_side() -> None:
        await asyncio.gather(*(wait() for _ in range(_TIMERS)))

    thread = threading.Thread(target=lambda: asyncio.run(side_by_side()))  # the caller may have an event loop
    thread.start()
    thread.join()
    return statistics.fmean(sorted(late)[: max(1, len(late) * 9 // 10)])
