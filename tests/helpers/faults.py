"""A rank that fails before, inside or after an operation; no pytest: every rank imports it.

Inside is made certain: a rank that the operation needs stays away until the victim has arrived and
has had what is coming to it. The victim is rank 1, the one that stays away the last.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cocoll
from cocoll.errors import CocollError, CollectiveMismatchError, ForkedProcessError
from tests.helpers.deaths import PATIENCE_SECONDS, report, run_in_a_child
from tests.helpers.exercises import EXERCISES

VICTIM = 1
#: After these the victim takes part no more, and the others must be told.
LETHAL = ("SIGKILL", "SIGSTOP", "exception", "exit", "Ctrl-C")


def state_of(pid: int) -> str:
    """Give the letter of a process's state, Z where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("what was waited for has not happened")
        time.sleep(0.002)


def _raise_from_a_handler(error: BaseException) -> Callable[[int, Any], None]:
    def handler(number: int, frame: Any) -> None:
        raise error

    return handler


def strike(fault: str) -> None:
    """Let this process, or its main thread, have what is coming to it."""
    if fault in ("SIGKILL", "SIGSTOP"):
        os.kill(os.getpid(), getattr(signal, fault))
    elif fault == "Ctrl-C":
        os.kill(os.getpid(), signal.SIGINT)
    else:
        os.kill(os.getpid(), signal.SIGUSR1)
    # A handler of Python's runs a moment later.
    if threading.current_thread() is threading.main_thread() and fault != "SIGSTOP":
        time.sleep(PATIENCE_SECONDS)


def suffer(comm: cocoll.Communicator, operation: str, fault: str, moment: str) -> Any:
    """Go through one case of the matrix; give what became of this rank."""
    pids = [int(pid) for pid in cocoll.allgather(np.array([os.getpid()]), comm=comm).result()]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    error = SystemExit(0) if fault == "exit" else ArithmeticError("a rank's own mistake")
    signal.signal(signal.SIGUSR1, _raise_from_a_handler(error))
    exercise = EXERCISES[operation]

    def call(on: cocoll.Communicator = comm) -> None:
        # The same draws each time: whatever is planned or compiled, the first call has done.
        exercise(on, np.random.default_rng(7))

    call()
    if fault == "mismatch":
        return _disagree(comm, call, moment)
    if fault == "fork":
        return _fork(comm, call, moment)
    return _lose(comm, call, fault, moment, pids)


def _lose(
    comm: cocoll.Communicator, call: Callable[..., None], fault: str, moment: str, pids: list[int]
) -> Any:
    late = comm.rank == comm.world_size - 1
    if moment == "after":
        call()
    if comm.rank == VICTIM:
        if moment == "during":
            threading.Thread(target=_strike_inside, args=(comm, fault), daemon=True).start()
        else:
            strike(fault)
        if fault != "SIGSTOP":
            _repeat(call)
        # Whoever was stopped goes on here, once the others have gone on without it.
        found = report(lambda: _repeat(call))
        found["shrunk"] = report(lambda: comm.shrink(1.0))["kind"]
        return found
    if moment == "during" and late:
        wait_until(lambda: _has_struck(comm, fault, pids[VICTIM]))
    found = report(lambda: _repeat(call))
    found["closed"] = comm.closed
    rest = comm.shrink(5.0 if fault == "SIGSTOP" else PATIENCE_SECONDS)
    found["rest"] = (rest.rank, rest.world_size)
    for _ in range(2):
        call(rest)
    if fault == "SIGSTOP":
        if rest.rank == 0:
            os.kill(pids[VICTIM], signal.SIGCONT)
        # It wakes up beside the others, and must do them no harm.
        for _ in range(20):
            call(rest)
    rest.close()
    return found


def _repeat(call: Callable[[], None]) -> None:
    # An operation in which nobody needs the victim any more is finished; the next one is not.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        call()


def _is_inside(comm: cocoll.Communicator, rank: int) -> bool:
    page = comm._inspect(rank)
    assert page is not None
    return page["operations"][-1]["state"] == "running" and page["waiting"] is not None


def _strike_inside(comm: cocoll.Communicator, fault: str) -> None:
    wait_until(lambda: _is_inside(comm, VICTIM))
    strike(fault)


def _has_struck(comm: cocoll.Communicator, fault: str, pid: int) -> bool:
    if fault == "SIGSTOP":
        return state_of(pid) == "T"
    if fault == "SIGKILL":
        return state_of(pid) == "Z"
    return comm._abort_word() is not None


def _disagree(comm: cocoll.Communicator, call: Callable[..., None], moment: str) -> Any:
    """The victim asks for something else; all are told, and go on."""
    late = comm.rank == comm.world_size - 1
    works = []
    stream = cocoll.Stream()
    if moment == "after":
        call()
    if moment == "during":
        # Others are in an operation while what disagrees is issued behind it.
        if late:
            wait_until(lambda: _is_inside(comm, VICTIM))
        works.append(cocoll.allreduce(np.ones(70_001, np.float32), comm=comm, stream=stream))
    before = comm._next_sequence()
    x = np.full(12_345, comm.rank, np.float64)
    wrong: Callable[[], object] = call
    if comm.rank == VICTIM:
        wrong = lambda: cocoll.allreduce(x, "prod", comm=comm)  # noqa: E731
    try:
        wrong()
    except CollectiveMismatchError as error:
        found = {"kind": "CollectiveMismatchError", "message": str(error),
                 "requests": sorted(error.requests), "sequence": error.sequence}  # fmt: skip
    else:
        found = {"kind": None, "message": "", "requests": [], "sequence": before}
    for work in works:
        work.wait()
    stream.close()
    found["unchanged"] = bool((x == comm.rank).all())
    call()
    return found


def _fork(comm: cocoll.Communicator, call: Callable[..., None], moment: str) -> Any:
    """The victim forks, and its child uses what it has inherited; the ranks go on."""
    late = comm.rank == comm.world_size - 1
    stream = cocoll.Stream()
    works = []
    if moment == "after":
        call()
    x = np.ones(70_001, np.float32)
    if moment == "during":
        if late:
            # The child has been and gone while the operation was under way.
            wait_until(lambda: Path(os.environ["TMPDIR"], "forked").exists())
        works.append(cocoll.allreduce(x, comm=comm, stream=stream))
    told = ""
    if comm.rank == VICTIM:
        if moment == "during":
            wait_until(lambda: _is_inside(comm, VICTIM))

        def child() -> str:
            try:
                call()
            except ForkedProcessError:
                return "ForkedProcessError"
            except CocollError as error:
                return f"{error!r}"
            return "nothing"

        told = run_in_a_child(child)
        if moment == "during":
            Path(os.environ["TMPDIR"], "forked").touch()
    for work in works:
        work.wait()
    stream.close()
    right = not works or bool((x == comm.world_size).all())
    for _ in range(3):
        call()
    return {"kind": told, "right": right}
