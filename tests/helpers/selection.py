"""Which cases run on which numbers of ranks each time; the others run in the long run.

Every case runs on 2 ranks and on one more number, which its name chooses: all numbers see a fair
share of all cases each time, and in ``make test-long`` every case sees all numbers.
"""

from __future__ import annotations

import zlib

__all__ = ["WORLD_SIZES", "runs_each_time"]

#: Odd, even and no powers of two among them, and more than this machine may have cores.
WORLD_SIZES = (1, 2, 3, 4, 5, 8)


def runs_each_time(case_name: str, size: int) -> bool:
    """Say whether a case is for every run on `size` ranks."""
    others = [other for other in WORLD_SIZES if other != 2]
    return size == 2 or size == others[zlib.crc32(case_name.encode()) % len(others)]
