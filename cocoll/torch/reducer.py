"""From gradients to updates: hooks, the order in which buckets are issued, and what step waits for.

All ranks issue the same operations in the same order: bucket after bucket, each only when all
before it are. A rank whose gradients come in another order waits with what came early; what a
backward pass leaves behind is issued by the step.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cocoll import _core
from cocoll.errors import UnsupportedError, UsageError
from cocoll.torch.deferral import Deferral

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.torch.bucket import Bucket
    from cocoll.torch.recipe import Recipe

__all__ = ["Outcome", "Reducer", "StepRules"]


@dataclass(frozen=True, slots=True)
class StepRules:
    """What a step waits for all gradients for; read when its first gradient arrives.

    Attributes
    ----------
    max_norm : float or None
        What the global norm of the gradients is clipped to.
    loss_scale : float or None
        What the loss was multiplied by. The step is skipped where a gradient is not finite.
    finds_unused : bool
        Whether other parameters may be without gradient in each step.
    """

    max_norm: float | None = None
    loss_scale: float | None = None
    finds_unused: bool = False

    @property
    def waits(self) -> bool:
        """Whether no parameter may change before all gradients are known."""
        return self.max_norm is not None or self.loss_scale is not None or self.finds_unused


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step.

    Attributes
    ----------
    norm : float or None
        The global norm of the gradients, where the step waited for all of them.
    is_finite : bool
        Whether all gradients were; where not, and there is a loss scale, nothing was updated.
    """

    norm: float | None
    is_finite: bool


class Reducer:
    """The gradients of some parameters, on their way through the buckets.

    Parameters
    ----------
    comm, solo : Communicator
        Of its own, of all ranks; and of this rank alone.
    recipe : Recipe
        The optimizer.
    groups : list of dict
        The optimizer's parameter groups; read when a bucket is issued.
    rules : callable
        Gives what holds for the step that begins.
    op : {"avg", "sum"}
        How gradients are reduced.
    overlaps : bool
        Whether operations run on a stream while backward goes on; else all of them in `finish`.
    """

    def __init__(
        self,
        comm: Communicator,
        solo: Communicator,
        recipe: Recipe,
        groups: Sequence[Mapping[str, Any]],
        rules: Callable[[], StepRules],
        *,
        op: str,
        overlaps: bool,
    ) -> None:
        self._comm, self._recipe, self._groups, self._rules = comm, recipe, groups, rules
        self._op = op
        self._stream = _core.Stream() if overlaps else None
        self._deferral = Deferral(comm, solo, recipe, groups, op, self._stream)
        self.buckets: list[Bucket] = []
        self.params: dict[int, Any] = {}
        #: Steps that each parameter has taken, by its number.
        self.steps: dict[int, int] = {}
        self._place: dict[int, tuple[int, int]] = {}
        self._expected: dict[int, bool] = {}
        self._learned = False
        self._bound: dict[tuple[int, Hashable], _core.BoundOperation] = {}
        self._handles: list[Any] = []
        self._syncs = True
        self._step: _Step | None = None

    def add(self, bucket: Bucket, params: Sequence[Any]) -> None:
        """Take a bucket in, behind those that are there; its parameters get hooks."""
        number = len(self.buckets)
        self.buckets.append(bucket)
        this = weakref.ref(self)
        for position, (slot, param) in enumerate(zip(bucket.slots, params, strict=True)):
            self.params[slot.index] = param
            self.steps[slot.index] = 0
            self._expected[slot.index] = True
            self._place[slot.index] = (number, position)

            def hook(param: Any, index: int = slot.index) -> None:
                del param
                reducer = this()
                if reducer is not None:
                    reducer._arrive(index)

            self._handles.append(param.register_post_accumulate_grad_hook(hook))
        self.relearn()

    def relearn(self) -> None:
        """Let the next step find out anew which parameters have gradients."""
        self._learned = False

    @property
    def is_between_steps(self) -> bool:
        """Whether no gradient of the next step has arrived yet."""
        return self._step is None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let gradients that arrive inside add up, and issue nothing."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def close(self) -> None:
        """Take the hooks away, finish what was issued, and end the stream."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._stream is not None:
            self._stream.close()

    # --- While backward goes on. ---

    def _arrive(self, index: int) -> None:
        self._settle(index)
        if not self._syncs:
            return
        step = self._begin()
        if index in step.arrived:
            raise UsageError(
                f"the gradient of parameter {index} arrived twice on rank {self._comm.rank} before "
                f"step(): run all backward passes of a step but the last one under "
                f"optimizer.no_sync()"
            )
        step.arrived.add(index)
        step.missing[self._place[index][0]] -= 1
        if self._stream is None:
            return
        while step.issued < step.prompt and step.missing[step.order[step.issued]] == 0:
            self._issue(step)

    def _settle(self, index: int) -> None:
        """Bring a gradient into its bucket; from then on the parameter's gradient lies there."""
        param = self.params[index]
        number, position = self._place[index]
        view = self.buckets[number].gradients[position]
        gradient = param.grad
        if gradient is view:
            return
        if gradient.layout != torch.strided:
            raise UnsupportedError(
                f"wanted a dense gradient; parameter {index} has one of {gradient.layout} on rank "
                f"{self._comm.rank}. Use sparse=False"
            )
        view.copy_(gradient.detach())
        param.grad = view

    def _begin(self) -> _Step:
        if self._step is None:
            rules = self._rules()
            step = _Step(rules, [len(bucket.slots) for bucket in self.buckets])
            prompt: list[int] = []
            late: list[int] = []
            for number, bucket in enumerate(self.buckets):
                expected = all(self._expected[slot.index] for slot in bucket.slots)
                (prompt if expected else late).append(number)
                alike = len({self.steps[slot.index] for slot in bucket.slots}) == 1
                if rules.waits or not self._learned or not expected or not alike:
                    step.deferred.add(number)
            # A gradient that nobody expects may still come: these buckets wait for the step.
            step.order, step.prompt = prompt + late, len(prompt)
            self._step = step
        return self._step

    def _issue(self, step: _Step) -> None:
        number = step.order[step.issued]
        step.issued += 1
        if number in step.deferred:
            step.works.append(self._deferral.reduce(number, self.buckets[number]))
            return
        self._deferral.release(number)
        bucket = self.buckets[number]
        group = self._groups[bucket.group]
        key = (number, self._recipe.structure(group))
        bound = self._bound.get(key)
        if bound is None:
            gradient, operands = bucket.gradient, bucket.operands
            if self._recipe.per_tensor:
                gradient = bucket.cut(gradient)
                operands["param"] = bucket.cut(bucket.param)
            bound = self._bound[key] = self._comm.bind(
                _core.allreduce_fused,
                gradient,
                self._recipe.epilogue(group),
                op=self._op,
                stream=self._stream,
                dtype=bucket.label if bucket.label == "bfloat16" else None,
                **operands,
            )
        taken = self.steps[bucket.slots[0].index]
        step.works.append(bound(**self._recipe.scalars(group, taken + 1)))

    # --- The step itself. ---

    def finish(self) -> Outcome:
        """Issue what is left, wait, and update what has waited. Collective."""
        self._check_others()
        step = self._begin()
        # Whatever goes wrong, the next gradient begins a new step.
        self._step = None
        present = self._complete(step)
        while step.issued < len(step.order):
            self._issue(step)
        for work in step.works:
            work.wait()
        deferred = [(n, self.buckets[n]) for n in sorted(step.deferred)]
        agreed, total = self._agree(step, present, deferred)
        outcome = Outcome(None, True)
        if total is not None:
            outcome = self._update(step, deferred, agreed, total)
            if len(deferred) < len(self.buckets):
                # The others have been updated, and their gradients are gone.
                outcome = Outcome(None, outcome.is_finite)
        for number in step.order:
            if number not in step.deferred:
                for slot in self.buckets[number].slots:
                    self.steps[slot.index] += 1
        if deferred:
            self._expected.update(agreed)
            self._learned = True
        self._check_expectation(step, agreed)
        return outcome

    def _check_others(self) -> None:
        everything = [param for group in self._groups for param in group["params"]]
        late = [
            index
            for index, param in enumerate(everything)
            if param.grad is not None and index not in self.params
        ]
        if late:
            raise UsageError(
                f"parameters {late} have gradients on rank {self._comm.rank}, and required none "
                f"when the optimizer was made: make it anew, with its state"
            )

    def _complete(self, step: _Step) -> dict[int, bool]:
        """Give which parameters have a gradient here; the others' places are filled with zeros."""
        present = {}
        for index, param in self.params.items():
            present[index] = index in step.arrived or param.grad is not None
            if index in step.arrived:
                continue
            if present[index]:
                self._settle(index)
            else:
                number, position = self._place[index]
                self.buckets[number].gradients[position].zero_()
        return present

    def _agree(
        self, step: _Step, present: dict[int, bool], deferred: list[tuple[int, Bucket]]
    ) -> tuple[dict[int, bool], float | None]:
        """Find out which parameters have a gradient on any rank, and the sum of all squares.

        Where nothing is deferred and every rank has all gradients, four bytes say so.
        """
        if not deferred:
            absent = np.array([not all(present.values())], np.float32)
            _core.allreduce(absent, comm=self._comm).wait()
            if absent[0] == 0:
                return present, None
        # In float64, in the order of buckets here and of ranks there: the same bits everywhere.
        values = np.zeros(1 + len(present))
        for number, _ in deferred:
            values[0] += self._deferral.sum_squares(number)
        values[1:] = [present[index] for index in sorted(present)]
        _core.allreduce(values, comm=self._comm).wait()
        counts = dict(zip(sorted(present), values[1:].tolist(), strict=True))
        agreed = {index: counts[index] > 0 for index in present}
        return agreed, float(values[0]) if deferred else None

    def _update(
        self,
        step: _Step,
        deferred: list[tuple[int, Bucket]],
        agreed: dict[int, bool],
        total: float,
    ) -> Outcome:
        rules = step.rules
        unscale = 1.0 if rules.loss_scale is None else 1.0 / rules.loss_scale
        norm = math.sqrt(total) * unscale
        if rules.loss_scale is not None and not math.isfinite(total):
            return Outcome(norm, False)
        factor = unscale
        if rules.max_norm is not None:
            # As torch.nn.utils.clip_grad_norm_ has it; what is not a number stays so.
            clip = rules.max_norm / (norm + 1e-6)
            factor *= 1.0 if clip > 1.0 else clip
        for number, bucket in deferred:
            slots = [slot for slot in bucket.slots if agreed[slot.index]]
            if slots:
                self._deferral.update(number, bucket, slots, self.steps, factor)
            for slot in slots:
                self.steps[slot.index] += 1
        return Outcome(norm, math.isfinite(total))

    def _check_expectation(self, step: _Step, agreed: dict[int, bool]) -> None:
        lost = [
            slot.index
            for number, bucket in enumerate(self.buckets)
            if number not in step.deferred
            for slot in bucket.slots
            if not agreed[slot.index]
        ]
        if lost:
            self.relearn()
            raise UsageError(
                f"parameters {lost} had a gradient in the steps before, and have none on any rank "
                f"in this one; the step was taken with zeros for them (said by rank "
                f"{self._comm.rank}; all ranks raise). Give find_unused_parameters=True where the "
                f"parameters that are used change"
            )


class _Step:
    """What has happened since the last step."""

    def __init__(self, rules: StepRules, missing: list[int]) -> None:
        self.rules = rules
        self.missing = missing
        self.arrived: set[int] = set()
        self.deferred: set[int] = set()
        self.order: list[int] = []
        self.prompt = 0
        self.issued = 0
        self.works: list[_core.Work] = []
