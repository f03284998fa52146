"""The step over NCCL: every way of it, on one GPU."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import cocoll
from benchmarks.gpu.setting import Setting, bits_of, fill, make, put
from cocoll import epilogues
from cocoll.cuda.toolkit import open_nccl
from cocoll.errors import UnsupportedError

__all__ = ["check_nccl"]

# NCCL 2.30 lets ranks share a GPU, if it is told to; before it only one rank can be tried on one.
_FIRST_TO_SHARE = 23000


def check_nccl(setting: Setting) -> dict[str, Any]:
    """Send all that ranks exchange through NCCL, and compare with the host."""
    if setting.emulated:
        os.environ["COCOLL_EMULATED_NCCL_VERSION"] = str(_FIRST_TO_SHARE)
    try:
        version = open_nccl(setting.toolkit()).version
    except UnsupportedError as error:
        return {"absent": str(error)}
    ranks = 1
    if version >= _FIRST_TO_SHARE:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        ranks = 2

    def body(comm: cocoll.Communicator) -> list[str]:
        count = 100_003
        ways = []
        values = fill(comm.rank, count, "float32")
        for fused in (False, True):
            x, wanted = put(comm, values, "ordinary"), values.copy()
            if fused:
                cocoll.allreduce_fused(wanted, epilogues.relu())
                run = comm.bind(cocoll.allreduce_fused, x, epilogues.relu())
            else:
                cocoll.allreduce(wanted, "max")
                run = comm.bind(cocoll.allreduce, x, "max")
            run().wait()
            ways.append(run.algorithm)
            _compare(run.algorithm, x.get(), wanted)
        x, wanted = put(comm, values, "ordinary"), values.copy()
        native = comm.bind(cocoll.allreduce, x)
        native().wait()
        cocoll.allreduce(wanted)
        ways.append(native.algorithm)
        if not np.allclose(x.get(), wanted, rtol=1e-6, atol=1e-6):
            raise AssertionError("NCCL's own all-reduce is wrong")
        x = put(comm, values, "ordinary")
        cocoll.broadcast(x, 0).wait()
        _compare("broadcast", x.get(), fill(0, count, "float32"))
        whole = make(comm, (count * comm.world_size,), "float32", "ordinary")
        cocoll.allgather(x, out=whole).wait()
        _compare("allgather", whole.get(), np.tile(fill(0, count, "float32"), comm.world_size))
        _check_resharding(comm)
        return ways

    ways = setting.run(ranks, body, gpu_map_peers=0, gpu_native_bytes=1)[0]
    return {"version": version, "ranks": ranks, "ways": ways}


def _check_resharding(comm: cocoll.Communicator) -> None:
    """Turn rows into columns: boxes that do not lie side by side are packed and unpacked."""
    shape, mesh = (1024, 768), cocoll.Mesh.arange((comm.world_size,))
    move = cocoll.TensorMove(shape, (mesh, "S0,R"), (mesh, "R,S0"), "float32")
    whole = fill(0, shape[0] * shape[1], "float32").reshape(shape)
    rows, columns = (length // comm.world_size for length in shape)
    mine = whole[comm.rank * rows : (comm.rank + 1) * rows]
    planned = cocoll.plan_reshard(move, device="cuda", comm=comm)
    found = planned(put(comm, np.ascontiguousarray(mine), "ordinary")).result().get()
    _compare("a resharding", found, whole[:, comm.rank * columns : (comm.rank + 1) * columns])


def _compare(what: str, found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    if bits_of(found) != bits_of(wanted):
        raise AssertionError(f"{what} over NCCL differs from the host")
