# Binding reduce, gather, scatter and alltoall: which arrays a rank has, and which peers touch.

cdef Call _bind_movement(CommunicatorBase comm, int kind, object x, object op, object out,
                         object dtype, object root_rank):
    cdef Call call = Call.__new__(Call)
    cdef Invocation* invocation = &call.invocation
    cdef Array* source = NULL
    cdef Array* result = NULL
    cdef int dtype_code = -1 if dtype is None else _hooks.parse_dtype(dtype)
    cdef int op_code = _op_code(op)
    cdef int root = -1 if kind == _ALLTOALL else _root(comm, root_rank)
    cdef bint at_root = root == comm.rank
    cdef bint gives = kind != _SCATTER or at_root
    cdef bint takes = kind == _SCATTER or kind == _ALLTOALL or at_root
    cdef int64_t count, key
    cdef int size_class = 2
    cdef Program program
    call.reserve(2)
    if gives:
        source = call.acquire(x, "x", dtype_code)
        _check_named(comm, source, dtype_code)
    elif out is None:
        raise UsageError(
            f"a scatter needs out=, this rank's block, on every rank but the root {root}; got None "
            f"on rank {comm.rank}"
        )
    if takes and out is None and kind != _REDUCE:
        out = _hooks.make_output(comm, kind, x, _shape_of(source), source.dtype, 0)
    # What does not concern this rank is not looked at.
    call.keep = (x if gives else None, out if takes else None)
    if takes and out is not None:
        result = call.acquire(out, "out", dtype_code)
        call.output = out
    else:
        call.in_place = True
    if call.lists is not None:
        raise UsageError(
            f"reduce, gather, scatter and alltoall take one array; got a list on rank {comm.rank}. "
            f"Make a call for each"
        )
    if source != NULL and result != NULL and source.dtype != result.dtype:
        raise DTypeError(
            f"out must have the input's dtype {_dtype_label(source.dtype)}; got "
            f"{_dtype_label(result.dtype)} on rank {comm.rank}"
        )
    if source == NULL:
        source = result
    count = _movement_count(comm, kind, source, result, gives)
    if takes:
        _check_writable(source if result == NULL else result, "x" if result == NULL else "out",
                        comm, False)
    if result == NULL:
        result = source
    elif source != result:
        _check_disjoint(comm, kind, source, result, count)
    if comm.session.get().endpoint.spans_hosts():
        size_class = _size_class(comm, count * source.itemsize_bytes)
    key = _key(kind, op_code, source.dtype, size_class, 0, root + 1)
    if key == comm.last_key:
        program = comm.last_program
        program.last_used = comm.session.get().endpoint.sequence
    else:
        program = _find(comm, key)
        if program is None:
            program = _hooks.prepare(comm, kind, op_code, source.dtype, size_class, root, 0)
            _keep(comm, key, program)
        comm.last_key = key
        comm.last_program = program
    _start(call, comm, program, kind, op_code, source.dtype, root, 0)
    invocation.count = count
    invocation.source_bytes = count * source.itemsize_bytes
    invocation.may_stream = result.data != source.data
    _place(source, &invocation.source)
    _place(result, &invocation.results[0])
    # 0 where no peer looks: it must not keep the others from reading what they can.
    invocation.source_reference = 0
    invocation.result_references[0] = 0
    if kind == _REDUCE or kind == _ALLTOALL or at_root == (kind == _SCATTER):
        invocation.source_reference = _reference(comm, source)
    if kind == _REDUCE and at_root:
        invocation.result_references[0] = _reference(comm, result)
    return call


cdef int64_t _movement_count(CommunicatorBase comm, int kind, const Array* source,
                             const Array* result, bint gives) except -1:
    # The elements of the whole vector, on which all ranks must agree; `result` may be NULL.
    cdef int64_t count = source.count
    cdef int64_t wanted
    if kind == _REDUCE or kind == _ALLTOALL:
        wanted = count
    elif kind == _GATHER:
        wanted = count = source.count * comm.world_size
    else:
        # The root has the whole vector, another rank its block.
        count = source.count if gives else source.count * comm.world_size
        wanted = count // comm.world_size
    if kind != _REDUCE and count % comm.world_size != 0:
        raise BufferMismatchError(
            f"the vector must divide into {comm.world_size} equal blocks; got {count} elements on "
            f"rank {comm.rank}. Pad it, or give counts"
        )
    if result != NULL and result.count != wanted:
        raise BufferMismatchError(
            f"out must have {wanted} elements on rank {comm.rank}; got {result.count}"
        )
    return count


cdef int _check_disjoint(CommunicatorBase comm, int kind, const Array* source, const Array* result,
                         int64_t count) except -1:
    cdef int64_t block_bytes = count // comm.world_size * source.itemsize_bytes
    if kind != _ALLTOALL or comm.world_size == 1:
        return _check_pair(comm, source, result, "out",
                           -1 if kind == _REDUCE else comm.rank * block_bytes, kind == _SCATTER)
    if _overlap(source, result):
        raise BufferOverlapError(
            f"out and the input of an alltoall must be disjoint; they overlap on rank "
            f"{comm.rank}. Leave out= away, or give other memory"
        )
    return 0
