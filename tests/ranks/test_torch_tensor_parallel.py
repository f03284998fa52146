"""Layers that ranks divide among them give what one rank would compute, gradients included."""

from __future__ import annotations

from typing import Any

import pytest

import cocoll
from cocoll.errors import BufferMismatchError
from cocoll.testing import run_ranks

torch = pytest.importorskip("torch")

import cocoll.torch as fused  # noqa: E402

ROWS, WIDTH, HIDDEN = 6, 12, 24


def weights() -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    up = torch.randn(WIDTH, HIDDEN, generator=generator, dtype=torch.float64)
    down = torch.randn(HIDDEN, WIDTH, generator=generator, dtype=torch.float64)
    return x, up, down


def reference() -> tuple[Any, Any, Any, Any]:
    x, up, down = (tensor.requires_grad_() for tensor in weights())
    y = torch.tanh(x @ up) @ down
    (y**2).sum().backward()
    return y.detach(), x.grad, up.grad, down.grad


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("sequence", [False, True])
def test_a_divided_block(world_size: int, sequence: bool) -> None:
    wanted = reference()
    share, rows = HIDDEN // world_size, ROWS // world_size

    def run(comm: cocoll.Communicator) -> None:
        x, up, down = weights()
        columns = slice(comm.rank * share, (comm.rank + 1) * share)
        tokens = slice(comm.rank * rows, (comm.rank + 1) * rows)
        x = (x[tokens] if sequence else x).clone().requires_grad_()
        up = up[:, columns].clone().requires_grad_()
        down = down[columns].clone().requires_grad_()
        enter = fused.gather_sequence if sequence else fused.copy_to_ranks
        leave = fused.reduce_scatter_along if sequence else fused.reduce_from_ranks
        y = leave(torch.tanh(enter(x, comm=comm) @ up) @ down, comm=comm)
        (y**2).sum().backward()
        torch.testing.assert_close(y.detach(), wanted[0][tokens] if sequence else wanted[0])
        torch.testing.assert_close(x.grad, wanted[1][tokens] if sequence else wanted[1])
        torch.testing.assert_close(up.grad, wanted[2][:, columns])
        torch.testing.assert_close(down.grad, wanted[3][columns])

    run_ranks(world_size, run)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather_and_scatter(dim: int) -> None:
    whole = torch.arange(4 * 6 * 8, dtype=torch.float32).reshape(4, 6, 8)

    def run(comm: cocoll.Communicator) -> None:
        x = whole.clone().requires_grad_()
        part = fused.scatter_along(x, dim, comm=comm)
        assert part.is_contiguous()
        assert torch.equal(part, whole.chunk(2, dim)[comm.rank])
        again = fused.gather_along(part * (comm.rank + 1), dim, comm=comm)
        factors = torch.cat(
            [torch.full_like(p, n + 1.0) for n, p in enumerate(whole.chunk(2, dim))], dim
        )
        assert torch.equal(again, whole * factors)
        (again * whole).sum().backward()
        assert torch.equal(x.grad, whole * factors)

    run_ranks(2, run)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_sums_along_any_dim(dim: int) -> None:
    def run(comm: cocoll.Communicator) -> None:
        x = torch.arange(4 * 6 * 2, dtype=torch.float64).reshape(4, 6, 2).requires_grad_()
        part = fused.reduce_scatter_along(x * (comm.rank + 1), dim, comm=comm)
        assert torch.equal(part, 3 * x.detach().chunk(2, dim)[comm.rank])
        again = fused.gather_sequence(part, dim, comm=comm)
        assert torch.equal(again, 3 * x.detach())
        (again * (comm.rank + 1)).sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, 3.0 * (comm.rank + 1)))

    run_ranks(2, run)


def test_what_cannot_be_divided_is_refused() -> None:
    def run(comm: cocoll.Communicator) -> None:
        with pytest.raises(BufferMismatchError, match="multiple of the 2 ranks"):
            fused.scatter_along(torch.zeros(3, 5), comm=comm)
        with pytest.raises(BufferMismatchError, match="multiple of the 2 ranks"):
            fused.reduce_scatter_along(torch.zeros(3, 5), comm=comm)

    run_ranks(2, run)


def test_they_take_the_default_communicator() -> None:
    def run(comm: cocoll.Communicator) -> None:
        x = torch.ones(3, requires_grad=True)
        fused.reduce_from_ranks(fused.copy_to_ranks(x)).sum().backward()
        assert x.grad.tolist() == [float(comm.world_size)] * 3

    run_ranks(2, run)
