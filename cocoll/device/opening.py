"""The opening of every rank's GPU, by all ranks together."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from cocoll.algorithms.hierarchy import make_hierarchy
from cocoll.cuda.binding import MAX_BLOCKS, MAX_RANKS, Device, Endpoint
from cocoll.cuda.toolkit import Toolkit, open_library
from cocoll.device.agreement import agree, compare
from cocoll.device.array import describe_device_array
from cocoll.device.nccl import offers_native, open_wire
from cocoll.device.probing import probe_peers
from cocoll.device.side import DeviceSide
from cocoll.errors import CudaError, UnsupportedError, UsageError
from cocoll.kernels.grid_loader import GridLoader

if TYPE_CHECKING:
    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.communicator import Communicator

__all__ = ["open_device"]


def open_device(
    comm: Communicator, toolkit: Toolkit, ordinal: int | None, array: Any = None
) -> DeviceSide:
    """Open every rank's GPU. Collective.

    Parameters
    ----------
    comm : Communicator
        Whose.
    toolkit : Toolkit
        The libraries below.
    ordinal : int, optional
        This rank's GPU.
    array : object, optional
        An array whose GPU it is where `ordinal` does not say. Default: the rank's place on its host
        modulo their number.

    Returns
    -------
    DeviceSide
        With the memory of all ranks of the host mapped or, where a GPU cannot reach another one's,
        with NCCL; over several hosts with both.

    Raises
    ------
    UnsupportedError
        A rank has no GPU, or one that reaches another neither way; raised on all ranks.
    """
    if comm.world_size > MAX_RANKS:
        raise UnsupportedError(
            f"a communicator has at most {MAX_RANKS} ranks on GPUs; got {comm.world_size}"
        )
    device: Device | None = None
    facts: dict[str, Any] = {}
    problem = ""
    try:
        library = open_library(toolkit)
        if ordinal is None and array is not None:
            ordinal = library.device_of(describe_device_array(array, "x", -1).address)
        if ordinal is None or ordinal < 0:
            ordinal = _same_host(comm, comm.rank).index(comm.rank) % library.device_count()
        device = Device(library, ordinal)
        facts = {
            "bus": device.bus,
            "blocks": device.multiprocessors,
            "pid": os.getpid(),
            "target": device.target,
        }
    except (UnsupportedError, CudaError) as error:
        problem = str(error)
    everyone = [json.loads(data) for data in agree(comm, json.dumps(facts).encode(), problem)]
    if device is None:
        raise UsageError(problem)
    endpoint = _make_endpoint(comm, device, everyone)
    loader = GridLoader(
        comm.settings.cache_dir, comm.settings.no_compile, toolkit.find_compiler, device.target
    )
    reason = "Tuning.gpu_map_peers is 0"
    if comm.tuning.gpu_map_peers:
        reason = _map_peers(comm, endpoint, everyone) or probe_peers(
            comm, endpoint, loader, _same_host(comm, comm.rank)
        )
    hierarchy: Hierarchy | None = None
    buses = [(0, theirs["bus"]) for theirs in everyone]
    if comm.hosts is not None:
        buses = [(host, bus) for host, (_, bus) in zip(comm.hosts, buses, strict=True)]
    if reason:
        # Nobody may use the memory of a peer that was mapped before another one could not be.
        endpoint.detach()
    elif comm.hosts is not None:
        hierarchy = make_hierarchy(comm.topology)
        reason = f"the ranks are on {hierarchy.host_count} hosts"
    side = DeviceSide(comm, endpoint, loader, reason, buses, hierarchy)
    if reason:
        try:
            open_wire(comm, side, toolkit)
        except UnsupportedError:
            # All ranks have said so, and let go of each other's memory before.
            endpoint.close()
            raise
    elif offers_native(comm, side, toolkit, [theirs["target"] for theirs in everyone]):
        # At once, and not when it is first used: a call must not find out that others do not.
        with contextlib.suppress(UnsupportedError):
            open_wire(comm, side, toolkit)
            side.prefers_native = True
    return side


def _make_endpoint(comm: Communicator, device: Device, everyone: list[dict[str, Any]]) -> Endpoint:
    # All blocks of all ranks of a GPU must be resident at once: they wait for each other.
    sharing = [
        sum(theirs["bus"] == everyone[other]["bus"] for other in _same_host(comm, rank))
        for rank, theirs in enumerate(everyone)
    ]
    blocks = min(
        max(1, theirs["blocks"] // ranks) for theirs, ranks in zip(everyone, sharing, strict=True)
    )
    endpoint: Endpoint | None = None
    problem = ""
    try:
        endpoint = Endpoint(
            device,
            comm.rank,
            comm.world_size,
            blocks=min(blocks, comm.tuning.gpu_blocks, MAX_BLOCKS),
            staging_bytes=comm.tuning.gpu_one_shot_bytes,
            window_bytes=comm.tuning.gpu_window_bytes,
            low_latency_bytes=comm.tuning.gpu_ll_bytes,
            timeout_seconds=comm.settings.timeout_seconds,
        )
    except CudaError as error:
        problem = str(error)
    agree(comm, b"", problem)
    if endpoint is None:
        raise UsageError(problem)
    return endpoint


def _same_host(comm: Communicator, rank: int) -> list[int]:
    """Give the ranks of a rank's host, itself among them."""
    hosts = comm.hosts or (0,) * comm.world_size
    return [peer for peer in range(comm.world_size) if hosts[peer] == hosts[rank]]


def _map_peers(comm: Communicator, endpoint: Endpoint, everyone: list[dict[str, Any]]) -> str:
    """Map the memory of the host's ranks; gives why it cannot be done, the same on all ranks."""
    device = endpoint.device
    tickets = agree(comm, endpoint.ticket(), "")
    problem = ""
    for peer in _same_host(comm, comm.rank):
        if peer != comm.rank and not problem:
            try:
                problem = _reach(device, everyone[peer])
                if not problem:
                    endpoint.attach(peer, tickets[peer])
            except CudaError as error:
                problem = str(error)
            if problem:
                problem = f"the GPU of rank {comm.rank} cannot reach that of rank {peer}: {problem}"
    return compare(comm, b"", problem)[1]


def _reach(device: Device, peer: dict[str, Any]) -> str:
    """Let kernels use the memory of a peer's GPU; gives what is wrong."""
    for ordinal in range(device.library.device_count()):
        if Device(device.library, ordinal).bus == peer["bus"]:
            break
    else:
        # A GPU that this process does not see: opening its memory tells.
        return ""
    if not device.can_reach(ordinal):
        return "there is no peer access between them"
    if peer["pid"] == os.getpid():
        # Pointers of this process are used as they are; those of others are opened with access.
        device.reach(ordinal)
    return ""
