"""Plans as data: arithmetic of blocks and chunks, packing, digests."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cocoll.algorithms import OperandSpec, ReduceSpec, two_shot
from cocoll.errors import InternalError, UsageError
from cocoll.plan import (
    PACK_VERSION,
    WHOLE_VECTOR,
    After,
    Buffer,
    Call,
    Copy,
    Flag,
    Fragment,
    Lane,
    Loop,
    Native,
    Opcode,
    Plan,
    Receive,
    Reduce,
    Send,
    Signal,
    Span,
    Step,
    View,
    Wait,
    block_elements,
    block_range,
    chunk_range,
    loop_iterations,
)
from cocoll.plan.listing import Place
from cocoll.plan.packing import places_of_records

RECORD = struct.Struct("<8i2q")

counts = st.integers(0, 500)
world_sizes = st.integers(1, 9)
alignments = st.sampled_from([1, 3, 16])


@given(counts, world_sizes, alignments)
def test_blocks_cut_the_vector(count: int, world_size: int, alignment: int) -> None:
    length = block_elements(count, world_size, alignment)
    assert length % alignment == 0
    ranges = [block_range(block, count, length) for block in range(world_size)]
    assert [element for first, stop in ranges for element in range(first, stop)] == list(
        range(count)
    )
    assert block_range(WHOLE_VECTOR, count, length) == (0, count)


SPANS = [span for span in Span if span is not Span.RANGE]


@given(counts, world_sizes, alignments, st.integers(1, 40), st.sampled_from(SPANS))
def test_chunks_cut_every_block(
    count: int, world_size: int, alignment: int, chunk: int, span: Span
) -> None:
    length = block_elements(count, world_size, alignment)
    loop = Loop((), span, chunk)
    iterations = loop_iterations(loop, count, length)
    assert len(iterations) >= 1
    blocks = range(world_size) if span is Span.BLOCK else [WHOLE_VECTOR]
    for block in blocks:
        pieces = [chunk_range(loop, block, one, count, length) for one in iterations]
        assert all(span is Span.ONCE or stop - first <= chunk for first, stop in pieces)
        covered = [element for first, stop in pieces for element in range(first, stop)]
        assert covered == list(range(*block_range(block, count, length)))


@given(counts, st.integers(1, 40), st.integers(0, 6), st.integers(0, 1 << 40))
def test_ranges_are_what_they_say(count: int, chunk: int, begin: int, first: int) -> None:
    loop = Loop((), Span.RANGE, chunk, begin, first_element=first)
    assert list(loop_iterations(loop, count, 16)) == [begin]
    for block in (WHOLE_VECTOR, 0, 1):
        assert chunk_range(loop, block, begin, count, 16) == (first, first + chunk)


@given(counts, st.integers(1, 40), st.integers(0, 6))
def test_two_loops_share_the_iterations(count: int, chunk: int, cut: int) -> None:
    length = block_elements(count, 2, 16)
    first = loop_iterations(Loop((), Span.BLOCK, chunk, end=cut), count, length)
    second = loop_iterations(Loop((), Span.BLOCK, chunk, begin=cut), count, length)
    assert [*first, *second] == list(loop_iterations(Loop((), Span.BLOCK, chunk), count, length))


# --- packing -----------------------------------------------------------------------------------


class Reader:
    """Reads a packed plan back, record by record; written from the format, not from the writer."""

    def __init__(self, packed: bytes) -> None:
        assert len(packed) % RECORD.size == 0
        self._records: Iterator[tuple[int, ...]] = RECORD.iter_unpack(packed)

    def take(self, opcode: Opcode) -> tuple[int, ...]:
        record = next(self._records)
        assert record[0] == opcode, f"wanted {opcode.name}, got {Opcode(record[0]).name}"
        return record[1:]

    def plan(self, name: str) -> Plan:
        version, rank, world_size, alignment, lane_count, flags, *_ = self.take(Opcode.HEADER)
        assert version == PACK_VERSION
        opening, in_flight = self.loops(-1)
        assert in_flight == 1
        lanes = tuple(Lane(str(index), *self.loops(index)) for index in range(lane_count))
        assert next(self._records, None) is None
        return Plan(
            rank,
            world_size,
            Fragment(lanes, opening),
            name=name,
            alignment_elements=alignment,
            mapped_sources=bool(flags & 1),
            mapped_results=bool(flags & 2),
        )

    def loops(self, index: int) -> tuple[tuple[Loop, ...], int]:
        got, count, in_flight, *_ = self.take(Opcode.LANE)
        assert got == index
        return tuple(self.loop() for _ in range(count)), in_flight

    def loop(self) -> Loop:
        span, begin, end, *_, chunk_elements, records = self.take(Opcode.LOOP)
        steps, left = [], records
        while left:
            step, used = self.step()
            steps.append(step)
            left -= used
        return Loop(tuple(steps), Span(span), chunk_elements, begin, None if end == -1 else end)

    def step(self) -> tuple[Step, int]:
        after, used = [], 1
        record = next(self._records)
        while record[0] == Opcode.AFTER:
            after.append(After(record[1], None if record[2] == -(1 << 31) else record[2]))
            record = next(self._records)
            used += 1
        opcode, one, two, three, four, five, *_ = record
        depends = tuple(after)
        match Opcode(opcode):
            case Opcode.COPY:
                return Copy(one, self.view(), self.view(), depends), used + 2
            case Opcode.REDUCE:
                views = two + three * four + five
                sources = tuple(self.view() for _ in range(two))
                stores = tuple(tuple(self.view() for _ in range(four)) for _ in range(three))
                operands = tuple(self.view() for _ in range(five))
                updated = tuple(index for index in range(64) if record[8] >> index & 1)
                partial = bool(record[6])
                reduce = Reduce(one, sources, stores, operands, updated, partial, depends)
                return reduce, used + views
            case Opcode.SIGNAL:
                return Signal(one, two, depends), used
            case Opcode.WAIT:
                return Wait(one, two, depends), used
            case Opcode.SEND:
                return Send(one, two, self.view(), three, four, depends), used + 1
            case Opcode.RECEIVE:
                return Receive(one, two, self.view(), three, four, depends), used + 1
            case Opcode.CALL:
                reads = tuple(self.view() for _ in range(three))
                writes = tuple(self.view() for _ in range(four))
                return Call(one, two, reads, writes, depends), used + three + four
            case other:
                raise AssertionError(f"no step begins with {other.name}")

    def view(self) -> View:
        buffer, rank, itemsize, index, origin, slots, _, offset, slot = self.take(Opcode.VIEW)
        return View(Buffer(buffer), rank, itemsize, index, origin, offset, slots, slot)


small = st.integers(0, 5)
large = st.integers(0, 2**40)
views = st.builds(
    View, st.sampled_from(list(Buffer)), small, st.integers(1, 8), small, small, large, small, large
)
afters = st.lists(
    st.builds(After, small, st.one_of(st.none(), st.integers(-2, 5))), max_size=2
).map(tuple)
view_lists = st.lists(views, max_size=3).map(tuple)
blocks = st.integers(-1, 5)


@st.composite
def reduces(draw: st.DrawFn) -> Reduce:
    copies = draw(st.integers(1, 3))
    stores = st.lists(views, min_size=copies, max_size=copies).map(tuple)
    operands = draw(view_lists)
    updated = [index for index in range(len(operands)) if draw(st.booleans())]
    return Reduce(
        draw(blocks),
        draw(st.lists(views, min_size=1, max_size=3).map(tuple)),
        draw(st.lists(stores, min_size=1, max_size=3).map(tuple)),
        operands,
        tuple(updated),
        draw(st.booleans()),
        draw(afters),
    )


steps = st.one_of(
    st.builds(Copy, blocks, views, views, afters),
    reduces(),
    st.builds(Signal, small, small, afters),
    st.builds(Wait, small, small, afters),
    st.builds(Send, blocks, small, views, small, small, afters),
    st.builds(Receive, blocks, small, views, small, small, afters),
    st.builds(Call, small, blocks, view_lists, view_lists, afters),
)
loops = st.builds(
    Loop,
    st.lists(steps, max_size=3).map(tuple),
    st.sampled_from(list(Span)),
    st.integers(1, 2**40),
    small,
    st.one_of(st.none(), small),
)
loop_lists = st.lists(loops, max_size=2).map(tuple)
lanes = st.lists(st.tuples(loop_lists, st.integers(1, 9)), max_size=3).map(
    lambda made: tuple(Lane(str(index), *one) for index, one in enumerate(made))
)
plans = st.builds(
    Plan,
    st.integers(0, 5),
    st.integers(6, 9),
    st.builds(Fragment, lanes, loop_lists),
    st.just("drawn"),
    st.integers(1, 64),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=40)
@given(plans)
def test_a_packed_plan_reads_back(plan: Plan) -> None:
    assert Reader(plan.pack()).plan("drawn") == plan


@settings(max_examples=20)
@given(plans)
def test_places_of_records_are_those_of_the_steps(plan: Plan) -> None:
    records = list(RECORD.iter_unpack(plan.pack()))
    places = places_of_records(plan)
    parts = [(-1, plan.fragment.opening)]
    parts += [(index, lane.loops) for index, lane in enumerate(plan.fragment.lanes)]
    wanted = [
        (Place(lane, number, index), step)
        for lane, loops in parts
        for number, loop in enumerate(loops)
        for index, step in enumerate(loop.steps)
    ]
    assert [places[number][0] for number in sorted(places)] == [place for place, _ in wanted]
    for number, (_, step) in zip(sorted(places), wanted, strict=True):
        assert Opcode(records[number][0]).name == type(step).__name__.upper()


@settings(max_examples=20)
@given(plans, plans)
def test_digests_tell_plans_apart(one: Plan, two: Plan) -> None:
    assert (one.digest() == two.digest()) == (one == two)


def make_plan() -> Plan:
    spec = ReduceSpec(2, (4,), (OperandSpec(4), OperandSpec(4, sharded=True, updated=True)))
    return two_shot.plan_allreduce_staged(1, 3, spec, chunk_elements=32)


def test_equal_plans_pack_equally() -> None:
    assert make_plan() == make_plan()
    assert make_plan().pack() == make_plan().pack()
    assert make_plan().digest() == make_plan().digest()
    assert make_plan().expand().digest() == make_plan().digest()


def test_a_plan_survives_pickling() -> None:
    plan = make_plan()
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert pickle.loads(pickle.dumps(plan)).pack() == plan.pack()


@pytest.mark.parametrize(
    "change",
    [
        {"alignment_elements": 1},
        {"mapped_sources": True},
        {"mapped_results": True},
        {"rank": 0},
    ],
)
def test_what_executors_see_is_in_the_digest(change: dict[str, object]) -> None:
    expanded = make_plan().expand()
    assert replace(expanded, **change, _fragment=[]).digest() != expanded.digest()


def test_the_name_is_for_people_only() -> None:
    plan = make_plan()
    assert replace(plan, name="other", _fragment=[]).digest() == plan.digest()


def test_layout_of_records() -> None:
    """What host/packed.h reads: 48 bytes, eight 32-bit fields, two 64-bit ones, little-endian."""
    view = View(Buffer.STAGING, 1, 4, 2, 0, 4096, 3, 512)
    loop = Loop(
        (Copy(2, view, view, (After(0, 7),)), Signal(0, Flag.DONE)), Span.BLOCK, 1 << 33, 1, 4
    )
    messages = Loop((Send(2, 0, view, 5, 6), Receive(1, 2, view, 7, 8)), Span.WHOLE, 9)
    lanes = (Lane("a", (loop,)), Lane("b", (messages,), in_flight=4))
    plan = Plan(1, 3, Fragment(lanes), "layout", 8, mapped_results=True)
    records = list(RECORD.iter_unpack(plan.pack()))
    assert RECORD.size == 48
    assert records == [
        (Opcode.HEADER, PACK_VERSION, 1, 3, 8, 2, 2, 0, 0, 0),
        (Opcode.LANE, -1, 0, 1, 0, 0, 0, 0, 0, 0),
        (Opcode.LANE, 0, 1, 1, 0, 0, 0, 0, 0, 0),
        (Opcode.LOOP, Span.BLOCK, 1, 4, 0, 0, 0, 0, 1 << 33, 5),
        (Opcode.AFTER, 0, 7, 0, 0, 0, 0, 0, 0, 0),
        (Opcode.COPY, 2, 0, 0, 0, 0, 0, 0, 0, 0),
        (Opcode.VIEW, Buffer.STAGING, 1, 4, 2, 0, 3, 0, 4096, 512),
        (Opcode.VIEW, Buffer.STAGING, 1, 4, 2, 0, 3, 0, 4096, 512),
        (Opcode.SIGNAL, 0, Flag.DONE, 0, 0, 0, 0, 0, 0, 0),
        (Opcode.LANE, 1, 1, 4, 0, 0, 0, 0, 0, 0),
        (Opcode.LOOP, Span.WHOLE, 0, -1, 0, 0, 0, 0, 9, 4),
        (Opcode.SEND, 2, 0, 5, 6, 0, 0, 0, 0, 0),
        (Opcode.VIEW, Buffer.STAGING, 1, 4, 2, 0, 3, 0, 4096, 512),
        (Opcode.RECEIVE, 1, 2, 7, 8, 0, 0, 0, 0, 0),
        (Opcode.VIEW, Buffer.STAGING, 1, 4, 2, 0, 3, 0, 4096, 512),
    ]


def test_numbers_of_opcodes_buffers_flags_and_spans() -> None:
    """They are stored in plans and known to executors: they never change."""
    assert [(one.name, one.value) for one in Opcode] == [
        ("HEADER", 0), ("LANE", 1), ("LOOP", 2), ("COPY", 3), ("REDUCE", 4), ("SIGNAL", 5),
        ("WAIT", 6), ("AFTER", 7), ("VIEW", 8), ("SEND", 9), ("RECEIVE", 10), ("NATIVE", 11),
        ("CALL", 12),
    ]  # fmt: skip
    assert [one.name for one in Buffer] == [
        "SOURCE", "RESULT", "OPERAND", "LINE", "SMALL", "STAGING", "PART",
    ]  # fmt: skip
    assert [one.name for one in Flag] == [
        "REQUEST", "ANSWER", "DONE", "USER", "GATHER", "GATHERED",
    ]  # fmt: skip
    assert [one.name for one in Span] == ["ONCE", "BLOCK", "WHOLE", "RANGE"]
    assert {one.name: one.copies for one in Buffer if one.copies != 1} == {"LINE": 2, "SMALL": 2}


def test_native_steps_pack_their_name() -> None:
    view = View(Buffer.SOURCE, 0, 4)

    def pack(name: str) -> bytes:
        loop = Loop((Native(name, -1, view, view),))
        return Plan(0, 1, Fragment((Lane("a", (loop,)),)), "native").pack()

    assert pack("allreduce") == pack("allreduce")
    assert pack("allreduce") != pack("allgather")


def test_what_cannot_be_packed_is_refused() -> None:
    view = View(Buffer.SOURCE, 0, 4)

    def plan(step: Step, **loop: object) -> Plan:
        return Plan(0, 1, Fragment((Lane("a", (Loop((step,), **loop),)),)), "bad")

    with pytest.raises(UsageError, match="chunk_elements > 0"):
        plan(Copy(-1, view, view), span=Span.WHOLE).pack()
    with pytest.raises(UsageError, match="as many destinations"):
        plan(Reduce(-1, (view,), ((view,), (view, view)))).pack()
    with pytest.raises(InternalError, match="32 bits"):
        plan(Copy(-1, replace(view, index=1 << 40), view)).pack()


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_plan_has_a_rank_of_its_world(rank: int) -> None:
    with pytest.raises(UsageError, match=r"wanted a rank in \[0, 2\)"):
        Plan(rank, 2, Fragment(()), "nowhere")
