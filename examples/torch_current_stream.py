#!/usr/bin/env python3
"""Calls run on torch's current stream: ``mpirun -n N python examples/torch_current_stream.py``.

Nothing here waits on the host between the product that makes a tensor, the all-reduce of it with a
bias, GELU and what comes after, and what uses the result: all are queued on the stream that is
current, which need not be the default one. The same step is then captured in a CUDA graph.
"""

from __future__ import annotations

import sys
from typing import Any

import cocoll

_ROWS, _WIDTH = 512, 1024


@cocoll.epilogue
def bias_gelu(x: Any, bias: Any) -> Any:
    """Add a bias and apply GELU, by its approximation with tanh."""
    y = x + bias
    return 0.5 * y * (1.0 + cocoll.tanh(0.7978845608 * (y + 0.044715 * y * y * y)))


def main() -> int:
    """Run the step on a side stream, and from a graph."""
    try:
        import torch
    except ImportError:
        print("this example needs torch, built for CUDA", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print("this example needs a GPU and a torch built for CUDA", file=sys.stderr)
        return 1

    with cocoll.init() as comm:
        torch.cuda.set_device(comm.rank % torch.cuda.device_count())
        generator = torch.Generator("cuda").manual_seed(comm.rank)
        x = torch.randn(_ROWS, _WIDTH, device="cuda", generator=generator)
        weight = torch.randn(_WIDTH, _WIDTH, device="cuda", generator=generator) / _WIDTH**0.5
        bias = torch.linspace(-1, 1, _WIDTH, device="cuda")
        partial = torch.as_tensor(comm.empty((_ROWS, _WIDTH), device="cuda"), device="cuda")

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            block = comm.bind(cocoll.allreduce_fused, partial, bias_gelu, bias=bias)
            torch.mm(x, weight, out=partial)
            block()
            eager = partial.sum(dim=0)

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            torch.mm(x, weight, out=partial)
            block()
            captured = partial.sum(dim=0)
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()

        products = [torch.empty_like(partial) for _ in range(comm.world_size)]
        for rank in range(comm.world_size):
            theirs = torch.mm(x, weight)
            cocoll.broadcast(theirs, rank, comm=comm)
            products[rank].copy_(theirs)
        wanted = torch.nn.functional.gelu(sum(products) + bias, approximate="tanh").sum(dim=0)
        close = torch.allclose(eager, wanted, rtol=1e-4, atol=1e-3)
        equal = torch.equal(eager, captured)
        if comm.rank == 0:
            print(
                f"{comm.world_size} ranks: close to torch's own: {close}; replayed equal: {equal}"
            )
        return 0 if close and equal else 1


if __name__ == "__main__":
    sys.exit(main())
