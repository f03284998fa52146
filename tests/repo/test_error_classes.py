"""Every error is public, stands under one root, and keeps its fields through pickling."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

import cocoll
from cocoll import errors

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, Exception)
]
FIELDS = {
    "rank": 3,
    "ranks": (1, 2),
    "requests": {0: "allreduce", 1: "broadcast"},
    "status": -77,
    "detail": "step 4 reads what step 3 writes",
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_public(cls: type[errors.CocollError]) -> None:
    assert cls.__name__ in errors.__all__
    assert getattr(cocoll.errors, cls.__name__) is cls
    assert issubclass(cls, errors.CocollError)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_message_and_fields(cls: type[errors.CocollError], protocol: int) -> None:
    error = cls("rank 3: wanted this, got that", **FIELDS)
    for twin in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(twin) is cls
        assert str(twin) == str(error)
        assert twin.fields == FIELDS
        for name, value in FIELDS.items():
            assert getattr(twin, name) == value


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.UsageError, ValueError),
        (errors.DTypeError, TypeError),
        (errors.CommTimeoutError, TimeoutError),
    ],
)
def test_builtin_kinship(cls: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(cls, builtin)


def test_report_marks_the_place() -> None:
    error = errors.ScheduleError("illegal split", detail="line 1\n^^^^")
    assert error.report() == "illegal split\nline 1\n^^^^"
    assert errors.ScheduleError("illegal split").report() == "illegal split"
