"""A rank on one of several hosts: what it does in its turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.common import checks, native
from benchmarks.common.cases import Group
from benchmarks.common.fused_check import check_fused
from benchmarks.common.memory import address_of
from benchmarks.common.rank import float_word
from benchmarks.hosts.setting import count_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from benchmarks.common.turns import Message
    from benchmarks.hosts.runner import HostsRunner
    from benchmarks.hosts.setting import HostsSetting

__all__ = ["HostsRank"]

_SEED = 1
_ROOT = 0
# A step over a large vector takes seconds with the slower peers.
_ONE_STEP_BYTES = 16 << 20


class HostsRank:
    """Carries out the driver's commands, each with the runner that it names.

    Parameters
    ----------
    runners : mapping of str to HostsRunner
        By job.
    setting : HostsSetting
        The cluster.
    """

    def __init__(self, runners: Mapping[str, HostsRunner], setting: HostsSetting) -> None:
        self._runners = runners
        self._setting = setting
        self._groups: dict[str, Group] = {}
        self._round = 0

    def handlers(self) -> dict[str, Callable[[Message], Message]]:
        """Name what :func:`turns.serve` may ask for."""
        commands = (self.open, self.prepare, self.check, self.sample, self.release)
        return {command.__name__: command for command in commands}

    def open(self, command: Message) -> Message:
        """Open a runner; replies with its versions."""
        runner = self._runners[command["job"]]
        runner.open()
        return {"versions": runner.versions()}

    def prepare(self, command: Message) -> Message:
        """Allocate for a group; replies with the entries and what is predicted for each."""
        runner = self._runners[command["job"]]
        group = Group.from_json(command["group"])
        self._groups[command["job"]] = group
        entries = runner.prepare(group)
        predicted = {entry.form: runner.predicted_seconds(entry.form) for entry in entries}
        return {
            "entries": [[e.form, e.implementation, e.row] for e in entries],
            "predicted_seconds": predicted,
        }

    def check(self, command: Message) -> Message:
        """Carry out `form` on known data; replies with what is wrong, digest and seconds."""
        runner = self._runners[command["job"]]
        group, form = self._groups[command["job"]], command["form"]
        with runner.turn():
            if group.operation == "allreduce_fused":
                steps = 1 if group.input_bytes > _ONE_STEP_BYTES else 2
                wrong, result, seconds = check_fused(
                    runner, form, group.elements, runner.barrier, steps
                )
            else:
                for array in runner.inputs(form):
                    checks.fill_random(array, _SEED, runner.rank)
                runner.barrier()
                seconds = runner.measure(form)
                result = runner.result(form)
                wrong = self._compare(group, result, runner)
            runner.barrier()
        # Only there every rank has another part of the result.
        whole = group.operation != "reduce_scatter"
        return {
            "wrong": wrong,
            "digest": checks.digest(result) if whole else "",
            "seconds": seconds,
        }

    def sample(self, command: Message) -> Message:
        """Time `form`; replies with this rank's seconds and its host's bytes, once a repetition."""
        runner = self._runners[command["job"]]
        group, form = self._groups[command["job"]], command["form"]
        reply: dict[str, list[float]] = {
            name: [] for name in ("seconds", "rewrite_seconds", "host_bytes")
        }
        library = native.load()
        with runner.turn():
            for repetition in range(command["warm"] + command["repeat"]):
                self._round += 1
                # The value differs from call to call so that nothing can be skipped as unchanged.
                word = float_word(1.0 + (self._round % 64) / 64.0, group.dtype)
                rewrite_seconds = sum(
                    float(library.bench_rewrite(address_of(array), array.nbytes, word))
                    for array in runner.inputs(form)
                )
                before = count_bytes(self._setting.nics)
                runner.barrier()
                seconds = runner.measure(form)
                runner.barrier()
                after = count_bytes(self._setting.nics)
                if repetition >= command["warm"]:
                    reply["seconds"].append(seconds)
                    reply["rewrite_seconds"].append(rewrite_seconds)
                    moved = max(b - a for a, b in zip(before, after, strict=True))
                    reply["host_bytes"].append(moved)
        return dict(reply)

    def release(self, command: Message) -> Message:
        """Drop the group's memory."""
        self._runners[command["job"]].release()
        return {}

    def close(self) -> None:
        """Close the runners that were opened."""
        for runner in self._runners.values():
            runner.close()

    def _compare(self, group: Group, result: NDArray[Any], runner: HostsRunner) -> str | None:
        """Check this rank's part: that all ranks hold the same bits is shown by the digests."""
        rank, world_size = runner.rank, runner.world_size
        if group.operation == "allreduce":
            return checks.check_sum(result, _SEED, world_size, rank)
        if group.operation == "reduce_scatter":
            return checks.check_block_sum(result, _SEED, world_size, rank * result.size)
        block_elements = result.size // world_size
        # Of an allgather the next rank's block: its own was never away.
        part = (rank + 1) % world_size
        first = part * block_elements
        block: NDArray[np.float32] = result[first : first + block_elements]
        if group.operation == "allgather":
            return checks.check_copy(block, _SEED, part, 0)
        return checks.check_copy(block, _SEED, _ROOT, first)
