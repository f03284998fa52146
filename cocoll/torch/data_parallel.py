"""cocoll below DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from cocoll import _core

if TYPE_CHECKING:
    from cocoll.communicator import Communicator

__all__ = ["ddp_hook"]


def ddp_hook(comm: Communicator | None = None) -> Callable[[Any, Any], Any]:
    """Make a communication hook that averages gradients through cocoll. Collective.

    ``model.register_comm_hook(None, ddp_hook(comm))``, for a DistributedDataParallel of a model in
    host memory. Buckets are reduced in the order in which DDP hands them out, on a thread of the
    hook's own, while backward goes on.

    Parameters
    ----------
    comm : Communicator, optional
        Of the ranks of the DDP's process group, in the same order; it is duplicated. Default: the
        default communicator.

    Returns
    -------
    callable
        From (state, bucket) to a ``torch.futures.Future`` of the averaged bucket, which is reduced
        in place. An operation that fails raises from backward.
    """
    everyone: Communicator = _core.resolve_communicator(comm)
    own = everyone.duplicate()
    worker = ThreadPoolExecutor(1, "cocoll ddp_hook")

    def reduce(buffer: Any, future: Any) -> None:
        try:
            _core.allreduce(buffer, "avg", comm=own).wait()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(buffer)

    def average_bucket(state: Any, bucket: Any) -> Any:
        del state
        future: Any = torch.futures.Future()
        worker.submit(reduce, bucket.buffer(), future)
        return future

    # DDP compares annotations with its own classes, and knows no names.
    average_bucket.__annotations__.clear()
    return average_bucket
