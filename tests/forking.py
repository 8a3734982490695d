"""Work in a forked child, as a ``DataLoader`` of torch does it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def in_fork(work: Callable[[], object]) -> bool:
    """Run ``work`` in a forked child, which ends at once afterwards. Returns whether it succeeded."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == 0
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
