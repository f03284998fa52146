# distutils: language = c++
"""The hot path: the public calls, and the binding of ``host/*.h``.

The public names of the package are the functions of this module. Between a call and the executor no
Python function runs once the call's program is cached; on a miss the functions of the slow path,
which `cocoll` hands in at import, plan and prepare it.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.buffer cimport (
    PyBUF_FULL_RO, PyBuffer_FillInfo, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_CheckSignals
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, strerror
from libcpp cimport bool as cbool
from libcpp.memory cimport make_shared, shared_ptr
from libcpp.vector cimport vector

import sys
from array import array as number_array
from contextvars import ContextVar
from weakref import WeakValueDictionary

from cocoll.errors import (
    BufferMismatchError, BufferOverlapError, ClosedError, CollectiveMismatchError,
    CommTimeoutError, DTypeError, ForkedProcessError, InternalError, RankError, UnsupportedError,
    UsageError,
)
from cocoll.dtypes import DType

cdef extern from "Python.h":
    int PyContextVar_Get(object var, PyObject* default_value, PyObject** value) except -1

# NumPy's own layout of an array, which needs no import: NumPy is loaded by whoever makes the first
# of its arrays.
cdef extern from "numpy/ndarraytypes.h" nogil:
    ctypedef struct PyArray_Descr:
        char byteorder
    ctypedef struct PyArrayObject:
        pass
    PyArray_Descr* PyArray_DESCR(PyArrayObject* array)
    void* PyArray_DATA(PyArrayObject* array)
    int PyArray_TYPE(PyArrayObject* array)
    int PyArray_NDIM(PyArrayObject* array)
    int PyArray_FLAGS(PyArrayObject* array)
    Py_ssize_t* PyArray_DIMS(PyArrayObject* array)
    Py_ssize_t* PyArray_STRIDES(PyArrayObject* array)
    int NPY_ARRAY_WRITEABLE
    char NPY_OPPBYTE
    int NPY_HALF, NPY_FLOAT, NPY_DOUBLE, NPY_INT, NPY_LONG, NPY_LONGLONG, NPY_UBYTE, NPY_BOOL
    int NPY_BYTE, NPY_SHORT, NPY_USHORT, NPY_UINT, NPY_ULONG, NPY_ULONGLONG, NPY_CFLOAT, NPY_CDOUBLE

#: The communicator that calls use when none is given.
default_communicator = ContextVar("cocoll_default_communicator")

cdef enum:
    _FLOAT16 = 0
    _BFLOAT16 = 1
    _FLOAT32 = 2
    _FLOAT64 = 3
    _INT32 = 4
    _INT64 = 5
    _UINT8 = 6
    _BOOL = 7
    _INT8 = 8
    _INT16 = 9
    _UINT16 = 10
    _UINT32 = 11
    _UINT64 = 12
    _COMPLEX64 = 13
    _COMPLEX128 = 14
    _FLOAT8_E4M3FN = 15
    _FLOAT8_E5M2 = 16

# The kinds and options of an operation, as arrival lines carry them; collectives.py has the names.
cdef enum:
    _ALLREDUCE = 1
    _REDUCE_SCATTER = 2
    _ALLGATHER = 3
    _BROADCAST = 4
    _BARRIER = 5
    _ALLREDUCE_FUSED = 6
    _REDUCE_SCATTER_FUSED = 7
    _CUSTOM = 8
    _EXCHANGE = 9
    _REDUCE = 11
    _GATHER = 12
    _SCATTER = 13
    _ALLTOALL = 14
    _ALLTOALLV = 15
    _SEND = 16
    _RECEIVE = 17
    _GROUP = 18

cdef enum:
    _OPTION_SHARD = 1
    _OPTION_REPLICATED = 2
    _OPTION_ZERO = 4

cdef object _hooks = None
cdef dict _OP_CODES = {"sum": 0, "prod": 1, "min": 2, "max": 3, "avg": 4}


def set_slow_path(hooks):
    """Hand in the functions that plan, describe arrays and word failures."""
    global _hooks
    _hooks = hooks


cdef int _op_code(object op) except -1:
    code = _OP_CODES.get(op) if isinstance(op, str) else None
    if code is None:
        raise UsageError(f"op must be one of {', '.join(_OP_CODES)}; got {op!r}")
    return code


cdef object _dtype_label(int code):
    return DType(code).label


cdef class Stages
cdef class TensorList

include "host/arrays.pxi"
include "host/wire.pxi"
include "host/session.pxi"
include "host/flight.pxi"
include "host/survivors.pxi"
include "host/calls.pxi"
include "host/lists.pxi"
include "host/movement.pxi"
include "host/block_calls.pxi"
include "host/fused.pxi"
include "host/stages.pxi"
include "host/bound.pxi"
include "host/points.pxi"
include "host/point_calls.pxi"
include "host/parts.pxi"


cdef Program _make_program(CommunicatorBase comm, object mapped, object staged, size_t reduce,
                           size_t partial, size_t prepare, int derived_count, int result_count,
                           int algorithm, object facts, int part_count):
    cdef Program program = Program.__new__(Program)
    cdef HostProgram* host
    program.host = make_shared[HostProgram]()
    host = program.host.get()
    host.reduce = <cocoll_reduce_fn>reduce
    host.partial = <cocoll_reduce_fn>partial
    host.prepare = <cocoll_prepare_fn>prepare
    host.derived_count = derived_count
    host.result_count = result_count
    host.algorithm = algorithm
    if mapped is not None:
        _load(comm, &host.mapped, mapped, part_count)
        host.has_mapped = True
    if staged is not None:
        _load(comm, &host.staged, staged, part_count)
        host.has_staged = True
    program.facts = facts
    return program


cdef int _load(CommunicatorBase comm, PlanImage* image, bytes packed,
               int part_count) except -1:
    cdef const char* data = packed
    cdef PlanLimits limits = comm.session.get().limits()
    limits.part_count = part_count
    if len(packed) % sizeof(Record) != 0 or not image.load(
            <const Record*>data, len(packed) // sizeof(Record), limits):
        raise UsageError(f"the plan cannot run on rank {comm.rank}: {image.error().decode()}")
    return 0


cdef class Program:
    """What serves every call of one kind on one communicator: plans, kernel and facts.

    Parameters
    ----------
    comm : CommunicatorBase
        Whose rank, world_size and scratch the plans are for.
    mapped, staged : bytes or None
        The packed plans for symmetric and for ordinary arrays.
    reduce_address, partial_address, prepare_address : int
        The kernels' entry points, 0 where there is none; `partial_address` is the one that reduces
        what another reduce goes on with.
    derived_count, result_count, algorithm : int
        What the kernel derives, what it stores, and the algorithm's number in flight records.
    facts : object
        What binding needs to know; see ``collectives.Facts``.
    part_count : int
        How many parts the plans name.

    Raises
    ------
    UsageError
        A plan does not fit the communicator.
    """

    def __init__(self, CommunicatorBase comm, mapped, staged, *, size_t reduce_address=0,
                 size_t partial_address=0, size_t prepare_address=0, int derived_count=0,
                 int result_count=1, int algorithm=0, facts=None, int part_count=0):
        cdef Program made
        if derived_count > kMaxScalars or result_count > kMaxResults:
            raise UsageError(
                f"an epilogue has at most {kMaxScalars} derived scalars and {kMaxResults} results; "
                f"got {derived_count} and {result_count}"
            )
        made = _make_program(comm, mapped, staged, reduce_address, partial_address,
                             prepare_address, derived_count, result_count, algorithm, facts,
                             part_count)
        self.host = made.host
        self.facts = facts
        comm.program_count += 1
        self.host.get().number = comm.program_count
        comm.numbered[comm.program_count] = self


def allreduce(x, op="sum", *, out=None, comm=None, stream=None, dtype=None):
    """Reduce arrays over all ranks and give every rank the result.

    Collective: every rank calls it with the same op, dtype and number of elements. The arrays
    belong to cocoll until the returned `Work` completes.

    Parameters
    ----------
    x : array_like, any shape
        This rank's contribution. Its dtype is one of float16, bfloat16, float32, float64,
        float8_e4m3fn, float8_e5m2, int8 to int64, uint8 to uint64, bool, complex64 and complex128.
        A list of arrays of one dtype stands for one vector, its arrays end to end; `out` is then a
        list of the same lengths.
    op : {"sum", "prod", "min", "max", "avg"}, default "sum"
        ``avg`` is sum / world_size in the accumulate type; of integers the exact sum divided,
        truncated toward zero. ``min`` and ``max`` propagate NaN. Integer sums and products wrap.
        Of truth values ``sum`` and ``max`` are whether any is true, ``prod`` and ``min`` whether
        all are; they have no ``avg``, and complex numbers no ``min`` and ``max``.
    out : array_like, same number of elements and dtype, optional
        Where the result goes; disjoint from `x` or identical. Default: `x` itself.
    comm : Communicator, optional
        Default: the one that `cocoll.init` made.
    stream : Stream, optional
        Makes the call asynchronous. Default: it has finished when it returns.
    dtype : str, optional
        ``"bfloat16"`` lets uint16 arrays stand for bfloat16; ``"float8_e4m3fn"`` and
        ``"float8_e5m2"`` let uint8 arrays stand for those.

    Returns
    -------
    Work
        `DONE` for a call in place that has finished.

    Raises
    ------
    DTypeError
        An unknown dtype, or one for which `op` has no meaning; nothing has moved.
    UsageError
        A bad argument on this rank; nothing has moved.
    CollectiveMismatchError
        The ranks asked for different operations; nothing has moved.
    TransportError
        A rank was lost, gave up or did not come in time; the communicator is closed.

    Notes
    -----
    Sums are taken in rank order in float32 or wider: the same bits on all ranks, in every run and
    for every length. Floats of 8 bits are rounded once, at the end, over several hosts too; what is
    too large becomes NaN in float8_e4m3fn and infinity in float8_e5m2.

    Up to 64 bytes travel in the arrival line, small arrays through a staging with one
    synchronisation, larger ones in two shots: each rank reduces its own shard.
    """
    return _call_simple(_ALLREDUCE, x, op, out, comm, stream, dtype, None, None)


def reduce_scatter(x, op="sum", *, out=None, comm=None, stream=None, dtype=None, layout=None):
    """Reduce arrays over all ranks and give each rank its own block of the result.

    Collective. See `allreduce` for the parameters they share and for the order of summation.

    Parameters
    ----------
    x : array_like, n elements
        This rank's contribution.
    op : {"sum", "prod", "min", "max", "avg"}, default "sum"
        The reduction.
    out : array_like, this rank's block, optional
        Where it goes; disjoint from `x`, or this rank's block of it. Default: a new array.
    comm, stream, dtype : optional
        As in `allreduce`.
    layout : {"block", "shard"}, optional
        ``"block"``: n / world_size elements a rank; n must divide. ``"shard"``:
        `Communicator.shard_range`. Default: shards where `out` comes from
        `Communicator.shard_zeros`, else blocks.

    Returns
    -------
    Work
        Its result is the block.

    Raises
    ------
    BufferMismatchError
        n does not divide, or `out` has another length than the block.
    """
    return _call_simple(_REDUCE_SCATTER, x, op, out, comm, stream, dtype, None, layout)


def allgather(x, *, out=None, counts=None, comm=None, stream=None, dtype=None, layout=None):
    """Give every rank the blocks of all ranks, in rank order.

    Collective. See `allreduce` for the parameters they share.

    Parameters
    ----------
    x : array_like
        This rank's block; equal lengths on all ranks unless `layout` is ``"shard"``.
    out : array_like, all blocks, optional
        Disjoint from `x`, or `x` is this rank's block of it. Default: a new array, the blocks
        stacked along the first dimension.
    counts : sequence of int, optional
        For every rank the length of its block's first dimension, the same on all ranks. `out` is
        then disjoint from `x`.
    comm, stream, dtype : optional
        As in `allreduce`.
    layout : {"block", "shard"}, optional
        ``"shard"``: `x` is this rank's `Communicator.shard_range` of `out`, which must be given.
        Default: shards where `x` comes from `Communicator.shard_zeros`, else blocks.

    Returns
    -------
    Work
        Its result is the gathered array.

    Raises
    ------
    BufferMismatchError
        `x` has another length than this rank's block of `out`.
    """
    if counts is not None:
        if layout is not None:
            raise UsageError("allgather takes counts= or layout=, not both")
        return _hooks.call_uneven(_communicator(comm), _ALLGATHER, x, out, counts, None, None,
                                  dtype, stream)
    return _call_simple(_ALLGATHER, x, "sum", out, comm, stream, dtype, None, layout)


def broadcast(x, root=0, *, out=None, comm=None, stream=None, dtype=None):
    """Give every rank the root's array.

    Collective. See `allreduce` for the parameters they share.

    Parameters
    ----------
    x : array_like
        The data on the root; on the other ranks the array that receives it. May be None on the
        others where `out` is given.
    root : int, default 0
        The rank whose data all ranks receive.
    out : array_like, same number of elements and dtype, optional
        Where the data goes, on the root too; a ``replicated=True`` array may be filled so.
        Default: `x` itself.
    comm, stream, dtype : optional
        As in `allreduce`.

    Returns
    -------
    Work
        `DONE` for a call in place that has finished.

    Raises
    ------
    RankError
        `root` is no rank of the communicator.
    """
    return _call_simple(_BROADCAST, x, "sum", out, comm, stream, dtype, root, None)


def barrier(*, comm=None, stream=None):
    """Wait until every rank has called it.

    Collective.

    Parameters
    ----------
    comm : Communicator, optional
        Default: the one that `cocoll.init` made.
    stream : Stream, optional
        Makes the call asynchronous.

    Returns
    -------
    Work
        `DONE` where the call has finished.
    """
    cdef CommunicatorBase communicator = _communicator(comm)
    cdef Call call = Call.__new__(Call)
    cdef Program program
    communicator.check_usable()
    _enter(communicator)
    try:
        if stream is not None and not isinstance(stream, Stream):
            return _hooks.barrier_on_device(communicator, stream)
        program = _find(communicator, _BARRIER)
        if program is None:
            program = _hooks.prepare(communicator, _BARRIER, 0, _UINT8, 0, -1, 0)
            _keep(communicator, _BARRIER, program)
        _start(call, communicator, program, _BARRIER, 0, _UINT8, -1, 0)
        call.invocation.source_reference = 0
        call.in_place = True
        return _issue(call, stream)
    finally:
        communicator.session.get().gate.leave()


def allreduce_fused(x, epilogue, *, op="sum", out=None, comm=None, stream=None, dtype=None,
                    zero_grad=False, **operands):
    """Reduce over all ranks, run an epilogue on the reduced values, give all ranks its results.

    Collective: every rank calls it with the same epilogue, op, dtypes, number of elements and
    scalars. Each rank reduces its own shard, runs the epilogue on it once while it is in cache, and
    stores what the epilogue returns to all ranks.

    Parameters
    ----------
    x : array_like or list of array_like
        This rank's contribution (the gradient). With a list, arrays of its length are lists too,
        sharded ones are shards of the whole vector, and a scalar may be a list of one number for
        each array.
    epilogue : Epilogue
        From `cocoll.epilogues`, or a function decorated with `cocoll.epilogue`.
    op : {"sum", "prod", "min", "max", "avg"}, default "sum"
        The reduction before the epilogue.
    out : array_like, optional
        Where the epilogue's output goes, if it has one. Default: `x` itself.
    comm, stream, dtype : optional
        As in `allreduce`.
    zero_grad : bool, default False
        Leave zeros in `x`, stored as it is read.
    **operands : array_like or float
        The epilogue's arrays and scalars, by name. Sharded arrays hold this rank's
        `Communicator.shard_range`; replicated ones broadcast to the shape of `x`; updated
        replicated ones have it.

    Returns
    -------
    Work
        `DONE` for a call without `out` that has finished.

    Raises
    ------
    UsageError
        An array or a scalar is missing, unknown, or does not fit; nothing has moved.
    UnsupportedError
        Lists of arrays, or an epilogue with totals, on a GPU.
    CompilerNotFoundError
        The epilogue must be compiled and there is no compiler; raised on all ranks.

    Notes
    -----
    Host traffic of fused Adam: world_size reads of the gradient; param, m and v read and written
    once, where the parameters are replicated.

    References
    ----------
    .. [1] Jangda et al., "Breaking the computation and communication abstraction barrier in
       distributed machine learning workloads", ASPLOS 2022, section 5 (fused AllReduce).
    """
    return _call_fused(_ALLREDUCE_FUSED, x, epilogue, op, out, comm, stream, dtype, zero_grad,
                       operands)


def reduce_scatter_fused(x, epilogue, *, op="sum", out=None, comm=None, stream=None, dtype=None,
                         zero_grad=False, **operands):
    """Reduce over all ranks, run an epilogue on this rank's shard, and keep the result there.

    Collective. As `allreduce_fused`, but nothing is gathered: the epilogue's output has the length
    of this rank's `Communicator.shard_range`.

    Parameters
    ----------
    x : array_like
        This rank's contribution.
    epilogue : Epilogue
        Must give an output or update sharded arrays only.
    op : {"sum", "prod", "min", "max", "avg"}, default "sum"
        The reduction before the epilogue.
    out : array_like, this rank's shard, optional
        Where the output goes. Default: a new array, if the epilogue has an output.
    comm, stream, dtype : optional
        As in `allreduce`.
    zero_grad : bool, default False
        Leave zeros in `x`, stored as it is read.
    **operands : array_like or float
        The epilogue's arrays and scalars, by name.

    Returns
    -------
    Work
        Its result is the output.
    """
    if out is None and not _on_device(x):
        out = _hooks.make_shard_output(_communicator(comm), epilogue, x, dtype, operands)
    return _call_fused(_REDUCE_SCATTER_FUSED, x, epilogue, op, out, comm, stream, dtype, zero_grad,
                       operands)


def exchange(CommunicatorBase comm, int purpose, bytes data, *, bint inside=False):
    """Give every rank's bytes to every rank, through the communicator's own memory.

    Ranks that ask for different purposes, or for a collective, all raise. `inside`: the caller is
    inside another call of this thread.
    """
    cdef bytearray lengths = bytearray(8 * comm.world_size)
    cdef bytearray own_length = bytearray(len(data).to_bytes(8, "little"))
    comm.check_usable()
    if not inside:
        _enter(comm)
    try:
        _exchange_blocks(comm, purpose, own_length, lengths)
        sizes = [int.from_bytes(lengths[8 * peer:8 * peer + 8], "little")
                 for peer in range(comm.world_size)]
        longest = max(sizes)
        if longest == 0:
            return [b""] * comm.world_size
        padded = bytearray(data.ljust(longest, b"\0"))
        everything = bytearray(longest * comm.world_size)
        _exchange_blocks(comm, purpose, padded, everything)
    finally:
        if not inside:
            comm.session.get().gate.leave()
    return [bytes(everything[peer * longest:peer * longest + size])
            for peer, size in enumerate(sizes)]


cdef int _exchange_blocks(CommunicatorBase comm, int purpose, bytearray own,
                          bytearray everything) except -1:
    cdef Call call = _bind_simple(comm, _ALLGATHER, own, "sum", everything, None, None, "block")
    call.invocation.signature.kind = _EXCHANGE
    call.invocation.signature.root = purpose
    _run(comm, &call.invocation, call)
    call.release()
    return 0


def bind(CommunicatorBase comm, function, args, kwargs):
    """Bind a call's arrays once; see `Communicator.bind`."""
    comm.check_usable()
    kwargs = dict(kwargs)
    stream = kwargs.pop("stream", None)
    given = kwargs.pop("comm", comm)
    if given is not None and given is not comm:
        raise UsageError("comm.bind binds to its own communicator; leave comm= out")
    if function is alltoallv or kwargs.get("counts") is not None:
        given = _hooks.bind_arguments(function, args, kwargs)
        return _hooks.bind_uneven(comm, _ALLTOALLV if function is alltoallv else
                                  _kind_of(function), given, stream)
    _enter(comm)
    try:
        return _bind(comm, function, args, kwargs, stream)
    finally:
        comm.session.get().gate.leave()


def bind_program(CommunicatorBase comm, Program program, x, out, *, int op, dtype=None,
                 uint64_t digest=0, bint maps_source=False, bint maps_result=False):
    """Bind a program that the caller made to a pair of arrays; see `Communicator.bind_plan`."""
    cdef Call call = Call.__new__(Call)
    cdef Array* source
    cdef Array* result
    comm.check_usable()
    call.keep = x if out is None else (x, out)
    call.reserve(2)
    dtype_code = -1 if dtype is None else _hooks.parse_dtype(dtype)
    source = result = call.acquire(x, "x", dtype_code)
    call.in_place = out is None
    if out is not None:
        result = call.acquire(out, "out", dtype_code)
        call.output = out
    _check_named(comm, source, dtype_code)
    if source.dtype != result.dtype or source.count != result.count:
        raise BufferMismatchError(
            f"out must have the input's {source.count} elements of {_dtype_label(source.dtype)}; "
            f"got {result.count} of {_dtype_label(result.dtype)} on rank {comm.rank}"
        )
    _check_writable(result, "x" if out is None else "out", comm, False)
    _check_pair(comm, source, result, "out", -1, False)
    _start(call, comm, program, _CUSTOM, op, source.dtype, -1, 0)
    call.invocation.signature.epilogue = digest
    call.invocation.count = source.count
    call.invocation.source_bytes = source.nbytes
    _place(source, &call.invocation.source)
    _place(result, &call.invocation.results[0])
    call.invocation.source_reference = _reference(comm, source)
    call.invocation.result_references[0] = _reference(comm, result)
    for name, maps, reference in (
        ("x", maps_source, call.invocation.source_reference),
        ("x" if out is None else "out", maps_result, call.invocation.result_references[0]),
    ):
        if maps and reference == kNotMapped:
            raise UsageError(
                f"the plan maps the callers' arrays, so {name} must be contiguous and come from "
                f"comm.empty(); got ordinary memory on rank {comm.rank}"
            )
    return _bound(call, None)


cdef object _bind(CommunicatorBase comm, object function, tuple args, dict kwargs, object stream):
    cdef Call call
    cdef int kind = _kind_of(function)
    cdef int index
    bound = _hooks.bind_arguments(function, args, kwargs)
    if _on_device(bound["x"]) or bound["x"] is None and _on_device(bound["out"]):
        return _hooks.bind_on_device(comm, kind, bound, stream)
    if kind != _ALLREDUCE_FUSED and kind != _REDUCE_SCATTER_FUSED:
        call = _bind_simple(comm, kind, bound["x"], bound.get("op", "sum"), bound["out"],
                            bound["dtype"], bound.get("root"), bound.get("layout"))
        return _bound(call, stream)
    operands = bound["operands"]
    out = bound["out"]
    if kind == _REDUCE_SCATTER_FUSED and out is None:
        out = _hooks.make_shard_output(comm, bound["epilogue"], bound["x"], bound["dtype"],
                                       operands)
    call = _bind_fused(comm, kind, bound["x"], bound["epilogue"], bound["op"], out, bound["dtype"],
                       bound["zero_grad"], operands)
    _check_names(call, operands)
    for index in range(kMaxScalars):
        # Not a number: not given yet.
        call.invocation.scalars[index] = float("nan")
    _bind_scalars(call, operands, True)
    return _bound(call, stream)


cdef int _kind_of(object function) except -1:
    if function is allreduce:
        return _ALLREDUCE
    if function is reduce_scatter:
        return _REDUCE_SCATTER
    if function is allgather:
        return _ALLGATHER
    if function is broadcast:
        return _BROADCAST
    if function is reduce:
        return _REDUCE
    if function is gather:
        return _GATHER
    if function is scatter:
        return _SCATTER
    if function is alltoall:
        return _ALLTOALL
    if function is allreduce_fused:
        return _ALLREDUCE_FUSED
    if function is reduce_scatter_fused:
        return _REDUCE_SCATTER_FUSED
    raise UsageError(
        f"bind takes a collective of cocoll, such as cocoll.allreduce; got {function!r}"
    )
