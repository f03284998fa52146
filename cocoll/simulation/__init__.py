"""Simulation: how long plans take on a topology, without running them.

:mod:`~cocoll.simulation.simulator` predicts it, :mod:`~cocoll.simulation.explainer` says what that
is worth beside the lower bound and the alternatives, and :mod:`~cocoll.simulation.timeline` writes
it for trace viewers.
"""

from cocoll.simulation.explainer import Explanation, explain
from cocoll.simulation.outcome import Simulation
from cocoll.simulation.simulator import simulate

__all__ = ["Explanation", "Simulation", "explain", "simulate"]
