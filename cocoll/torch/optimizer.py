"""What all fused optimizers have in common: parameter groups, steps, accumulation, state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from cocoll import _core
from cocoll.errors import UsageError
from cocoll.torch import checkpoint
from cocoll.torch.bucket import Bucket, Slot, plan_buckets
from cocoll.torch.memory import dtype_label
from cocoll.torch.reducer import Reducer, StepRules

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.torch.recipe import Recipe
    from cocoll.torch.scaler import LossScaler

__all__ = ["FusedOptimizer"]


class FusedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer that runs inside the all-reduce of the gradients. Making one is collective.

    Parameters and gradients move into buckets of the communicator's memory, with the values that
    rank 0 has; parameters and their ``grad`` are views into them. As soon as backward has all
    gradients of a bucket, one fused call reduces them, updates this rank's shard, and gives the new
    parameters to all ranks, while backward goes on; `step` waits for that. Each rank keeps its
    shard of the state, 1 / world_size of it.

    So parameters change *during* backward: learning rates and other hyperparameters are read when
    the gradients of a bucket are complete, gradients must not be changed between backward and
    `step`, and a backward pass cannot be taken back. With `max_norm`, `scaler` or
    `find_unused_parameters` parameters change in `step` only; gradients are reduced during backward
    all the same.

    Parameters
    ----------
    params : iterable of torch.nn.Parameter, or of dict
        Parameters, or parameter groups; the same on all ranks. Those that require no gradient are
        left alone. float16, bfloat16, float32 and float64, in host memory; state is float32, and
        16-bit parameters have a float32 copy in it.
    defaults : dict
        Hyperparameters of groups that do not give them.
    recipe : Recipe
        Which optimizer it is.
    comm : Communicator, optional
        Whose ranks train together; it is duplicated. Default: the default communicator.
    bucket_bytes : int, default 4194304
        What a bucket holds of gradients; one larger parameter has a bucket to itself.
    replicated : bool, default True
        The ranks of a host share one copy of the parameters. Whatever else writes into parameters
        then writes for all of them: it must write the same values on all ranks, or on one.
    overlap : bool, default True
        Run operations on a thread of their own while backward goes on; else all in `step`, on the
        caller's: there is then nothing under way between backward and `step`. Where a rank has one
        processor for both, that may be faster.
    reduction : {"avg", "sum"}, default "avg"
        How gradients of the ranks are put together.
    max_norm : float, optional
        What the norm of all gradients together is clipped to; the attribute may be set between
        steps.
    scaler : LossScaler, optional
        Unscales gradients and skips steps that overflow.
    find_unused_parameters : bool, default False
        Other parameters may be without gradient in each step. Otherwise those that have none on
        any rank in the first step are expected to have none later, and those that have one to have
        one in each step, on some rank.

    Attributes
    ----------
    grad_norm : float or None
        The global norm of the unscaled gradients of the last step, where it waited for all of them.
    max_norm : float or None
        As given.

    Raises
    ------
    UsageError
        An option or a number is out of range.
    DTypeError, UnsupportedError
        A parameter is not of a dtype, or not in a place, that can be trained.
    CollectiveMismatchError
        The ranks have different parameters.
    """

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        recipe: Recipe,
        *,
        comm: Communicator | None = None,
        bucket_bytes: int = 4 << 20,
        replicated: bool = True,
        overlap: bool = True,
        reduction: str = "avg",
        max_norm: float | None = None,
        scaler: LossScaler | None = None,
        find_unused_parameters: bool = False,
    ) -> None:
        if reduction not in ("avg", "sum"):
            raise UsageError(f"reduction must be 'avg' or 'sum'; got {reduction!r}")
        if bucket_bytes < 1:
            raise UsageError(f"bucket_bytes must be at least 1; got {bucket_bytes}")
        self.max_norm = max_norm
        self.grad_norm: float | None = None
        self._read_max_norm()
        self._recipe, self._scaler = recipe, scaler
        self._finds_unused = bool(find_unused_parameters)
        self._bucket_bytes, self._replicated = bucket_bytes, replicated
        self._reducer: Reducer | None = None
        super().__init__(params, defaults)
        everyone = _core.resolve_communicator(comm)
        self._comm: Communicator = everyone.duplicate()
        self._solo: Communicator = self._comm.split(self._comm.rank)
        self._reducer = Reducer(
            self._comm,
            self._solo,
            recipe,
            self.param_groups,
            self._read_rules,
            op=reduction,
            overlaps=overlap,
        )
        self._add_buckets(range(len(self.param_groups)))

    # --- Parameters. ---

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take in a further group of parameters. Collective, once the optimizer has been made.

        Parameters
        ----------
        param_group : dict
            ``"params"``, and hyperparameters that differ from the defaults.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        self._recipe.epilogue(group)  # refuses numbers out of range, on all ranks
        if self._reducer is not None:
            self._check_between_steps("add_param_group")
            self._add_buckets([len(self.param_groups) - 1])

    def _add_buckets(self, groups: Iterable[int]) -> None:
        """Make the buckets of some groups, and give them their place in the order."""
        planned = []
        for number in groups:
            first = sum(len(group["params"]) for group in self.param_groups[:number])
            params = self.param_groups[number]["params"]
            by_dtype: dict[str, list[int]] = {}
            for index, param in enumerate(params):
                if param.requires_grad:
                    label = dtype_label(param, f"parameter {first + index}")
                    by_dtype.setdefault(label, []).append(index)
            for label, members in by_dtype.items():
                limit = self._bucket_bytes // params[members[0]].element_size()
                lengths = [params[index].numel() for index in members]
                for slots, count in plan_buckets(lengths, limit):
                    last = members[slots[-1].index]
                    numbered = [
                        Slot(first + members[slot.index], slot.offset, slot.length)
                        for slot in slots
                    ]
                    planned.append((-last / len(params), number, numbered, count, label))
        # Where a model is divided into groups, each goes through all of it: gradients come from
        # the ends of all groups at once.
        everything = self._all_params()
        for _, number, slots, count, label in sorted(planned, key=lambda entry: entry[:2]):
            members_of_bucket = [everything[slot.index] for slot in slots]
            bucket = Bucket(
                self._comm,
                number,
                slots,
                members_of_bucket,
                count,
                label,
                list(self._recipe.state(self.param_groups[number])),
                replicated=self._replicated,
            )
            self._engine.add(bucket, members_of_bucket)

    def _all_params(self) -> list[Any]:
        return [param for group in self.param_groups for param in group["params"]]

    @property
    def _engine(self) -> Reducer:
        assert self._reducer is not None
        return self._reducer

    # --- Steps. ---

    def _read_max_norm(self) -> float | None:
        if self.max_norm is not None and not self.max_norm > 0:
            raise UsageError(f"max_norm must be above 0, or None; got {self.max_norm!r}")
        return None if self.max_norm is None else float(self.max_norm)

    def _read_rules(self) -> StepRules:
        scale = None if self._scaler is None else self._scaler.get_scale()
        return StepRules(self._read_max_norm(), scale, self._finds_unused)

    def no_sync(self) -> AbstractContextManager[None]:
        """Let the gradients of backward passes inside the block add up on this rank.

        All backward passes of a step but the last one run in such blocks.

        Returns
        -------
        context manager
            For ``with``.
        """
        return self._engine.hold()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait until all parameters have been updated. Collective.

        Parameters
        ----------
        closure : callable, optional
            Computes gradients and gives the loss.

        Returns
        -------
        object
            What `closure` gave.

        Raises
        ------
        UsageError
            On all ranks: parameters that had gradients in earlier steps have none.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        outcome = self._engine.finish()
        self.grad_norm = outcome.norm
        if self._scaler is not None:
            self._scaler.adapt(outcome.is_finite)
        return loss

    # --- State. ---

    @property
    def state_bytes(self) -> int:
        """Bytes of state that this rank keeps."""
        arrays = [array for b in self._engine.buckets for array in b.arrays.values()]
        return sum(array.nbytes for array in arrays)

    def _check_between_steps(self, what: str) -> None:
        if not self._engine.is_between_steps:
            raise UsageError(
                f"{what} between backward and step() on rank {self._comm.rank}: gradients are "
                f"under way. Call step() first"
            )

    def state_dict(self) -> dict[str, Any]:
        """Give this rank's shard of the state, with what it takes to put it together again. Local.

        Returns
        -------
        dict
            Numbers, strings and tensors; the tensors are the optimizer's own, not copies, as those
            of ``torch.optim``.
        """
        self._check_between_steps("state_dict")
        return checkpoint.describe(
            self._recipe, self.param_groups, self._engine, self._comm.rank, self._comm.world_size
        )

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Callable[[int], Any],
    ) -> None:
        """Go on where a state was taken, on any number of ranks. Local; all ranks do it.

        Parameters
        ----------
        state_dict : dict, sequence of dict, or callable
            This rank's `state_dict`, of a world of the same size; or those of all ranks, in rank
            order; or a function from a rank to its, which is called for the ranks that are needed;
            or what `consolidate` or the optimizer of ``torch.optim`` gave.

        Raises
        ------
        UsageError
            It is the state of other parameters, of another optimizer, or of another rank alone.
        """
        self._check_between_steps("load_state_dict")
        source = checkpoint.open_state(
            state_dict, self._recipe, self._comm.rank, self._comm.world_size
        )
        checkpoint.load(source, self._recipe, self.param_groups, self._engine)

    def consolidate(self) -> dict[str, Any] | None:
        """Put the state of all ranks together, as ``torch.optim`` would have it. Collective.

        Returns
        -------
        dict or None
            On rank 0 a state that the optimizer of ``torch.optim`` loads, and `load_state_dict`;
            None elsewhere. 16-bit parameters have their float32 copy in it, as ``"master"``.
        """
        self._check_between_steps("consolidate")
        return checkpoint.consolidate(self._recipe, self.param_groups, self._engine, self._comm)

    def close(self) -> None:
        """Take the hooks away and leave the communicator. Local and idempotent.

        Parameters keep their values, and their memory.
        """
        self._engine.close()
        self._solo.close()
        self._comm.close()
