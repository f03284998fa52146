"""Threads that stand for ranks, and what became of each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Ended", "run_threads"]

#: More than a rank can need that hangs in nothing, however busy the machine.
PATIENCE_SECONDS = 120.0


@dataclass
class Ended:
    """What a thread returned, or raised."""

    value: Any = None
    error: BaseException | None = None


def run_threads(size: int, body: Callable[[int], Any]) -> list[Ended]:
    """Call `body` with every rank, each in a thread of its own; fail where one does not end."""
    ends = [Ended() for _ in range(size)]

    def run(rank: int) -> None:
        try:
            ends[rank].value = body(rank)
        except BaseException as error:
            ends[rank].error = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    hanging = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    assert not hanging, f"ranks {hanging} hang"
    return ends
