"""Settings: precedence, refusals, and what is shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from cocoll.config import Settings
from cocoll.errors import UsageError

HOME = {"HOME": "/home/someone"}


def test_defaults() -> None:
    settings = Settings.from_environment(HOME)
    assert settings == Settings(cache_dir=Path("/home/someone/.cache/cocoll"))
    assert settings.timeout_seconds == 600.0
    assert {row.origin for row in settings.describe()} == {"default"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_CACHE_HOME": "/var/cache/me"}, "/var/cache/me/cocoll"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/someone/.cache/cocoll"),
        ({"XDG_CACHE_HOME": ""}, "/home/someone/.cache/cocoll"),
        ({"XDG_CACHE_HOME": "/x", "COCOLL_CACHE_DIR": "/exact"}, "/exact"),
    ],
)
def test_cache_dir(environ: dict[str, str], expected: str) -> None:
    assert Settings.from_environment({**HOME, **environ}).cache_dir == Path(expected)


@pytest.mark.parametrize(
    ("variable", "text", "field", "expected"),
    [
        ("COCOLL_TIMEOUT_SECONDS", "2.5", "timeout_seconds", 2.5),
        ("COCOLL_TIMEOUT_SECONDS", "inf", "timeout_seconds", float("inf")),
        ("COCOLL_NO_COMPILE", "1", "no_compile", True),
        ("COCOLL_NO_COMPILE", "Yes", "no_compile", True),
        ("COCOLL_NO_COMPILE", "0", "no_compile", False),
        ("COCOLL_NO_CMA", " on ", "no_cma", True),
        ("COCOLL_ISA", "v3", "isa", "v3"),
        ("COCOLL_TOPOLOGY", "t.json", "topology", "t.json"),
        ("COCOLL_TOPOLOGY", "dgx-h100:4", "topology", "dgx-h100:4"),
        ("COCOLL_TRACE", "t.json", "trace", Path("t.json")),
        ("COCOLL_LOG", "DEBUG", "log", "debug"),
    ],
)
def test_environment(variable: str, text: str, field: str, expected: object) -> None:
    settings = Settings.from_environment({**HOME, variable: text})
    assert getattr(settings, field) == expected
    assert {row.variable: row.origin for row in settings.describe()}[variable] == "environment"


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("COCOLL_TIMEOUT_SECONDS", "0"),
        ("COCOLL_TIMEOUT_SECONDS", "-1"),
        ("COCOLL_TIMEOUT_SECONDS", "nan"),
        ("COCOLL_TIMEOUT_SECONDS", "10s"),
        ("COCOLL_NO_COMPILE", "2"),
        ("COCOLL_NO_CMA", "maybe"),
        ("COCOLL_LOG", "loud"),
    ],
)
def test_bad_environment_names_variable_and_value(variable: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.from_environment({**HOME, variable: text})
    message = str(caught.value)
    assert variable in message
    assert repr(text) in message
    assert "wanted" in message
    assert caught.value.fields == {"variable": variable, "value": text}


def test_empty_value_counts_as_unset() -> None:
    settings = Settings.from_environment({**HOME, "COCOLL_TIMEOUT_SECONDS": " "})
    assert settings.timeout_seconds == 600.0


def test_arguments_win_and_none_is_not_given() -> None:
    environ = {**HOME, "COCOLL_TIMEOUT_SECONDS": "5", "COCOLL_LOG": "info"}
    settings = Settings.from_environment(environ, timeout_seconds=7, log=None, cache_dir="/tmp/c")
    assert settings.timeout_seconds == 7
    assert settings.log == "info"
    assert settings.cache_dir == Path("/tmp/c")
    origins = {row.argument: row.origin for row in settings.describe()}
    assert origins["timeout_seconds"] == "argument"
    assert origins["log"] == "environment"
    assert origins["isa"] == "default"


def test_an_argument_hides_a_bad_variable() -> None:
    environ = {**HOME, "COCOLL_TIMEOUT_SECONDS": "soon"}
    assert Settings.from_environment(environ, timeout_seconds=1).timeout_seconds == 1


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("timeout_seconds", -1),
        ("timeout_seconds", True),
        ("timeout_seconds", "5"),
        ("no_compile", 1),
        ("log", "loud"),
        ("isa", ""),
        ("cache_dir", 3),
    ],
)
def test_bad_argument(argument: str, value: object) -> None:
    with pytest.raises(UsageError, match=argument):
        Settings.from_environment(HOME, **{argument: value})


def test_a_topology_may_be_given_as_a_path() -> None:
    settings = Settings.from_environment(HOME, topology=Path("/somewhere/t.json"))
    assert settings.topology == "/somewhere/t.json"


def test_unknown_argument() -> None:
    with pytest.raises(UsageError, match=r"timeout_seconds.*'timeout'"):
        Settings.from_environment(HOME, timeout=3)


def test_frozen_and_picklable() -> None:
    settings = Settings.from_environment({**HOME, "COCOLL_NO_CMA": "1"})
    with pytest.raises(AttributeError):
        settings.no_cma = False  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)).describe() == settings.describe()


def test_describe_shows_every_field_once() -> None:
    settings = Settings.from_environment({**HOME, "COCOLL_NO_CMA": "1"})
    rows = {row.argument: row for row in settings.describe()}
    assert set(rows) == set(Settings.__dataclass_fields__) - {"origins"}
    assert rows["no_cma"].value == "1"
    assert rows["trace"].value == "unset"
    assert rows["timeout_seconds"].value == "600"
