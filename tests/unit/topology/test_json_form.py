"""The file: what it means, that it comes back as it was, and that mistakes are found in place."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from cocoll.errors import TopologyError
from cocoll.topology import Placement, Port, Topology, load_preset, load_topology
from cocoll.topology.assumptions import ASSUMED_MEMORY
from tests.helpers.topologies import topologies
from tests.repo.layout import ROOT

NIC = {"name": "e0", "bandwidth_bytes_per_second": "400mbit"}
GPU = {"name": "g", "memory_bytes_per_second": 5, "bandwidth_bytes_per_second": 6}


def read(hosts: list[dict[str, Any]], **fields: Any) -> Topology:
    return Topology.from_json(json.dumps({"hosts": hosts, **fields}), "t.json")


# ---- what it means ----


def test_least() -> None:
    topology = read([{"ranks": 3}])
    assert topology.placements == (Placement(0),) * 3
    assert topology.hosts[0].name == "h0"
    assert topology.hosts[0].memory == ASSUMED_MEMORY
    assert topology.name == "t.json"
    assert topology.source == "file t.json"


def test_a_nic() -> None:
    nic = {**NIC, "latency_seconds": "30us", "duplex": "half", "switch": "a", "numa_node": 1}
    (read_nic,) = read([{"nics": [nic], "numa_nodes": 2, "ranks": 1}]).hosts[0].nics
    assert read_nic.port == Port(50_000_000, 30_000, "half")
    assert (read_nic.name, read_nic.switch, read_nic.numa_node) == ("e0", "a", 1)


def test_a_link_and_a_source() -> None:
    hosts = [{"nics": [{**NIC, "switch": switch}], "ranks": 1} for switch in "ab"]
    link = {"one": "a", "other": "b", "bandwidth_bytes_per_second": 7, "latency_seconds": 1e-6}
    topology = read(hosts, links=[link], source="me", name="x", comment="c", version=1)
    assert topology.links[0].port == Port(7, 1_000)
    assert topology.source == "file t.json (me)"
    assert topology.name == "x"


def test_ranks_are_numbered_on_and_take_turns() -> None:
    nics = [{**NIC, "name": name} for name in ("e0", "e1")]
    topology = read([{"nics": nics, "ranks": 3, "count": 2}, {"nics": nics, "ranks": 1}])
    assert topology.hosts_by_rank == (0, 0, 0, 1, 1, 1, 2)
    assert [place.nic for place in topology.placements] == [0, 1, 0, 0, 1, 0, 0]
    assert topology.hosts[0] is topology.hosts[1]
    assert topology.host_names == ("h0", "h1", "h2")


def test_ranks_may_be_listed() -> None:
    nics = [{**NIC, "name": name} for name in ("e0", "e1")]
    seats: list[Any] = [{"rank": 3, "nic": "e1", "device": 1}, 0, {"nic": "e1", "device": None}, {}]
    topology = read(
        [{"nics": nics, "ranks": [1, 2]}, {"nics": nics, "devices": [GPU] * 2, "ranks": seats}]
    )
    assert topology.placements == (
        Placement(1, 1, 1), Placement(0, 0), Placement(0, 1),
        Placement(1, 1, 1), Placement(1, 1, None), Placement(1, 1, 1),
    )  # fmt: skip


def test_the_pages_examples_are_read() -> None:
    page = (ROOT / "docs/topology.md").read_text()
    two, many = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    topology = Topology.from_json(two)
    assert topology.hosts_by_rank == (0, 1, 0, 1)
    assert topology.path(0, 1).latency_nanoseconds == 10_000
    assert topology.bandwidths_bytes_per_second[-1] == 1_250_000_000
    assert Topology.from_json(many).world_size == 1024


def test_the_pages_code_runs() -> None:
    page = (ROOT / "docs/topology.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})


# ---- there and back ----


@settings(max_examples=15)
@given(topologies())
def test_round_trip(topology: Topology) -> None:
    again = Topology.from_json(topology.to_json())
    assert again == topology
    assert again.digest() == topology.digest()
    assert again.equal_hosts() == topology.equal_hosts()
    assert again.to_json().count("\n") == topology.to_json().count("\n")


@pytest.mark.parametrize("spec", ["p3.8xlarge:5", "dgx2:3", "dgx-h100:64", "gb200-nvl72", "laptop"])
def test_presets_come_back_as_short_files(spec: str) -> None:
    topology = load_preset(spec)
    text = topology.to_json()
    again = Topology.from_json(text)
    assert again == topology
    assert len({id(host) for host in again.hosts}) == 1
    assert len(json.loads(text)["hosts"]) == 1


def test_strange_names_survive(tmp_path: Path) -> None:
    topology = read([{"name": 'é "\\ \ud800', "ranks": 1}])
    path = tmp_path / "t.json"
    path.write_text(topology.to_json(), encoding="utf-8")
    assert load_topology(path).hosts == topology.hosts


# ---- mistakes ----

LINES = """
    {
      "name": "n",
      "hosts": [
        {"name": "a", "nics": [{"name": "e0", "bandwidth_bytes_per_second": 5}], "ranks": 1},
        {
          "name": "b",
          "nics": [
            {
              "name": "e0",
              "bandwidth_bytes_per_second": "fast"
            }
          ],
          "ranks": 1
        }
      ]
    }
"""


def test_line_and_field() -> None:
    with pytest.raises(TopologyError) as caught:
        Topology.from_json(textwrap.dedent(LINES).strip(), "topology.json")
    field = "hosts[1].nics[0].bandwidth_bytes_per_second"
    assert str(caught.value) == (
        f"topology.json, line 10, {field}: wanted a number above 0 (bytes per second), or a text "
        'like "400mbit", "25 GB/s"; got "fast"'
    )
    assert caught.value.fields["field"] == field


HOST = {"ranks": 1}
A, B = ({"nics": [{**NIC, "switch": switch}], "ranks": 1} for switch in "ab")
LINK = {"one": "a", "other": "b", "bandwidth_bytes_per_second": 7}

# Each value is on a line of its own below, so that the line says which one is meant.
MISTAKES: list[tuple[Any, str, str]] = [
    ([], "", "wanted an object; got a list"),
    (3, "", "wanted an object; got 3"),
    ({}, "", "the field hosts is missing"),
    ({"hosts": []}, "hosts", "wanted at least one host; got an empty list"),
    ({"hosts": {}}, "hosts", "wanted a list; got an object"),
    ({"hosts": [HOST], "extra": 1}, "extra", "no such field; wanted version, name"),
    ({"hosts": [HOST], "version": 2}, "version", "wanted 1; got 2"),
    ({"hosts": [HOST], "version": True}, "version", "wanted 1; got true"),
    ({"hosts": [HOST], "name": ""}, "name", 'wanted a text that is not empty; got ""'),
    ({"hosts": [HOST], "source": 1}, "source", "wanted a text"),
    ({"hosts": [3]}, "hosts[0]", "wanted an object; got 3"),
    ({"hosts": [{}]}, "hosts[0]", "the field ranks is missing"),
    ({"hosts": [{"ranks": 1, "nic": []}]}, "hosts[0].nic", "no such field; wanted name, count"),
    ({"hosts": [{"ranks": 0}]}, "hosts[0].ranks", "wanted a whole number from 1 to"),
    ({"hosts": [{"ranks": 1.5}]}, "hosts[0].ranks", "wanted a list; got 1.5"),
    ({"hosts": [{"ranks": []}]}, "hosts[0].ranks", "wanted at least one rank; got an empty list"),
    ({"hosts": [{"ranks": [0, "1"]}]}, "hosts[0].ranks[1]", 'wanted a whole number from 0'),
    ({"hosts": [{"ranks": [None]}]}, "hosts[0].ranks[0]", "wanted a whole number from 0"),
    ({"hosts": [{"ranks": [-1]}]}, "hosts[0].ranks[0]", "wanted a whole number from 0"),
    ({"hosts": [{"ranks": [0, 0]}]}, "hosts[0].ranks[1]", "rank 0 stands on another host or place"),
    ({"hosts": [{"ranks": [0, 2]}]}, "hosts", r"a place for each rank in [0, 3); rank 1 has none"),
    ({"hosts": [{"ranks": [{"rank": None}]}]}, "hosts[0].ranks[0].rank", "wanted a whole number"),
    ({"hosts": [{"ranks": [{"host": 1}]}]}, "hosts[0].ranks[0].host", "no such field; wanted rank"),
    ({"hosts": [{"ranks": [0], "count": 2}]}, "hosts[0].ranks[0]", "leave it out"),
    ({"hosts": [{"ranks": 1, "count": 0}]}, "hosts[0].count", "wanted a whole number from 1"),
    ({"hosts": [{"ranks": 1, "count": 10**7}]}, "hosts[0].count", "wanted a whole number from 1"),
    ({"hosts": [{"ranks": 5, "count": 10**6}]}, "hosts[0]", "wanted at most 4194304 ranks in all"),
    ({"hosts": [{"ranks": 4, "count": 2**20}, HOST]}, "hosts[1]", "in all; got 4194305"),
    ({"hosts": [{"ranks": 1, "numa_nodes": 0}]}, "hosts[0].numa_nodes", "wanted a whole number"),
    ({"hosts": [{"ranks": 1, "memory": 5}]}, "hosts[0].memory", "wanted an object; got 5"),
    ({"hosts": [{"ranks": 1, "memory": {}}]}, "hosts[0].memory", "the field bandwidth_bytes_per"),
    (
        {"hosts": [{"ranks": 1, "memory": {**LINK, "duplex": "half"}}]},
        "hosts[0].memory.one", "no such field; wanted bandwidth",
    ),
    (
        {"hosts": [{"ranks": 1, "nics": [NIC, NIC]}]},
        "hosts[0].nics[1].name", 'wanted another name than the others\'; got "e0"',
    ),
    ({"hosts": [{"ranks": 1, "nics": [{**NIC, "name": 5}]}]}, "hosts[0].nics[0].name", "a text"),
    (
        {"hosts": [{"ranks": 1, "nics": [{**NIC, "latency_seconds": "soon"}]}]},
        "hosts[0].nics[0].latency_seconds", "wanted a number from 0 to 3600 (seconds)",
    ),
    (
        {"hosts": [{"ranks": 1, "nics": [{**NIC, "duplex": "none"}]}]},
        "hosts[0].nics[0].duplex", 'wanted "full" or "half"; got "none"',
    ),
    (
        {"hosts": [{"ranks": 1, "nics": [{**NIC, "numa_node": 1}]}]},
        "hosts[0].nics[0].numa_node", "wanted a whole number from 0 to 0; got 1",
    ),
    ({"hosts": [{"ranks": 1, "nics": [{"name": "e"}]}]}, "hosts[0].nics[0]", "the field bandwidth"),
    (
        {"hosts": [{"ranks": [{"nic": "e9"}], "nics": [NIC]}]},
        "hosts[0].ranks[0].nic", 'wanted "e0"; got "e9"',
    ),
    ({"hosts": [{"ranks": [{"nic": "e9"}]}]}, "hosts[0].ranks[0].nic", "the host has none"),
    ({"hosts": [{"ranks": [{"device": 0}]}]}, "hosts[0].ranks[0].device", "the host has no device"),
    (
        {"hosts": [{"ranks": [{"device": 1}], "devices": [GPU]}]},
        "hosts[0].ranks[0].device", "wanted a whole number from 0 to 0; got 1",
    ),
    ({"hosts": [{"ranks": 1, "devices": [NIC]}]}, "hosts[0].devices[0]", "memory_bytes_per_second"),
    ({"hosts": [HOST], "links": {}}, "links", "wanted a list; got an object"),
    ({"hosts": [HOST], "links": [{}]}, "links[0]", "the field one is missing"),
    (
        {"hosts": [A, B], "links": [{**LINK, "other": "a"}]},
        "links[0].other", 'wanted another switch than a; got "a"',
    ),
    ({"hosts": [A, A], "links": [LINK]}, "links[0]", "the link between a and b leads nowhere"),
    ({"hosts": [A, B], "links": []}, "links", "hosts h0 and h1 cannot reach each other"),
    ({"hosts": [A, B]}, "hosts", "hosts h0 and h1 cannot reach each other: no link leads from"),
    ({"hosts": [A, {"ranks": 1, "count": 2}]}, "hosts[1]", "h1 has no NIC"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "field", "message"), MISTAKES)
def test_mistakes_are_found_in_place(value: Any, field: str, message: str) -> None:
    text = json.dumps(value, indent=0)
    with pytest.raises(TopologyError, match=re.escape(message)) as caught:
        Topology.from_json(text, "t.json")
    assert caught.value.fields["field"] == field
    found = re.match(r"t\.json, line (\d+)(?:, (\S+))?: ", str(caught.value))
    assert found is not None
    assert (found[2] or "") == field
    if field:
        assert line_of(value, field) == int(found[1])


def line_of(value: Any, field: str) -> int:
    """Mark the value of a field and look in which line the mark comes out."""
    marked = json.loads(json.dumps(value))
    steps: list[Any] = [
        int(index) if index else name
        for name, index in re.findall(r"(\w+)(?![\w\]])|\[(\d+)\]", field)
    ]
    inner = marked
    for step in steps[:-1]:
        inner = inner[step]
    inner[steps[-1]] = "MARK"
    return json.dumps(marked, indent=0).split('"MARK"')[0].count("\n") + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.json, line 1: wanted JSON; Expecting value at column 1"),
        ('{\n"hosts": [\n', "t.json, line 3: wanted JSON"),
        ('{"hosts": [{"ranks": 1}]} x', "t.json, line 1: wanted JSON; Extra data"),
        ('{"hosts": [{"ranks": 1}],\n"hosts": []}', "line 2, hosts: this field stands twice"),
        ('{"hosts":\n[{"ranks": NaN}]}', "line 2, hosts[0].ranks: wanted a list; got NaN"),
        ('{"hosts":\n[{"ranks": 1' + "0" * 5000 + "}]}", "line 2, hosts[0].ranks: wanted JSON"),
        ("[" * 50 + "]" * 50, "wanted JSON of at most 32 levels"),
        ("[" * 10**5 + "]" * 10**5, "wanted JSON of at most 32 levels"),
        (
            '{"hosts": [{"ranks": 1, "memory": {"bandwidth_bytes_per_second": -Infinity}}]}',
            "got -Infinity",
        ),
        (
            '{"hosts": [{"ranks": 1, "name": "' + "x" * 500 + '", "count": "' + "y" * 500 + '"}]}',
            "...",
        ),
    ],
)
def test_texts_that_are_no_json(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=re.escape(message)) as caught:
        Topology.from_json(text, "t.json")
    assert len(str(caught.value)) < 400


# ---- files and presets ----


def test_load_names_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"p3\.8xlarge:N.*there is no file .*none\.json"):
        load_topology(tmp_path / "none.json")
    with pytest.raises(TopologyError, match="dgx-h100:N"):
        load_topology("dgx-h200:4")
    with pytest.raises(TopologyError, match="cannot be read: Is a directory"):
        load_topology(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopologyError, match="no text in UTF-8"):
        load_topology(tmp_path / "binary")


def test_a_file_may_have_the_name_of_a_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("laptop").write_text('\ufeff{"hosts": [{"ranks": 9}]}', encoding="utf-8")
    assert load_topology("laptop").world_size == 4
    assert load_topology("./laptop").world_size == 9
    assert load_topology(Path("laptop")).world_size == 9
