"""Which cases run on which numbers of ranks each time; the others run in the long run.

A case's name chooses one number besides 2. An eighth of the cases runs on 2 ranks as threads, half
of them on 2 under mpirun; on the chosen number the other half runs as threads, and half under
mpirun, a quarter where the number is 8. So all numbers see a fair share of all cases each time, and
in ``make test-long`` every case sees all numbers.
"""

from __future__ import annotations

import zlib

__all__ = ["WORLD_SIZES", "runs_each_time"]

#: Odd, even and no powers of two among them, and more than this machine may have cores.
WORLD_SIZES = (1, 2, 3, 4, 5, 8)


def runs_each_time(case_name: str, size: int, *, threads: bool = False) -> bool:
    """Say whether a case is for every run on `size` ranks."""
    others = [other for other in WORLD_SIZES if other != 2]
    half, chosen = divmod(zlib.crc32(case_name.encode()), len(others))
    if size == 2:
        return half % (8 if threads else 2) == 0
    if threads:
        return size == others[chosen] and half % 2 == 1
    return size == others[chosen] and half % (4 if size == 8 else 2) == 1
