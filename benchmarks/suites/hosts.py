"""Several hosts: collectives against the speed of the ports, on the emulated cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.common.cases import Group, View
from benchmarks.common.sizes import format_bytes
from benchmarks.common.suite import Suite
from benchmarks.hosts.records import complete_records, find_miscounts
from benchmarks.hosts.setting import (
    COCOLL_ROW,
    OPERATIONS,
    PORT_ROW,
    HostsSetting,
    vector_bytes,
    vector_elements,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.common.driver import Settings
    from benchmarks.common.records import Record
    from benchmarks.common.tracks import GroupResult

__all__ = ["SUITE"]

_MIB = 1 << 20
_DEFAULT_BYTES = (_MIB, 8 * _MIB, 64 * _MIB)
_PEERS = ("openmpi", "openmpi_tuned", "gloo")

# A call takes tens of milliseconds, hundreds, or seconds: rounds and budgets for each.
_MEDIUM_BYTES, _LARGE_BYTES = 4 * _MIB, 32 * _MIB


def _groups(
    ranks: int, sizes_bytes: Sequence[int] | None, dtypes: Sequence[str] | None
) -> list[Group]:
    if dtypes and list(dtypes) != ["float32"]:
        raise ValueError(f"the suite hosts knows float32 alone; got {', '.join(dtypes)}")
    setting = HostsSetting.from_environment()
    if ranks != setting.world_size:
        raise ValueError(
            f"the suite hosts runs on the cluster's {setting.world_size} ranks; got {ranks}"
        )
    groups = []
    for size_bytes in sizes_bytes or _DEFAULT_BYTES:
        elements = vector_elements(size_bytes, ranks)
        groups += [
            Group(
                suite="hosts",
                operation=operation,
                dtype="float32",
                ranks=ranks,
                elements=elements // ranks if operation == "allgather" else elements,
                hosts=setting.hosts,
            )
            for operation in OPERATIONS
        ]
    return groups


def _views(group: Group) -> list[View]:
    case = f"{group.operation}/{_size(group)}"
    limit_row = PORT_ROW if HostsSetting.from_environment().core_bits_per_second is None else None
    return [View(case, "symmetric", COCOLL_ROW, limit_row, _PEERS)]


def _size(group: Group) -> str:
    """Give the size that was asked for: vectors are longer, so that all blocks are equal."""
    unit_bytes = 1024
    while unit_bytes < 4 * vector_elements(1, group.ranks):
        unit_bytes *= 2
    size_bytes = vector_bytes(group)
    return format_bytes(size_bytes // unit_bytes * unit_bytes or size_bytes)


def _settings(group: Group, settings: Settings) -> Settings:
    size_bytes = vector_bytes(group)
    if size_bytes < _MEDIUM_BYTES:
        return settings
    rounds, factor, trial_rounds = (7, 1.5, 2) if size_bytes < _LARGE_BYTES else (5, 2.0, 1)
    return replace(
        settings,
        rounds=min(settings.rounds, rounds),
        budget_seconds=settings.budget_seconds * factor,
        trial_rounds=trial_rounds,
        first_warm=0,
    )


def _complete(result: GroupResult, records: list[Record]) -> list[Record]:
    return complete_records(result, records, HostsSetting.from_environment(), _size(result.group))


SUITE = Suite(
    name="hosts",
    peers=_PEERS,
    default_ranks=(),
    groups=_groups,
    limits=lambda group: [],
    views=_views,
    settings=_settings,
    complete=_complete,
    problems=find_miscounts,
)
