"""A rank of a job: what it does in its turns."""

from __future__ import annotations

import functools
import os
import struct
import time
from typing import TYPE_CHECKING, Any

from benchmarks.common import checks, native
from benchmarks.common.cases import Entry, Group
from benchmarks.common.fused_check import check_fused
from benchmarks.common.lamb import check_lamb
from benchmarks.common.limits import LimitLoop
from benchmarks.common.memory import SharedMemory, address_of
from benchmarks.common.streams import FORMS, LimitSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from benchmarks.common.runner import Runner
    from benchmarks.common.turns import Message

__all__ = ["Rank", "float_word"]


def float_word(value: float, dtype: str) -> int:
    """Give the 32-bit word that holds `value` once (float32) or twice (bfloat16, truncated)."""
    bits = int(struct.unpack("<I", struct.pack("<f", value))[0])
    return bits if dtype == "float32" else (bits >> 16) * 0x10001


class Rank:
    """Carries out the driver's commands with one :class:`Runner`.

    Parameters
    ----------
    runner : Runner
        Opened.
    control_path, pool_path : str
        The job's control page (barrier, ping-pong) and its pool for limit loops.
    """

    def __init__(self, runner: Runner, control_path: str, pool_path: str) -> None:
        self._runner = runner
        self._library = native.load()
        self._control = SharedMemory(control_path, int(self._library.bench_control_bytes()))
        self._pool_path = pool_path
        # A pinned rank's affinity mask is one core, whichever the others have: ask the machine.
        self._yields = int(runner.world_size > (os.cpu_count() or 1))
        self._group: Group | None = None
        self._limits: dict[str, LimitLoop] = {}
        self._round = 0

    def handlers(self) -> dict[str, Callable[[Message], Message]]:
        """Name what :func:`turns.serve` may ask for."""
        return {
            "prepare": self.prepare,
            "check": self.check,
            "sample": self.sample,
            "release": self.release,
        }

    def prepare(self, command: Message) -> Message:
        """Allocate for a group; replies with the entries."""
        group = Group.from_json(command["group"])
        self._group = group
        entries = self._runner.prepare(group)
        for fields in command.get("limits", []):
            spec = LimitSpec.from_json(fields)
            for form in FORMS:
                entries.append(Entry(f"{spec.row}/{form}", "limit", spec.row))
            self._limits[spec.row] = LimitLoop(
                spec,
                group.elements,
                self._runner.rank,
                self._runner.world_size,
                self._pool_path,
                self._barrier,
            )
        return {"entries": [[e.form, e.implementation, e.row] for e in entries]}

    def check(self, command: Message) -> Message:
        """Carry out `form` on known data; replies with what is wrong, and the result's digest."""
        form: str = command["form"]
        group = self._current_group()
        runner = self._runner
        if group.operation == "allreduce":
            (source,) = runner.inputs(form)
            checks.fill_random(source, 1, runner.rank)
            self._barrier()
            runner.call(form)()
            result = runner.result(form)
            wrong = checks.check_sum(result, 1, runner.world_size, runner.rank)
        else:
            compare: Any = checks.check_adam
            if group.operation == "lamb":
                compare = functools.partial(check_lamb, is_one=form == "vector")
            wrong, result, _ = check_fused(
                runner, form, group.elements, self._barrier, compare=compare
            )
        self._barrier()
        return {"wrong": wrong, "digest": checks.digest(result)}

    def sample(self, command: Message) -> Message:
        """Time `form`; replies with this rank's seconds, one for every repetition."""
        form: str = command["form"]
        group = self._current_group()
        calls: int = command["calls"]
        reply: dict[str, list[float]] = {
            name: [] for name in ("seconds", "rewrite_seconds", "probe", "start")
        }
        limit = self._limits.get(form.rsplit("/", 1)[0])
        if calls > 1:
            self._sample_loop(form, calls, reply)
            return reply
        call_inputs = [] if limit else self._runner.inputs(form)
        warm: int = command["warm"]
        for repetition in range(warm + command["repeat"]):
            self._round += 1
            # The value differs from call to call so that nothing can be skipped as unchanged.
            word = float_word(1.0 + (self._round % 64) / 64.0, group.dtype)
            self._barrier()
            if limit:
                rewrite_seconds = limit.rewrite(word)
            else:
                rewrite_seconds = sum(self._rewrite(array, word) for array in call_inputs)
            probe = self._probe()
            self._barrier()
            start = time.monotonic()  # one clock for all processes of a machine
            seconds = limit.measure(form.rsplit("/", 1)[1]) if limit else self._runner.measure(form)
            if repetition >= warm:
                reply["seconds"].append(seconds)
                reply["rewrite_seconds"].append(rewrite_seconds)
                reply["probe"].append(probe)
                reply["start"].append(start)
        return reply

    def release(self, command: Message) -> Message:
        """Drop the group's memory."""
        del command
        for limit in self._limits.values():
            limit.close()
        self._limits.clear()
        self._runner.release()
        self._group = None
        return {}

    def _sample_loop(self, form: str, calls: int, reply: dict[str, list[float]]) -> None:
        # Back to back: zeros stay zeros, however often they are summed in place.
        for array in self._runner.inputs(form):
            self._rewrite(array, 0)
        call = self._runner.call(form)
        iterations = range(calls)
        self._barrier()
        probe = self._probe()
        self._barrier()
        start = time.perf_counter()
        for _ in iterations:
            call()
        seconds = (time.perf_counter() - start) / calls
        reply["seconds"].append(seconds)
        reply["probe"].append(probe)

    def _rewrite(self, array: NDArray[Any], word: int) -> float:
        return float(self._library.bench_rewrite(address_of(array), array.nbytes, word))

    def _probe(self) -> float:
        """Give the nanoseconds of one way between the two ranks; 0 where there are not two."""
        if self._runner.world_size != 2:
            return 0.0
        self._barrier()
        return float(self._library.bench_probe(self._control.address, self._runner.rank))

    def _barrier(self) -> None:
        self._library.bench_barrier(self._control.address, self._runner.world_size, self._yields)

    def _current_group(self) -> Group:
        if self._group is None:
            raise RuntimeError("no group is prepared")
        return self._group
