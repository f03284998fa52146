"""Helpers for tests of programs that use cocoll: ranks as threads and as processes."""

from cocoll.testing.ranks import run_ranks

__all__ = ["run_ranks"]
