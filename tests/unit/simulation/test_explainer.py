"""Explanations: the choice, its bound, and what the others would take."""

from __future__ import annotations

import json

import pytest

from cocoll.errors import SimulationError, UsageError
from cocoll.plan import WHOLE_VECTOR, Copy, Plan
from cocoll.simulation import explain
from tests.helpers.simulated import (
    all_plans,
    binary_tree,
    chain,
    doubling,
    exchange,
    idle,
    lane,
    plan_of_lanes,
    ring,
    source,
    wired_hosts,
)

HOSTS = wired_hosts(4)
COUNT = 16_384  # 65536 bytes, 64 chunks
CHUNK = 256


def ways() -> list[tuple[str, object]]:
    return [
        ("tree", binary_tree(HOSTS, CHUNK)),
        ("chain", all_plans(chain(HOSTS, CHUNK, 2), HOSTS)),
    ]


def test_the_fastest_is_chosen_and_the_others_are_told() -> None:
    """A chain sends everything once; the root of the tree sends it twice."""
    found = explain("broadcast", ways(), HOSTS, COUNT, nbytes=65536, reasons={"chain": "once"})
    assert found.algorithm == "chain"
    assert found.why == "once"
    (other,) = found.alternatives
    assert other.name == "tree"
    assert other.nanoseconds is not None
    assert other.nanoseconds > 2 * 65536
    # Arrival of two rounds, three hops, and the chunks after the first.
    assert found.predicted_nanoseconds == 2000 + 3 * (1000 + 1024) + 63 * 1024
    assert found.messages == 3 * 64
    assert found.simulated_ranks == found.ranks == 4
    assert found.hosts == 4


def test_the_bound_names_the_port_that_gives_it() -> None:
    found = explain("broadcast", ways(), HOSTS, COUNT, nbytes=65536)
    assert found.bound.port == "h0 e0 out"
    assert found.bound.bytes == 65536
    assert found.bound.nanoseconds == 65536 + 1000
    assert found.fraction == found.bound.nanoseconds / found.predicted_nanoseconds
    slow = wired_hosts(4, rates=[10**9, 10**9, 10**8, 10**9])
    found = explain("broadcast", [("chain", chain(slow, CHUNK))], slow, COUNT, nbytes=65536)
    assert found.bound.port == "h2 e0 in"
    assert found.bound.bandwidth_bytes_per_second == 10**8


def test_a_choice_may_be_given() -> None:
    found = explain("broadcast", ways(), HOSTS, COUNT, nbytes=65536, chosen="tree")
    assert found.algorithm == "tree"
    assert [one.name for one in found.alternatives] == ["chain"]
    assert found.fraction < 0.5


def test_bytes_are_summed_up_by_kind_of_port() -> None:
    plans = [("exchange", exchange(HOSTS))]
    found = explain("allgather", plans, HOSTS, COUNT, nbytes=65536)
    kinds = {one.kind: one for one in found.port_kinds}
    assert set(kinds) == {"nic_out", "nic_in"}
    assert kinds["nic_out"].ports == 4
    assert kinds["nic_out"].bytes == 4 * 3 * 16384
    assert kinds["nic_out"].busiest_bytes == 3 * 16384
    assert kinds["nic_out"].busiest_nanoseconds == 3 * 16384
    assert sum(found.port_bytes) == 2 * 4 * 3 * 16384


def broken(rank: int) -> Plan:
    """Read memory of another host."""
    if rank:
        return idle(rank, HOSTS)
    copy = Copy(WHOLE_VECTOR, source(0, 1), source(0))
    return plan_of_lanes(0, HOSTS, lane("copy", [copy]))


def test_what_does_not_run_is_told() -> None:
    found = explain("broadcast", [*ways(), ("broken", broken)], HOSTS, COUNT, nbytes=65536)
    assert found.algorithm == "chain"
    assert [one.nanoseconds is None for one in found.alternatives] == [False, True]
    assert "does not run  broken: rank 0 would read memory of rank 1" in str(found)
    for chosen in (None, "broken"):
        with pytest.raises(SimulationError, match="on another host"):
            explain("broadcast", [("broken", broken)], HOSTS, COUNT, nbytes=65536, chosen=chosen)


def test_many_ranks_are_simulated_by_their_roles() -> None:
    hosts = wired_hosts(128)
    plans = [("ring", ring(hosts, 64)), ("doubling", doubling(hosts))]
    found = explain("allreduce", plans, hosts, 128 * 64, nbytes=128 * 64 * 4)
    assert found.ranks == 128
    assert found.simulated_ranks == 1
    assert "1 simulated, for all of equal roles" in str(found)
    # Every rank sends 127 of 128 blocks twice in the ring; the whole vector seven times otherwise.
    (out,) = [one for one in found.port_kinds if one.kind == "nic_out"]
    assert out.bytes == 128 * (7 * 32768 if found.algorithm == "doubling" else 2 * 127 * 256)


def test_as_text_and_as_json() -> None:
    found = explain("broadcast", ways(), HOSTS, COUNT, nbytes=65536, reasons={"chain": "once"})
    text = str(found)
    assert text.startswith("broadcast of 65536 bytes on wired: 4 ranks on 4 hosts\n")
    assert "algorithm     chain: once" in text
    assert "lower bound   66.54 us: h0 e0 out carries 65536 bytes at 1 GB/s" in text
    assert "predicted     72.58 us, 0.92 of the lower bound's speed" in text
    assert "us  tree: given by the caller" in text
    read = json.loads(found.to_json())
    assert read["algorithm"] == "chain"
    assert read["lower_bound"]["port"] == "h0 e0 out"
    assert read["predicted_nanoseconds"] == found.predicted_nanoseconds
    assert read["port_bytes"]["h0 e0 out"] == 65536
    assert read["alternatives"][0]["name"] == "tree"
    alone = wired_hosts(1)
    nothing = explain("broadcast", [("idle", [idle(0, alone)])], alone, 1, nbytes=4)
    assert "1 rank on 1 host" in str(nothing)
    assert "alternatives  none" in str(nothing)
    assert nothing.fraction == 1


def test_candidates_have_names_of_their_own() -> None:
    with pytest.raises(UsageError, match="different names"):
        explain("broadcast", [], HOSTS, 1, nbytes=4)
    with pytest.raises(UsageError, match="different names"):
        explain("broadcast", [*ways(), *ways()], HOSTS, 1, nbytes=4)
    with pytest.raises(UsageError, match="wanted one of tree, chain; got 'ring'"):
        explain("broadcast", ways(), HOSTS, 1, nbytes=4, chosen="ring")
