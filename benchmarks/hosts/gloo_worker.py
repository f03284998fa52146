"""The program that each rank starts beside itself: joins Gloo, then serves turns like the rank."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.common.turns import connect, serve  # noqa: E402
from benchmarks.hosts.gloo_runner import GlooRunner  # noqa: E402
from benchmarks.hosts.rank import HostsRank  # noqa: E402
from benchmarks.hosts.setting import HostsSetting  # noqa: E402


def main() -> None:
    """Join, report, serve turns, leave."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--job", required=True)
    arguments = parser.parse_args()
    runner = GlooRunner()
    rank = HostsRank({arguments.job: runner}, HostsSetting.from_environment())
    channel = connect(arguments.socket, {"job": arguments.job, "rank": int(os.environ["RANK"])})
    serve(channel, rank.handlers())
    rank.close()


if __name__ == "__main__":
    main()
