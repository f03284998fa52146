"""Records of several hosts: what the ports had to carry, what they carried, what was predicted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benchmarks.common.records import Record
from benchmarks.hosts.setting import COCOLL_ROW, vector_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.common.tracks import GroupResult
    from benchmarks.hosts.setting import HostsSetting

__all__ = ["MAX_COUNT_DEVIATION", "HostsRecord", "complete_records", "find_miscounts"]

#: Headers and acknowledgements are within this; more, and something else was sent.
MAX_COUNT_DEVIATION = 0.06


@dataclass(frozen=True, slots=True)
class HostsRecord(Record):
    """One line of the JSON of a suite on several hosts.

    Attributes
    ----------
    nics : int
        Of each host.
    port_bytes : int
        What the busiest port must carry at least, each way.
    counted_port_bytes : int or None
        What the busiest host's NICs have counted, divided by their number; the median.
    predicted_seconds : float or None
        What the implementation itself expected, if it says.
    """

    nics: int
    port_bytes: int
    counted_port_bytes: int | None
    predicted_seconds: float | None


def complete_records(
    result: GroupResult, records: Sequence[Record], setting: HostsSetting, sizes: str
) -> list[Record]:
    """Give the records what is known of ports.

    Parameters
    ----------
    result : GroupResult
        What they were made of.
    records : sequence of Record
        Of one case.
    setting : HostsSetting
        The cluster.
    sizes : str
        The case's size, as on the command line.
    """
    group = result.group
    nics = setting.used_nics
    port_bytes = setting.port_bytes(group.operation, vector_bytes(group))
    completed: list[Record] = []
    for record in records:
        row = COCOLL_ROW if record.implementation == "cocoll" else "peer"
        best = result.best(record.implementation, row, record.state)
        counted_bytes = best.summary.host_bytes if best else None
        fields = asdict(record)
        program = record.command.split(maxsplit=1)[0]
        fields["command"] = (
            f"{program} benchmarks/cluster/run.py {setting.describe()} -- {program}"
            f" benchmarks/run.py hosts --sizes {sizes}"
        )
        completed.append(
            HostsRecord(
                **fields,
                nics=len(setting.nics),
                port_bytes=port_bytes,
                counted_port_bytes=None if counted_bytes is None else counted_bytes // nics,
                predicted_seconds=result.predicted_seconds(record.implementation),
            )
        )
    return completed


def find_miscounts(records: Sequence[Record]) -> list[str]:
    """Name cocoll's records whose ports did not carry what they had to, no less and no more."""
    found = []
    for record in records:
        if not isinstance(record, HostsRecord) or record.implementation != "cocoll":
            continue
        counted_bytes, wanted_bytes = record.counted_port_bytes, record.port_bytes
        if counted_bytes is None:
            continue
        if abs(counted_bytes - wanted_bytes) > MAX_COUNT_DEVIATION * wanted_bytes:
            found.append(
                f"{record.suite} {record.case}: wanted {wanted_bytes} bytes through the busiest "
                f"port; its counters say {counted_bytes}"
            )
    return found
