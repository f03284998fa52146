"""Epilogues that must be compiled where no compiler may be used: all ranks are told."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

import cocoll
from cocoll import epilogues
from cocoll.errors import CompileError, CompilerNotFoundError, KernelError
from cocoll.testing import run_ranks
from tests.helpers.misuse import check_usable, refuse, refuse_on_ranks

N = 40
numbers = itertools.count()


def make_epilogue() -> epilogues.Epilogue:
    """Give an epilogue that no catalogue and no cache has."""
    number = float(next(numbers)) + 0.03125

    @epilogues.epilogue
    def unheard_of(x, *, weight=1.0):
        return x * weight + number

    return unheard_of


def use(comm, epilogue):
    x = np.ones(N, np.float32)
    return lambda: cocoll.allreduce_fused(x, epilogue, comm=comm), [x]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_compiling_is_forbidden(world_size: int, tmp_path: Path) -> None:
    epilogue = make_epilogue()
    refuse_on_ranks(
        lambda comm: use(comm, epilogue),
        CompilerNotFoundError,
        "COCOLL_NO_COMPILE",
        "not in the catalogue",
        world_size=world_size,
        no_compile=True,
        cache_dir=tmp_path,
    )


def test_compiling_is_forbidden_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCOLL_NO_COMPILE", "1")
    epilogue = make_epilogue()
    refuse_on_ranks(
        lambda comm: use(comm, epilogue),
        CompilerNotFoundError,
        "COCOLL_NO_COMPILE",
        cache_dir=tmp_path,
    )


def test_there_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    epilogue = make_epilogue()
    refuse_on_ranks(
        lambda comm: use(comm, epilogue),
        CompilerNotFoundError,
        "no C++ compiler",
        "g++",
        "install",
        "CXX",
        cache_dir=tmp_path,
    )


def test_the_named_compiler_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    epilogue = make_epilogue()
    refuse_on_ranks(
        lambda comm: use(comm, epilogue),
        CompilerNotFoundError,
        "no-such-compiler",
        cache_dir=tmp_path,
    )


def test_the_catalogue_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)

    def body(comm):
        x = np.full(N, -1.0, np.float32)
        cocoll.allreduce_fused(x, epilogues.relu(), comm=comm)
        assert x.tolist() == [0.0] * N

    run_ranks(2, body, cache_dir=tmp_path, no_compile=True)


@pytest.mark.parametrize(("without", "bound"), [(0, False), (1, True), (2, False)])
def test_one_rank_has_none(without: int, bound: bool, tmp_path: Path) -> None:
    epilogue = make_epilogue()

    def body(comm):
        # A communicator's own settings are its rank's; one on this rank alone forbids compiling.
        forbids = comm.rank == without
        forbidding = cocoll.Communicator(
            SplitBootstrap(comm), cache_dir=tmp_path / str(forbids), no_compile=forbids
        )
        x = np.ones(N, np.float32)
        if bound:
            call = lambda: forbidding.bind(cocoll.allreduce_fused, x, epilogue)  # noqa: E731
        else:
            call = lambda: cocoll.allreduce_fused(x, epilogue, comm=forbidding)  # noqa: E731
        for _ in range(2):
            parts = ["COCOLL_NO_COMPILE"]
            if comm.rank != without:
                parts.append(f"rank {without} could not prepare the epilogue")
            refuse(call, CompilerNotFoundError, *parts, arrays=[x])
            check_usable(forbidding)
        cocoll.allreduce_fused(x, epilogues.relu(), comm=forbidding)
        assert x.tolist() == [3.0] * N

    run_ranks(3, body)


class SplitBootstrap:
    """Meets through a communicator, with settings that each rank chooses for itself."""

    def __init__(self, comm: cocoll.Communicator) -> None:
        self._comm = comm
        self.rank, self.world_size = comm.rank, comm.world_size

    def allgather(self, data: bytes) -> list[bytes]:
        length = np.array([len(data)], np.int64)
        lengths = cocoll.allgather(length, comm=self._comm).result()
        padded = np.zeros(int(lengths.max()) + 1, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        everything = cocoll.allgather(padded, comm=self._comm).result().reshape(len(lengths), -1)
        return [bytes(row[:count]) for row, count in zip(everything, lengths, strict=True)]

    def barrier(self) -> None:
        self._comm.barrier()


def test_a_compiler_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "refuser"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exec echo one\necho no way >&2\nexit 3\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    epilogue = make_epilogue()
    errors = refuse_on_ranks(
        lambda comm: use(comm, epilogue),
        CompileError,
        "exited with 3",
        "no way",
        cache_dir=tmp_path,
    )
    for error in errors:
        assert "no way" in error.log
        assert error.options
        assert error.source_path


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    assert shutil.which("c++") or shutil.which("g++")
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    epilogue = make_epilogue()
    refuse_on_ranks(
        lambda comm: use(comm, epilogue),
        KernelError,
        "COCOLL_CACHE_DIR",
        str(blocked),
        cache_dir=blocked / "below",
    )
