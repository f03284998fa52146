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
            0 is the caller's stream, others are the communicator's own. What uses one of those
            makes it wait for the caller's first, and in the end the caller's for it.
        """
        cdef size_t event = 0
        cdef Device device = self.endpoint.device
        cdef void* current = device.enter()
        cdef Result result = self.sequence.record(device.library.driver, stream, &event)
        if result == kSuccess:
            result = self.endpoint.executor.open_streams(self.sequence.stream_count())
        device.leave(current)
        device.library.check(result, "making an event and streams")
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
               bint aligned=False, bint zero_sources=False, bint low_latency=False,
               bint alone=False, int stream=0):
        """Add a kernel.

        Parameters
        ----------
        function, blocks : int
            Which, and its grid; equal on all ranks.
        begin, end : int
            The logical elements that this rank reduces.
        sources : sequence of int
            Element 0 of each source, in the order of the sum; empty where `own_source` is given.
        own_source : int, optional
            Element 0 of this rank's source: one-shot, through the staging, or low latency.
        copied_from : int, optional
            What the kernel that copies reads, 0 for zeros.
        destinations : sequence of sequence of int
            Element 0 of each place of each result.
        operands : sequence of (int, int, int)
            Address, logical index of the first element, and which layout, or -1.
        layouts : sequence of (itemsize_bytes, shape, stride_bytes)
            Of operands that are strided or broadcast.
        aligned, zero_sources, low_latency, alone : bool
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
        if len(sources) > COCOLL_GRID_MAX_RANKS:
            raise ValueError(
                f"a launch takes {COCOLL_GRID_MAX_RANKS} sources; got {len(sources)}"
            )
        if len(sources) > 0:
            call.source_count = <int32_t>len(sources)
        for index, address in enumerate(sources):
            call.sources[index] = <void*><intptr_t>address
        if own_source is not None and low_latency:
            self.endpoint.executor.push(&call, <const void*><intptr_t>own_source)
        elif own_source is not None:
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
