"""JSON that remembers where each value stood, so that a bad file is told by line and field.

The standard decoder gives values without positions. Here it reads the scalars, and a scanner of its
own walks the brackets; whether the text is JSON at all is left to the standard decoder too.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Collection
from typing import Any, TypeVar

from cocoll.errors import TopologyError
from cocoll.topology.units import RATE_FORMS, TIME_FORMS, parse_rate, parse_time

__all__ = ["Node", "read_located"]

T = TypeVar("T")

_BLANK = re.compile(r"[ \t\n\r]*")
_SHOWN_CHARACTERS = 60
_MOST_LEVELS = 32


class Node:
    """A value of a JSON text, with its place.

    Parameters
    ----------
    value : object
        A scalar; a dict of nodes; a list of nodes.
    place : str
        The text's name and the line: ``"topology.json, line 12"``.
    path : str
        The fields that lead to it: ``"hosts[1].nics[0]"``; empty for the whole.
    """

    __slots__ = ("path", "place", "value")

    def __init__(self, value: Any, place: str, path: str) -> None:
        self.value = value
        self.place = place
        self.path = path

    def error(self, wanted: str, got: str | None = None) -> TopologyError:
        """Make the error that says what was wanted here, what came, on which line and field."""
        shown = self._shown() if got is None else got
        return self.problem(f"wanted {wanted}; got {shown}")

    def problem(self, text: str) -> TopologyError:
        """Make the error that says this of the value."""
        where = f"{self.place}, {self.path}" if self.path else self.place
        return TopologyError(f"{where}: {text}", field=self.path)

    def _shown(self) -> str:
        if isinstance(self.value, dict):
            return "an object"
        if isinstance(self.value, list):
            return "a list"
        text = json.dumps(self.value)
        return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."

    def fields(self, wanted: Collection[str], required: Collection[str] = ()) -> dict[str, Node]:
        """Give the fields of an object, none but the ones wanted.

        Raises
        ------
        TopologyError
            It is no object, has a field that is not wanted, or lacks one that is required.
        """
        if not isinstance(self.value, dict):
            raise self.error("an object")
        for name, node in self.value.items():
            if name not in wanted:
                raise node.problem(f"no such field; wanted {', '.join(wanted)}")
        for name in required:
            if name not in self.value:
                raise self.problem(f"the field {name} is missing")
        found: dict[str, Node] = self.value
        return found

    def items(self) -> list[Node]:
        """Give the items of a list.

        Raises
        ------
        TopologyError
            It is no list.
        """
        if not isinstance(self.value, list):
            raise self.error("a list")
        return self.value

    def text(self) -> str:
        """Give a text that is not empty.

        Raises
        ------
        TopologyError
            It is none.
        """
        if not isinstance(self.value, str) or not self.value:
            raise self.error("a text that is not empty")
        return self.value

    def choice(self, *choices: T) -> T:
        """Give one of some values.

        Raises
        ------
        TopologyError
            It is none of them.
        """
        for choice in choices:
            if type(self.value) is type(choice) and self.value == choice:
                return choice
        raise self.error(" or ".join(json.dumps(choice) for choice in choices))

    def number(self, least: int, most: int) -> int:
        """Give a whole number of a range.

        Raises
        ------
        TopologyError
            It is none.
        """
        if type(self.value) is not int or not least <= self.value <= most:
            raise self.error(f"a whole number from {least} to {most}")
        return self.value

    def rate(self) -> int:
        """Give a rate in bytes per second.

        Raises
        ------
        TopologyError
            It is none.
        """
        rate = parse_rate(self.value)
        if rate is None:
            raise self.error(RATE_FORMS)
        return rate

    def time(self) -> int:
        """Give a time in nanoseconds.

        Raises
        ------
        TopologyError
            It is none.
        """
        time = parse_time(self.value)
        if time is None:
            raise self.error(TIME_FORMS)
        return time


def read_located(text: str, where: str) -> Node:
    """Read a JSON text.

    Parameters
    ----------
    text : str
        The JSON.
    where : str
        What messages call it.

    Returns
    -------
    Node
        The whole, with all that is in it.

    Raises
    ------
    TopologyError
        It is no JSON, or names a field twice.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise TopologyError(
            f"{where}, line {error.lineno}: wanted JSON; {error.msg} at column {error.colno}"
        ) from None
    except (RecursionError, ValueError):
        # Nested too deeply, or a number of thousands of digits: the scanner meets it too, and
        # knows where.
        pass
    return _Scanner(text, where).scan()


class _Scanner:
    """Walks a text that is known to be JSON."""

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._decode = json.JSONDecoder().raw_decode

    def scan(self) -> Node:
        node, _ = self._value(self._skip(0), "")
        return node

    def _skip(self, index: int) -> int:
        match = _BLANK.match(self._text, index)
        return match.end() if match else index

    def _place(self, index: int) -> str:
        return f"{self._where}, line {bisect_right(self._line_ends, index) + 1}"

    def _value(self, index: int, path: str) -> tuple[Node, int]:
        start = self._text[index]
        value: Any
        if path.count(".") + path.count("[") > _MOST_LEVELS:
            raise Node(None, self._place(index), path[:_SHOWN_CHARACTERS]).problem(
                f"wanted JSON of at most {_MOST_LEVELS} levels"
            )
        if start == "{":
            value, end = self._object(index, path)
        elif start == "[":
            value, end = self._list(index, path)
        else:
            try:
                value, end = self._decode(self._text, index)
            except ValueError as error:
                raise Node(None, self._place(index), path).problem(
                    f"wanted JSON; {error}"
                ) from None
        return Node(value, self._place(index), path), end

    def _object(self, index: int, path: str) -> tuple[dict[str, Node], int]:
        fields: dict[str, Node] = {}
        index = self._skip(index + 1)
        while self._text[index] != "}":
            key_index = index
            name, index = self._decode(self._text, index)
            inner = f"{path}.{name}" if path else name
            if name in fields:
                raise Node(None, self._place(key_index), inner).problem("this field stands twice")
            index = self._skip(self._skip(index) + 1)  # the colon
            fields[name], index = self._value(index, inner)
            index = self._skip(index)
            if self._text[index] == ",":
                index = self._skip(index + 1)
        return fields, index + 1

    def _list(self, index: int, path: str) -> tuple[list[Node], int]:
        items: list[Node] = []
        index = self._skip(index + 1)
        while self._text[index] != "]":
            item, index = self._value(index, f"{path}[{len(items)}]")
            items.append(item)
            index = self._skip(index)
            if self._text[index] == ",":
                index = self._skip(index + 1)
        return items, index + 1
