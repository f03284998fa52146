# Calls: arrays and scalars bound to a program, run once, often, or on a stream.

@cython.freelist(8)
cdef class Call:
    """One operation with its arrays acquired; `release` gives them back."""

    cdef CommunicatorBase comm
    cdef Program program
    cdef Invocation invocation
    cdef Array* arrays
    cdef int array_count
    cdef int array_limit
    cdef object keep
    cdef object output
    cdef bint in_place
    cdef list lists
    cdef vector[double] tensor_scalars
    cdef Stages stages

    def __cinit__(self):
        self.arrays = NULL
        self.array_count = 0
        self.array_limit = 0
        self.in_place = False

    def __dealloc__(self):
        self.release()
        PyMem_Free(self.arrays)

    cdef int reserve(self, int limit) except -1:
        # Views point into the arrays, so their place is fixed before the first is acquired.
        self.arrays = <Array*>PyMem_Malloc(limit * sizeof(Array))
        if self.arrays == NULL:
            raise MemoryError()
        self.array_limit = limit
        return 0

    cdef void release(self) noexcept:
        cdef int index
        for index in range(self.array_count):
            _release(&self.arrays[index])
        self.array_count = 0
        if self.lists is not None:
            for tensors in self.lists:
                (<TensorList>tensors).release()

    cdef void end(self) noexcept:
        # It has ended: the arrays go back.
        self.release()

    cdef int fill(self, Task* task) except -1:
        # Hands over what a stream runs.
        task.program = self.program.host
        task.invocation = self.invocation
        return 0

    cdef object fail(self, Status status, uint64_t sequence, int culprit):
        # Gives what to raise.
        return _failure(self.comm, status, sequence, culprit)

    cdef Array* acquire(self, object value, str name, int dtype) except NULL:
        cdef Array* array = &self.arrays[self.array_count]
        if self.array_count == self.array_limit:
            raise InternalError(f"a call has room for {self.array_limit} arrays")
        if _is_list(value):
            if self.lists is None:
                self.lists = []
            self.lists.append(_acquire_list(value, name, dtype, array))
        else:
            _acquire(value, name, dtype, array)
        self.array_count += 1
        return array


@cython.freelist(4)
cdef class Work:
    """An operation that has been issued.

    ``wait`` blocks until it has completed on this rank, ``done`` asks, ``exception`` gives what
    went wrong, ``result`` waits and gives the output (None where the call worked in place).
    """

    cdef shared_ptr[Task] task
    cdef Call call
    cdef object output
    cdef object error
    cdef bint finished
    cdef dict found_totals

    def wait(self, timeout_seconds=None):
        """Block until the operation has completed on this rank.

        Parameters
        ----------
        timeout_seconds : float, optional
            How long this call waits; the operation goes on after it. Default: the communicator's
            own timeout alone.

        Raises
        ------
        CommTimeoutError
            `timeout_seconds` have passed; the operation still runs.
        CocollError
            What made the operation fail.
        """
        self._settle(timeout_seconds)
        if self.error is not None:
            raise self.error

    def done(self):
        """Say whether the operation has ended, well or not."""
        return self.finished or self.task.get() != NULL and self.task.get().finished()

    def exception(self, timeout_seconds=None):
        """Wait, and give what made the operation fail, or None.

        Parameters
        ----------
        timeout_seconds : float, optional
            As in `wait`.

        Returns
        -------
        BaseException or None
            What `wait` would raise.
        """
        self._settle(timeout_seconds)
        return self.error

    def result(self, timeout_seconds=None):
        """Wait, and give the output.

        Parameters
        ----------
        timeout_seconds : float, optional
            As in `wait`.

        Returns
        -------
        array_like or None
            The array made for it or given as `out`; None where the call worked in place.
        """
        self.wait(timeout_seconds)
        return self.output

    def totals(self):
        """Wait, and give the named sums of an epilogue.

        Returns
        -------
        dict of str to float or list of float
            What `cocoll.sum` was given a ``name`` for: over all ranks, for each tensor of a list
            where it is over tensors. Of a bound operation, read it before the next run.
        """
        self.wait()
        return {} if self.found_totals is None else dict(self.found_totals)

    cdef int _settle(self, object timeout_seconds) except -1:
        cdef Task* task = self.task.get()
        cdef double waited = 0
        cdef Status status
        cdef cbool ended = False
        cdef Call call
        if self.finished:
            return 0
        if task == NULL:
            raise UsageError(
                "a message of a group begins at the end of the group's block: wait for it after "
                "that"
            )
        if self.call.comm.fork_generation != fork_generation():
            raise ForkedProcessError(
                "an operation does not survive fork: it goes on in the parent of this process"
            )
        while not ended:
            with nogil:
                ended = task.wait(50000000)
            if ended:
                break
            PyErr_CheckSignals()
            waited += 0.05
            if timeout_seconds is not None and waited >= timeout_seconds:
                raise CommTimeoutError(
                    f"wanted the operation done within {timeout_seconds} s on rank "
                    f"{self.call.comm.rank}; it still runs", ranks=()
                )
        status = task.status()
        call = self.call
        if status != Status.kDone:
            if task.session.get().endpoint.abandoned:
                # As in `_run`: the arrays stay for good.
                Py_INCREF(call)
            self.error = call.fail(status, task.sequence(), task.culprit())
        elif call.stages is not None:
            self.found_totals = call.stages.read_totals()
        call.end()
        self.finished = True
        return 0


cdef Work _finished_work(object output):
    cdef Work work = Work.__new__(Work)
    work.finished = True
    work.output = output
    return work


#: What every call in place that has finished returns.
DONE = _finished_work(None)


cdef class Stream:
    """An ordered queue of operations with a thread of its own.

    Give it as ``stream=`` to make a call asynchronous: the call returns at once, the arrays belong
    to cocoll until the `Work` completes. ``close`` finishes what was issued; so does the end of a
    ``with`` block.
    """

    cdef HostStream* host
    cdef list in_flight
    cdef uint64_t fork_generation

    def __cinit__(self):
        self.in_flight = []
        self.fork_generation = fork_generation()
        self.host = new HostStream()

    def __dealloc__(self):
        if self.host == NULL:
            return
        if self.fork_generation != fork_generation():
            # In a forked child the thread does not exist: joining it would never end, and its
            # locks may be held. The child keeps the memory.
            return
        with nogil:
            self.host.close()
        del self.host

    def __enter__(self):
        """Give the stream itself."""
        return self

    def __exit__(self, *exception):
        """Finish what was issued and end the thread."""
        self.close()

    def synchronize(self):
        """Wait until everything issued so far has completed."""
        for work in list(self.in_flight):
            (<Work>work)._settle(None)
        self._prune()

    def close(self):
        """Finish what was issued and end the thread; further calls on the stream are refused."""
        if self.fork_generation == fork_generation():
            with nogil:
                self.host.close()
        self._prune()

    cdef void _prune(self) noexcept:
        # A dropped Work must not free arrays that the thread still uses; this list keeps it.
        self.in_flight = [work for work in self.in_flight if not (<Work>work).done()]

    cdef Work submit(self, Call call):
        cdef Work work
        cdef Call stage
        cdef shared_ptr[Task] before
        if call.stages is None:
            return self._submit(call, call, before)
        for part in call.stages.calls:
            stage = part
            call.stages.share_scalars(call, stage)
            work = self._submit(call, stage, before)
            before = work.task
        return work

    cdef Work _submit(self, Call call, Call part, shared_ptr[Task] before):
        # Queues one operation of a call, not to be run unless `before` has succeeded.
        cdef Work work = Work.__new__(Work)
        cdef shared_ptr[Task] task = make_shared[Task]()
        if self.fork_generation != fork_generation():
            raise ForkedProcessError(
                "a stream does not survive fork: this process is a child of the one that made it. "
                "Make a new stream"
            )
        task.get().session = call.comm.session
        part.fill(task.get())
        task.get().after = before
        task.get().ticket = call.comm.session.get().gate.issue()
        work.task = task
        work.call = call
        work.output = call.output
        if not self.host.submit(task):
            # The ticket is spent: pass the turn on, or later operations would wait for it.
            with nogil:
                skip_turn(call.comm.session.get(), task.get().ticket)
            raise ClosedError("the stream is closed; make a new one with cocoll.Stream()")
        if len(self.in_flight) >= 64:
            self._prune()
        self.in_flight.append(work)
        return work


cdef object _issue(Call call, object stream):
    # Runs a bound call now, or queues it.
    if stream is not None:
        if not isinstance(stream, Stream):
            stream = _hooks.resolve_stream(stream)
        return (<Stream>stream).submit(call)
    _run_call(call)
    call.release()
    return _finished(call)


cdef object _finished(Call call):
    # The Work of a call that has run.
    cdef Work work
    if call.in_place and call.stages is None:
        return DONE
    work = _finished_work(call.output)
    if call.stages is not None:
        work.found_totals = call.stages.read_totals()
    return work


cdef int _run_call(Call call) except -1:
    # Runs a call on this thread: its operation, or those of its stages one after the other.
    cdef Call stage
    if call.stages is None:
        _run(call.comm, &call.invocation, call)
        return 0
    for part in call.stages.calls:
        stage = part
        call.stages.share_scalars(call, stage)
        _run(stage.comm, &stage.invocation, call)
    return 0


cdef int _start(Call call, CommunicatorBase comm, Program program, int kind, int op, int dtype,
                int root, int options) except -1:
    # What every invocation has.
    cdef Invocation* invocation = &call.invocation
    call.comm = comm
    call.program = program
    invocation.program = program.host.get()
    invocation.signature.kind = kind
    invocation.signature.op = op
    invocation.signature.dtype = dtype
    invocation.signature.root = root
    invocation.signature.options = options
    return 0


cdef int _check_pair(CommunicatorBase comm, const Array* source, const Array* result, str name,
                     int64_t shard_offset_bytes, bint result_is_shard) except -1:
    # Disjoint, identical, or one the other's shard of this rank (docs/plans.md, rule 6).
    if _same_memory(source, result) or not _overlap(source, result):
        return 0
    if source.contiguous and result.contiguous and shard_offset_bytes >= 0:
        if result_is_shard and <char*>result.data == <char*>source.data + shard_offset_bytes:
            return 0
        if not result_is_shard and <char*>source.data == <char*>result.data + shard_offset_bytes:
            return 0
    raise BufferOverlapError(
        f"{name} and the input must be disjoint, identical, or one this rank's shard of the other; "
        f"got a partial overlap on rank {comm.rank}. Use a copy of one of them"
    )


cdef int64_t _key(int kind, int op, int dtype, int size_class, int options, int rest) noexcept:
    # What the program of a call without an epilogue depends on, in one number; a byte each.
    return (kind | op << 8 | dtype << 16 | <int64_t>size_class << 24 | <int64_t>options << 32
            | <int64_t>rest << 40)


cdef Call _bind_simple(CommunicatorBase comm, int kind, object x, object op, object out,
                       object dtype, object root_rank, object layout):
    cdef Call call = Call.__new__(Call)
    cdef Invocation* invocation = &call.invocation
    cdef Array* source = NULL
    cdef Array* result = NULL
    cdef int dtype_code = -1 if dtype is None else _hooks.parse_dtype(dtype)
    cdef int op_code = _op_code(op)
    cdef int options = 0
    cdef int root = -1
    cdef int64_t count, block, start, nbytes
    cdef int size_class
    cdef int64_t key
    cdef Program program
    if kind >= _REDUCE:
        return _bind_movement(comm, kind, x, op, out, dtype, root_rank)
    call.keep = x if out is None else (x, out)
    call.reserve(2)
    if x is not None or kind != _BROADCAST or out is None:
        source = call.acquire(x, "x", dtype_code)
        _check_named(comm, source, dtype_code)
    if layout is None and (_is_list(x) or _is_list(out)):
        layout = "shard" if kind == _REDUCE_SCATTER or kind == _ALLGATHER else None
    elif layout is None and comm.shard_counts:
        layout = _infer_layout(comm, kind, source, x, out)
    if layout is not None:
        if layout == "shard":
            options |= _OPTION_SHARD
        elif layout != "block":
            raise UsageError(f"layout must be 'block' or 'shard'; got {layout!r}")
    if out is None and (kind == _REDUCE_SCATTER or kind == _ALLGATHER):
        out = _hooks.make_output(comm, kind, x[0] if _is_list(x) else x, _shape_of(source),
                                 source.dtype, options & _OPTION_SHARD)
        call.keep = (x, out)
    if out is not None:
        result = call.acquire(out, "out", dtype_code)
        if source == NULL:
            source = result
        call.output = out
    else:
        result = source
        call.in_place = True
    if kind == _BROADCAST:
        root = _root(comm, root_rank)
    if source.dtype != result.dtype:
        raise DTypeError(
            f"out must have the input's dtype {_dtype_label(source.dtype)}; got "
            f"{_dtype_label(result.dtype)} on rank {comm.rank}"
        )
    # The logical vector, this rank's block of it, and the lengths that follow.
    count = result.count if kind == _ALLGATHER else source.count
    block = _block_length(comm, kind, count, options)
    start = min(comm.rank * block, count)
    if kind == _REDUCE_SCATTER or kind == _ALLGATHER:
        _check_blocks(comm, kind, source, result, count, options, start, block)
    elif source.count != result.count:
        raise BufferMismatchError(
            f"out must have the input's {source.count} elements; got {result.count} on rank "
            f"{comm.rank}"
        )
    # What the root broadcasts in place is only read.
    if not (call.in_place and root == comm.rank):
        _check_writable(result, "x" if call.in_place else "out", comm,
                        kind == _BROADCAST or kind == _ALLGATHER)
    if result != source:
        _check_pair(comm, source, result, "out", start * source.itemsize_bytes,
                    kind == _REDUCE_SCATTER)
    if _is_replicated(comm, result) and result.nbytes > 0:
        options |= _OPTION_REPLICATED
    _check_lists(comm, kind, source, result, options)
    nbytes = count * source.itemsize_bytes
    size_class = _size_class(comm, nbytes)
    key = _key(kind, op_code, source.dtype, size_class, options, root + 1)
    if key == comm.last_key:
        program = comm.last_program
        program.last_used = comm.session.get().endpoint.sequence
    else:
        program = _find(comm, key)
        if program is None:
            program = _hooks.prepare(comm, kind, op_code, source.dtype, size_class, root, options)
            _keep(comm, key, program)
        comm.last_key = key
        comm.last_program = program
    _start(call, comm, program, kind, op_code, source.dtype, root, options)
    invocation.count = count
    invocation.source_bytes = nbytes
    invocation.may_stream = result.data != source.data
    _bind_tensors(call, source, result)
    _place(source, &invocation.source)
    _place(result, &invocation.results[0])
    # Only the root's array is read by others in a broadcast.
    invocation.source_reference = 0
    if kind != _BROADCAST or root == comm.rank:
        invocation.source_reference = _reference(comm, source)
    invocation.result_references[0] = _reference(comm, result)
    return call


cdef int _check_lists(CommunicatorBase comm, int kind, const Array* source, const Array* result,
                      int options) except -1:
    # What a list may be: the whole vector, never a block or a shard of it.
    if source.tensors == NULL and result.tensors == NULL:
        return 0
    if kind != _REDUCE_SCATTER and kind != _ALLGATHER:
        return _check_same_tensors(comm, source, result, "out")
    if (result if kind == _REDUCE_SCATTER else source).tensors != NULL:
        raise UsageError(
            f"{'out' if kind == _REDUCE_SCATTER else 'x'} is a shard, so one array; got a list on "
            f"rank {comm.rank}"
        )
    if not options & _OPTION_SHARD:
        raise UsageError(
            f"a list is cut into shards, not into equal blocks; got layout='block' on rank "
            f"{comm.rank}. Leave it out, or make a call for each array"
        )
    return 0


cdef int _check_named(CommunicatorBase comm, const Array* source, int dtype_code) except -1:
    if dtype_code >= 0 and source.dtype != dtype_code:
        raise DTypeError(
            f"x must have the dtype that dtype={_dtype_label(dtype_code)!r} names; got "
            f"{_dtype_label(source.dtype)} on rank {comm.rank}. Leave dtype= out"
        )
    return 0


cdef object _infer_layout(CommunicatorBase comm, int kind, const Array* source, object x,
                          object out):
    # An array from shard_zeros says by itself that shards are meant.
    cdef Array other
    if kind == _ALLGATHER:
        return "shard" if <size_t>source.data in comm.shard_counts else None
    if kind != _REDUCE_SCATTER or out is None:
        return None
    _acquire(out, "out", -1, &other)
    address = <size_t>other.data
    _release(&other)
    return "shard" if address in comm.shard_counts else None


cdef int _check_blocks(CommunicatorBase comm, int kind, const Array* source, const Array* result,
                       int64_t count, int options, int64_t start, int64_t block) except -1:
    cdef const Array* part = result if kind == _REDUCE_SCATTER else source
    cdef int64_t wanted = min(block, count - start)
    if not options & _OPTION_SHARD and count % comm.world_size != 0:
        raise BufferMismatchError(
            f"the vector must divide into {comm.world_size} equal blocks; got {count} elements on "
            f"rank {comm.rank}. Pad it, or use layout='shard'"
        )
    if part.count != wanted:
        raise BufferMismatchError(
            f"{'out' if kind == _REDUCE_SCATTER else 'x'} must have {wanted} of the {count} "
            f"elements on rank {comm.rank}; got {part.count}"
        )
    return 0


cdef int64_t _block_length(CommunicatorBase comm, int kind, int64_t count, int options) noexcept:
    # Plain reduce_scatter and allgather use equal blocks, everything else shards (docs/plans.md,
    # rule 9).
    cdef int64_t per_rank = (count + comm.world_size - 1) // comm.world_size
    if (kind == _REDUCE_SCATTER or kind == _ALLGATHER) and not options & _OPTION_SHARD:
        return per_rank
    return (per_rank + 15) // 16 * 16


cdef int _size_class(CommunicatorBase comm, int64_t nbytes) noexcept:
    cdef int bits = 0
    if comm.session.get().endpoint.spans_hosts():
        # Over several hosts the best way depends on the size all along; powers of two tell enough.
        while nbytes > <int64_t>1 << bits:
            bits += 1
        return 2 + bits
    if nbytes <= comm.inline_bytes:
        return 0
    return 1 if nbytes <= comm.one_shot_bytes else 2


cdef int _root(CommunicatorBase comm, object root) except -1:
    if not PyIndex_Check(root):
        raise UsageError(
            f"root must be a rank in [0, {comm.world_size}); got {root!r} on rank {comm.rank}"
        )
    rank = PyNumber_Index(root)
    if not 0 <= rank < comm.world_size:
        raise RankError(
            f"root must be a rank in [0, {comm.world_size}); got {rank} on rank {comm.rank}"
        )
    return rank


cdef CommunicatorBase _communicator(object comm):
    cdef PyObject* found = NULL
    if comm is None:
        PyContextVar_Get(default_communicator, NULL, &found)
        if found == NULL:
            raise UsageError("there is no communicator yet: call cocoll.init(), or give comm=")
        comm = <object>found
        Py_DECREF(comm)
    if not isinstance(comm, CommunicatorBase):
        raise UsageError(f"comm must be a cocoll.Communicator; got {type(comm).__name__}")
    return <CommunicatorBase>comm


cdef bint _on_device(object value) except -1:
    if _is_list(value):
        for part in value:
            if not _is_list(part) and _on_device(part):
                raise UnsupportedError(
                    "lists of arrays are for host memory; got one with arrays on a GPU. Make a "
                    "call for each"
                )
        return False
    # Whether an argument lies on a GPU, where another executor works.
    if value is None or type(value) is _ndarray:
        return False
    return _hooks.is_on_device(value)


cdef object _call_simple(int kind, object x, object op, object out, object comm, object stream,
                         object dtype, object root, object layout):
    cdef CommunicatorBase communicator = _communicator(comm)
    communicator.check_usable()
    _enter(communicator)
    try:
        if _on_device(x) or x is None and _on_device(out):
            return _hooks.call_on_device(communicator, kind, x, op, out, stream, dtype, root,
                                         layout)
        return _issue(_bind_simple(communicator, kind, x, op, out, dtype, root, layout), stream)
    finally:
        communicator.session.get().gate.leave()


cdef int _enter(CommunicatorBase comm) except -1:
    if comm.open_group is not None:
        raise UsageError(
            f"a group takes sends and receives alone; got another operation of its communicator "
            f"inside the block, on rank {comm.rank}. Call it before or after"
        )
    return _enter_gate(comm)


cdef int _enter_gate(CommunicatorBase comm) except -1:
    if not comm.session.get().gate.enter():
        raise UsageError(
            f"two threads are inside one communicator on rank {comm.rank}; use comm.duplicate() "
            f"for the second one"
        )
    return 0
