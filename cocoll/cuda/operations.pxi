# Operations: made once, run often.

# Its end needs its endpoint, which a collector of circles would take away first.
@cython.no_gc_clear
cdef class Operation:
    """One operation of one rank, as steps on a stream: made once, run often.

    Parameters
    ----------
    endpoint : Endpoint
        Whose.
    signature : int
        32 bits of all that the ranks must agree on.
    """

    cdef readonly Endpoint endpoint
    cdef Sequence sequence
    cdef uint32_t signature
    cdef cocoll_prepare_fn prepare
    cdef int derived_count
    cdef double scalars[32]
    cdef object keep
    cdef uint64_t number
    cdef bint held

    def __init__(self, Endpoint endpoint, uint32_t signature):
        self.held = False
        self.endpoint = endpoint
        self.signature = signature
        self.prepare = NULL

    def derive(self, size_t prepare_address, int derived_count):
        """Say what makes a kernel's numbers from the call's scalars; 0: they are the same."""
        self.prepare = <cocoll_prepare_fn>prepare_address
        self.derived_count = derived_count

    def hold(self, keep):
        """Say what must live for as long as the operation is queued: arrays, a stream."""
        self.keep = keep

    def copy(self, size_t to, size_t source, size_t nbytes, int stream=0):
        """Add a copy within device memory."""
        if nbytes > 0 and to != source:
            self.sequence.copy(to, source, nbytes, stream)

    def store_signature(self, size_t to):
        """Add a store of the operation's signature."""
        self.sequence.store(to, self.signature, 0)

    def record(self, int stream):
        """Give the number of an event for all that stands on a stream so far.

        Parameters
        ----------
        stream : int
            0 is the caller's stream, 1 one of the communicator's own. What uses the latter makes it
            wait for the caller's first, and in the end the caller's for it.
        """
        cdef size_t event = 0
        cdef Device device = self.endpoint.device
        cdef void* current = device.enter()
        cdef Result result = self.sequence.record(device.library.driver, stream, &event)
        device.leave(current)
        device.library.check(result, "making an event")
        return event

    def wait_for(self, size_t event, int stream):
        """Let what comes on a stream wait for an event."""
        self.sequence.wait_for(event, stream)

    def __dealloc__(self):
        cdef void* before
        if self.endpoint is not None and not self.endpoint.device.is_inherited():
            before = self.endpoint.device.enter()
            self.sequence.close(self.endpoint.device.library.driver)
            self.endpoint.device.leave(before)

    # Over NCCL, which all ranks have opened (`Endpoint.open_wire`).

    def begin_group(self, int stream=0):
        """Begin what moves as one: sends and receives until `end_group`."""
        self.sequence.mark(StepKind.kGroupStart, stream)

    def end_group(self, int stream=0):
        """End what moves as one."""
        self.sequence.mark(StepKind.kGroupEnd, stream)

    def send(self, int peer, size_t source, size_t nbytes, int stream=0):
        """Add a send."""
        self.sequence.move(StepKind.kSend, 0, source, nbytes, peer, stream)

    def receive(self, int peer, size_t to, size_t nbytes, int stream=0):
        """Add a receive."""
        self.sequence.move(StepKind.kReceive, to, 0, nbytes, peer, stream)

    def all_reduce(self, size_t to, size_t source, size_t elements, int type_code, int op_code,
                   int stream=0):
        """Add NCCL's own all-reduce; its codes of type and operation."""
        self.sequence.all_reduce(to, source, elements, type_code, op_code, stream)

    def all_gather(self, size_t to, size_t source, size_t nbytes_of_a_rank, int stream=0):
        """Add NCCL's own all-gather."""
        self.sequence.move(StepKind.kAllGather, to, source, nbytes_of_a_rank, 0, stream)

    def broadcast(self, size_t to, size_t source, size_t nbytes, int root, int stream=0):
        """Add NCCL's own broadcast."""
        self.sequence.move(StepKind.kBroadcast, to, source, nbytes, root, stream)

    def launch(self, size_t function, int blocks, int64_t begin, int64_t end, sources,
               destinations, operands=(), layouts=(), *, own_source=None, copied_from=None,
               bint aligned=False, bint zero_sources=False, bint alone=False, int stream=0):
        """Add a kernel.

        Parameters
        ----------
        function, blocks : int
            Which, and its grid; equal on all ranks.
        begin, end : int
            The logical elements that this rank reduces.
        sources : sequence of int
            Element 0 of every rank's source; empty where `own_source` is given.
        own_source : int, optional
            Element 0 of this rank's source: one-shot, through the staging.
        copied_from : int, optional
            What the kernel that copies reads, 0 for zeros.
        destinations : sequence of sequence of int
            Element 0 of each place of each result.
        operands : sequence of (int, int, int)
            Address, logical index of the first element, and which layout, or -1.
        layouts : sequence of (itemsize_bytes, shape, stride_bytes)
            Of operands that are strided or broadcast.
        aligned, zero_sources, alone : bool
            See ``grid_abi.h``.
        stream : int
            See `record`.
        """
        cdef cocoll_grid_call call
        cdef int index, place
        memset(&call, 0, sizeof(call))
        self.endpoint.executor.prepare(&call)
        call.signature = self.signature
        call.begin = begin
        call.end = end
        if aligned:
            call.flags |= COCOLL_GRID_ALIGNED
        if zero_sources:
            call.flags |= COCOLL_GRID_ZERO_SOURCES
        if alone:
            call.flags |= COCOLL_GRID_ALONE
        for index, address in enumerate(sources):
            call.sources[index] = <void*><intptr_t>address
        if own_source is not None:
            self.endpoint.executor.stage(&call, <const void*><intptr_t>own_source)
        if copied_from is not None:
            call.own_source = <const void*><intptr_t>copied_from
        for index, places in enumerate(destinations):
            call.destination_count = <int32_t>len(places)
            for place, address in enumerate(places):
                call.destinations[index][place] = <void*><intptr_t>address
        for index, (address, origin, layout) in enumerate(operands):
            call.operands[index].data = <void*><intptr_t>address
            call.operands[index].origin = origin
            call.operands[index].layout = layout
        if len(layouts) > COCOLL_GRID_MAX_LAYOUTS:
            raise ValueError(
                f"a launch takes {COCOLL_GRID_MAX_LAYOUTS} layouts; got {len(layouts)}"
            )
        for index, (itemsize, shape, stride_bytes) in enumerate(layouts):
            if len(shape) > COCOLL_MAX_DIMS:
                raise ValueError(f"a layout has {COCOLL_MAX_DIMS} dimensions; got {len(shape)}")
            call.layouts[index].ndim = <int32_t>len(shape)
            call.layouts[index].itemsize_bytes = itemsize
            for place, length in enumerate(shape):
                call.layouts[index].shape[place] = length
                call.layouts[index].stride_bytes[place] = stride_bytes[place]
        add_launch(self.sequence, <void*>function, call, blocks, stream)

    def run(self, size_t stream, tuple scalars=()):
        """Queue the operation on a stream.

        Parameters
        ----------
        stream : int
            A stream's handle.
        scalars : tuple of float
            In the epilogue's order.

        Returns
        -------
        int
            The operation's number; -1 where it was captured.
        """
        cdef Endpoint endpoint = self.endpoint
        cdef Device device = endpoint.device
        cdef uint64_t number = 0
        cdef Result result
        cdef void* before
        cdef size_t index
        cdef int place
        if self.derived_count > 0:
            for place, value in enumerate(scalars):
                self.scalars[place] = value
            for index in range(self.sequence.calls.size()):
                if self.prepare != NULL:
                    self.prepare(self.scalars, self.sequence.calls[index].derived)
                else:
                    memcpy(self.sequence.calls[index].derived, self.scalars,
                           self.derived_count * sizeof(double))
        before = device.enter()
        with nogil:
            result = run_on(endpoint.executor[0], self.sequence, <void*>stream, &number)
        device.leave(before)
        if number != kCaptured:
            # Also after an error: what was queued before it uses the arrays.
            self.number = number
            endpoint.hold(self)
        endpoint.check(result, f"launching on rank {endpoint.rank}")
        return -1 if number == kCaptured else number


cdef class DeviceWork:
    """An operation that has been queued on a GPU.

    What is queued on its stream afterwards sees the result; the host need not wait. ``wait`` blocks
    the host until the operation has completed, ``done`` asks, ``exception`` gives what went wrong,
    ``result`` waits and gives the output.
    """

    cdef Endpoint endpoint
    cdef object number
    cdef object output
    cdef object make_failure

    def __init__(self, Endpoint endpoint, number, output, make_failure):
        self.endpoint = endpoint
        self.number = number
        self.output = output
        self.make_failure = make_failure

    def done(self):
        """Say whether the operation has completed."""
        if self.number < 0:
            raise UsageError(
                "the operation was captured: it runs when the graph does; wait for that one's "
                "stream"
            )
        return self.endpoint.is_done(self.number)

    def wait(self, timeout_seconds=None):
        """Block the host until the operation has completed.

        Parameters
        ----------
        timeout_seconds : float, optional
            How long this call waits; the operation goes on after it. Default: for as long as the
            kernels themselves do.

        Raises
        ------
        CommTimeoutError
            `timeout_seconds` have passed, or a rank did not come in time.
        CocollError
            What made the operation fail.
        """
        # Short waits find the operation soon, long ones leave the processor alone.
        cdef timespec pause
        cdef double waited = 0
        cdef double step = 2e-5
        pause.tv_sec = 0
        while not self.done():
            pause.tv_nsec = <long>(step * 1e9)
            with nogil:
                nanosleep(&pause, NULL)
            waited += step
            step = min(step * 1.5, 2e-3)
            PyErr_CheckSignals()
            if timeout_seconds is not None and waited >= timeout_seconds:
                raise CommTimeoutError(
                    f"wanted the operation done within {timeout_seconds} s on rank "
                    f"{self.endpoint.rank}; it still runs", ranks=()
                )
        error = self.make_failure()
        if error is not None:
            raise error

    def exception(self, timeout_seconds=None):
        """Wait, and give what made the operation fail, or None."""
        self.done()
        try:
            self.wait(timeout_seconds)
        except Exception as error:
            return error
        return None

    def result(self, timeout_seconds=None):
        """Wait, and give the output."""
        self.wait(timeout_seconds)
        return self.output


cdef class BoundDeviceOperation:
    """A call with its arrays bound on a GPU: made by `Communicator.bind`, run by calling it.

    Calling it queues the operation; nothing waits, and nothing is allocated. It may be captured in
    a graph, with the scalars that it has then.
    """

    cdef Operation operation
    cdef object side
    cdef object comm
    cdef object resolve
    cdef size_t stream
    cdef tuple names
    cdef list scalars
    cdef object output
    cdef readonly object plan

    def __init__(self, comm, side, Operation operation, *, resolve, stream, names, scalars, output,
                 keep, plan):
        self.comm = comm
        self.side = side
        self.operation = operation
        self.resolve = resolve
        self.stream = 0 if stream is None else stream
        self.names = names
        self.scalars = list(scalars)
        self.output = output
        operation.hold(keep)
        self.plan = plan

    def __call__(self, **scalars):
        """Queue the operation once, with these scalars."""
        cdef Endpoint endpoint
        cdef size_t stream = self.stream
        cdef object number
        if self.operation is None:
            raise ClosedError("the bound operation is closed; bind it again")
        endpoint = self.operation.endpoint
        if endpoint.device.is_inherited():
            raise ForkedProcessError(
                "a communicator does not survive fork: this process is a child of the one that "
                "made it. Make a new communicator, or use the spawn start method"
            )
        if self.comm.closed or endpoint.executor == NULL:
            raise ClosedError("the communicator is closed; make a new one with cocoll.init()")
        if endpoint.executor.failure() != NULL:
            raise self.side.make_failure(self.comm)
        if endpoint.entered:
            raise UsageError(
                f"two threads are inside one communicator on rank {endpoint.rank}; use "
                f"comm.duplicate() for the second one"
            )
        for name, value in scalars.items():
            if name not in self.names:
                raise UsageError(
                    f"the bound operation has no scalar {name!r}; it has "
                    f"{', '.join(self.names) or 'none'}"
                )
            self.scalars[self.names.index(name)] = _number(value, name)
        if self.names and None in self.scalars:
            missing = self.names[self.scalars.index(None)]
            raise UsageError(f"the scalar {missing!r} has not been given")
        if self.resolve is not None:
            stream = self.resolve()
        endpoint.entered = True
        try:
            number = self.operation.run(stream, tuple(self.scalars))
        finally:
            endpoint.entered = False
        return DeviceWork(endpoint, number, self.output, self.fail)

    @property
    def algorithm(self):
        """What serves the call: the name of its plan."""
        return self.plan.name

    def explain(self):
        """Say what serves the call, why, and what each step does, for people."""
        return self.side.explain(self.plan)

    def stream_handle(self):
        """Give the stream that the next run goes to."""
        return self.stream if self.resolve is None else self.resolve()

    def fail(self):
        """Give what made an operation of this communicator fail, or None."""
        return self.side.make_failure(self.comm)

    def close(self):
        """Give the arrays back, once what is queued has completed. Idempotent."""
        self.operation = None


def read_number(value, name):
    """Give a scalar of a call as a float; UsageError where it is no number."""
    return _number(value, name)


cdef double _number(object value, object name) except? -1:
    # A string of digits would pass for a number.
    given = None if isinstance(value, (str, bytes, bytearray)) else value
    try:
        return float(given)
    except (TypeError, ValueError):
        raise UsageError(
            f"the scalar {name!r} must be a number; got {type(value).__name__}"
        ) from None
