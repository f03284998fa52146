"""What a job runs on: hosts, ports, ranks; gathered, measured, read from files, or preset.

A `Topology` answers what a message or an access to memory crosses. `load_topology` reads a file or
makes a preset, `assemble` puts together what ranks have found with `local_facts`, and
`cocoll.topology.cost` says what moving bytes costs and what no algorithm can beat.
"""

from __future__ import annotations

from cocoll.topology.gather import assemble, local_facts
from cocoll.topology.graph import (
    Device,
    Host,
    Link,
    Nic,
    Path,
    Placement,
    Port,
    PortUse,
    Topology,
)
from cocoll.topology.loading import load_topology
from cocoll.topology.presets import PRESETS, load_preset

__all__ = [
    "PRESETS",
    "Device",
    "Host",
    "Link",
    "Nic",
    "Path",
    "Placement",
    "Port",
    "PortUse",
    "Topology",
    "assemble",
    "load_preset",
    "load_topology",
    "local_facts",
]
