"""Plans: what every rank does in an operation, as data that can be checked, stored and run.

:mod:`~cocoll.plan.ir` defines plans, :mod:`~cocoll.plan.builder` lets anyone write one,
:mod:`~cocoll.plan.verifier` proves that the plans of all ranks fit together. Nothing here touches
memory, flags or wires: executors do. How long plans take is for :mod:`cocoll.simulation` to say.
"""

from cocoll.plan.builder import Builder, build_all
from cocoll.plan.ir import (
    SHARD_ALIGNMENT_ELEMENTS,
    WHOLE_VECTOR,
    After,
    Buffer,
    Call,
    Composite,
    Copy,
    Flag,
    Fragment,
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
from cocoll.plan.listing import render_plan
from cocoll.plan.memory import Aliasing, Relation
from cocoll.plan.packing import PACK_VERSION, Opcode
from cocoll.plan.ranges import block_elements, block_range, chunk_range, loop_iterations
from cocoll.plan.structure import check_plan
from cocoll.plan.verifier import default_counts, verify

__all__ = [
    "PACK_VERSION",
    "SHARD_ALIGNMENT_ELEMENTS",
    "WHOLE_VECTOR",
    "After",
    "Aliasing",
    "Buffer",
    "Builder",
    "Call",
    "Composite",
    "Copy",
    "Flag",
    "Fragment",
    "Lane",
    "Loop",
    "Native",
    "Opcode",
    "Plan",
    "Receive",
    "Reduce",
    "Relation",
    "Send",
    "Signal",
    "Span",
    "Step",
    "View",
    "Wait",
    "block_elements",
    "block_range",
    "build_all",
    "check_plan",
    "chunk_range",
    "default_counts",
    "loop_iterations",
    "render_plan",
    "verify",
]
