"""torch's DTensor as a peer of resharding: the side of the rank that has it beside itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import cocoll
from benchmarks.common.turns import Channel, Listener, Message, TurnError, exchange
from benchmarks.hosts.child import TorchChild, free_port
from benchmarks.hosts.setting import HostsSetting
from cocoll.resharding.spec_forms import to_placements

if TYPE_CHECKING:
    from cocoll.resharding import Layout

__all__ = ["DTensorPeer"]

_JOB = "dtensor"
_WORKER = Path(__file__).with_name("dtensor_worker.py")
# Twenty processes that import torch on two cores take most of a minute.
_START_SECONDS = 180.0
_TURN_SECONDS = 60.0


class DTensorPeer:
    """``DTensor.redistribute`` over Gloo, in one process beside each rank.

    Every call is collective. Each rank gives its own process turns, and sleeps in ``read()`` until
    it has an answer.

    Parameters
    ----------
    comm : cocoll.Communicator
        All ranks of the cluster.

    Attributes
    ----------
    problem : str
        Why there are no more turns; empty as long as all is well.
    version : str
        Of torch, and what it communicates by.
    """

    def __init__(self, comm: cocoll.Communicator) -> None:
        setting = HostsSetting.from_environment()
        self._comm = comm
        self._listener = Listener()
        self._child = TorchChild(_WORKER, self._listener.name, _JOB, setting, comm.rank)
        self._channel: Channel | None = None
        self.problem = ""
        self.version = ""
        address = setting.address(0)
        port = np.array([free_port(address) if comm.rank == 0 else 0], np.int64)
        cocoll.broadcast(port, 0, comm=comm)
        self._child.start({"address": address, "port": int(port[0])})
        try:
            accepted = self._listener.accept(_JOB, 1, _START_SECONDS, self._child.has_ended)
            self._channel = accepted[0][0]
        except TurnError as error:
            self._fail(error)
        if self._agree():
            reply = self._turn({"do": "open"}, _START_SECONDS)
            if reply is not None:
                self.version = f"torch {reply['versions']['torch']}, gloo"

    def prepare(self, source: Layout, target: Layout) -> None:
        """Make a tensor that is to go from one layout to another."""
        dims = [
            to_placements(layout.spec, layout.mesh, shard=int, replicate=lambda: None)
            for layout in (source, target)
        ]
        command = {"do": "prepare", "shape": list(source.shape)}
        self._turn({**command, "source": dims[0][0], "target": dims[1][0]}, _TURN_SECONDS)

    def run(self, *, check: bool) -> tuple[float, bool] | None:
        """Redistribute; gives the slowest rank's seconds, and whether all was right, if checked.

        Returns
        -------
        tuple of float and bool, or None
            None where it does not run any more.
        """
        reply = self._turn({"do": "check" if check else "sample"}, _TURN_SECONDS)
        if reply is None:
            return None
        found = np.array([reply["seconds"], float(not reply.get("is_right", True))])
        cocoll.allreduce(found, "max", comm=self._comm)
        return float(found[0]), not found[1]

    def release(self) -> None:
        """Drop the tensor."""
        self._turn({"do": "release"}, _TURN_SECONDS)

    def close(self) -> None:
        """End the processes."""
        # Asleep, with nothing to keep: twenty of them take long to leave in order.
        self._child.end()
        if self._channel is not None:
            self._channel.close()
        self._listener.close()

    def _turn(self, command: Message, timeout_seconds: float) -> Message | None:
        reply: Message | None = None
        if self._channel is not None and not self.problem:
            try:
                reply = exchange([self._channel], command, timeout_seconds)[0]
            except TurnError as error:
                self._fail(error)
        return reply if self._agree() else None

    def _fail(self, error: TurnError) -> None:
        self.problem = str(error)
        print(f"rank {self._comm.rank}: DTensor: {error}", file=sys.stderr, flush=True)

    def _agree(self) -> bool:
        # One that has failed leaves the others' processes waiting for it: none goes on.
        failed: Any = np.array([int(bool(self.problem))], np.int32)
        cocoll.allreduce(failed, "max", comm=self._comm)
        if failed[0] and not self.problem:
            self.problem = "it failed on another rank"
        return not failed[0]
