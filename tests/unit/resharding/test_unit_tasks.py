"""Decomposition: who holds and who needs each element, found again by NumPy alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from cocoll.errors import ReshardError
from cocoll.resharding import Layout, Mesh, decompose, multicast_task
from tests.helpers.reshard_data import shard_of
from tests.helpers.reshard_draws import Draw, reshardings


@settings(max_examples=60, deadline=None)
@given(reshardings(partial=False))
def test_every_element_has_its_holders_and_needers(draw: Draw) -> None:
    src = Layout(draw.shape, draw.src, draw.src_spec)
    dst = Layout(draw.shape, draw.dst, draw.dst_spec)
    whole = np.arange(int(np.prod(draw.shape))).reshape(draw.shape)
    holding = [set() for _ in range(whole.size)]
    needing = [set() for _ in range(whole.size)]
    for layout, found in ((src, holding), (dst, needing)):
        for rank in layout.mesh:
            for element in shard_of(whole, layout, rank).ravel():
                found[element].add(rank)
    seen = np.zeros(whole.size, dtype=int)
    for task in decompose(src, dst, 4):
        elements = whole[tuple(slice(*ends) for ends in task.box)].ravel()
        assert task.nbytes == 4 * len(elements) > 0
        seen[elements] += 1
        for element in elements:
            assert set(task.holders) == holding[element]
            assert set(task.needers) == needing[element] - holding[element]
            assert set(task.keepers) == needing[element] & holding[element]
    assert (seen == 1).all()


def test_listing_order_is_by_destination_then_source() -> None:
    src = Layout((8, 8), Mesh.arange((4,)), "R,S0")
    dst = Layout((8, 8), Mesh.arange((2,), 4), "S0,R")
    pairs = [(task.needers, task.holders) for task in decompose(src, dst, 4)]
    assert pairs == [((rank,), (holder,)) for rank in (4, 5) for holder in range(4)]


def test_partial_sums_are_added_by_owners_of_equal_parts() -> None:
    # Two replicas of four summands: eight owners, each adds three summands to an eighth.
    src = Layout((16, 3), Mesh.arange((2, 4)), "R,R+P1")
    dst = Layout((16, 3), Mesh.arange((2,), 8), "R,R")
    tasks = decompose(src, dst, 4)
    adding = [task for task in tasks if task.adds]
    sending = [task for task in tasks if not task.adds]
    assert len(adding) == 24
    assert [task.box[0] for task in sending] == [(2 * part, 2 * part + 2) for part in range(8)]
    for task in sending:
        (owner,) = task.holders
        parts = {tasks[number].holders[0] for number in task.after}
        assert parts | {owner} == set(range(owner // 4 * 4, owner // 4 * 4 + 4))
        assert all(tasks[number].needers == (owner,) for number in task.after)
        assert all(tasks[number].box == task.box for number in task.after)


def test_what_cannot_be_decomposed() -> None:
    one, other = Mesh.arange((2,)), Mesh.arange((2,), 2)
    with pytest.raises(ReshardError, match=r"shape \(4,\) and \(5,\)"):
        decompose(Layout((4,), one, "R"), Layout((5,), other, "R"), 4)
    with pytest.raises(ReshardError, match="dst: spec R\\+P0: a destination cannot hold partial"):
        decompose(Layout((4,), one, "R"), Layout((4,), other, "R+P0"), 4)


def test_multicast_tasks() -> None:
    task = multicast_task([1, 2], [2, 3], 100)
    assert (task.holders, task.needers, task.keepers, task.nbytes) == ((1, 2), (3,), (2,), 100)
    for holders, needers, nbytes in [
        ([], [1], 1),
        ([1, 1], [2], 1),
        ([1], [-2], 1),
        ([1], [2], -1),
    ]:
        with pytest.raises(ReshardError, match="a multicast: wanted"):
            multicast_task(holders, needers, nbytes)
