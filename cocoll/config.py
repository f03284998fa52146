"""Settings: read once, when a communicator is made, and never again.

Each setting has one environment variable and one argument of ``cocoll.init`` of the same meaning;
the argument wins. A value that makes no sense is refused where it is read, with the name of the
variable, the value and what is allowed: a misspelt setting must never run as the default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cocoll.errors import UsageError

__all__ = ["SettingRow", "Settings"]

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_LOG_LEVELS = ("debug", "info", "warning", "error")


class SettingRow(NamedTuple):
    """One line of the table that ``cocoll info`` and the documentation show.

    Attributes
    ----------
    variable : str
        The environment variable.
    argument : str
        The argument of ``cocoll.init``.
    value : str
        The value in force.
    origin : str
        ``"default"``, ``"environment"`` or ``"argument"``.
    allowed : str
        What may be given.
    meaning : str
        What it does.
    reserved : bool
        Whether it is read and checked and has no effect in this release.
    """

    variable: str
    argument: str
    value: str
    origin: str
    allowed: str
    meaning: str
    reserved: bool


class _Spec(NamedTuple):
    variable: str
    parse: Callable[[str], Any]
    check: Callable[[Any], bool]
    allowed: str
    meaning: str
    # Nothing reads it yet.
    reserved: bool = False


def _parse_flag(text: str) -> bool:
    lowered = text.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError(text)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_positive_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > 0


def _is_path(value: object) -> bool:
    return isinstance(value, Path)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_file_or_preset(value: object) -> bool:
    return _is_name(value)


def _is_log_level(value: object) -> bool:
    return value in _LOG_LEVELS


def _parse_path(text: str) -> Path:
    return Path(text).expanduser()


_SPECS = {
    "timeout_seconds": _Spec(
        "COCOLL_TIMEOUT_SECONDS",
        float,
        _is_positive_number,
        "a number above 0, or inf",
        "how long a rank waits for the others before it raises, in seconds",
    ),
    "cache_dir": _Spec(
        "COCOLL_CACHE_DIR",
        _parse_path,
        _is_path,
        "a directory; made on first use",
        "where compiled kernels are kept",
    ),
    "no_compile": _Spec(
        "COCOLL_NO_COMPILE",
        _parse_flag,
        _is_flag,
        "1 or 0",
        "raise CompilerNotFoundError rather than run a compiler",
    ),
    "isa": _Spec(
        "COCOLL_ISA",
        str,
        _is_name,
        "an ISA level that this build has and this processor runs",
        "the instruction set of host kernels; unset takes the best one",
    ),
    "no_cma": _Spec(
        "COCOLL_NO_CMA",
        _parse_flag,
        _is_flag,
        "1 or 0",
        "reserved, without effect in this release; planned: never read another process's memory "
        "directly (cross-memory attach)",
        reserved=True,
    ),
    "topology": _Spec(
        "COCOLL_TOPOLOGY",
        str,
        _is_file_or_preset,
        "a topology file (JSON), or a preset such as dgx-h100:4",
        "hosts, ports and ranks of the job, instead of what its ranks find",
    ),
    "mpi_persistent": _Spec(
        "COCOLL_MPI_PERSISTENT",
        _parse_flag,
        _is_flag,
        "1 or 0",
        "send messages between hosts through mpi4py's persistent requests even where the functions "
        "of MPI itself can be called",
    ),
    "trace": _Spec(
        "COCOLL_TRACE",
        _parse_path,
        _is_path,
        "a path",
        "a folder in which every rank writes a Chrome trace of every step of its operations when "
        "its communicator closes",
    ),
    "log": _Spec(
        "COCOLL_LOG",
        str.lower,
        _is_log_level,
        ", ".join(_LOG_LEVELS),
        "reserved, without effect in this release, which logs nothing; planned: the least severe "
        "messages that are shown, on standard error",
        reserved=True,
    ),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of one communicator, immutable.

    Use :meth:`from_environment`; the constructor takes the values as they are. `no_cma`, `trace`
    and `log` are reserved: they are read and checked, and have no effect in this release.

    Parameters
    ----------
    cache_dir : Path
        Where compiled kernels are kept.
    timeout_seconds : float, default 600
        How long a rank waits for the others, in seconds.
    no_compile : bool, default False
        Whether to raise rather than to run a compiler.
    isa : str, optional
        The ISA level to run at; None picks the best one that the processor has.
    no_cma : bool, default False
        Reserved: whether to leave cross-memory attach alone. Nothing uses it yet.
    topology : str, optional
        A topology file or a preset; None leaves it to what the ranks find.
    mpi_persistent : bool, default False
        Whether messages between hosts go through mpi4py's persistent requests.
    trace : Path, optional
        The folder in which ranks write Chrome traces of their operations.
    log : str, default "warning"
        Reserved: the least severe messages that are shown. Nothing is logged yet.
    origins : mapping of str to str
        Where each value came from, by field, if not from the defaults.
    """

    cache_dir: Path
    timeout_seconds: float = 600.0
    no_compile: bool = False
    isa: str | None = None
    no_cma: bool = False
    topology: str | None = None
    mpi_persistent: bool = False
    trace: Path | None = None
    log: str = "warning"
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **overrides: Any) -> Settings:
        """Read the settings of one communicator.

        Parameters
        ----------
        environ : mapping of str to str
            The environment; an empty value counts as unset.
        **overrides : object
            Fields that were given as arguments; they win. None counts as not given.

        Returns
        -------
        Settings
            The values, with their origins.

        Raises
        ------
        UsageError
            A value is not allowed, or there is no such argument.
        """
        for name in overrides:
            if name not in _SPECS:
                raise UsageError(f"wanted a setting out of {', '.join(_SPECS)}; got {name!r}")
        values: dict[str, Any] = {"cache_dir": _user_cache_dir(environ)}
        origins: dict[str, str] = {}
        for name, spec in _SPECS.items():
            given = overrides.get(name)
            text = environ.get(spec.variable, "").strip()
            if given is not None:
                values[name] = _checked_argument(name, given, spec)
                origins[name] = "argument"
            elif text:
                values[name] = _checked_text(text, spec)
                origins[name] = "environment"
        return cls(**values, origins=origins)

    def describe(self) -> list[SettingRow]:
        """Give one row per setting, for ``cocoll info``.

        Returns
        -------
        list of SettingRow
            In the order of the documentation.
        """
        return [
            SettingRow(
                variable=spec.variable,
                argument=name,
                value=_shown(getattr(self, name)),
                origin=self.origins.get(name, "default"),
                allowed=spec.allowed,
                meaning=spec.meaning,
                reserved=spec.reserved,
            )
            for name, spec in _SPECS.items()
        ]


def _user_cache_dir(environ: Mapping[str, str]) -> Path:
    # The XDG base directory specification wants relative values to be ignored.
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        home = environ.get("HOME", "")
        base = (Path(home) if home else Path.home()) / ".cache"
    return base / "cocoll"


def _checked_text(text: str, spec: _Spec) -> Any:
    try:
        value = spec.parse(text)
    except (ValueError, RuntimeError):
        raise UsageError(
            f"{spec.variable}: wanted {spec.allowed}; got {text!r}",
            variable=spec.variable,
            value=text,
        ) from None
    if not spec.check(value):
        raise UsageError(
            f"{spec.variable}: wanted {spec.allowed}; got {text!r}",
            variable=spec.variable,
            value=text,
        )
    return value


def _checked_argument(name: str, given: Any, spec: _Spec) -> Any:
    value = given
    if spec.check is _is_path and isinstance(given, str):
        value = Path(given)
    elif spec.check is _is_file_or_preset and isinstance(given, Path):
        value = str(given)
    if not spec.check(value):
        raise UsageError(
            f"{name}: wanted {spec.allowed}; got {given!r}", variable=name, value=given
        )
    return value


def _shown(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
