"""Writes what the native programs run: packed plans of all ranks, and the source of the kernels.

Standard library only, and no built ``cocoll._core``: run as a script it registers a bare package,
so that the plans come from the sources beside it, or from a changed copy of them.

A folder holds ``plans.txt``, one line a case, ``NAME-WORLD_SIZE.VARIANT.RANK`` for every plan, and
``kernels.cc``.
"""

from __future__ import annotations

import argparse
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cocoll.plan.ir import Plan

    Planner = Callable[[int, int], Plan]

WORLD_SIZES = (1, 2, 3, 4, 5, 8)
CHUNK_ELEMENTS = 64
SLOTS = 2
ITEMSIZE_BYTES = 4
ANY_COUNT = -1
# Of every rank its host, for worlds that have several.
HOSTS = {2: (0, 1), 3: (0, 0, 1), 4: (0, 0, 1, 1), 5: (0, 1, 0, 1, 2), 8: (0, 1, 1, 2, 2, 2, 0, 2)}

# Powers of two: sums of small whole numbers stay exact in float32 whatever is fused into them.
SGD_SCALARS = {"lr": 0.5, "momentum": 0.5, "weight_decay": 0.25}


@dataclass(frozen=True)
class Case:
    """A call: the plans that serve it and what the programs must know to check its result.

    `placement` says where results may lie: "disjoint" from the source, "in_place", or "both".
    """

    name: str
    kind: str
    mapped: Planner | None
    staged: Planner | None
    placement: str = "both"
    limit_elements: int = ANY_COUNT
    alignment_elements: int = 16
    root: int = 0
    replicated: bool = False
    zero_source: bool = False
    kernel: str = "-"
    hosts: tuple[int, ...] = ()
    scalars: tuple[float, ...] = ()

    def line(self) -> str:
        """Give the line of ``plans.txt``."""
        words = [
            self.name,
            self.kind,
            self.placement,
            self.kernel,
            ",".join(map(str, self.hosts)) or "-",
            int(self.mapped is not None),
            int(self.staged is not None),
            CHUNK_ELEMENTS,
            self.limit_elements,
            self.alignment_elements,
            self.root,
            int(self.replicated),
            int(self.zero_source),
            len(self.scalars),
            *self.scalars,
        ]
        return " ".join(str(word) for word in words)


def register_package(root: Path) -> None:
    """Let submodules of ``cocoll`` be imported from `root`, without its ``__init__``."""
    bare = types.ModuleType("cocoll")
    bare.__path__ = [str(root / "cocoll")]
    sys.modules["cocoll"] = bare


def allreduces() -> Iterator[Case]:
    """Give all-reduces by every algorithm."""
    from cocoll.algorithms import ReduceSpec, inline, one_shot, two_shot

    plain = ReduceSpec(ITEMSIZE_BYTES, (ITEMSIZE_BYTES,))
    zeroing = ReduceSpec(ITEMSIZE_BYTES, (ITEMSIZE_BYTES,), zero_source=True)
    staging = {"chunk_elements": CHUNK_ELEMENTS, "slots": SLOTS}

    def two_shots(spec: ReduceSpec, *, replicated: bool) -> tuple[Planner | None, Planner | None]:
        return (
            lambda rank, world_size: two_shot.plan_allreduce(
                rank,
                world_size,
                spec,
                chunk_elements=CHUNK_ELEMENTS,
                replicated_result=replicated,
            ),
            lambda rank, world_size: two_shot.plan_allreduce_staged(
                rank, world_size, spec, replicated_result=replicated, **staging
            ),
        )

    reducing = {"kind": "allreduce", "kernel": "sum_float32"}
    yield Case(
        "inline",
        mapped=None,
        staged=lambda rank, world_size: inline.plan_allreduce(rank, world_size, plain),
        limit_elements=64 // ITEMSIZE_BYTES,
        **reducing,
    )
    yield Case(
        "one_shot",
        mapped=None,
        staged=lambda rank, world_size: one_shot.plan_allreduce(rank, world_size, plain),
        limit_elements=(16 << 10) // ITEMSIZE_BYTES,
        **reducing,
    )
    mapped, staged = two_shots(plain, replicated=False)
    yield Case("two_shot", mapped=mapped, staged=staged, **reducing)
    mapped, staged = two_shots(plain, replicated=True)
    yield Case(
        "two_shot_replicated",
        mapped=mapped,
        staged=staged,
        placement="disjoint",
        replicated=True,
        **reducing,
    )
    mapped, staged = two_shots(zeroing, replicated=False)
    yield Case(
        "two_shot_zero",
        mapped=mapped,
        staged=staged,
        placement="disjoint",
        zero_source=True,
        **reducing,
    )
    yield fused_case(two_shots)


def fused_case(two_shots: Callable[..., tuple[Planner | None, Planner | None]]) -> Case:
    """Give an all-reduce with SGD inside: ``param`` replicated, its momentum sharded."""
    from cocoll.algorithms import OperandSpec, ReduceSpec

    spec = ReduceSpec(
        ITEMSIZE_BYTES,
        (ITEMSIZE_BYTES,),
        (
            OperandSpec(ITEMSIZE_BYTES),
            OperandSpec(ITEMSIZE_BYTES, sharded=True, updated=True),
        ),
    )
    kernel = kernel_specs()[1]
    assert kernel.traced is not None
    mapped, staged = two_shots(spec, replicated=False)
    return Case(
        "two_shot_sgd",
        "sgd",
        mapped,
        staged,
        placement="disjoint",
        kernel=kernel.name(),
        scalars=tuple(SGD_SCALARS[scalar.name] for scalar in kernel.traced.scalars),
    )


def kernel_specs() -> list:
    """Give the kernels: a plain sum, and SGD with momentum."""
    from cocoll.dtypes import DType
    from cocoll.epilogues import sgd
    from cocoll.kernels.spec import KernelSpec

    arrays = dict.fromkeys(("param", "momentum_buffer"), DType.FLOAT32)
    traced = sgd(momentum=SGD_SCALARS["momentum"]).trace(DType.FLOAT32, arrays)
    return [
        KernelSpec("sum", DType.FLOAT32, None),
        KernelSpec("sum", DType.FLOAT32, traced),
    ]


def flats() -> Iterator[Case]:
    """Give the collectives without a second half, plain and in shards."""
    from cocoll.algorithms import ReduceSpec, flat

    chunks = {"chunk_elements": CHUNK_ELEMENTS}
    staging = {"chunk_elements": CHUNK_ELEMENTS, "slots": SLOTS}
    spec = ReduceSpec(ITEMSIZE_BYTES, (ITEMSIZE_BYTES,))
    for suffix, alignment in (("", 1), ("_shard", 16)):
        aligned = {"alignment_elements": alignment}
        yield Case(
            f"reduce_scatter{suffix}",
            "reduce_scatter",
            lambda rank, world_size, aligned=aligned: flat.plan_reduce_scatter(
                rank, world_size, spec, **chunks, **aligned
            ),
            lambda rank, world_size, aligned=aligned: flat.plan_reduce_scatter_staged(
                rank, world_size, spec, **staging, **aligned
            ),
            kernel="sum_float32",
            **aligned,
        )
        for form in ("disjoint", "in_place", "replicated"):
            choice = {"in_place": form == "in_place", "replicated_result": form == "replicated"}
            yield Case(
                f"allgather{suffix}_{form}",
                "allgather",
                lambda rank, world_size, more=(aligned | choice): flat.plan_allgather(
                    rank, world_size, ITEMSIZE_BYTES, **chunks, **more
                ),
                lambda rank, world_size, more=(aligned | choice): flat.plan_allgather_staged(
                    rank, world_size, ITEMSIZE_BYTES, **staging, **more
                ),
                placement="in_place" if form == "in_place" else "disjoint",
                replicated=form == "replicated",
                **aligned,
            )


def broadcasts(world_size: int) -> Iterator[Case]:
    """Give broadcasts from the first and the last rank, and a barrier."""
    from cocoll.algorithms import flat

    for root in sorted({0, world_size - 1}):
        for form in ("disjoint", "in_place", "replicated"):
            choice = {"in_place": form == "in_place", "replicated_result": form == "replicated"}
            yield Case(
                f"broadcast_{form}_{root}",
                "broadcast",
                lambda rank, world_size, root=root, choice=choice: flat.plan_broadcast(
                    rank, world_size, root, ITEMSIZE_BYTES, chunk_elements=CHUNK_ELEMENTS, **choice
                ),
                lambda rank, world_size, root=root, choice=choice: flat.plan_broadcast_staged(
                    rank,
                    world_size,
                    root,
                    ITEMSIZE_BYTES,
                    chunk_elements=CHUNK_ELEMENTS,
                    slots=SLOTS,
                    **choice,
                ),
                placement="in_place" if form == "in_place" else "disjoint",
                root=root,
                replicated=form == "replicated",
            )
    yield Case("barrier", "barrier", None, flat.plan_barrier, limit_elements=0)


def on_hosts(world_size: int) -> Iterator[Case]:
    """Give collectives over several hosts."""
    from cocoll.algorithms import OperandSpec, ReduceSpec, hierarchical, hierarchical_broadcast
    from cocoll.algorithms.hierarchy import Hierarchy

    hosts = HOSTS[world_size]
    hierarchy = Hierarchy(hosts)
    chunks = {"chunk_elements": CHUNK_ELEMENTS, "slots": SLOTS, "in_flight": 4}
    plain = ReduceSpec(ITEMSIZE_BYTES, (ITEMSIZE_BYTES,))
    momentum = OperandSpec(ITEMSIZE_BYTES, sharded=True, updated=True)
    fused = ReduceSpec(ITEMSIZE_BYTES, (ITEMSIZE_BYTES,), (OperandSpec(ITEMSIZE_BYTES), momentum))
    kernel = kernel_specs()[1]
    assert kernel.traced is not None
    scalars = tuple(SGD_SCALARS[scalar.name] for scalar in kernel.traced.scalars)

    def both(plan: Callable[..., Plan], *words: object, **more: object) -> dict[str, Planner]:
        return {
            form: lambda rank, _, staged=form == "staged": plan(
                rank, hierarchy, *words, staged=staged, **chunks, **more
            )
            for form in ("mapped", "staged")
        }

    for form in ("straight", "ring"):
        ring = {"ring": form == "ring"}
        yield Case(
            f"hosts_allreduce_{form}",
            "allreduce",
            kernel="sum_float32",
            hosts=hosts,
            **both(hierarchical.plan_allreduce, plain, **ring),
        )
        yield Case(
            f"hosts_sgd_{form}",
            "sgd",
            placement="disjoint",
            kernel=kernel.name(),
            hosts=hosts,
            scalars=scalars,
            **both(hierarchical.plan_allreduce, fused, **ring),
        )
        yield Case(
            f"hosts_reduce_scatter_{form}",
            "reduce_scatter",
            kernel="sum_float32",
            hosts=hosts,
            **both(hierarchical.plan_reduce_scatter, plain, **ring),
        )
        yield Case(
            f"hosts_allgather_{form}",
            "allgather",
            hosts=hosts,
            **both(hierarchical.plan_allgather, ITEMSIZE_BYTES, **ring),
        )
    for form in ("chain", "tree"):
        yield Case(
            f"hosts_broadcast_{form}",
            "broadcast",
            root=world_size - 1,
            hosts=hosts,
            **both(
                hierarchical_broadcast.plan_broadcast,
                world_size - 1,
                ITEMSIZE_BYTES,
                tree=form == "tree",
            ),
        )


def stuck_case() -> Case:
    """Give a plan that waits for a signal which nobody sends: for what gives an operation up."""
    from cocoll.plan.ir import Flag, Fragment, Lane, Loop, Plan, Wait

    def plan(rank: int, world_size: int) -> Plan:
        peers = [peer for peer in range(world_size) if peer != rank]
        waits = tuple(Wait(peer, Flag.USER) for peer in peers)
        return Plan(rank, world_size, Fragment((Lane("stuck", (Loop(waits),)),)), name="stuck")

    return Case("stuck", "stuck", None, plan, limit_elements=0)


def cases(world_size: int) -> list[Case]:
    """Give every case of a world size."""
    found = [*allreduces(), *flats(), *broadcasts(world_size)]
    return [*found, stuck_case(), *on_hosts(world_size)] if world_size > 1 else found


def export(directory: Path, world_sizes: tuple[int, ...] = WORLD_SIZES) -> None:
    """Write the folder."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = []
    for world_size in world_sizes:
        for case in cases(world_size):
            lines.append(f"{world_size} {case.line()}\n")
            for variant in ("mapped", "staged"):
                planner = getattr(case, variant)
                for rank in range(world_size) if planner else ():
                    path = directory / f"{case.name}-{world_size}.{variant}.{rank}"
                    path.write_bytes(planner(rank, world_size).pack())
    (directory / "plans.txt").write_text("".join(lines))
    export_kernels(directory / "kernels.cc")


def export_kernels(path: Path) -> None:
    """Write the source of the kernels, and of their table."""
    from cocoll.kernels.spec import render_library

    text = render_library(kernel_specs())
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def export_inline(prefix: Path, world_size: int) -> None:
    """Write the plans of an 8-byte all-reduce to ``PREFIX.RANK``."""
    from cocoll.algorithms import ReduceSpec, inline

    spec = ReduceSpec(ITEMSIZE_BYTES, (ITEMSIZE_BYTES,))
    for rank in range(world_size):
        plan = inline.plan_allreduce(rank, world_size, spec)
        Path(f"{prefix}.{rank}").write_bytes(plan.pack())


def main() -> None:
    """Write plans from the sources under ``--root``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="the folder that holds cocoll/")
    parser.add_argument("--directory", type=Path, help="where the grid of plans goes")
    parser.add_argument("--inline", type=Path, metavar="PREFIX", help="an 8-byte all-reduce")
    parser.add_argument("--world-size", type=int, default=2, help="of --inline")
    options = parser.parse_args()
    register_package(options.root)
    if options.directory is not None:
        export(options.directory)
    if options.inline is not None:
        export_inline(options.inline, options.world_size)


if __name__ == "__main__":
    main()
