"""Plans as text: one line a step, with places marked, for error reports and for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cocoll.plan.ir import (
    WHOLE_VECTOR,
    After,
    Buffer,
    Call,
    Copy,
    Flag,
    Lane,
    Loop,
    Native,
    Plan,
    Receive,
    Reduce,
    Send,
    Signal,
    Span,
    Step,
    View,
    Wait,
)

__all__ = ["OPENING", "Place", "describe_step", "describe_view", "render_plan"]

#: The lane index that stands for a plan's opening.
OPENING = -1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step stands in a plan: indices of its lane (or `OPENING`), loop and step."""

    lane: int
    loop: int
    step: int


def _describe_block(block: int) -> str:
    return "whole vector" if block == WHOLE_VECTOR else f"block {block}"


def _describe_flag(flag: int) -> str:
    return Flag(flag).name if flag in Flag.__members__.values() else f"flag {flag}"


def describe_view(view: View) -> str:
    """Give a view in a few words: buffer, rank, and where its elements lie."""
    numbered = view.buffer in (Buffer.OPERAND, Buffer.PART)
    index = f".{view.index}" if view.index or numbered else ""
    text = f"{Buffer(view.buffer).name}{index}[rank {view.rank}]"
    if view.origin:
        text += f" from block {view.origin}"
    if view.offset_bytes:
        text += f" +{view.offset_bytes} bytes"
    if view.slots:
        text += f" ({view.slots} slots of {view.slot_bytes} bytes)"
    return text


def _describe_views(views: tuple[View, ...]) -> str:
    return ", ".join(map(describe_view, views))


def _describe_after(after: After, lanes: tuple[Lane, ...]) -> str:
    known = 0 <= after.lane < len(lanes)
    name = f"lane {lanes[after.lane].name!r}" if known else f"lane {after.lane}"
    if after.lag is None:
        return f"the end of {name}"
    if after.lag < 0:
        return f"iteration i + {-after.lag} of {name}"
    return f"iteration i - {after.lag} of {name}" if after.lag else f"iteration i of {name}"


def describe_step(step: Step, lanes: tuple[Lane, ...] = ()) -> str:
    """Give a step in one line; `lanes` are its plan's, for the names in its dependences."""
    match step:
        case Copy(block, source, destination):
            text = (
                f"copy {_describe_block(block)}: "
                f"{describe_view(source)} -> {describe_view(destination)}"
            )
        case Reduce(block, sources, destinations, operands, updated, partial):
            stores = "; ".join(map(_describe_views, destinations))
            verb = "reduce partly" if partial else "reduce"
            text = f"{verb} {_describe_block(block)}: {_describe_views(sources)} -> {stores}"
            if operands:
                text += f" with {_describe_views(operands)}"
            if updated:
                text += f" updating {', '.join(map(str, updated))}"
        case Signal(peer, flag):
            text = f"signal {_describe_flag(flag)} to rank {peer}"
        case Wait(peer, flag):
            text = f"wait for {_describe_flag(flag)} of rank {peer}"
        case Send(block, peer, source, group, tag):
            text = f"send {_describe_block(block)} to rank {peer}: {describe_view(source)}"
            text += _describe_message(group, tag)
        case Receive(block, peer, destination, group, tag):
            text = f"receive {_describe_block(block)} of rank {peer}: {describe_view(destination)}"
            text += _describe_message(group, tag)
        case Native(name, block, source, destination, root, _):
            whose = f" of rank {root}" if name == "broadcast" else ""
            text = (
                f"native {name}{whose} {_describe_block(block)}: "
                f"{describe_view(source)} -> {describe_view(destination)}"
            )
        case Call(function, block, reads, writes):
            text = (
                f"call {function} {_describe_block(block)}: "
                f"reads {_describe_views(reads) or 'nothing'}, "
                f"writes {_describe_views(writes) or 'nothing'}"
            )
    if step.after:
        text += f" after {' and '.join(_describe_after(one, lanes) for one in step.after)}"
    return text


def _describe_loop(loop: Loop) -> str:
    if loop.span is Span.ONCE:
        return "once"
    until = "" if loop.end is None else f" to {loop.end}"
    return (
        f"for i from {loop.begin}{until} over the {loop.span.name.lower()} "
        f"by {loop.chunk_elements} elements"
    )


def render_plan(plan: Plan, marks: Mapping[Place, str] | None = None) -> str:
    """Give a plan as indented text.

    Parameters
    ----------
    plan : Plan
        What to print; composites are printed as their expansion.
    marks : mapping of Place to str, optional
        Notes; their lines begin with ``>>`` and end with the note.

    Returns
    -------
    str
        Lines without a final newline.
    """
    marks = marks or {}
    fragment = plan.fragment
    lines = [f"plan {plan.name!r} of rank {plan.rank} out of {plan.world_size}"]
    parts = [(OPENING, "opening", fragment.opening)] if fragment.opening else []
    parts += [
        (index, f"lane {lane.name!r}", lane.loops) for index, lane in enumerate(fragment.lanes)
    ]
    for lane_index, title, loops in parts:
        lines.append(f"   {title}")
        for loop_index, loop in enumerate(loops):
            lines.append(f"     {_describe_loop(loop)}")
            for step_index, step in enumerate(loop.steps):
                note = marks.get(Place(lane_index, loop_index, step_index))
                text = describe_step(step, fragment.lanes)
                lines.append(f"       {text}" if note is None else f"  >>   {text}   <-- {note}")
    return "\n".join(lines)


def _describe_message(group: int, tag: int) -> str:
    facts = [f"group {group}"] if group else []
    facts += [f"tag {tag}"] if tag else []
    return f" ({', '.join(facts)})" if facts else ""
