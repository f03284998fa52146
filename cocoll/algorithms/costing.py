"""What a pipeline of messages between hosts costs, and how long its messages should be."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from cocoll.plan.ir import SHARD_ALIGNMENT_ELEMENTS

if TYPE_CHECKING:
    from cocoll.algorithms.hierarchy import Hierarchy
    from cocoll.topology.graph import Topology

__all__ = ["MESSAGE_NANOSECONDS", "Flow", "PipelineCost"]

# What a lane may have under way: enough for the wire to stay busy while its rank is off the
# processor for a while, and enough chunks for both ends to work at once.
_UNDER_WAY_BYTES = 512 << 10
_FEWEST_CHUNKS, _MOST_CHUNKS = 3, 64
#: What a message costs its rank besides its bytes: MPI over TCP, both ends.
MESSAGE_NANOSECONDS = 15000
_LEAST_MESSAGE_BYTES = 4 << 10
# Beyond this a message gains nothing: it fills the wire for long enough, and what is longer than
# MPI sends at once (64 KiB with its header, over TCP) waits for an answer behind other data.
_ENOUGH_NANOSECONDS = 50000
_SENT_AT_ONCE_BYTES = 60 << 10
_MOST_MESSAGE_BYTES = 4 << 20

#: Bytes from one rank to another.
Flow: TypeAlias = tuple[int, int, int]


class PipelineCost:
    """Costs of blocks that travel in chunks.

    Parameters
    ----------
    topology : Topology
        The ports.
    hierarchy : Hierarchy
        The ranks.
    block : int
        Elements of a block.
    itemsize_bytes : int
        Bytes of one.
    """

    def __init__(
        self, topology: Topology, hierarchy: Hierarchy, block: int, itemsize_bytes: int
    ) -> None:
        self._topology = topology
        self._hierarchy = hierarchy
        self._block = block
        self._itemsize = itemsize_bytes
        first = hierarchy.members(0)[0]
        path = topology.path(first, hierarchy.delegate(1, first))
        self.latency_nanoseconds = path.latency_nanoseconds
        rate = min(topology.bandwidths_bytes_per_second[port] for port in path.ports)
        enough = max(_SENT_AT_ONCE_BYTES, rate * _ENOUGH_NANOSECONDS // 10**9)
        #: The longest message that is worth it.
        self.most_message_bytes = min(_MOST_MESSAGE_BYTES, enough)

    def senders(self) -> list[int]:
        """Give ranks whose flows load the busiest port as all ranks' do."""
        classes = self._topology.equal_hosts()
        if not self._topology.links and len(set(classes)) == 1:
            return list(self._hierarchy.members(0))
        return list(range(self._hierarchy.world_size))

    def busiest_nanoseconds(self, flows: Iterable[Flow]) -> int:
        """Give how long the port that carries most takes."""
        carried: defaultdict[int, int] = defaultdict(int)
        for source, destination, nbytes in flows:
            for port in self._topology.path(source, destination).ports:
                carried[port] += nbytes
        rates = self._topology.bandwidths_bytes_per_second
        return max((nbytes * 10**9 // rates[port] for port, nbytes in carried.items()), default=0)

    def _round_nanoseconds(self, messages: int) -> int:
        return self.latency_nanoseconds // _FEWEST_CHUNKS + messages * MESSAGE_NANOSECONDS

    def chunk_elements(self, busiest: int, depth: int, messages: int, room_elements: int) -> int:
        """Give the elements of a message.

        Parameters
        ----------
        busiest : int
            Nanoseconds of the busiest port.
        depth : int
            How many chunks fill the pipeline.
        messages : int
            Of a rank, for one chunk of all blocks.
        room_elements : int
            What there is memory for.

        Returns
        -------
        int
            At least 1.

        Notes
        -----
        With k chunks a block the time is ``busiest * (1 + depth / k)`` and k + depth rounds of
        messages: least where k is the root of ``depth * busiest / round``.
        """
        rounds = math.isqrt(max(1, depth * busiest // max(1, self._round_nanoseconds(messages))))
        chunk = -(-self._block // max(1, rounds))
        least = -(-_LEAST_MESSAGE_BYTES // self._itemsize)
        most = min(self.most_message_bytes // self._itemsize, room_elements)
        unit = min(SHARD_ALIGNMENT_ELEMENTS, most)
        return max(unit, min(max(chunk, least), most) // unit * unit)

    def chunks_under_way(self, chunk: int, blocks: int) -> int:
        """Give how many chunks of each of a lane's blocks may be under way."""
        together = max(1, chunk * self._itemsize * max(1, blocks))
        return max(_FEWEST_CHUNKS, min(_MOST_CHUNKS, _UNDER_WAY_BYTES // together))

    def total_nanoseconds(self, busiest: int, depth: int, messages: int, chunk: int) -> int:
        """Give the estimate for chunks of `chunk` elements; the rest as in `chunk_elements`."""
        rounds = max(1, -(-self._block // chunk))
        return (
            busiest
            + busiest * depth // (rounds + depth)
            + (rounds + depth) * self._round_nanoseconds(messages)
            + depth * self.latency_nanoseconds
        )
