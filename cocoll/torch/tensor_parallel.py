"""Differentiable collectives: the pairs that tensor and sequence parallelism are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cocoll import _core
from cocoll.errors import BufferMismatchError

if TYPE_CHECKING:
    from cocoll.communicator import Communicator

__all__ = [
    "copy_to_ranks",
    "gather_along",
    "gather_sequence",
    "reduce_from_ranks",
    "reduce_scatter_along",
    "scatter_along",
]


def copy_to_ranks(x: Any, *, comm: Communicator | None = None) -> Any:
    """Hand on a tensor that all ranks have; its gradient is the sum of theirs.

    What stands before a layer that is divided by columns. Its pair is `reduce_from_ranks`.

    Parameters
    ----------
    x : torch.Tensor
        Equal on all ranks.
    comm : Communicator, optional
        Whose ranks divide the layer. Default: the default communicator.

    Returns
    -------
    torch.Tensor
        The same values. Backward is collective.
    """
    return _CopyToRanks.apply(x, _core.resolve_communicator(comm))


def reduce_from_ranks(x: Any, *, comm: Communicator | None = None) -> Any:
    """Sum a tensor over the ranks; its gradient is handed on as it is. Collective.

    What stands behind a layer that is divided by rows. Its pair is `copy_to_ranks`.

    Parameters
    ----------
    x : torch.Tensor
        This rank's summand, of the same shape on all ranks.
    comm : Communicator, optional
        Whose ranks divide the layer. Default: the default communicator.

    Returns
    -------
    torch.Tensor
        The sum, the same bits on all ranks.
    """
    return _ReduceFromRanks.apply(x, _core.resolve_communicator(comm))


def scatter_along(x: Any, dim: int = -1, *, comm: Communicator | None = None) -> Any:
    """Take this rank's part of a tensor that all ranks have; backward gathers the gradients.

    Its pair is `gather_along`.

    Parameters
    ----------
    x : torch.Tensor
        Equal on all ranks.
    dim : int, default -1
        The dim that is divided; its length must be a multiple of the world size.
    comm : Communicator, optional
        Whose ranks take parts. Default: the default communicator.

    Returns
    -------
    torch.Tensor
        The rank's part, contiguous. Backward is collective.

    Raises
    ------
    BufferMismatchError
        The dim cannot be divided equally.
    """
    return _ScatterAlong.apply(x, dim, _core.resolve_communicator(comm))


def gather_along(x: Any, dim: int = -1, *, comm: Communicator | None = None) -> Any:
    """Put the parts of all ranks together; backward takes this rank's part. Collective.

    What comes behind it is computed alike on all ranks: each has the whole gradient already. Where
    each rank computes something else, `gather_sequence` sums the gradients. Its pair is
    `scatter_along`.

    Parameters
    ----------
    x : torch.Tensor
        The rank's part, of the same shape on all ranks.
    dim : int, default -1
        The dim along which parts lie in rank order.
    comm : Communicator, optional
        Whose parts. Default: the default communicator.

    Returns
    -------
    torch.Tensor
        The whole, the same bits on all ranks.
    """
    return _GatherAlong.apply(x, dim, _core.resolve_communicator(comm))


def gather_sequence(x: Any, dim: int = 0, *, comm: Communicator | None = None) -> Any:
    """Put the parts of all ranks together; backward sums and divides the gradients. Collective.

    What stands before a layer that is divided by columns, where tokens are divided too. Its pair is
    `reduce_scatter_along`.

    Parameters
    ----------
    x : torch.Tensor
        The rank's part, of the same shape on all ranks.
    dim : int, default 0
        The dim along which parts lie in rank order.
    comm : Communicator, optional
        Whose parts. Default: the default communicator.

    Returns
    -------
    torch.Tensor
        The whole, the same bits on all ranks. Backward is collective.
    """
    return _GatherSequence.apply(x, dim, _core.resolve_communicator(comm))


def reduce_scatter_along(x: Any, dim: int = 0, *, comm: Communicator | None = None) -> Any:
    """Sum a tensor over the ranks and take this rank's part; backward gathers. Collective.

    What stands behind a layer that is divided by rows, where tokens are divided too. Its pair is
    `gather_sequence`.

    Parameters
    ----------
    x : torch.Tensor
        This rank's summand, of the same shape on all ranks.
    dim : int, default 0
        The dim that is divided; its length must be a multiple of the world size.
    comm : Communicator, optional
        Whose ranks take parts. Default: the default communicator.

    Returns
    -------
    torch.Tensor
        The rank's part of the sum. Backward is collective.

    Raises
    ------
    BufferMismatchError
        The dim cannot be divided equally.
    """
    return _ReduceScatterAlong.apply(x, dim, _core.resolve_communicator(comm))


def _gather(x: Any, dim: int, comm: Any) -> Any:
    front = x.movedim(dim, 0).contiguous()
    whole = x.new_empty((front.shape[0] * comm.world_size, *front.shape[1:]))
    _core.allgather(front, out=whole, comm=comm).wait()
    return whole.movedim(0, dim).contiguous()


def _take_part(x: Any, dim: int, comm: Any) -> Any:
    _check_divisible(x, dim, comm)
    return x.chunk(comm.world_size, dim)[comm.rank].contiguous()


def _reduce_part(x: Any, dim: int, comm: Any) -> Any:
    _check_divisible(x, dim, comm)
    front = x.movedim(dim, 0).contiguous()
    part = x.new_empty((front.shape[0] // comm.world_size, *front.shape[1:]))
    _core.reduce_scatter(front, out=part, comm=comm).wait()
    return part.movedim(0, dim).contiguous()


def _sum(x: Any, comm: Any) -> Any:
    total = torch.empty_like(x, memory_format=torch.contiguous_format)
    _core.allreduce(x.contiguous(), out=total, comm=comm).wait()
    return total


def _check_divisible(x: Any, dim: int, comm: Any) -> None:
    if x.shape[dim] % comm.world_size:
        raise BufferMismatchError(
            f"wanted dim {dim} to be a multiple of the {comm.world_size} ranks; got shape "
            f"{tuple(x.shape)} on rank {comm.rank}. Pad it"
        )


class _CopyToRanks(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, comm: Any) -> Any:
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _sum(gradient, ctx.comm), None


class _ReduceFromRanks(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, comm: Any) -> Any:
        del ctx
        return _sum(x.detach(), comm)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        del ctx
        return gradient, None


class _AlongDim(torch.autograd.Function):  # type: ignore[misc]
    """What goes one way forward and the other way back."""

    @staticmethod
    def remember(ctx: Any, dim: int, comm: Any) -> None:
        ctx.dim, ctx.comm = dim, comm


class _ScatterAlong(_AlongDim):
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int, comm: Any) -> Any:
        _AlongDim.remember(ctx, dim, comm)
        return _take_part(x.detach(), dim, comm)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _gather(gradient, ctx.dim, ctx.comm), None, None


class _GatherAlong(_AlongDim):
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int, comm: Any) -> Any:
        _AlongDim.remember(ctx, dim, comm)
        return _gather(x.detach(), dim, comm)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _take_part(gradient, ctx.dim, ctx.comm), None, None


class _GatherSequence(_AlongDim):
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int, comm: Any) -> Any:
        _AlongDim.remember(ctx, dim, comm)
        return _gather(x.detach(), dim, comm)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _reduce_part(gradient, ctx.dim, ctx.comm), None, None


class _ReduceScatterAlong(_AlongDim):
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int, comm: Any) -> Any:
        _AlongDim.remember(ctx, dim, comm)
        return _reduce_part(x.detach(), dim, comm)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _gather(gradient, ctx.dim, ctx.comm), None, None
