"""The step beside torch's symmetric memory: the same all-reduces, ranks as processes on one GPU."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import cocoll
from benchmarks.gpu.setting import Setting, bits_of, fill, put
from cocoll.testing import run_processes

__all__ = ["check_symmetric_memory"]

_RANKS, _COUNT, _CALLS = 2, 1 << 16, 20
_LIMIT_SECONDS = 90.0


def check_symmetric_memory(setting: Setting) -> dict[str, Any]:
    """Time an all-reduce of both, and compare their sums.

    Processes take turns on one GPU, unless a server for several of them runs: the times of both are
    mostly that.
    """
    if setting.emulated:
        return {"absent": "the emulated device has no memory that it could use"}
    try:
        import torch
        import torch.distributed._symmetric_memory as symmetric
    except ImportError as error:
        return {"absent": str(error)}
    if not torch.cuda.is_available() or not hasattr(symmetric, "rendezvous"):
        return {"absent": "built without CUDA, or too old"}
    # It refuses ranks that share a GPU unless told otherwise.
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_processes(
            _RANKS,
            _measure,
            str(Path(folder) / "store"),
            toolkit=setting.toolkit(),
            timeout_seconds=60.0,
            limit_seconds=_LIMIT_SECONDS,
        )
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    found: dict[str, Any] = outcomes[0].value
    return found | {"ranks": _RANKS, "elements": _COUNT, "version": torch.__version__}


def _measure(comm: Any, store: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

    torch.cuda.set_device(0)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.world_size
    )
    group = dist.group.WORLD.group_name
    values = fill(comm.rank, _COUNT, "float32")
    theirs = symmetric.empty(_COUNT, dtype=torch.float32, device="cuda")
    symmetric.rendezvous(theirs, group)
    theirs.copy_(torch.from_numpy(values))
    reduce = torch.ops.symm_mem.one_shot_all_reduce
    sums = reduce(theirs, "sum", group)
    torch.cuda.synchronize()
    ours = put(comm, values, "symmetric")
    out = comm.empty((_COUNT,), "float32", device="cuda")
    run = comm.bind(cocoll.allreduce, ours, out=out)
    run().wait()
    # Of two ranks there is one order of summation.
    if bits_of(out.get()) != bits_of(sums.cpu().numpy()):
        raise AssertionError("torch's symmetric memory gives another sum")
    seconds = {}
    for name, call in (("cocoll", run), ("torch", lambda: reduce(theirs, "sum", group))):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        ours.stream.synchronize()
        torch.cuda.synchronize()
        seconds[name] = (time.perf_counter() - start) / _CALLS
    dist.destroy_process_group()
    return {"seconds": seconds, "ratio_to_torch": seconds["torch"] / seconds["cocoll"]}
