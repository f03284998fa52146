"""NCCL between the ranks of a communicator: opened by all together, when it is first needed."""

from __future__ import annotations

import json
import os
import weakref
from typing import TYPE_CHECKING

from cocoll.cuda.toolkit import open_nccl
from cocoll.device.agreement import agree
from cocoll.errors import CudaError, NcclError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.cuda.binding import NcclLibrary
    from cocoll.cuda.toolkit import Toolkit
    from cocoll.device.side import DeviceSide

__all__ = ["offers_native", "open_wire"]

# NCCL 2.30 knows NCCL_MULTI_RANK_GPU_ENABLE; before it refuses two ranks on one GPU.
_FIRST_TO_SHARE = 23000
_SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
# From Hopper on switches add for all of its GPUs (NVLS): then an all-reduce of NCCL's moves half of
# what one of ours does. Between fewer ranks there is less to gain than its launch costs.
_FIRST_WITH_SWITCHES = 90
_LEAST_RANKS = 4


def open_wire(comm: Communicator, side: DeviceSide, toolkit: Toolkit) -> None:
    """Let the ranks of a communicator reach each other over NCCL. Collective.

    Parameters
    ----------
    comm, side : Communicator, DeviceSide
        Whose.
    toolkit : Toolkit
        Which NCCL.

    Raises
    ------
    UnsupportedError
        A rank has no NCCL or one that is too old, their versions differ, or two ranks have one GPU;
        raised on all ranks, before NCCL has been asked for anything.
    """
    if side.endpoint.has_wire:
        return
    nccl: NcclLibrary | None = None
    problem, facts = "", {}
    try:
        nccl = open_nccl(toolkit)
        # Only rank 0's is used.
        unique_id = nccl.make_unique_id().hex() if comm.rank == 0 else ""
        facts = {"version": nccl.version, "id": unique_id}
        problem = _refuse_sharing(side, nccl.version)
    except (UnsupportedError, NcclError) as error:
        problem = str(error)
    if problem and side.wire_reason:
        problem = f"{problem}. NCCL is needed because {side.wire_reason}"
    everyone = [json.loads(data) for data in agree(comm, json.dumps(facts).encode(), problem)]
    if nccl is None:
        raise UsageError(problem)
    versions = {theirs["version"] for theirs in everyone}
    if len(versions) > 1:
        raise UnsupportedError(
            f"all ranks must have one version of NCCL; got {sorted(versions)}. Install the same "
            f"packages for all"
        )
    try:
        side.endpoint.open_wire(nccl, bytes.fromhex(everyone[0]["id"]), comm._abort_address())
    except (CudaError, NcclError) as error:
        problem = str(error)
    # The word that tells of peers that have given up goes with the communicator.
    weakref.finalize(comm, side.endpoint.forget_abort_word).atexit = False
    try:
        agree(comm, b"", problem)
    except UnsupportedError:
        side.endpoint.drop_wire()
        raise


def offers_native(
    comm: Communicator, side: DeviceSide, toolkit: Toolkit, targets: list[str]
) -> bool:
    """Say whether NCCL may have a better all-reduce than kernels over mapped memory. Collective.

    Parameters
    ----------
    comm, side : Communicator, DeviceSide
        Whose.
    toolkit : Toolkit
        Which NCCL.
    targets : list of str
        The ranks' GPUs, such as ``"sm_90"``.

    Returns
    -------
    bool
        The same on all ranks: each has a new GPU of its own, and NCCL of one version.
    """
    if (
        comm.world_size < _LEAST_RANKS
        or comm.tuning.gpu_native_bytes == 0
        or len(set(side.buses)) < comm.world_size
        or any(int(target.partition("_")[2]) < _FIRST_WITH_SWITCHES for target in targets)
    ):
        return False
    try:
        version = open_nccl(toolkit).version
    except UnsupportedError:
        version = 0
    versions = set(agree(comm, str(version).encode(), ""))
    return len(versions) == 1 and versions != {b"0"}


def _refuse_sharing(side: DeviceSide, version: int) -> str:
    """Say which ranks have one GPU, which NCCL would refuse; nothing if none have."""
    if version >= _FIRST_TO_SHARE and os.environ.get(_SHARING) == "1":
        return ""
    for rank, gpu in enumerate(side.buses):
        other = side.buses.index(gpu)
        if other != rank:
            return (
                f"NCCL takes one rank a GPU; ranks {other} and {rank} have GPU {gpu[1]}. Give each "
                f"a GPU of its own, or use NCCL 2.30 or later with {_SHARING}=1"
            )
    return ""
