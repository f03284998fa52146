"""Gloo by way of torch.distributed, in processes that the ranks start beside themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from benchmarks.hosts.peer_runner import PeerRunner
from benchmarks.peers.torch_adam import TorchAdam, as_tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchmarks.hosts.collectives import Adam, Call, Collectives

__all__ = ["GlooRunner"]


class _GlooCollectives:
    def broadcast(self, array: NDArray[Any]) -> Call:
        tensor = as_tensor(array)
        return lambda: dist.broadcast(tensor, 0)

    def allgather(self, block: NDArray[Any], array: NDArray[Any]) -> Call:
        block_tensor, tensor = as_tensor(block), as_tensor(array)
        return lambda: dist.all_gather_into_tensor(tensor, block_tensor)

    def reduce_scatter(self, array: NDArray[Any], block: NDArray[Any]) -> Call:
        tensor, block_tensor = as_tensor(array), as_tensor(block)
        return lambda: dist.reduce_scatter_tensor(block_tensor, tensor)

    def allreduce(self, array: NDArray[Any]) -> Call:
        tensor = as_tensor(array)
        return lambda: dist.all_reduce(tensor)


class GlooRunner(PeerRunner):
    """``torch.distributed`` with its backend for CPUs, and torch's fused Adam."""

    def __init__(self) -> None:
        super().__init__("gloo")
        self._collectives: Collectives = _GlooCollectives()

    def open(self) -> None:
        """Join over ``env://``."""
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def close(self) -> None:
        """Leave."""
        dist.barrier()
        dist.destroy_process_group()

    def versions(self) -> dict[str, str]:
        """Give torch's version."""
        return {"torch": str(torch.__version__)}

    def barrier(self) -> None:
        """``barrier``."""
        dist.barrier()

    def settings(self, operation: str, input_bytes: int) -> dict[str, Collectives]:
        """Give the one there is."""
        del operation, input_bytes
        return {"own": self._collectives}

    def make_adam(
        self,
        param: NDArray[np.float32],
        gradient: NDArray[np.float32],
        m: NDArray[np.float32],
        v: NDArray[np.float32],
    ) -> Adam:
        """Make torch's."""
        adam: Adam = TorchAdam(as_tensor(param), as_tensor(gradient), m, v)
        return adam
