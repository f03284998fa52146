"""How failures are worded, from what the ranks' control pages say."""

from __future__ import annotations

from typing import Any

import pytest

from cocoll.errors import (
    AbortedError,
    CocollError,
    CollectiveMismatchError,
    CommTimeoutError,
    InternalError,
    PeerLostError,
    UsageError,
)
from cocoll.failure import (
    AbortReason,
    Kind,
    Option,
    Purpose,
    describe_operation,
    describe_waits,
    make_failure,
)
from cocoll.plan.ir import Flag

MISMATCH, TIMEOUT, PEER_LOST, ABORTED, NOT_PREPARED = 2, 3, 4, 5, 6
FLOAT32, INT64 = 2, 5


def record(
    kind: int,
    op: int = 0,
    dtype: int = FLOAT32,
    options: int = 0,
    root: int = -1,
    count: int = 10,
    epilogue: int = 0,
) -> tuple[int, ...]:
    return (kind, op, dtype, options, root, count, epilogue, 0)


OPERATIONS = {
    "allreduce(count=10, dtype=float32, op=sum)": record(Kind.ALLREDUCE),
    "allreduce(count=0, dtype=int64, op=avg)": record(Kind.ALLREDUCE, 4, INT64, count=0),
    "broadcast(count=10, dtype=float32, root=3)": record(Kind.BROADCAST, root=3),
    "allgather(count=10, dtype=float32)": record(Kind.ALLGATHER),
    "reduce_scatter(count=10, dtype=float32, op=max, shard)": record(
        Kind.REDUCE_SCATTER, 3, options=Option.SHARD
    ),
    "allreduce_fused(count=10, dtype=float32, op=sum, epilogue=00000000000000ab, replicated, "
    "zero_grad)": record(
        Kind.ALLREDUCE_FUSED, options=Option.REPLICATED | Option.ZERO_GRAD, epilogue=0xAB
    ),
    "barrier()": record(Kind.BARRIER),
    "custom(count=10, dtype=float32, epilogue=0000000000000001)": record(Kind.CUSTOM, epilogue=1),
    "comm.empty (10 bytes)": record(Kind.EXCHANGE, root=Purpose.EMPTY),
    "comm.duplicate (10 bytes)": record(Kind.EXCHANGE, root=Purpose.DUPLICATE),
    "comm.split (10 bytes)": record(Kind.EXCHANGE, root=Purpose.SPLIT),
    "the preparation of an epilogue (10 bytes)": record(Kind.EXCHANGE, root=Purpose.PREPARE),
}


@pytest.mark.parametrize("text", sorted(OPERATIONS))
def test_operations(text: str) -> None:
    assert describe_operation(OPERATIONS[text]) == text


def test_every_kind_and_purpose_has_words() -> None:
    for kind in Kind:
        for purpose in Purpose:
            assert describe_operation(record(kind, root=purpose))
    assert "no longer on record" in describe_operation(None)


def page(rank: int, **facts: Any) -> dict[str, Any]:
    return {
        "rank": rank, "world_size": 3, "pid": 100 + rank, "left": False, "waiting": None,
        "operations": [], **facts,
    }  # fmt: skip


def operation(state: str, sequence: int = 7) -> dict[str, Any]:
    return {"sequence": sequence, "state": state, "flight": record(Kind.BARRIER)}


WAITS = {
    "rank 1 (pid 101) has called nothing yet": {},
    "rank 1 (pid 101) has left": {"left": True, "operations": [operation("done")]},
    "rank 1 (pid 101) is in barrier(), operation 7": {"operations": [operation("running")]},
    "rank 1 (pid 101) is in barrier(), operation 7, waiting for rank 2 to arrive; the last that it "
    "finished was barrier(), operation 6": {
        "operations": [operation("done", 6), operation("running")],
        "waiting": (2, -1, 7),
    },
    f"rank 1 (pid 101) gave up barrier(), operation 7, waiting for rank 0 to signal "
    f"({next(iter(Flag)).name.lower()})": {
        "operations": [operation("failed")],
        "waiting": (0, int(next(iter(Flag))), 7),
    },
    "rank 1 (pid 101) is in barrier(), operation 7, waiting for rank 0 to signal (flag 7)": {
        "operations": [operation("running")],
        "waiting": (0, 7, 7),
    },
    "rank 1 (pid 101) is outside cocoll; its last was barrier(), operation 7": {
        "operations": [operation("done")],
    },
}  # fmt: skip


@pytest.mark.parametrize("text", sorted(WAITS))
def test_waits(text: str) -> None:
    assert describe_waits([page(0), page(1, **WAITS[text])]).splitlines()[:2] == [
        "  rank 0 (pid 100) has called nothing yet",
        f"  {text}",
    ]


class FakeCommunicator:
    """What wording needs of a communicator."""

    rank = 1
    world_size = 3
    timeout_seconds = 2.5

    def __init__(self, records: dict[int, tuple[int, ...]], word: Any = None) -> None:
        self.records = records
        self.word = word
        self.detail = ""
        self.left = False

    def _flight(self, rank: int, sequence: int) -> tuple[int, ...] | None:
        assert sequence == 4
        return self.records.get(rank)

    def _abort_word(self) -> Any:
        return self.word

    def _wire_detail(self) -> str:
        return self.detail

    def _inspect(self, rank: int) -> dict[str, Any]:
        return page(rank)

    def _leave(self) -> None:
        self.left = True


ALL = {rank: record(Kind.ALLREDUCE) for rank in range(3)}


def fail(status: int, culprit: int = 2, word: Any = None, records: Any = None) -> Any:
    comm = FakeCommunicator(ALL if records is None else records, word)
    error = make_failure(comm, status, 4, culprit)
    assert isinstance(error, CocollError)
    return error, comm


@pytest.fixture(autouse=True)
def _processes_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # The pages' process IDs are made up.
    monkeypatch.setattr("cocoll.failure.observe_process", lambda _pid: "")


def test_a_timeout() -> None:
    error, comm = fail(TIMEOUT)
    assert type(error) is CommTimeoutError
    assert error.ranks == (2,)
    assert comm.left
    assert str(error).startswith(
        "rank 1 gave up allreduce(count=10, dtype=float32, op=sum), operation 4: rank 2 did not "
        "come within 2.5 s"
    )
    assert "rank 0 (pid 100) has called nothing yet" in str(error)


def test_a_lost_peer() -> None:
    error, comm = fail(PEER_LOST)
    assert type(error) is PeerLostError
    assert (error.rank, comm.left) == (2, True)
    assert "rank 2 has died or left" in str(error)


@pytest.mark.parametrize(
    ("reason", "kind", "words"),
    [
        (AbortReason.EXCEPTION, AbortedError, "rank 0 left with an exception"),
        (AbortReason.INTERRUPT, AbortedError, "rank 0 was interrupted"),
        (AbortReason.REQUESTED, AbortedError, "rank 0 called abort()"),
        (AbortReason.LAUNCHER_LOST, AbortedError, "rank 0 has lost the launcher"),
        (AbortReason.TIMEOUT, CommTimeoutError, "rank 0 did not come within 2.5 s"),
        (AbortReason.PEER_LOST, PeerLostError, "rank 0 has died or left"),
    ],
)
def test_what_another_rank_found(reason: int, kind: type, words: str) -> None:
    # Who is to blame stands in the word that was left, not in what this rank waited for.
    error, comm = fail(ABORTED, culprit=2, word=(0, 3, int(reason)))
    assert type(error) is kind
    assert words in str(error)
    assert comm.left
    assert error.fields in ({"rank": 0}, {"ranks": (0,)})


def test_every_reason_is_worded() -> None:
    for reason in AbortReason:
        error, _ = fail(ABORTED, word=(0, 3, int(reason)))
        assert "rank 1 gave up" in str(error)


def test_a_call_that_had_not_begun() -> None:
    error, _ = fail(ABORTED, word=(0, 3, int(AbortReason.REQUESTED)), records={})
    assert "rank 1 gave up its next call, operation 4" in str(error)


def test_a_disagreement() -> None:
    records = {**ALL, 2: record(Kind.BARRIER)}
    error, comm = fail(MISMATCH, records=records)
    assert type(error) is CollectiveMismatchError
    assert not comm.left
    assert error.sequence == 4
    assert error.requests == {rank: describe_operation(records[rank]) for rank in range(3)}
    assert all(f"rank {rank}: {text}" in str(error) for rank, text in error.requests.items())
    assert "scalars" not in str(error)


def test_a_disagreement_that_records_do_not_show() -> None:
    error, _ = fail(MISMATCH)
    assert "They differ in an epilogue or in its scalars" in str(error)


def test_a_disagreement_that_is_no_longer_on_record() -> None:
    error, _ = fail(MISMATCH, records={0: ALL[0], 1: ALL[1]})
    assert "no longer on record" in error.requests[2]


def test_a_plan_that_serves_nobody() -> None:
    error, comm = fail(NOT_PREPARED)
    assert type(error) is InternalError
    error, comm = fail(NOT_PREPARED, records={1: record(Kind.CUSTOM)})
    assert type(error) is UsageError
    assert "rank 1" in str(error)
    assert not comm.left


def test_what_the_wire_said_is_passed_on() -> None:
    comm = FakeCommunicator(ALL)
    comm.detail = "MPI says: the network is down"
    error = make_failure(comm, PEER_LOST, 4, 2)
    assert isinstance(error, PeerLostError)
    assert "the network is down" in str(error)
    assert error.rank == 2
