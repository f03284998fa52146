"""Which elements blocks, loops and chunks are, once the length of the vector is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cocoll.plan.ir import WHOLE_VECTOR, Span

if TYPE_CHECKING:
    from cocoll.plan.ir import Loop

__all__ = ["block_elements", "block_range", "chunk_range", "loop_iterations", "origin_element"]


def block_elements(count: int, world_size: int, alignment_elements: int) -> int:
    """Give the length of a block: ceil(count / world_size), rounded up to the alignment."""
    per_rank = -(-count // world_size)
    return -(-per_rank // alignment_elements) * alignment_elements


def block_range(block: int, count: int, length_elements: int) -> tuple[int, int]:
    """Give the first and one-past-last element of a block, clipped to the vector."""
    if block == WHOLE_VECTOR:
        return 0, count
    start = min(block * length_elements, count)
    return start, min(start + length_elements, count)


def origin_element(origin: int, count: int, length_elements: int) -> int:
    """Give the element that the first of a view's buffer stands for; below 0 it is another's."""
    return min(origin * length_elements, count)


def loop_iterations(loop: Loop, count: int, length_elements: int) -> range:
    """Give the iterations that a loop runs for a vector of `count` elements."""
    if loop.span is Span.RANGE:
        return range(loop.begin, loop.begin + 1)
    if loop.span is Span.ONCE:
        total = 1
    else:
        span_elements = length_elements if loop.span is Span.BLOCK else count
        total = max(1, -(-span_elements // loop.chunk_elements))
    end = total if loop.end is None else min(loop.end, total)
    return range(loop.begin, end)


def chunk_range(
    loop: Loop, block: int, iteration: int, count: int, length_elements: int
) -> tuple[int, int]:
    """Give the elements of `block` that one iteration moves, clipped; empty past the end."""
    if loop.span is Span.RANGE:
        return loop.first_element, loop.first_element + loop.chunk_elements
    start, stop = block_range(block, count, length_elements)
    if loop.span is Span.ONCE:
        return start, stop
    first = min(start + iteration * loop.chunk_elements, stop)
    return first, min(first + loop.chunk_elements, stop)
