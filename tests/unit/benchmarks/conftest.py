"""The benchmarks are no installed package: their tests find them from the repository's root."""

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[3])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

import pytest  # noqa: E402

from benchmarks.common.records import Context  # noqa: E402


@pytest.fixture
def context() -> Context:
    """What all records of a run share."""
    return Context(python="python", commit="abc", machine="a machine")
