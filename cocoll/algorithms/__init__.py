"""Planners: pure functions from a rank and an agreed description of a call to a plan.

One algorithm a module: :mod:`~cocoll.algorithms.inline`, :mod:`~cocoll.algorithms.one_shot`,
:mod:`~cocoll.algorithms.two_shot`, :mod:`~cocoll.algorithms.flat`,
:mod:`~cocoll.algorithms.wire_two_shot`, :mod:`~cocoll.algorithms.native`. They know sizes of
elements and placements of arrays, and nothing of dtypes, addresses or machines. All but native
all-reduces sum in rank order, so their results agree bit for bit.
"""

from cocoll.algorithms.operands import OperandSpec, ReduceSpec

__all__ = ["OperandSpec", "ReduceSpec"]
