"""Bring a sharded model from the ranks that train it to those that serve it.

Run it as ``mpirun -n 4 python examples/reshard.py`` (any number of ranks from 2 on). The first half
of the ranks holds the weights as training does: cut in two directions. The other half wants them
as serving does: cut in one direction, or whole. All tensors are planned together, once, and then
moved as often as new weights are due; every element is checked.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import numpy.typing as npt

import cocoll

Array = npt.NDArray[np.float32]

WIDTH, LAYERS, WORDS = 512, 4, 8192
UPDATES = 3


def list_model(train: cocoll.Mesh, serve: cocoll.Mesh) -> dict[str, cocoll.TensorMove]:
    """Give every tensor's shape, and how it lies on both meshes."""
    # Training cuts both dims; serving cuts what one matrix puts out and the next takes in.
    layouts = {"embedding": ((WORDS, WIDTH), "S0,S1", "S0,R")}
    for layer in range(LAYERS):
        layouts[f"layer {layer}, attention in"] = ((WIDTH, 3 * WIDTH), "S0,S1", "R,S0")
        layouts[f"layer {layer}, attention out"] = ((WIDTH, WIDTH), "S1,S0", "S0,R")
        layouts[f"layer {layer}, up"] = ((WIDTH, 4 * WIDTH), "S0,S1", "R,S0")
        layouts[f"layer {layer}, down"] = ((4 * WIDTH, WIDTH), "S1,S0", "S0,R")
        layouts[f"layer {layer}, norm"] = ((WIDTH,), "S01", "R")
    return {
        name: cocoll.TensorMove(shape, (train, before), (serve, after))
        for name, (shape, before, after) in layouts.items()
    }


def make_weights(number: int, shape: tuple[int, ...], update: int) -> Array:
    """Give a whole tensor: the same on every rank that makes it, another one with each update."""
    generator = np.random.default_rng((number, update))
    return generator.standard_normal(shape, dtype=np.float32)


def cut(whole: Array, box: tuple[tuple[int, int], ...]) -> Array:
    """Give a rank's shard."""
    return whole[tuple(slice(start, stop) for start, stop in box)]


def main() -> int:
    """Move the weights a few times; the exit status says whether all elements were right."""
    comm = cocoll.init()
    rank, half = comm.rank, comm.world_size // 2
    if half == 0:
        print("examples/reshard.py wants at least 2 ranks: mpirun -n 4 python examples/reshard.py")
        return 2
    across = 2 if half % 2 == 0 else 1
    train = cocoll.Mesh.arange((half // across, across))
    serve = cocoll.Mesh.arange((comm.world_size - half,), half)
    model = list_model(train, serve)
    begin = time.perf_counter()
    planned = cocoll.plan_reshard(list(model.values()), comm=comm)
    planning_seconds = time.perf_counter() - begin
    layouts = [move.layouts() for move in model.values()]

    shards = [
        np.empty(source.shape_of(rank), np.float32) if rank in source.mesh else None
        for source, _ in layouts
    ]
    bound = planned.bind(shards)
    wrong = 0
    for update in range(UPDATES):
        for number, (shard, (source, _)) in enumerate(zip(shards, layouts, strict=True)):
            if shard is not None:
                shard[...] = cut(make_weights(number, source.shape, update), source.box_of(rank))
        cocoll.barrier(comm=comm)
        begin = time.perf_counter()
        served = bound().result()
        cocoll.barrier(comm=comm)
        seconds = time.perf_counter() - begin
        for number, (got, (_, target)) in enumerate(zip(served, layouts, strict=True)):
            if got is not None:
                wanted = cut(make_weights(number, target.shape, update), target.box_of(rank))
                wrong += int(np.count_nonzero(got != wanted))
        if rank == 0:
            print(f"update {update}: {seconds * 1e3:.1f} ms")
    counts = np.array([wrong], np.int64)
    cocoll.allreduce(counts, comm=comm)
    if rank == 0:
        nbytes = 4 * sum(int(np.prod(move.shape)) for move in model.values())
        made = planned.planned
        print(
            f"{len(model)} tensors of {nbytes >> 20} MiB in {len(made.tasks)} unit tasks, planned "
            f"in {planning_seconds * 1e3:.0f} ms by {made.schedule.solver}; lower bound "
            f"{planned.bound_seconds * 1e3:.1f} ms, predicted {planned.makespan_seconds * 1e3:.1f} "
            f"ms; elements that differ: {counts[0]}"
        )
    return 1 if counts[0] else 0


if __name__ == "__main__":
    sys.exit(main())
