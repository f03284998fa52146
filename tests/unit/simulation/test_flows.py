"""Ports are shared max-min fairly, and flows end when their bytes have crossed at that rate."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cocoll.simulation.flows import Route, Traffic

# Of rates in bytes a second, which are rounded down.
TOLERANCE = 1e-4


def begin(traffic: Traffic, *ports: int, length: int = 1000, weight: int = 1) -> Route:
    route = traffic.add_route(ports, [weight] * len(ports))
    traffic.start(route, length, ports, 0)
    return route


def run(traffic: Traffic) -> list[tuple[int, object]]:
    """Give when which flow ends, until all have."""
    ends: list[tuple[int, object]] = []
    now = 0
    while True:
        traffic.settle(now)
        end = traffic.next_end()
        if end is None:
            return ends
        now = end
        ends += [(now, owner) for owner in traffic.pop_ended(now)]


def test_one_flow_has_the_rate_of_its_slowest_port() -> None:
    traffic = Traffic([300, 100, 200])
    route = begin(traffic, 0, 1, 2)
    traffic.settle(0)
    assert route.bytes_per_second == 100


def test_what_one_flow_cannot_use_goes_to_the_others() -> None:
    # The first is held to 10 by port 1, so that two others share 90 of port 0.
    traffic = Traffic([100, 10, 1000])
    slow, one, other = begin(traffic, 0, 1), begin(traffic, 0), begin(traffic, 0, 2)
    traffic.settle(0)
    assert [route.bytes_per_second for route in (slow, one, other)] == [10, 45, 45]


def test_a_long_way_gets_as_much_as_a_short_one() -> None:
    # The line network of the textbooks: one flow over all ports, one over each.
    traffic = Traffic([100, 100, 100])
    routes = [begin(traffic, 0, 1, 2), *(begin(traffic, port) for port in range(3))]
    traffic.settle(0)
    assert [route.bytes_per_second for route in routes] == [50, 50, 50, 50]


def test_a_flow_that_stands_for_three_loads_a_port_three_times() -> None:
    traffic = Traffic([100, 1000])
    three, one = begin(traffic, 0, weight=3), begin(traffic, 0, 1)
    traffic.settle(0)
    assert three.bytes_per_second == one.bytes_per_second == 25


def test_rates_rise_when_a_flow_ends() -> None:
    # 1 byte a nanosecond. Alone for 100 ns, then half each: the first has 400 left, so it ends at
    # 100 + 800; of the other's 1000 then 600 are left, which go at full rate.
    traffic = Traffic([10**9])
    route = traffic.add_route([0], [1])
    traffic.start(route, 500, "first", 0)
    traffic.settle(0)
    traffic.start(route, 1000, "second", 100)
    traffic.settle(100)
    assert traffic.next_end() == 900
    assert traffic.pop_ended(900) == ["first"]
    traffic.settle(900)
    assert traffic.next_end() == 1500
    assert traffic.pop_ended(1500) == ["second"]
    traffic.settle(1500)
    assert traffic.next_end() is None
    assert route.carried_bytes == 1500


@pytest.mark.parametrize("flows", [3, 7, 11])
def test_shares_that_are_no_whole_numbers_lose_no_time(flows: int) -> None:
    traffic = Traffic([10**9])
    for number in range(flows):
        traffic.start(traffic.add_route([0], [1]), 1000, number, 0)
    assert {end for end, _ in run(traffic)} == {1000 * flows}


def test_time_is_rounded_up() -> None:
    traffic = Traffic([3 * 10**9])
    begin(traffic, 0, length=10)
    assert run(traffic) == [(4, (0,))]


def test_equal_flows_end_together_in_the_order_in_which_they_began() -> None:
    traffic = Traffic([10**9] * 4)
    for port in (2, 0, 3, 1):
        begin(traffic, port, length=77)
    assert run(traffic) == [(77, (2,)), (77, (0,)), (77, (3,)), (77, (1,))]


def test_a_flow_may_begin_in_the_moment_in_which_another_ends() -> None:
    traffic = Traffic([10**9])
    route = begin(traffic, 0, length=50)
    traffic.settle(0)
    for turn in range(1, 4):
        assert traffic.next_end() == 50 * turn
        traffic.pop_ended(50 * turn)
        traffic.start(route, 50, turn, 50 * turn)
        traffic.settle(50 * turn)
    assert traffic.next_end() == 200


def test_what_shares_no_port_is_left_alone() -> None:
    traffic = Traffic([10**9, 10**9])
    far = begin(traffic, 1, length=1000)
    traffic.settle(0)
    since = far.since
    traffic.start(traffic.add_route([0], [1]), 10, "near", 5)
    traffic.settle(5)
    assert far.since == since  # its clock was not even looked at
    assert run(traffic)[-1] == (1000, (1,))


networks = st.integers(1, 6).flatmap(
    lambda ports: st.tuples(
        st.lists(st.integers(1, 10**6), min_size=ports, max_size=ports),
        st.lists(
            st.tuples(
                st.sets(st.integers(0, ports - 1), min_size=1).map(sorted), st.integers(1, 4)
            ),
            min_size=1,
            max_size=10,
        ),
    )
)


@given(networks)
@settings(max_examples=60, deadline=None)
def test_rates_are_max_min_fair(network: tuple[list[int], list[tuple[list[int], int]]]) -> None:
    """A set of rates is max-min fair where every flow has a full port that none uses faster.

    Bertsekas and Gallager, Data Networks, proposition in 6.5.2: this holds for max-min fair rates
    and for no others, so it needs no second way to work them out.
    """
    bandwidths, flows = network
    traffic = Traffic(bandwidths)
    routes = [begin(traffic, *ports, weight=weight) for ports, weight in flows]
    traffic.settle(0)
    rates = [route.bytes_per_second for route in routes]
    loads = [
        sum(
            weight * rate
            for rate, (crossed, weight) in zip(rates, flows, strict=True)
            if port in crossed
        )
        for port in range(len(bandwidths))
    ]
    for load, bandwidth in zip(loads, bandwidths, strict=True):
        assert load <= bandwidth + TOLERANCE
    for rate, (ports, _) in zip(rates, flows, strict=True):
        assert any(
            loads[port] >= bandwidths[port] - TOLERANCE
            and rate
            >= max(other for other, (others, _) in zip(rates, flows, strict=True) if port in others)
            - TOLERANCE
            for port in ports
        )


@given(networks, st.data())
@settings(max_examples=25, deadline=None)
def test_rates_do_not_depend_on_what_was_before(
    network: tuple[list[int], list[tuple[list[int], int]]], data: st.DataObject
) -> None:
    bandwidths, flows = network
    order = data.draw(st.permutations(range(len(flows))))
    stay = data.draw(st.sets(st.sampled_from(range(len(flows)))))
    traffic = Traffic(bandwidths)
    routes = {}
    for number in order:
        ports, weight = flows[number]
        routes[number] = traffic.add_route(ports, [weight] * len(ports))
        traffic.start(routes[number], 10**15 if number in stay else 1, number, 0)
        traffic.settle(0)
    now = 0
    left = set(order) - stay
    while left:
        end = traffic.next_end()
        assert end is not None
        now = end
        left -= set(traffic.pop_ended(now))
        traffic.settle(now)
    fresh = Traffic(bandwidths)
    for number in sorted(stay):
        begin(fresh, *flows[number][0], weight=flows[number][1])
    fresh.settle(0)
    for number in stay:
        ports, weight = flows[number]
        expected = fresh.add_route(ports, [weight] * len(ports))
        assert routes[number].rate == expected.rate


@pytest.mark.parametrize("flows", [1, 2, 7, 64])
def test_a_port_is_busy_until_its_last_byte(flows: int) -> None:
    """However long the flows are, a port that is never idle carries them in bytes / bandwidth."""
    traffic = Traffic([10**9])
    route = traffic.add_route([0], [1])
    lengths = [(number * 37) % 101 + 1 for number in range(flows)]
    for number, length in enumerate(lengths):
        traffic.start(route, length, number, 0)
    ends = run(traffic)
    assert ends[-1][0] == pytest.approx(sum(lengths), abs=flows)
    assert all(lengths[one[1]] <= lengths[two[1]] for one, two in pairwise(ends))  # type: ignore[index]
