"""What a cluster is, from its command line; those that run are tested in tests/cluster."""

from __future__ import annotations

import json

import pytest

from benchmarks.cluster.options import Cluster, parse_bits_per_second, parse_options
from benchmarks.cluster.topology import describe_topology


@pytest.mark.parametrize(
    ("text", "expected"),
    [("400mbit", 400_000_000), ("2.5Gbit", 2_500_000_000), ("1kbit", 1000), ("9600bit", 9600)],
)
def test_rates(text: str, expected: int) -> None:
    assert parse_bits_per_second(text) == expected


@pytest.mark.parametrize("text", ["", "400", "400mb", "-1mbit", "0gbit", "10bit", "fast"])
def test_refused_rates(text: str) -> None:
    with pytest.raises(ValueError, match="400mbit"):
        parse_bits_per_second(text)


def test_command_line() -> None:
    options = "--hosts 3 --ranks-per-host 2 --nic 400mbit --nics-per-host 2 -- program --hosts 9"
    cluster, command = parse_options("", options.split())
    assert command == ["program", "--hosts", "9"]
    assert cluster == Cluster((2, 2, 2), 400_000_000, 2)
    assert [host.ranks for host in cluster.hosts] == [(0, 1), (2, 3), (4, 5)]
    assert len({address for host in cluster.hosts for address in host.addresses}) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--hosts 2 --ranks-per-host 1 --nic fast -- true", "400mbit"),
        ("--hosts 2 --ranks-per-host 1 2 3 --nic 1gbit -- true", "one for each host"),
        ("--hosts 2 --ranks-per-host 0 --nic 1gbit -- true", "at least 1"),
        ("--hosts 0 --ranks-per-host 1 --nic 1gbit -- true", "--hosts"),
        ("--hosts 2 --ranks-per-host 1 --nic 1gbit --nics-per-host 0 -- true", "--nics-per-host"),
        ("--hosts 2 --ranks-per-host 1 --nic 1gbit --", "a command"),
    ],
)
def test_bad_options(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options("", options.split())
    assert message in capsys.readouterr().err


def test_ranks_in_turn() -> None:
    cluster = Cluster((1, 3, 2), 10**9, interleaved=True)
    assert [host.ranks for host in cluster.hosts] == [(0,), (1, 3, 5), (2, 4)]
    assert json.loads(cluster.to_json())["ranks_per_host"] == [1, 3, 2]


def test_what_ranks_are_told() -> None:
    cluster = Cluster((2, 2, 2), 400_000_000, 2, 800_000_000)
    told = json.loads(cluster.to_json())
    assert told["ranks_per_host"] == 2
    assert told["nic_bits_per_second"] == 400_000_000
    assert told["core_bits_per_second"] == 800_000_000
    assert [host["name"] for host in told["hosts"]] == ["h0", "h1", "h2"]
    assert told["hosts"][1]["nics"] == ["e0", "e1"]
    assert [cluster.switch_of(host) for host in range(3)] == [0, 1, 0]


def test_the_topology_says_the_same() -> None:
    cluster = Cluster((1, 2), 400_000_000, 2, 800_000_000)
    described = json.loads(describe_topology(cluster))
    assert [host["ranks"] for host in described["hosts"]] == [[0], [1, 2]]
    assert [[nic["switch"] for nic in host["nics"]] for host in described["hosts"]] == [
        ["s0", "s0"],
        ["s1", "s1"],
    ]
    # 400 Mbit/s are 50 MB/s; 66 of 1514 bytes are headers.
    rates = {nic["bandwidth_bytes_per_second"] for h in described["hosts"] for nic in h["nics"]}
    assert rates == {50_000_000 * 1448 // 1514}
    (link,) = described["links"]
    assert {link["one"], link["other"]} == {"s0", "s1"}
    assert link["bandwidth_bytes_per_second"] == 100_000_000 * 1448 // 1514
    assert "links" not in json.loads(describe_topology(Cluster((1, 1), 400_000_000)))
