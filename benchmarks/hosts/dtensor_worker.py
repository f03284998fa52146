"""The program that each rank starts beside itself: redistributes a DTensor when it is told to."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402

from benchmarks.common.turns import connect, serve  # noqa: E402
from benchmarks.hosts.gloo_runner import GlooRunner  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.common.turns import Message

__all__ = ["Redistribution", "main"]


class Redistribution:
    """One DTensor at a time, on a mesh of all ranks, and the placement that it goes to."""

    def __init__(self) -> None:
        self._runner = GlooRunner()
        self._mesh: Any = None
        self._tensor: Any = None
        self._placements: list[Any] = []
        self._shape: list[int] = []
        self._target_dim: int | None = None

    def handlers(self) -> dict[str, Callable[[Message], Message]]:
        """Name what :func:`turns.serve` may ask for."""
        commands = (self.open, self.prepare, self.check, self.sample, self.release)
        return {command.__name__: command for command in commands}

    def open(self, command: Message) -> Message:
        """Join; replies with versions."""
        del command
        self._runner.open()
        self._mesh = init_device_mesh("cpu", (self._runner.world_size,))
        return {"versions": self._runner.versions()}

    def prepare(self, command: Message) -> Message:
        """Make the tensor of a ``shape``, cut along dim ``source``, to be cut along ``target``."""
        self._shape, self._target_dim = command["shape"], command["target"]
        local = self._part(command["source"])
        self._tensor = DTensor.from_local(
            local,
            self._mesh,
            [_placement(command["source"])],
            run_check=False,
            # What it would take the whole for where the last pieces are shorter is wrong.
            shape=torch.Size(self._shape),
            stride=torch.empty(self._shape, device="meta").stride(),
        )
        self._placements = [_placement(self._target_dim)]
        return {}

    def check(self, command: Message) -> Message:
        """Redistribute; replies whether every element of this rank's part is right."""
        del command
        got, seconds = self._redistribute()
        is_right = torch.equal(got.view(torch.int32), self._part(self._target_dim, torch.int32))
        return {"is_right": is_right, "seconds": seconds}

    def sample(self, command: Message) -> Message:
        """Redistribute; replies with this rank's seconds."""
        del command
        return {"seconds": self._redistribute()[1]}

    def release(self, command: Message) -> Message:
        """Drop the tensor."""
        del command
        self._tensor = None
        return {}

    def close(self) -> None:
        """Leave."""
        if self._mesh is not None:
            self._runner.close()

    def _redistribute(self) -> tuple[torch.Tensor, float]:
        dist.barrier()
        begin = time.perf_counter()
        got = self._tensor.redistribute(placements=self._placements).to_local()
        seconds = time.perf_counter() - begin
        # Whoever is told that this is over must not take the cores from those who are not done.
        dist.barrier()
        return got, seconds

    def _part(self, dim: int | None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Give this rank's part of a tensor whose elements are, as bits, their own places."""
        count = 1
        for length in self._shape:
            count *= length
        whole = torch.arange(count, dtype=torch.int32).reshape(self._shape)
        if dim is not None:
            # torch leaves out empty pieces at the end.
            pieces = whole.chunk(self._runner.world_size, dim)
            rank = self._runner.rank
            whole = pieces[rank] if rank < len(pieces) else whole.narrow(dim, 0, 0)
        return whole.contiguous().view(dtype)


def _placement(dim: int | None) -> Any:
    return Replicate() if dim is None else Shard(dim)


def main() -> None:
    """Report, serve turns, leave."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--job", required=True)
    arguments = parser.parse_args()
    redistribution = Redistribution()
    # It reports to the rank that has started it, which listens to it alone.
    channel = connect(arguments.socket, {"job": arguments.job, "rank": 0})
    serve(channel, redistribution.handlers())
    redistribution.close()


if __name__ == "__main__":
    main()
