"""Rates that are taken where nothing is known. Whoever uses them says so: ``"assumed"``.

A virtual NIC claims any rate (a veth pair says 10 Gbit/s whatever limits it), and no file of the
system says what memory carries. ``cocoll topo --probe`` measures both.
"""

from __future__ import annotations

from cocoll.topology.parts import Port

__all__ = [
    "ASSUMED_DEVICE_BYTES_PER_SECOND",
    "ASSUMED_DEVICE_LATENCY_NANOSECONDS",
    "ASSUMED_DEVICE_MEMORY_BYTES_PER_SECOND",
    "ASSUMED_MEMORY",
    "ASSUMED_NIC",
    "ASSUMED_NIC_LATENCY_NANOSECONDS",
]

#: Half of the 30 us that a small message over TCP takes between machines of one data centre; the
#: other half is the other end's.
ASSUMED_NIC_LATENCY_NANOSECONDS = 15_000

#: 10 Gbit/s, the usual least of servers.
ASSUMED_NIC = Port(1_250_000_000, ASSUMED_NIC_LATENCY_NANOSECONDS)

#: About one channel of DDR4-2400 (19.2 GB/s), and what a load that misses all caches takes.
ASSUMED_MEMORY = Port(20_000_000_000, 100, "half")

#: PCIe 3 with 16 lanes, each way, and half of the 1 us that a flag takes between GPUs.
ASSUMED_DEVICE_BYTES_PER_SECOND = 15_750_000_000
ASSUMED_DEVICE_LATENCY_NANOSECONDS = 500

#: The slowest memory of a GPU for servers that is still in use (T4).
ASSUMED_DEVICE_MEMORY_BYTES_PER_SECOND = 300_000_000_000
