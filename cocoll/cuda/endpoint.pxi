# One rank's end of a communicator on a GPU.

@cython.no_gc_clear
cdef class Endpoint:
    """One rank's end of a communicator on a GPU.

    Parameters
    ----------
    device : Device
        The rank's.
    rank, world_size : int
        Whose end.
    blocks : int
        The largest grid; agreed, and resident at once on every rank.
    staging_bytes, window_bytes : int
        What one-shot stages and what a chunk of an ordinary array takes, at most; agreed.
    low_latency_bytes : int
        What low latency pushes, at most; agreed, and a multiple of 16. 0: nothing.
    timeout_seconds : float
        How long kernels wait for peers.
    """

    cdef readonly Device device
    cdef readonly int rank
    cdef readonly int world_size
    cdef readonly int blocks
    cdef readonly size_t staging_bytes
    cdef readonly size_t window_bytes
    cdef readonly size_t low_latency_bytes
    cdef readonly double timeout_seconds
    cdef Executor* executor
    cdef readonly NcclLibrary nccl
    cdef Watch* watch
    cdef object interruption  # what a signal raised while this rank waited in NCCL
    # Operations that may not have completed, with all that they need: what a caller drops at once
    # is still used by what is queued.
    cdef list in_flight
    cdef bint entered

    def __init__(self, Device device, int rank, int world_size, *, int blocks,
                 size_t staging_bytes, size_t window_bytes, size_t low_latency_bytes,
                 double timeout_seconds):
        cdef ExecutorOptions options
        cdef Result result
        self.device = device
        self.nccl = None
        self.watch = NULL
        self.interruption = None
        self.in_flight = []
        self.rank = options.rank = rank
        self.world_size = options.world_size = world_size
        self.blocks = options.blocks = blocks
        self.staging_bytes = options.staging_bytes = staging_bytes
        self.window_bytes = options.window_bytes = window_bytes
        self.low_latency_bytes = options.low_latency_bytes = low_latency_bytes
        self.timeout_seconds = timeout_seconds
        options.device = device.ordinal
        options.limit_nanoseconds = <uint64_t>(min(timeout_seconds, 9e9) * 1e9)
        self.executor = new Executor(&device.library.driver, options)
        cdef void* before = device.enter()
        with nogil:
            result = self.executor.create()
        device.leave(before)
        device.library.check(result, f"making the memory of rank {rank}")

    # Without `close` the memory stays for as long as the process: a peer may use it.

    def ticket(self):
        """Give what peers attach with."""
        return _pack(self.executor.ticket())

    def attach(self, int peer, bytes ticket):
        """Map a peer's memory."""
        cdef SegmentTicket unpacked = _unpack(ticket)
        cdef void* before = self.device.enter()
        cdef Result result
        with nogil:
            result = self.executor.attach(peer, unpacked)
        self.device.leave(before)
        self.device.library.check(result, f"mapping the memory of rank {peer}")

    def window(self, int rank):
        """Give where a rank's window lies."""
        return self.executor.window(rank)

    @property
    def greetings(self):
        """Where a word of every rank lies that it says over the wire."""
        return self.executor.greetings()

    def signals(self, int rank):
        """Give where a rank's counters of plans' signals lie: a ``cocoll_grid_signals``."""
        return self.executor.signals(rank)

    def open_wire(self, NcclLibrary nccl, bytes unique_id, size_t abort_address):
        """Let the ranks reach each other over NCCL; blocks until all have come.

        Parameters
        ----------
        nccl : NcclLibrary
            Of one version on all ranks.
        unique_id : bytes
            What `NcclLibrary.make_unique_id` gave on one of them.
        abort_address : int
            A word of 64 bits that is set when a peer gives up; 0 if there is none. It must stay
            until `end_watch`.
        """
        cdef NcclUniqueId unpacked
        cdef Result result
        if len(unique_id) != sizeof(NcclUniqueId):
            raise ValueError(
                f"an identifier has {sizeof(NcclUniqueId)} bytes; got {len(unique_id)}"
            )
        memcpy(&unpacked, <const char*>unique_id, sizeof(NcclUniqueId))
        self.nccl = nccl
        cdef void* before = self.device.enter()
        with nogil:
            result = open_wire(
                self.executor[0], &nccl.nccl, unpacked, _is_interrupted, <void*>self)
        self.device.leave(before)
        self.check(result, f"opening NCCL on rank {self.rank}")
        self.watch = make_watch(
            &self.device.library.driver, self.device.context, self.executor, abort_address)

    @property
    def has_wire(self):
        """Whether the ranks can reach each other over NCCL."""
        return self.executor != NULL and self.executor.has_wire()

    def drop_wire(self):
        """Forget NCCL, which not all ranks could open."""
        cdef void* before
        self.end_watch()
        before = self.device.enter()
        with nogil:
            self.executor.drop_wire()
        self.device.leave(before)

    def forget_abort_word(self):
        """Read the word that tells of peers no more; operations are still looked after."""
        if self.watch != NULL and not self.device.is_inherited():
            self.watch.forget_abort_word()

    def end_watch(self):
        """End the thread that looks after operations which NCCL carries. Idempotent."""
        cdef Watch* watch = self.watch
        self.watch = NULL
        if self.device.is_inherited():
            # A child made by fork has no such thread.
            return
        with nogil:
            del watch

    cdef int check(self, Result result, str what) except -1:
        if self.interruption is not None:
            interruption, self.interruption = self.interruption, None
            raise interruption
        if result == kNcclResults + kNcclLate:
            raise NcclError(
                f"{what} failed: another rank did not come within {self.timeout_seconds} s",
                status=result - kNcclResults,
            )
        if result >= kNcclResults:
            return self.nccl.check(result - kNcclResults, what)
        return self.device.library.check(result, what)

    def failure(self):
        """Give (reason, block, peer, wanted, seen) of what a kernel gave up for, or None."""
        cdef const cocoll_grid_failure* found = NULL
        if self.executor != NULL:
            found = self.executor.failure()
        if found == NULL:
            return None
        return found.reason, found.block, found.peer, found.wanted, found.seen

    def poison(self):
        """Make all kernels that wait in this communicator give up; does not wait for them."""
        cdef void* before
        if self.executor == NULL:
            return
        before = self.device.enter()
        with nogil:
            self.executor.poison()
        self.device.leave(before)

    def is_done(self, uint64_t number):
        """Say whether an operation has completed, by the number that running it gave."""
        cdef void* before
        cdef Result result
        if self.executor == NULL:
            # A communicator is closed when its operations have ended.
            return True
        before = self.device.enter()
        result = self.executor.query(number)
        self.device.leave(before)
        if result == kNotReady:
            return False
        self.device.library.check(result, "asking for an operation")
        return True

    def close(self):
        """Give this rank's own memory back: no peer uses it any more."""
        cdef Executor* executor = self.executor
        if executor == NULL or self.device.is_inherited():
            return
        self.end_watch()
        cdef void* before = self.device.enter()
        self.executor = NULL
        with nogil:
            del executor
        self.device.leave(before)
        self.in_flight.clear()

    def detach(self):
        """Let go of peers' memory; once all have, this rank's own may go."""
        cdef void* before = self.device.enter()
        with nogil:
            self.executor.detach()
        self.device.leave(before)

    @property
    def issued(self):
        """How many operations were queued."""
        return self.executor.issued()

    @property
    def has_captured(self):
        """Whether an operation was ever captured: its replays are not counted."""
        return self.executor.has_captured()

    cdef int hold(self, Operation operation) except -1:
        # Keeps an operation until it has completed; its place in the list is found again.
        if not operation.held:
            if len(self.in_flight) >= 32:
                self.release()
            operation.held = True
            self.in_flight.append(operation)
        return 0

    def release(self):
        """Let arrays go that only operations hold which have completed."""
        cdef list kept = []
        for operation in self.in_flight:
            if self.is_done((<Operation>operation).number):
                (<Operation>operation).held = False
            else:
                kept.append(operation)
        self.in_flight = kept

    def is_capturing(self, size_t stream):
        """Whether a stream records a graph."""
        cdef int status = 0
        cdef void* before = self.device.enter()
        cdef Result result = is_capturing(self.device.library.driver, <void*>stream, &status)
        self.device.leave(before)
        self.device.library.check(result, "asking a stream whether it is captured")
        return status != 0


cdef int _is_interrupted(void* endpoint) noexcept nogil:
    # Called while a rank waits for others in NCCL: Ctrl-C ends that.
    with gil:
        try:
            PyErr_CheckSignals()
        except BaseException as error:
            (<Endpoint>endpoint).interruption = error
            return 1
    return 0
