"""Reads machine code for what no tool sees at run time: streaming stores that no fence follows.

On x86 a store past the caches may become visible after a later ordinary store, such as a signal.
ThreadSanitizer does not model that, and the processor shows it once in a blue moon.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Function", "disassemble", "streaming_functions", "unfenced_exits", "unfenced_stores"]

_HEADER = re.compile(r"^([0-9a-f]+) <([^>]+)>:$")
_INSTRUCTION = re.compile(
    r"^\s*([0-9a-f]+):\s+((?:(?:notrack|bnd|rep|repz|lock)\s+)*)(\S+)\s*(.*)$"
)
_TARGET = re.compile(r"^([0-9a-f]+) <([^>+]+)")
_STREAMING = re.compile(r"^v?movnt")
_ENDS = ("ret", "retq", "ud2", "hlt")


@dataclass(frozen=True)
class Instruction:
    """One instruction; `target` and `target_name` are those of a jump or call."""

    address: int
    mnemonic: str
    target: int | None
    target_name: str

    @property
    def streams(self) -> bool:
        """Whether it stores past the caches."""
        return bool(_STREAMING.match(self.mnemonic))

    @property
    def fences(self) -> bool:
        """Whether no store passes it."""
        return self.mnemonic in ("sfence", "mfence")

    @property
    def calls(self) -> bool:
        """Whether it calls a function."""
        return self.mnemonic.startswith("call")


@dataclass
class Function:
    """The instructions of a function, in order."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def successors(self, place: int) -> list[int]:
        """Give the places to which control goes from one; none where it leaves the function."""
        instruction = self.instructions[place]
        mnemonic = instruction.mnemonic
        if mnemonic in _ENDS:
            return []
        following = [place + 1] if place + 1 < len(self.instructions) else []
        if not mnemonic.startswith("j"):
            return following
        inside = [
            index
            for index, other in enumerate(self.instructions)
            if other.address == instruction.target
        ]
        return inside if mnemonic.startswith("jmp") else following + inside

    def reachable(self, start: Iterable[int]) -> set[int]:
        """Give every place to which control may go from some, those themselves included."""
        seen: set[int] = set()
        pending = list(start)
        while pending:
            place = pending.pop()
            if place not in seen:
                seen.add(place)
                pending += self.successors(place)
        return seen


def disassemble(binary: Path) -> dict[str, Function]:
    """Give the functions of an object that has been linked.

    Parameters
    ----------
    binary : Path
        A program or shared library, with its symbols.

    Returns
    -------
    dict of str to Function
        By mangled name.
    """
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(binary)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    functions: dict[str, Function] = {}
    current: Function | None = None
    for line in listing.splitlines():
        header = _HEADER.match(line)
        if header:
            current = functions.setdefault(header[2], Function(header[2]))
            continue
        instruction = _INSTRUCTION.match(line)
        if instruction and current is not None:
            target = _TARGET.match(instruction[4])
            current.instructions.append(
                Instruction(
                    int(instruction[1], 16),
                    instruction[3],
                    int(target[1], 16) if target else None,
                    target[2].removesuffix("@plt") if target else "",
                )
            )
    return functions


def streaming_functions(functions: dict[str, Function]) -> set[str]:
    """Give the names of functions that stream, themselves or through those they call."""
    callers: dict[str, set[str]] = defaultdict(set)
    found = []
    for function in functions.values():
        if any(instruction.streams for instruction in function.instructions):
            found.append(function.name)
        for instruction in function.instructions:
            if instruction.calls or instruction.mnemonic.startswith("jmp"):
                callers[instruction.target_name].add(function.name)
    seen: set[str] = set()
    while found:
        name = found.pop()
        if name not in seen:
            seen.add(name)
            found += callers[name]
    return seen


def unfenced_exits(function: Function) -> list[int]:
    """Give the addresses at which a function may end with a streaming store not yet fenced."""
    dirty = {
        successor
        for place, instruction in enumerate(function.instructions)
        if instruction.streams
        for successor in function.successors(place)
    }
    pending, seen, exits = list(dirty), set(), []
    while pending:
        place = pending.pop()
        if place in seen or function.instructions[place].fences:
            continue
        seen.add(place)
        following = function.successors(place)
        if not following and function.instructions[place].mnemonic != "ud2":
            exits.append(function.instructions[place].address)
        pending += following
    return sorted(exits)


def unfenced_stores(function: Function, streaming: set[str]) -> list[int]:
    """Give the addresses of streaming stores and calls after which no path comes to a last fence.

    For functions that stream, and fence, only if they are told to: then not every path through the
    code is one that a program takes, and `unfenced_exits` would find some without a fence.
    """
    places = [
        place
        for place, instruction in enumerate(function.instructions)
        if instruction.streams or (instruction.calls and instruction.target_name in streaming)
    ]
    # A last fence is one from which control does not come back to a streaming store.
    fences = {
        place
        for place, instruction in enumerate(function.instructions)
        if instruction.fences and not function.reachable([place]).intersection(places)
    }
    return [
        function.instructions[place].address
        for place in places
        if not function.reachable([place]).intersection(fences)
    ]
