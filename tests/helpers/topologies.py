"""Topologies for tests: small ones by hand, and any by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from cocoll.topology import Device, Host, Link, Nic, Placement, Port, Topology

GB = 10**9
MEMORY = Port(20 * GB, 100, "half")


def make_hosts(
    ranks: list[int],
    *,
    rates: list[int] | None = None,
    nics: int = 1,
    switches: list[str] | None = None,
    links: tuple[Link, ...] = (),
    duplex: str = "full",
    memory: Port = MEMORY,
) -> Topology:
    """Make hosts of `ranks[i]` ranks on processors, with `nics` NICs of `rates[i]` each."""
    hosts = []
    placements = []
    for number, count in enumerate(ranks):
        port = Port((rates or [GB] * len(ranks))[number], 1_000, duplex)  # type: ignore[arg-type]
        switch = (switches or ["network"] * len(ranks))[number]
        cards = tuple(Nic(f"e{index}", port, switch) for index in range(nics))
        hosts.append(Host(f"h{number}", memory, cards))
        placements += [Placement(number, index % nics) for index in range(count)]
    return Topology("test", tuple(hosts), tuple(placements), links)


def kinds_carried(topology: Topology, carried: tuple[int, ...]) -> dict[str, list[int]]:
    """Give what the ports of each kind carry, in order."""
    found: dict[str, list[int]] = {}
    for use, amount in zip(topology.ports, carried, strict=True):
        found.setdefault(use.kind, []).append(amount)
    return found


_rates = st.integers(1, 10**12)
_times = st.integers(0, 10**9)
_names = st.text("abcXYZ 0-9é", min_size=1, max_size=4)


_ports = st.builds(Port, _rates, _times, st.sampled_from(["full", "half"]))


@st.composite
def topologies(draw: st.DrawFn, most_hosts: int = 4, gpus: bool = True) -> Topology:
    """Draw any valid topology: switches in a tree, uneven hosts, ranks anywhere."""
    switches = [f"s{number}" for number in range(draw(st.integers(1, 3)))]
    kinds = []
    for _ in range(draw(st.integers(1, 3))):
        nodes = draw(st.integers(1, 2))
        node = st.integers(0, nodes - 1)
        nics = [
            Nic(f"e{number}", draw(_ports), draw(st.sampled_from(switches)), draw(node))
            for number in range(draw(st.integers(1, 2)))
        ]
        devices = [
            Device(draw(_names), draw(_rates), draw(_ports), draw(node))
            for _ in range(draw(st.integers(0, 2)) if gpus else 0)
        ]
        kinds.append(Host(draw(_names), draw(_ports), tuple(nics), tuple(devices), nodes))
    hosts = [draw(st.sampled_from(kinds)) for _ in range(draw(st.integers(1, most_hosts)))]
    # Every host once, and then any.
    where = list(range(len(hosts)))
    where += draw(st.lists(st.integers(0, len(hosts) - 1), max_size=5))
    placements = []
    for host in draw(st.permutations(where)):
        devices_here = len(hosts[host].devices)
        device = draw(st.none() | st.integers(0, devices_here - 1)) if devices_here else None
        nic = draw(st.integers(0, len(hosts[host].nics) - 1))
        placements.append(Placement(host, nic, device))
    used = {nic.switch for host in hosts for nic in host.nics}
    # A chain through all switches, but for ends that nothing is plugged into.
    last = max(switches.index(switch) for switch in used)
    first = min(switches.index(switch) for switch in used)
    links = [
        Link(switches[number], switches[number + 1], draw(_ports)) for number in range(first, last)
    ]
    return Topology(draw(_names), tuple(hosts), tuple(placements), tuple(links), draw(_names))
