# Fused calls: an epilogue with its arrays and scalars, bound once or called.

cdef Call _bind_fused(CommunicatorBase comm, int kind, object x, object epilogue, object op,
                      object out, object dtype, bint zero_grad, dict names):
    # `names` holds the epilogue's arrays and scalars by name; scalars may come later (bind).
    cdef Call call = Call.__new__(Call)
    cdef Invocation* invocation = &call.invocation
    cdef int dtype_code = -1 if dtype is None else _hooks.parse_dtype(dtype)
    cdef int op_code = _op_code(op)
    cdef int options = _OPTION_ZERO if zero_grad else 0
    cdef Array* source
    cdef Array* result
    cdef Array* array
    cdef int64_t[2] dtypes
    cdef int index
    cdef Program program
    cdef tuple array_names = _array_names(comm, epilogue)
    cdef list given = []
    dtypes[0] = dtypes[1] = 0
    if len(array_names) > kMaxOperands:
        raise UsageError(
            f"an epilogue has at most {kMaxOperands} arrays besides the first; got "
            f"{len(array_names)} on rank {comm.rank}"
        )
    call.keep = (x, out, epilogue, names)
    call.reserve(2 + len(array_names))
    source = result = call.acquire(x, "x", dtype_code)
    if dtype_code != _BFLOAT16:
        # bfloat16 may be what uint16 stands for in another array of the call.
        _check_named(comm, source, dtype_code)
    for index, name in enumerate(array_names):
        value = names.get(name)
        if value is None:
            if name in names:
                raise UsageError(
                    f"{name} must be an array; got None on rank {comm.rank}. Leave it out where "
                    f"the epilogue allows that; an empty shard is an empty array"
                )
            continue
        array = call.acquire(value, name, dtype_code)
        dtypes[index >> 3] |= <int64_t>(array.dtype + 1) << (8 * (index & 7))
        if _is_replicated(comm, array) and array.nbytes > 0:
            options |= _OPTION_REPLICATED
        given.append(name)
    if out is not None:
        result = call.acquire(out, "out", dtype_code)
        call.output = out
        if _is_replicated(comm, result) and result.nbytes > 0:
            options |= _OPTION_REPLICATED
    cdef int size_class = _size_class(comm, source.nbytes)
    key = (epilogue, _key(kind, op_code, source.dtype, size_class, options,
                          result.dtype + 1 if out is None else -1 - result.dtype),
           dtypes[0], dtypes[1])
    program = _find(comm, key)
    if program is None:
        arrays = {name: call.arrays[1 + index].dtype for index, name in enumerate(given)}
        program = _hooks.prepare_fused(comm, kind, epilogue, op_code, source.dtype, arrays,
                                       result.dtype, size_class, options)
        _keep(comm, key, program)
    options = program.facts.options
    _start(call, comm, program, kind, op_code, source.dtype, -1, options)
    invocation.signature.epilogue = program.facts.digest
    invocation.count = source.count
    invocation.source_bytes = source.nbytes
    _place(source, &invocation.source)
    invocation.source_reference = _reference(comm, source)
    if zero_grad:
        invocation.reduce_flags = COCOLL_REDUCE_ZERO_SOURCES
    _bind_tensors(call, source, source)
    _bind_operands(comm, call, program.facts)
    _bind_results(comm, call, program.facts, out, kind)
    if program.facts.stages is not None:
        call.stages = _bind_stages(comm, call, kind, op_code, zero_grad)
    return call


cdef tuple _array_names(CommunicatorBase comm, object epilogue):
    try:
        names = comm.epilogues.get(epilogue)
    except TypeError:
        # Not hashable, so no epilogue: the look-up says so.
        names = None
    if names is None:
        names = _hooks.array_names(epilogue)
        if len(comm.epilogues) >= comm.program_limit:
            comm.epilogues.clear()
        comm.epilogues[epilogue] = names
    return names


cdef int _bind_operands(CommunicatorBase comm, Call call, object facts) except -1:
    cdef Array* source = &call.arrays[0]
    cdef Array* array
    cdef Array* other
    cdef int index, earlier
    cdef int64_t shard = _block_length(comm, _ALLREDUCE_FUSED, source.count, 0)
    cdef int64_t start = min(comm.rank * shard, source.count)
    cdef int64_t wanted = min(shard, source.count - start)
    for index in range(len(facts.operands)):
        array = &call.arrays[1 + index]
        name = facts.operands[index]
        if facts.sharded[index]:
            if array.tensors != NULL:
                raise UsageError(
                    f"{name} holds this rank's shard of all tensors: one array; got a list on rank "
                    f"{comm.rank}. Make it with comm.shard_zeros({source.count})"
                )
            if array.count != wanted:
                raise BufferMismatchError(
                    f"{name} holds this rank's shard: wanted {wanted} of the {source.count} "
                    f"elements on rank {comm.rank}; got {array.count}. Make it with "
                    f"comm.shard_zeros({source.count})"
                )
            if not array.contiguous:
                raise BufferMismatchError(
                    f"{name} must be contiguous and aligned; it is not on rank {comm.rank}. Use a "
                    f"copy"
                )
        else:
            _broadcast(array, source, name, facts.written[index], comm.rank)
        if facts.written[index]:
            _check_writable(array, name, comm, not facts.sharded[index])
        _place(array, &call.invocation.operands[index])
        for earlier in range(index + 1):
            # The input itself is number 0; operand k is number k + 1.
            other = &call.arrays[earlier]
            if not (facts.written[index] or (earlier > 0 and facts.written[earlier - 1])):
                continue
            if not _overlap(array, other):
                continue
            if (not _same_memory(array, other)
                    or (earlier > 0 and facts.written[index] and facts.written[earlier - 1])):
                raise BufferOverlapError(
                    f"{name} overlaps {'x' if earlier == 0 else facts.operands[earlier - 1]} on "
                    f"rank {comm.rank}, and one of them is written. Use a copy"
                )
    return 0


cdef int _broadcast(Array* array, const Array* source, str name, bint written, int rank) except -1:
    # Lets `array` be read as if it had the input's shape (NumPy's rules).
    cdef int dim, from_dim
    cdef cocoll_layout layout
    cdef bint same = array.layout.ndim == source.layout.ndim
    if source.tensors != NULL:
        return _broadcast_tensors(array, source, name, written, rank)
    if array.tensors != NULL:
        raise UsageError(f"{name} must be one array, as x is; got a list on rank {rank}")
    layout.ndim = source.layout.ndim
    layout.itemsize_bytes = array.itemsize_bytes
    for dim in range(source.layout.ndim):
        from_dim = dim - (source.layout.ndim - array.layout.ndim)
        layout.shape[dim] = source.layout.shape[dim]
        layout.stride_bytes[dim] = 0
        if from_dim < 0:
            continue
        if array.layout.shape[from_dim] == source.layout.shape[dim]:
            layout.stride_bytes[dim] = array.layout.stride_bytes[from_dim]
        elif array.layout.shape[from_dim] != 1:
            same = False
            break
        else:
            same = False
    else:
        if array.layout.ndim <= source.layout.ndim and (same or not written):
            if not same:
                array.layout = layout
                array.contiguous = False
            return 0
    raise BufferMismatchError(
        f"{name} must {'have' if written else 'broadcast to'} the input's shape "
        f"{_shape_of(source)}; got {_shape_of(array)} on rank {rank}. Reshape it"
    )


cdef int _bind_results(CommunicatorBase comm, Call call, object facts, object out,
                       int kind) except -1:
    cdef Invocation* invocation = &call.invocation
    cdef Array* source = &call.arrays[0]
    cdef Array* result
    cdef int index, operand
    cdef bint replicated = (facts.options & _OPTION_REPLICATED) != 0
    cdef int64_t shard, start
    invocation.may_stream = True
    call.in_place = out is None
    if out is not None and -1 not in facts.results:
        raise UsageError(
            f"the epilogue has no output, it updates {', '.join(facts.operands)}; got out= on rank "
            f"{comm.rank}. Leave it out"
        )
    for index in range(len(facts.results)):
        operand = facts.results[index]
        if operand >= 0:
            result = &call.arrays[1 + operand]
            name = facts.operands[operand]
            # An updated array has just been read: streaming past its cached lines would be slower.
            invocation.may_stream = False
        else:
            result = source if out is None else &call.arrays[call.array_count - 1]
            name = "x" if out is None else "out"
            if out is None and result.dtype != facts.result_dtypes[index]:
                raise DTypeError(
                    f"the epilogue's output has dtype {_dtype_label(facts.result_dtypes[index])}, "
                    f"and x has {_dtype_label(result.dtype)} on rank {comm.rank}; give out="
                )
            _check_writable(result, name, comm, out is not None)
            if kind == _REDUCE_SCATTER_FUSED:
                shard = _block_length(comm, kind, source.count, 0)
                start = min(comm.rank * shard, source.count)
                if result.count != min(shard, source.count - start):
                    raise BufferMismatchError(
                        f"out must have this rank's {min(shard, source.count - start)} of the "
                        f"{source.count} elements on rank {comm.rank}; got {result.count}"
                    )
                _check_pair(comm, source, result, "out", start * source.itemsize_bytes, True)
            else:
                if result.count != source.count:
                    raise BufferMismatchError(
                        f"out must have the input's {source.count} elements; got {result.count} "
                        f"on rank {comm.rank}"
                    )
                _check_pair(comm, source, result, "out", -1, False)
            if kind != _REDUCE_SCATTER_FUSED:
                _check_same_tensors(comm, source, result, name)
            elif result.tensors != NULL:
                raise UsageError(
                    f"out is this rank's shard, so one array; got a list on rank {comm.rank}"
                )
            _check_apart(comm, call, facts, result, name)
        if replicated != (_is_replicated(comm, result) and result.nbytes > 0) and result.nbytes > 0:
            raise UsageError(
                f"either all arrays that a fused call updates are replicated or none is; {name} "
                f"differs from the others on rank {comm.rank}"
            )
        if facts.options & _OPTION_ZERO and _overlap(result, source):
            raise UsageError(
                f"zero_grad would erase {name}, which lies in x itself on rank {comm.rank}; give "
                f"another array"
            )
        _place(result, &invocation.results[index])
        invocation.result_references[index] = _reference(comm, result)
    if facts.options & _OPTION_ZERO:
        if not source.contiguous:
            raise BufferMismatchError(
                f"zero_grad needs a contiguous x; got strides on rank {comm.rank}"
            )
        _check_writable(source, "x", comm, False)
    return 0


cdef int _check_apart(CommunicatorBase comm, Call call, object facts, const Array* result,
                      object name) except -1:
    # The output is written while operands are read: elsewhere, or each element of one in its place.
    cdef int index
    cdef const Array* operand
    for index in range(len(facts.operands)):
        operand = &call.arrays[1 + index]
        if _overlap(result, operand) and (facts.written[index]
                                          or not _same_memory(result, operand)):
            raise BufferOverlapError(
                f"{name} overlaps {facts.operands[index]} on rank {comm.rank}, and {name} is "
                f"written. Use a copy"
            )
    return 0


cdef int _bind_scalars(Call call, dict names, bint partial) except -1:
    # Takes scalars by name; those not given have the epilogue's values. `partial`: a later call
    # may still give them.
    cdef Invocation* invocation = &call.invocation
    cdef int index
    facts = call.program.facts
    invocation.scalar_count = len(facts.scalars)
    for index in range(invocation.scalar_count):
        name = facts.scalars[index]
        value = names.get(name)
        if value is None:
            value = facts.defaults[index]
            if value is None:
                if partial:
                    continue
                raise UsageError(
                    f"the epilogue needs the scalar {name!r}; got none on rank {call.comm.rank}"
                )
        _set_scalar(call, index, name, value)
    return 0


cdef double _scalar(object value, object name) except? -1:
    # A string of digits would pass for a number.
    number = None if isinstance(value, (str, bytes, bytearray)) else value
    try:
        return float(number)
    except (TypeError, ValueError):
        raise UsageError(
            f"the scalar {name!r} must be a number; got {type(value).__name__}"
        ) from None


cdef int _check_names(Call call, dict names) except -1:
    facts = call.program.facts
    if len(names) == len(facts.operands) + len(facts.scalars):
        # All that can be given has been given, and what is missing has been found already.
        return 0
    for name in names:
        if name not in facts.operands and name not in facts.scalars:
            raise UsageError(
                f"the epilogue has no array or scalar {name!r}; it has "
                f"{', '.join((*facts.operands, *facts.scalars))} (rank {call.comm.rank})"
            )
    return 0


cdef object _call_fused(int kind, object x, object epilogue, object op, object out, object comm,
                        object stream, object dtype, bint zero_grad, dict names):
    cdef CommunicatorBase communicator = _communicator(comm)
    cdef Call call
    communicator.check_usable()
    _enter(communicator)
    try:
        if _on_device(x):
            return _hooks.call_fused_on_device(communicator, kind, x, epilogue, op, out, stream,
                                               dtype, zero_grad, names)
        call = _bind_fused(communicator, kind, x, epilogue, op, out, dtype, zero_grad, names)
        _check_names(call, names)
        _bind_scalars(call, names, False)
        return _issue(call, stream)
    finally:
        communicator.session.get().gate.leave()
