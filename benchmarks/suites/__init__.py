"""The suites, by name."""

from benchmarks.common.suite import Suite
from benchmarks.suites import allreduce, call_overhead, fused, hosts, lamb

__all__ = ["SUITES"]

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (fused.SUITE, allreduce.SUITE, call_overhead.SUITE, hosts.SUITE, lamb.SUITE)
}
