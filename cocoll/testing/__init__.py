"""Helpers for tests of programs that use cocoll: ranks as threads and as processes."""

from cocoll.testing.processes import Outcome, run_processes
from cocoll.testing.ranks import run_ranks

__all__ = ["Outcome", "run_processes", "run_ranks"]
