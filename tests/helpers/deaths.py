"""What rank processes do in tests of failures; no pytest here, for every rank imports it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import cocoll
from cocoll import bootstrap, epilogues
from cocoll.errors import CocollError

#: More than a rank that has nothing to wait for can need, however busy the machine.
PATIENCE_SECONDS = 60.0


# ---- operations, by name ----


class Operations:
    """The calls of one rank, with arrays that live as long as the rank."""

    def __init__(self, comm: cocoll.Communicator) -> None:
        self.comm = comm
        self.tiny = np.ones(5, np.float32)
        self.small = np.ones(1000, np.float32)
        self.large = np.ones(300_001, np.float32)
        self.symmetric = comm.empty(300_001)
        self.symmetric[:] = 1.0
        self.param = np.ones(40_000, np.float32)
        self.stream = cocoll.Stream()
        self.bound = comm.bind(cocoll.allreduce, self.large, "max")

    def __call__(self, name: str) -> None:
        """Make one call, and wait for it."""
        getattr(self, f"call_{name}")()

    def call_tiny(self) -> None:
        cocoll.allreduce(self.tiny, "max", comm=self.comm)

    def call_small(self) -> None:
        cocoll.allreduce(self.small, "max", comm=self.comm)

    def call_large(self) -> None:
        cocoll.allreduce(self.large, "max", comm=self.comm)

    def call_symmetric(self) -> None:
        cocoll.allreduce(self.symmetric, "max", comm=self.comm)

    def call_bound(self) -> None:
        self.bound()

    def call_allgather(self) -> None:
        cocoll.allgather(self.small, comm=self.comm).wait()

    def call_reduce_scatter(self) -> None:
        cocoll.reduce_scatter(self.large[:300_000], comm=self.comm).wait()

    def call_broadcast(self) -> None:
        cocoll.broadcast(self.large, 1, comm=self.comm)

    def call_barrier(self) -> None:
        self.comm.barrier()

    def call_empty(self) -> None:
        self.comm.empty(100)

    def call_duplicate(self) -> None:
        self.comm.duplicate().close()

    def call_stream(self) -> None:
        cocoll.allreduce(self.large, "max", comm=self.comm, stream=self.stream).wait()

    def call_stream_barrier(self) -> None:
        cocoll.barrier(comm=self.comm, stream=self.stream).wait()

    def call_fused(self) -> None:
        x = np.zeros(40_000, np.float32)
        cocoll.allreduce_fused(x, epilogues.sgd(lr=0.0), param=self.param, comm=self.comm)

    def call_messages(self) -> None:
        # Every rank waits for the two beside it.
        following = (self.comm.rank + 1) % self.comm.world_size
        before = (self.comm.rank - 1) % self.comm.world_size
        with cocoll.group(self.comm):
            cocoll.send(self.large, following)
            cocoll.recv(self.symmetric, before)


# ---- ends, by name ----


def end(name: str) -> None:
    """End this process, or its part in the job, in one of many ways."""
    if name == "os._exit":
        os._exit(3)
    elif name == "sys.exit":
        sys.exit(4)
    elif name == "exception":
        raise ArithmeticError("a rank's own mistake")
    elif name in ("SIGKILL", "SIGTERM", "SIGSTOP", "SIGABRT"):
        os.kill(os.getpid(), getattr(signal, name))
        while name != "SIGSTOP":
            time.sleep(1)
    elif name != "return":
        raise ValueError(name)


# ---- what ranks tell of themselves ----


def report(call: Callable[[], object]) -> dict[str, Any]:
    """Make a call that must fail; give what it raised, and when."""
    started = time.monotonic()
    try:
        call()
    except BaseException as error:
        seconds = time.monotonic() - started
        fields = error.fields if isinstance(error, CocollError) else {}
        return {
            "kind": type(error).__name__,
            "message": str(error),
            "fields": {name: fields[name] for name in ("rank", "ranks") if name in fields},
            "seconds": seconds,
        }
    return {"kind": None, "message": "", "fields": {}, "seconds": time.monotonic() - started}


def lose_a_rank(comm: cocoll.Communicator, operation: str, how: str, victim: int, at: int) -> Any:
    """Loop over an operation; the victim ends before its call number `at`, the others go on."""
    operations = Operations(comm)
    for _ in range(at):
        operations(operation)
    if comm.rank == victim:
        end(how)
        return None
    found = report(lambda: operations(operation))
    found["closed"] = comm.closed
    found["next"] = report(comm.barrier)["kind"]
    return found


def lose_a_rank_in_the_middle(
    comm: cocoll.Communicator, operation: str, how: str, victim: int, after_seconds: float
) -> Any:
    """As `lose_a_rank`, but a thread of the victim ends it wherever it is."""
    operations = Operations(comm)
    comm.barrier()
    if comm.rank == victim:
        threading.Timer(after_seconds, end, [how]).start()
    calls = 0

    def loop() -> None:
        nonlocal calls
        stop = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < stop:
            operations(operation)
            calls += 1

    found = report(loop)
    found["closed"] = comm.closed
    found["calls"] = calls
    return found


def keep_away(comm: cocoll.Communicator, operation: str, how: str, victim: int, at: int = 5) -> Any:
    """The victim is alive and does not come; once the others have given up it makes its call."""
    operations = Operations(comm)
    pids = cocoll.allgather(np.array([os.getpid()]), comm=comm).result()
    for _ in range(at):
        operations(operation)
    sequence = comm._next_sequence()
    if comm.rank == victim:
        mine = operations.large.copy()
        if how == "SIGSTOP":
            end(how)
        else:
            stop = time.monotonic() + PATIENCE_SECONDS
            while comm._abort_word() is None and time.monotonic() < stop:
                sum(range(1000))
        found = report(lambda: operations(operation))
        found["unchanged"] = mine.tobytes() == operations.large.tobytes()
    else:
        found = report(lambda: operations(operation))
        if how == "SIGSTOP" and comm.rank == (victim + 1) % comm.world_size:
            os.kill(int(pids[victim]), signal.SIGCONT)
        before = operations.symmetric.tobytes(), operations.large.tobytes()
        operations.symmetric[:] = comm.rank
        # The woken rank makes its call meanwhile; nothing of it may arrive here.
        time.sleep(0.5)
        found["undisturbed"] = bool((operations.symmetric == comm.rank).all()) and (
            operations.large.tobytes() == before[1]
        )
    found["sequence"] = sequence
    found["closed"] = comm.closed
    return found


def come_late(comm: cocoll.Communicator, operation: str, seconds: float) -> Any:
    """Rank 1 comes late, within the timeout; give what CPU time the others spend on waiting."""
    operations = Operations(comm)
    operations(operation)
    if comm.rank == 1:
        time.sleep(seconds)
    before = time.process_time()
    operations(operation)
    return time.process_time() - before


def interrupt(comm: cocoll.Communicator, operation: str, victim: int) -> Any:
    """The victim gets SIGINT while it waits for rank 1, which comes when all is over."""
    operations = Operations(comm)
    operations("barrier")
    if comm.rank == 1:
        stop = time.monotonic() + PATIENCE_SECONDS
        while comm._abort_word() is None and time.monotonic() < stop:
            time.sleep(0.01)
        return report(lambda: operations(operation))
    sent = []

    def send() -> None:
        while comm._inspect(comm.rank)["waiting"] is None:
            time.sleep(0.001)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    if comm.rank == victim:
        # What a shell runs in the background starts with the signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=send).start()
    found = report(lambda: operations(operation))
    if comm.rank == victim:
        found["after_seconds"] = time.monotonic() - sent[0]
        if found["kind"] == "KeyboardInterrupt" and not comm.closed:
            # As where it leaves the script.
            comm.abort()
    found["closed"] = comm.closed
    return found


def stop_a_waiting_rank(comm: cocoll.Communicator, stopped_seconds: float) -> None:
    """Rank 1 stops rank 0, which waits for it, for a time; then it comes."""
    pids = cocoll.allgather(np.array([os.getpid()]), comm=comm).result()
    if comm.rank == 1:
        while comm._inspect(0)["waiting"] is None:
            time.sleep(0.001)
        os.kill(int(pids[0]), signal.SIGSTOP)
        time.sleep(stopped_seconds)
        os.kill(int(pids[0]), signal.SIGCONT)
        time.sleep(0.5)
    comm.barrier()


# ---- children made by fork ----


def use_in_a_child(comm: cocoll.Communicator) -> list[str]:
    """Give what a child of rank 0 gets when it uses what it has inherited."""
    operations = Operations(comm)
    comm.barrier()
    works = []
    if comm.rank == 0:
        # Something is under way while it forks: rank 1 comes later.
        works = [cocoll.barrier(comm=comm, stream=operations.stream) for _ in range(3)]
    found: list[str] = []
    if comm.rank == 0:
        calls: dict[str, Callable[[], object]] = {
            "tiny": operations.call_tiny,
            "bound": operations.call_bound,
            "stream": operations.call_stream,
            "barrier": operations.call_barrier,
            "empty": operations.call_empty,
            "duplicate": operations.call_duplicate,
            "wait": works[-1].wait,
            "synchronize": operations.stream.synchronize,
            "inherited stream": lambda: cocoll.barrier(
                comm=cocoll.Communicator(bootstrap.SelfBootstrap()),
                stream=operations.stream,
            ),
        }

        def child() -> str:
            told = [f"{name}: {report(call)['kind']}" for name, call in calls.items()]
            # A child's own communicator works.
            with cocoll.Communicator(bootstrap.SelfBootstrap()) as own:
                x = np.arange(5, dtype=np.float32)
                with cocoll.Stream() as stream:
                    cocoll.allreduce(x, comm=own, stream=stream).wait()
                told.append(f"own: {x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]}")
            comm.close()
            comm.abort()
            told.append(f"closed: {comm.closed}")
            return "\n".join(told)

        found = run_in_a_child(child).split("\n")
    else:
        works = [cocoll.barrier(comm=comm, stream=operations.stream) for _ in range(3)]
    for work in works:
        work.wait()
    for _ in range(3):
        operations("large")
        operations("stream")
        operations("empty")
    return found


def run_in_a_child(body: Callable[[], str]) -> str:
    """Fork, and give what `body` says in the child, which ends by os._exit."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = ""
        try:
            os.close(reader)
            text = body()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    return text if status == 0 else f"{text}\nstatus {status}"


def leave_in_a_child(comm: cocoll.Communicator) -> list[int]:
    """Fork children that run every destructor they inherit; the parent's ranks must not notice."""
    statuses = []
    if comm.rank == 0:
        statuses = [_fork_and_leave(comm, number) for number in range(3)]
    operations = Operations(comm)
    for _ in range(20):
        operations("large")
        operations("stream")
    return statuses


def _fork_and_leave(comm: cocoll.Communicator, number: int) -> int:
    stream = cocoll.Stream()
    x = np.ones(70_001, np.float32)
    alone = cocoll.Communicator(bootstrap.SelfBootstrap())
    works = [cocoll.allreduce(x, comm=alone, stream=stream) for _ in range(20)]
    bound = alone.bind(cocoll.allreduce, x)
    array, shard = alone.empty(1 << 20), alone.shard_zeros(1 << 20)
    cycle: list[object] = [stream, works, bound, array, shard, alone, comm]
    cycle.append(cycle)
    pid = os.fork()
    if pid == 0:
        # A hang ends it with a status of its own.
        signal.alarm(int(PATIENCE_SECONDS))
        try:
            if number == 0:
                with comm:
                    raise KeyError("in a child")
            elif number == 1:
                comm.close()
            del stream, works, bound, array, shard, alone, cycle
            gc.collect()
        except KeyError:
            os._exit(0)
        os._exit(0 if number != 0 else 9)
    for work in works:
        work.wait()
    _, status = os.waitpid(pid, 0)
    return status


def _square(number: int) -> int:
    return number * number


def load_with_workers(comm: cocoll.Communicator) -> list[int]:
    """As a data loader does: a pool of forked workers that come and go between the calls."""
    operations = Operations(comm)
    context = multiprocessing.get_context("fork")
    totals = []
    for _ in range(3):
        operations("stream")
        with context.Pool(2) as pool:
            totals.append(sum(pool.map(_square, range(10))))
            operations("large")
            pool.close()
            pool.join()
        operations("empty")
    return totals
