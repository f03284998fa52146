"""The cluster as a topology file of cocoll's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.cluster.options import Cluster

__all__ = ["describe_topology"]


def describe_topology(cluster: Cluster) -> str:
    """Give the JSON that ``COCOLL_TOPOLOGY`` names."""
    fields: dict[str, Any] = {}
    return json.dumps(fields)
