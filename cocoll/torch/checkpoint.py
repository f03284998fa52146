"""State that outlives a world size: shards with their layout, and the form of ``torch.optim``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from cocoll import _core
from cocoll.errors import UsageError
from cocoll.state import ShardLayout

if TYPE_CHECKING:
    from cocoll.communicator import Communicator
    from cocoll.torch.bucket import Bucket
    from cocoll.torch.recipe import Recipe
    from cocoll.torch.reducer import Reducer

__all__ = ["Source", "consolidate", "describe", "load", "open_state"]

_FORMAT = 1


class Source(Protocol):
    """A state that was saved, however it was."""

    groups: Sequence[Mapping[str, Any]]

    def find_steps(self, index: int) -> int:
        """Give how many steps a parameter had taken."""

    def read(self, index: int, name: str, start: int, stop: int) -> Any:
        """Give elements of a parameter's state as a tensor, or None where there were none."""


# --- Out of an optimizer. ---


def describe(
    recipe: Recipe,
    groups: Sequence[Mapping[str, Any]],
    reducer: Reducer,
    rank: int,
    world_size: int,
) -> dict[str, Any]:
    """Give one rank's state; see `FusedOptimizer.state_dict`."""
    buckets = []
    for bucket in reducer.buckets:
        names = _saved_names(recipe, groups[bucket.group], bucket)
        buckets.append(
            {
                "layout": dataclasses.asdict(bucket.layout),
                "slots": [[slot.index, slot.offset, slot.length] for slot in bucket.slots],
                "shards": {
                    names[name]: torch.from_numpy(array) for name, array in bucket.arrays.items()
                },
            }
        )
    return {
        "cocoll": _FORMAT,
        "optimizer": recipe.name,
        "rank": rank,
        "world_size": world_size,
        "steps": dict(sorted(reducer.steps.items())),
        "param_groups": _pack_groups(groups),
        "buckets": buckets,
    }


def consolidate(
    recipe: Recipe, groups: Sequence[Mapping[str, Any]], reducer: Reducer, comm: Communicator
) -> dict[str, Any] | None:
    """Give the state of all ranks on rank 0; see `FusedOptimizer.consolidate`."""
    state: dict[int, dict[str, Any]] = {}
    for bucket in reducer.buckets:
        names = _saved_names(recipe, groups[bucket.group], bucket)
        for name, array in bucket.arrays.items():
            whole = np.empty(bucket.count, array.dtype)
            _core.allgather(array, out=whole, layout="shard", comm=comm).wait()
            if comm.rank != 0:
                continue
            for slot in bucket.slots:
                if reducer.steps[slot.index] > 0:
                    part = torch.from_numpy(whole[slot.offset : slot.stop].copy())
                    shape = reducer.params[slot.index].shape
                    state.setdefault(slot.index, {})[names[name]] = part.view(shape)
    if comm.rank != 0:
        return None
    for index, steps in reducer.steps.items():
        if steps > 0:
            state.setdefault(index, {})["step"] = torch.tensor(float(steps))
    # What torch's own optimizer knows of a group besides; its names differ between versions.
    blank = recipe.torch_class([torch.zeros(1)], lr=1.0).param_groups[0]
    packed = [{**blank, **group} for group in _pack_groups(groups)]
    return {"state": dict(sorted(state.items())), "param_groups": packed}


def _pack_groups(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    packed, first = [], 0
    for group in groups:
        count = len(group["params"])
        rest = {name: value for name, value in group.items() if name != "params"}
        packed.append({**rest, "params": list(range(first, first + count))})
        first += count
    return packed


def _saved_names(recipe: Recipe, group: Mapping[str, Any], bucket: Bucket) -> dict[str, str]:
    """Give the names under which a bucket's arrays are saved."""
    own = {name: name for name in bucket.arrays}
    return {**own, **recipe.state(group)}


# --- Into an optimizer. ---


def open_state(
    state: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Callable[[int], Any],
    recipe: Recipe,
    rank: int,
    world_size: int,
) -> Source:
    """Find out in which form a state was saved.

    Raises
    ------
    UsageError
        In none, or by another optimizer.
    """
    if isinstance(state, Mapping):
        if "cocoll" not in state:
            if "state" not in state or "param_groups" not in state:
                raise UsageError(
                    "wanted the state_dict of an optimizer of cocoll.torch or torch.optim; got a "
                    f"dict of {sorted(map(str, state))}"
                )
            return _WholeState(state)
        saved = (state["rank"], state["world_size"])
        if saved != (rank, world_size):
            raise UsageError(
                f"rank {rank} of {world_size} got the state of rank {saved[0]} of {saved[1]} "
                f"alone: give load_state_dict those of all {saved[1]} ranks, as a list or as a "
                f"function from a rank to its"
            )
        alone = state
        return _ShardedState(lambda _: alone, recipe, rank)
    if callable(state):
        return _ShardedState(state, recipe, 0)
    if not state or len(state) != state[0].get("world_size"):
        raise UsageError(
            f"wanted the state_dicts of all ranks that saved, in rank order; got {len(state)}"
            + (f" of {state[0].get('world_size')}" if state else "")
        )
    return _ShardedState(state.__getitem__, recipe, 0)


def load(
    source: Source, recipe: Recipe, groups: Sequence[dict[str, Any]], reducer: Reducer
) -> None:
    """Bring a saved state into an optimizer's shards; see `FusedOptimizer.load_state_dict`.

    Raises
    ------
    UsageError
        It is the state of other parameters.
    """
    wanted = [len(group["params"]) for group in groups]
    saved = [len(group["params"]) for group in source.groups]
    if wanted != saved:
        raise UsageError(
            f"the state is of parameter groups of {saved} parameters; the optimizer has groups of "
            f"{wanted}"
        )
    for bucket in reducer.buckets:
        names = _saved_names(recipe, groups[bucket.group], bucket)
        for name, array in bucket.arrays.items():
            target = torch.from_numpy(array)
            if name == "master":
                bucket.refresh_master()
            else:
                target.zero_()
            for slot in bucket.slots:
                start, stop = max(slot.offset, bucket.start), min(slot.stop, bucket.stop)
                if start >= stop:
                    continue
                part = source.read(slot.index, names[name], start - slot.offset, stop - slot.offset)
                if part is not None:
                    target[start - bucket.start : stop - bucket.start].copy_(part)
    for index in reducer.steps:
        reducer.steps[index] = source.find_steps(index)
    for group, loaded in zip(groups, source.groups, strict=True):
        # What torch.optim knows besides (foreach, capturable, ...) says nothing here.
        for name in group:
            if name != "params" and name in loaded:
                group[name] = loaded[name]
        for name in ("initial_lr", "name"):
            if name in loaded:
                group[name] = loaded[name]
    reducer.relearn()


class _WholeState:
    """The form of ``torch.optim``: all of every parameter's state."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state: Mapping[int, Mapping[str, Any]] = state["state"]
        self.groups: Sequence[Mapping[str, Any]] = state["param_groups"]

    def find_steps(self, index: int) -> int:
        own = self._state.get(index)
        if not own:
            return 0
        # torch's SGD counts no steps: what has a buffer has taken one.
        return int(own["step"]) if "step" in own else 1

    def read(self, index: int, name: str, start: int, stop: int) -> Any:
        own = self._state.get(index, {}).get(name)
        return None if own is None else own.detach().reshape(-1)[start:stop]


class _ShardedState:
    """The shards of all ranks that saved, each read when it is first needed."""

    def __init__(self, read: Callable[[int], Any], recipe: Recipe, known: int) -> None:
        self._read = read
        self._kept: dict[int, Mapping[str, Any]] = {}
        self._recipe = recipe
        self._known = known
        first = self._fetch(known)
        self._world_size = int(first["world_size"])
        self.groups: Sequence[Mapping[str, Any]] = first["param_groups"]
        self._steps: Mapping[int, int] = first["steps"]
        self._places = {
            index: (number, offset, length)
            for number, bucket in enumerate(first["buckets"])
            for index, offset, length in bucket["slots"]
        }
        self._layouts = [ShardLayout(**bucket["layout"]) for bucket in first["buckets"]]

    def _fetch(self, rank: int) -> Mapping[str, Any]:
        if rank not in self._kept:
            state = self._read(rank)
            if state.get("cocoll") != _FORMAT or state["optimizer"] != self._recipe.name:
                raise UsageError(
                    f"wanted the state of a {self._recipe.name} in form {_FORMAT}; got that of "
                    f"{state.get('optimizer', 'something else')} in form {state.get('cocoll')}"
                )
            if self._kept and (state["rank"] != rank or state["world_size"] != self._world_size):
                raise UsageError(
                    f"wanted the state of rank {rank} of {self._world_size}; got that of rank "
                    f"{state['rank']} of {state['world_size']}"
                )
            self._kept[rank] = state
        return self._kept[rank]

    def find_steps(self, index: int) -> int:
        return int(self._steps.get(index, 0))

    def read(self, index: int, name: str, start: int, stop: int) -> Any:
        if index not in self._places:
            return None
        number, offset, length = self._places[index]
        if stop > length:
            raise UsageError(
                f"parameter {index} had {length} elements when the state was saved; it has more now"
            )
        parts = []
        for rank, first, last in self._layouts[number].find_parts(offset + start, offset + stop):
            shard = self._fetch(rank)["buckets"][number]["shards"].get(name)
            if shard is None:
                return None
            begin, _ = self._layouts[number].find_range(rank)
            parts.append(shard[first - begin : last - begin])
        return torch.cat(parts)
