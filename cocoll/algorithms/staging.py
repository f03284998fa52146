"""Chunks staged once for several readers, who give the slots back."""

from __future__ import annotations

from cocoll.plan.ir import (
    After,
    Buffer,
    Copy,
    Flag,
    Fragment,
    Lane,
    Loop,
    Signal,
    Span,
    View,
    Wait,
)

__all__ = ["shared_slot_view", "stage_for_all"]

_LINE_BYTES = 64


def shared_slot_view(owner: int, itemsize: int, chunk_elements: int, slots: int) -> View:
    """Give the staging of a rank whose chunks all readers share."""
    slot_bytes = -(-chunk_elements * itemsize // _LINE_BYTES) * _LINE_BYTES
    return View(Buffer.STAGING, owner, itemsize, slots=slots, slot_bytes=slot_bytes)


def stage_for_all(
    lanes: tuple[Lane, ...],
    copy: Copy,
    readers: tuple[int, ...],
    span: Span,
    chunk_elements: int,
    slots: int,
) -> Fragment:
    """Add to `lanes` the two that stage chunks once for all readers and take the slots back."""
    free_lane = len(lanes) + 1
    restage = Copy(copy.block, copy.source, copy.destination, (After(free_lane, slots),))
    signals = tuple(Signal(reader, Flag.REQUEST) for reader in readers)
    waits = tuple(Wait(reader, Flag.ANSWER) for reader in readers)
    return Fragment(
        lanes=(
            *lanes,
            Lane(
                "stage",
                (
                    Loop(signals, span, chunk_elements, end=1),
                    Loop((restage, *signals), span, chunk_elements, begin=1),
                ),
            ),
            Lane("free", (Loop(waits, span, chunk_elements),)),
        ),
        opening=(Loop((copy,), span, chunk_elements, end=1),),
    )
