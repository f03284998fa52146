"""Worlds of ranks that live through many cases: threads of this process, or the ranks of MPI.

A case is a function of a communicator. ``World.run`` calls it on every rank; what it returns must
be equal in bits on all of them. A world whose case failed is not used again.
"""

from __future__ import annotations

import abc
import hashlib
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import cocoll
from cocoll.errors import AbortedError, PeerLostError
from cocoll.testing import run_ranks
from tests.helpers.references import ANY_ORDER

__all__ = ["SMALL", "TUNINGS", "MpiWorld", "ThreadWorld", "World"]

# A virtual machine may be stopped for a minute: that is no failure of a rank.
TIMEOUT_SECONDS = 300.0

#: Limits so low that a few thousand elements are many chunks and go through every algorithm.
SMALL = cocoll.Tuning(
    inline_bytes=64, one_shot_bytes=1024, chunk_bytes=2048, slots=3, staging_bytes=256 << 10
)
#: The algorithms that cocoll would choose by size, each forced.
TUNINGS = {
    "default": cocoll.Tuning(),
    "small": SMALL,
    "one_shot": cocoll.Tuning(inline_bytes=0, one_shot_bytes=256 << 10),
    "two_shot": cocoll.Tuning(inline_bytes=0, one_shot_bytes=0, chunk_bytes=4096, slots=2),
    "one_slot": cocoll.Tuning(inline_bytes=16, one_shot_bytes=64, chunk_bytes=1024, slots=1),
}


@dataclass(frozen=True)
class _Reply:
    digest: str | None
    error: BaseException | None


def digest_value(value: Any) -> str:
    """Give a digest of arrays, numbers and sequences of them, by their bits."""
    state = hashlib.sha256()

    def take(part: Any) -> None:
        if isinstance(part, list | tuple):
            state.update(f"[{len(part)}]".encode())
            for entry in part:
                take(entry)
        elif isinstance(part, np.ndarray):
            state.update(f"{part.shape} {part.dtype}".encode())
            state.update(np.ascontiguousarray(part).tobytes())
        else:
            state.update(repr(part).encode())

    take(value)
    return state.hexdigest()


def _attempt(comm: cocoll.Communicator, job: Callable[[cocoll.Communicator], Any]) -> _Reply:
    try:
        return _Reply(digest_value(job(comm)), None)
    except BaseException as error:
        # The others may be inside an operation that this rank will never join.
        comm.abort()
        return _Reply(None, error)


class World(abc.ABC):
    """A number of ranks, each with a communicator that is kept between cases."""

    size: int
    broken: bool

    @abc.abstractmethod
    def _call(self, job: Callable[[cocoll.Communicator], Any]) -> list[_Reply]:
        """Call `job` on all ranks."""

    def run(self, case: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Run a case on all ranks; raise what a rank raised, the cause before its consequences."""

        def job(comm: cocoll.Communicator) -> Any:
            return case(comm, *args, **kwargs)

        replies = self._call(job)
        failed = [rank for rank, reply in enumerate(replies) if reply.error is not None]
        if failed:
            self.broken = True
            consequences = (AbortedError, PeerLostError)
            first = min(
                failed, key=lambda rank: (isinstance(replies[rank].error, consequences), rank)
            )
            error = replies[first].error
            raise AssertionError(f"rank {first} of {self.size}: {error!r}") from error
        digests = {reply.digest for reply in replies}
        assert len(digests) == 1, (
            f"the ranks' results differ in bits: {[r.digest for r in replies]}"
        )


class ThreadWorld(World):
    """Ranks as threads; `close` ends them."""

    def __init__(self, size: int, tuning: cocoll.Tuning, **settings: Any) -> None:
        self.size = size
        self.broken = False
        self._jobs: list[queue.SimpleQueue[Callable[..., Any] | None]] = [
            queue.SimpleQueue() for _ in range(size)
        ]
        self._replies: queue.SimpleQueue[tuple[int, _Reply]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, args=(tuning, settings))
        self._thread.start()

    def _serve(self, tuning: cocoll.Tuning, settings: dict[str, Any]) -> None:
        try:
            run_ranks(
                self.size, self._loop, tuning=tuning, timeout_seconds=TIMEOUT_SECONDS, **settings
            )
        except BaseException as error:
            # Making the communicators failed: every caller is told.
            for rank in range(self.size):
                self._replies.put((rank, _Reply(None, error)))

    def _loop(self, comm: cocoll.Communicator) -> None:
        ANY_ORDER.set(comm.hosts is not None)
        while (job := self._jobs[comm.rank].get()) is not None:
            self._replies.put((comm.rank, _attempt(comm, job)))

    def _call(self, job: Callable[[cocoll.Communicator], Any]) -> list[_Reply]:
        for jobs in self._jobs:
            jobs.put(job)
        replies = dict(self._replies.get(timeout=2 * TIMEOUT_SECONDS) for _ in range(self.size))
        return [replies[rank] for rank in range(self.size)]

    def close(self) -> None:
        """End the ranks."""
        for jobs in self._jobs:
            jobs.put(None)
        self._thread.join()


class MpiWorld(World):
    """This rank's part of a world of MPI ranks; every rank runs the same cases.

    With `bootstrap` the ranks meet through that, else through `group` itself.
    """

    def __init__(
        self,
        group: Any,
        tuning: cocoll.Tuning,
        cache_dir: Path,
        *,
        bootstrap: Any = None,
        **settings: Any,
    ) -> None:
        self.size = group.size
        self.broken = False
        self._group = group
        self._comm = cocoll.Communicator(
            group if bootstrap is None else bootstrap,
            tuning=tuning,
            timeout_seconds=TIMEOUT_SECONDS,
            cache_dir=cache_dir,
            **settings,
        )

    def _call(self, job: Callable[[cocoll.Communicator], Any]) -> list[_Reply]:
        token = ANY_ORDER.set(self._comm.hosts is not None)
        own = _attempt(self._comm, job)
        ANY_ORDER.reset(token)
        text = "" if own.error is None else "".join(traceback.format_exception(own.error))
        consequence = isinstance(own.error, AbortedError | PeerLostError)
        everyone = self._group.allgather((own.digest, text, consequence))
        replies = []
        for rank, (digest, theirs, follows) in enumerate(everyone):
            error: BaseException | None = None
            if theirs and rank == self._group.rank:
                error = own.error
            elif theirs:
                error = PeerLostError(theirs) if follows else AssertionError(theirs)
            replies.append(_Reply(digest, error))
        return replies

    def close(self) -> None:
        """Leave the communicator."""
        self._comm.close()
