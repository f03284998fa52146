"""Different operations of one communicator in sequence: they share scratch and flags."""

from __future__ import annotations

import itertools

import pytest

from cocoll.errors import DependenceError
from tests.helpers.plan_cases import make_cases, verify_operation
from tests.helpers.plan_runner import run_operations

NAMES = (
    "one_shot-plain",
    "inline-plain",
    "two_shot-plain_in_place",
    "two_shot-adam_replicated",
    "two_shot_staged-plain_in_place",
    "two_shot_staged-two_results",
    "two_shot_staged-adam_replicated",
    "reduce_scatter-plain_in_place-align1",
    "reduce_scatter_staged-plain-align1",
    "allgather_staged-align1",
    "broadcast_staged-root0",
    "barrier",
)
STAGED = tuple(name for name in NAMES if "staged" in name)


@pytest.mark.parametrize(("one", "two"), list(itertools.combinations(NAMES, 2)))
def test_in_both_orders_on_two_ranks(one: str, two: str) -> None:
    cases = make_cases(2, specs=("plain", "two_results", "adam"))
    count = 16 if "inline" in one + two else 61
    verify_operation(cases[one], (count,), cases[two])


@pytest.mark.parametrize(("one", "two"), list(itertools.combinations(STAGED, 2)))
def test_staged_ones_in_both_orders_on_three_ranks(one: str, two: str) -> None:
    cases = make_cases(3, specs=("plain", "two_results", "adam"))
    verify_operation(cases[one], (61,), cases[two])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_a_mix_computes_the_right_thing(world_size: int, seed: int) -> None:
    cases = make_cases(world_size, specs=("plain", "two_results", "adam"))
    names = [name for name in NAMES if "adam" not in name]
    shuffled = names[seed:] + names[:seed]
    run_operations([cases[name] for name in shuffled], 16, seed)


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_staged_forms_may_open_late(world_size: int) -> None:
    cases = make_cases(world_size, specs=("plain", "two_results", "zeroing"))
    late = [name for name in cases if "staged" in name]
    assert len(late) > 15
    for name in late:
        verify_operation(cases[name], (61,), late_opening=True)


@pytest.mark.parametrize("name", ["one_shot-plain", "inline-plain"])
def test_what_peers_read_at_arrival_may_not_be_written_late(name: str) -> None:
    operation = make_cases(2, specs=("plain",))[name]
    with pytest.raises(DependenceError):
        verify_operation(operation, (16,), late_opening=True)
