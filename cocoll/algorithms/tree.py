"""A multicast along a tree: as many ranks have the data after k messages as trees are wide.

For small data, whose time is the number of messages on the longest way.
"""

from __future__ import annotations

from collections.abc import Sequence

from cocoll.algorithms.chain import Links, find_place

__all__ = ["binomial_links"]


def binomial_links(ranks: Sequence[int], rank: int) -> Links:
    """Give a rank's place in a binomial tree.

    Parameters
    ----------
    ranks : sequence of int
        The first one has the data; places are counted from it.
    rank : int
        One of them.

    Returns
    -------
    Links
        Its parent, and its children, the one with the largest subtree first.

    Raises
    ------
    UsageError
        `rank` does not stand in `ranks` once.

    Notes
    -----
    In each of ceil(log2(len(ranks))) rounds every rank that has the data gives it to one that does
    not: place p hears from p without its lowest set bit.
    """
    place = find_place(ranks, rank)
    lowest = place & -place
    parent = None if place == 0 else ranks[place - lowest]
    # Children differ from their parent in a bit below its lowest one.
    limit = lowest if place else 1 << max(0, len(ranks) - 1).bit_length()
    children = []
    bit = limit >> 1
    while bit:
        if place + bit < len(ranks):
            children.append(ranks[place + bit])
        bit >>= 1
    return Links(parent, tuple(children))
