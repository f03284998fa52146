"""Deaths under mpirun: the whole job ends, or with ULFM the others raise and go on."""

from __future__ import annotations

import re

import pytest

from tests.helpers.scripts import MPIRUN, run_script

LOSE_A_RANK = """
    import os, signal, sys, time
    import numpy as np
    import cocoll
    from cocoll.errors import CocollError

    how, operation, others = sys.argv[1:]
    # Far longer than the test lasts: nothing here ends by a timeout.
    comm = cocoll.init(timeout_seconds=600.0)
    x = np.ones(100_001, np.float32)
    stream = cocoll.Stream()
    call = {
        "allreduce": lambda: cocoll.allreduce(x, "max"),
        "empty": lambda: comm.empty(1000),
        "stream": lambda: cocoll.allreduce(x, "max", stream=stream).wait(),
    }[operation]

    def say(*words):
        # One write a line, so that the lines of several ranks do not mix.
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())

    for turn in range(20):
        call()
    if comm.rank == 1:
        say("death", time.monotonic())
        if how == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "os._exit":
            os._exit(3)
        if how == "exception":
            raise ArithmeticError("a rank's own mistake")
        sys.exit(4)
    try:
        while True:
            call()
    except CocollError as error:
        say("rank", comm.rank, type(error).__name__, error.fields, comm.closed)
        if others == "raise":
            raise
    if others == "go on":
        own = cocoll.Communicator(cocoll.bootstrap.SelfBootstrap())
        cocoll.allreduce(x, comm=own)
        say("rank", comm.rank, "goes on")
        # In MPI_Finalize Open MPI may wait for the dead rank for ever; that is not what is tested.
        os._exit(0)
    elif others == "never end":
        while True:
            time.sleep(0.1)
"""
EXIT_CODES = {"SIGKILL": 137, "os._exit": 3, "exception": 1, "sys.exit": 4}


@pytest.mark.parametrize(
    "how",
    [
        "SIGKILL",
        pytest.param("os._exit", marks=pytest.mark.long),
        "exception",
        pytest.param("sys.exit", marks=pytest.mark.long),
    ],
)
def test_mpirun_ends_the_job(how: str) -> None:
    # Where a rank dies, only the launcher can end the survivors, which never end by themselves.
    # Where it ends in order, it waits at its end, inside MPI, until they are there too.
    others = "never end" if how in ("SIGKILL", "os._exit") else "raise"
    ran = run_script(LOSE_A_RANK, how, "allreduce", others, launcher=(MPIRUN, "-n", "3"))
    if others == "never end":
        assert ran.code == EXIT_CODES[how], ran
        return
    # All end with an exit code of their own; mpirun gives one of them.
    assert ran.code in (1, EXIT_CODES[how]), ran
    assert ran.err.count("AbortedError" if how == "exception" else "PeerLostError") >= 2
    assert ("ArithmeticError: a rank's own mistake" in ran.err) == (how == "exception")


@pytest.mark.parametrize(
    ("how", "operation"),
    [
        ("SIGKILL", "allreduce"),
        pytest.param("SIGKILL", "empty", marks=pytest.mark.long),
        pytest.param("SIGKILL", "stream", marks=pytest.mark.long),
        pytest.param("exception", "allreduce", marks=pytest.mark.long),
    ],
)
def test_with_ulfm_the_others_go_on(how: str, operation: str) -> None:
    ran = run_script(LOSE_A_RANK, how, operation, "go on",
                     launcher=(MPIRUN, "--with-ft", "ulfm", "-n", "3"))  # fmt: skip
    kind = "PeerLostError" if how == "SIGKILL" else "AbortedError"
    for rank in (0, 2):
        assert f"rank {rank} {kind} {{'rank': 1}} True\n" in ran.out, ran
        assert f"rank {rank} goes on\n" in ran.out
    assert len(re.findall("death", ran.out)) == 1


def test_the_launcher_without_mpi4py() -> None:
    script = """
        import sys
        sys.modules["mpi4py"] = None
        import cocoll
        try:
            cocoll.init()
        except cocoll.errors.UnsupportedError as error:
            print(error)
    """
    ran = run_script(script, launcher=(MPIRUN, "-n", "2"))
    assert ran.code == 0, ran
    lines = ran.out.splitlines()
    assert len(lines) == 2
    assert all("cocoll[mpi]" in line and "OMPI_COMM_WORLD_SIZE" in line for line in lines)


def test_ctrl_c_ends_the_job() -> None:
    # mpirun passes SIGINT on as SIGTERM, and ends whoever is left.
    script = """
        import os, signal, threading
        import cocoll
        comm = cocoll.init(timeout_seconds=600.0)
        comm.barrier()
        if comm.rank == 0:
            os.kill(os.getppid(), signal.SIGINT)
        if comm.rank != 2:
            comm.barrier()
        threading.Event().wait()
    """
    ran = run_script(script, launcher=(MPIRUN, "-n", "3"))
    assert ran.code != 0, ran
