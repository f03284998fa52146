"""The end of a program: nothing waits for anyone, nothing complains, whatever is still alive."""

from __future__ import annotations

import pytest

from cocoll.testing import run_processes
from tests.helpers import lives_to_the_end
from tests.helpers.scripts import run_script

ALIVE = {
    "arrays in globals": """
        a, b = comm.empty(1 << 20), comm.empty(100, replicated=True)
        shard = comm.shard_zeros(1 << 20)
    """,
    "arrays in a cycle": """
        a = comm.empty(1 << 20)
        cycle = [a, comm, comm.empty(10, replicated=True), comm.shard_zeros(100)]
        cycle.append(cycle)
        del a
    """,
    "a stream": """
        stream = cocoll.Stream()
        cocoll.allreduce(np.ones(70_001, np.float32), stream=stream)
    """,
    "a stream in a cycle": """
        stream = cocoll.Stream()
        cycle = {"stream": stream, "work": cocoll.barrier(stream=stream)}
        cycle["self"] = cycle
        del stream
    """,
    "works that nobody waits for": """
        stream = cocoll.Stream()
        x = np.ones(1 << 20, np.float32)
        works = [cocoll.allreduce(x, stream=stream) for _ in range(100)]
    """,
    "works that are dropped": """
        stream = cocoll.Stream()
        for _ in range(100):
            cocoll.allreduce(np.ones(10_000, np.float32), stream=stream)
        del stream
    """,
    "a bound operation": """
        bound = comm.bind(cocoll.allreduce, np.ones(100, np.float32))
        bound()
    """,
    "a bound operation on a stream": """
        bound = comm.bind(cocoll.allreduce, np.ones(100, np.float32), stream=cocoll.Stream())
        work = bound()
    """,
    "many communicators": """
        others = [comm.duplicate() for _ in range(5)]
        others[0].close()
        parts = comm.split(0)
    """,
    "a closed communicator": """
        a = comm.empty(100)
        comm.close()
    """,
    "a block": """
        with comm.duplicate() as other, cocoll.Stream() as stream:
            work = cocoll.allreduce(np.ones(100, np.float32), comm=other, stream=stream)
    """,
    "everything in a module": """
        import sys, types
        module = types.ModuleType("holder")
        sys.modules["holder"] = module
        module.everything = [comm, comm.empty(100), cocoll.Stream(), comm.shard_zeros(3), module]
    """,
    "a work in a thread": """
        import threading
        stream = cocoll.Stream()
        work = cocoll.barrier(stream=stream)
        thread = threading.Thread(target=work.wait)
        thread.start()
    """,
    "a handler at exit": """
        import atexit
        stream = cocoll.Stream()
        x = np.ones(100, np.float32)
        atexit.register(lambda: cocoll.allreduce(x, comm=comm, stream=stream).wait())
    """,
}


@pytest.mark.parametrize("name", sorted(ALIVE))
def test_a_program_ends(name: str) -> None:
    head = "import cocoll\nimport numpy as np\ncomm = cocoll.init()\n"
    body = "\n".join(line[8:] for line in ALIVE[name].splitlines())
    ran = run_script(head + body + "\nprint('end')")
    assert (ran.code, ran.out, ran.err) == (0, "end\n", "")


def test_the_exit_code_is_kept() -> None:
    ran = run_script("import sys, cocoll; comm = cocoll.init(); sys.exit(7)")
    assert (ran.code, ran.err) == (7, "")


@pytest.mark.parametrize("order", ["same", "opposite", "one rank early"])
def test_ranks_end(order: str) -> None:
    outcomes = run_processes(
        3, lives_to_the_end.leave_everything, order, timeout_seconds=200.0, limit_seconds=250.0
    )
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert [outcome.exit_code for outcome in outcomes] == [0] * 3


def test_operations_on_streams_are_finished_at_exit() -> None:
    # What a rank has issued, its peers count on, even if it ends meanwhile.
    outcomes = run_processes(2, lives_to_the_end.end_before_the_peer_comes, timeout_seconds=200.0,
                             limit_seconds=250.0)  # fmt: skip
    assert [outcome.error for outcome in outcomes] == [None] * 2
    assert [outcome.exit_code for outcome in outcomes] == [0] * 2
    assert outcomes[1].value == 3.0


def test_dropping_a_communicator_is_leaving() -> None:
    outcomes = run_processes(2, lives_to_the_end.drop_the_communicator, timeout_seconds=200.0,
                             limit_seconds=250.0)  # fmt: skip
    assert [outcome.error for outcome in outcomes] == [None] * 2
    assert outcomes[0].value["kind"] == "PeerLostError"
    assert outcomes[0].value["fields"] == {"rank": 1}


def test_an_exception_at_the_end_of_a_script_is_told_to_the_others() -> None:
    outcomes = run_processes(2, lives_to_the_end.end_by_an_exception, timeout_seconds=200.0,
                             limit_seconds=250.0)  # fmt: skip
    assert outcomes[0].value["kind"] == "AbortedError"
    assert "rank 1 left with an exception" in outcomes[0].value["message"]
