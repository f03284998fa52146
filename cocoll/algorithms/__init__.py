"""Planners: pure functions from a rank and an agreed description of a call to a plan.

One algorithm a module: :mod:`~cocoll.algorithms.inline`, :mod:`~cocoll.algorithms.one_shot`,
:mod:`~cocoll.algorithms.two_shot`, :mod:`~cocoll.algorithms.flat`. They know sizes of elements and
placements of arrays, and nothing of dtypes, addresses or machines. All sum in rank order, so their
results agree bit for bit.
"""

from cocoll.algorithms.operands import OperandSpec, ReduceSpec

__all__ = ["OperandSpec", "ReduceSpec"]
