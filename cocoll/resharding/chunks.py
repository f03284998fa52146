"""The chunks of a schedule, in the one order in which every rank takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cocoll.resharding.planner import MulticastPlan
    from cocoll.resharding.schedule import Hop, Transfer

__all__ = ["Chunk", "depth_of", "rounds_of"]

_ALIGNMENT_BYTES = 64


class Chunk(NamedTuple):
    """A range of a task's elements on its way.

    Attributes
    ----------
    task : int
        Its number.
    first, stop : int
        Which elements, in row-major order of the task's box.
    hops : tuple of (int, int)
        As of the transfer that the chunk is of.
    """

    task: int
    first: int
    stop: int
    hops: tuple[Hop, ...]


def rounds_of(
    made: MulticastPlan,
    itemsizes_bytes: Sequence[int],
    least_bytes: int,
    most_bytes: int,
    takes_time: Callable[[int, int], bool],
) -> Iterator[list[list[Chunk]]]:
    """Give what moves in each round of each group.

    Parameters
    ----------
    made : MulticastPlan
        Tasks and their schedule.
    itemsizes_bytes : sequence of int
        Of each tensor.
    least_bytes : int
        Of a chunk: of shorter ones a transfer gets fewer, as many as it has of this length. Where
        no way has two hops that take time, short ones gain nothing: then they are as long as they
        may be.
    most_bytes : int
        Of a chunk: transfers whose rounds would move more at once get more rounds, all those of a
        group alike, so that they still end together.
    takes_time : callable
        Whether the hop from a rank to another does.

    Yields
    ------
    list of list of Chunk
        For each group its rounds; those in which nothing moves are left out, and no chunk is empty.
    """
    for group in made.schedule.groups:
        deepest = max(depth_of(hops, takes_time) for hops in {one.hops for one in group.transfers})
        least = least_bytes if deepest > 1 else most_bytes
        longest = max(transfer.stop - transfer.start for transfer in group.transfers)
        rounds = max(group.rounds, -(-longest // most_bytes))
        by_round: dict[int, list[Chunk]] = {}
        for transfer in _spread(made, group.transfers):
            itemsize = itemsizes_bytes[made.tasks[transfer.task].tensor]
            pieces = list(_cut(transfer, rounds, itemsize, least, most_bytes))
            for place, (first, stop) in enumerate(pieces):
                chunk = Chunk(transfer.task, first, stop, transfer.hops)
                by_round.setdefault(place * rounds // len(pieces), []).append(chunk)
        yield [by_round[number] for number in sorted(by_round)]


def depth_of(hops: Sequence[Hop], takes_time: Callable[[int, int], bool]) -> int:
    """Give how many hops that take time there are on the longest way.

    Parameters
    ----------
    hops : sequence of (int, int)
        Of a transfer.
    takes_time : callable
        Whether the hop from a rank to another does.
    """
    depths: dict[int, int] = {}
    for source, destination in hops:
        depths[destination] = depths.get(source, 0) + takes_time(source, destination)
    return max(depths.values())


def _spread(made: MulticastPlan, transfers: Sequence[Transfer]) -> list[Transfer]:
    """Order transfers so that those which follow each other cross different ports, where they can.

    Ranks take chunks in one order, with a few messages under way: in listing order all would wait
    for one rank's port, then for the next one's. Each transfer goes into the first layer in which
    the ports of its first hop between hosts are free, as greedy edge colouring does.
    """
    problem = made.problem
    # By port, a bit for each layer that it is taken in.
    taken: dict[int, int] = {}
    layers: dict[int, list[Transfer]] = {}
    for transfer in transfers:
        # Of a tree the first hop: all others would meet at some port.
        first = next(
            (hop for hop in transfer.hops if problem.hosts[hop[0]] != problem.hosts[hop[1]]), None
        )
        ports = [port for port, _ in problem.crossing(*first).ports] if first else []
        used = 0
        for port in ports:
            used |= taken.get(port, 0)
        lowest = ~used & (used + 1)
        for port in ports:
            taken[port] = taken.get(port, 0) | lowest
        layers.setdefault(lowest, []).append(transfer)
    return [transfer for layer in sorted(layers) for transfer in layers[layer]]


def _cut(
    transfer: Transfer, rounds: int, itemsize: int, least_bytes: int, most_bytes: int
) -> Iterator[tuple[int, int]]:
    """Cut a transfer into ranges of elements, at aligned places where it can."""
    nbytes = transfer.stop - transfer.start
    count = max(1, min(rounds, nbytes // least_bytes), -(-nbytes // most_bytes))
    grain = _ALIGNMENT_BYTES if _ALIGNMENT_BYTES % itemsize == 0 else itemsize
    step_bytes = -(-nbytes // count)
    step_bytes = min(-(-step_bytes // grain) * grain, most_bytes // itemsize * itemsize)
    for start in range(transfer.start, transfer.stop, step_bytes):
        yield start // itemsize, min(start + step_bytes, transfer.stop) // itemsize
