# A rank's end of a communicator, its memory, and the loop that runs an operation.

cdef class Block:
    """A range of shared memory, exported as bytes.

    The last view's end frees it: `on_free` then receives its key. Nothing collective happens there.
    """

    cdef Segment* segment
    cdef char* data
    cdef Py_ssize_t nbytes
    cdef bint readonly
    cdef list freed
    cdef object key

    def __cinit__(self):
        self.segment = NULL

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.nbytes, self.readonly, flags)

    def __dealloc__(self):
        # Runs without other ranks and without waiting: it only marks the block and drops a
        # reference; the mapping goes with its last user.
        if self.segment != NULL:
            if self.freed is not None:
                self.freed.append(self.key)
            self.segment.release()

    @property
    def address(self):
        """Where the memory lies."""
        return <size_t>self.data


# What 63 bits of nanoseconds hold; an infinite timeout is as good as that.
cdef double _LONGEST_SECONDS = 9e9


cdef class CommunicatorBase:
    """What the hot path needs of a communicator; `cocoll.Communicator` derives from it."""

    def __cinit__(self, *args, **kwargs):
        self.programs = {}
        self.epilogues = {}
        self.shard_counts = {}
        self.held = {}
        self.freed_blocks = []
        self.numbered = WeakValueDictionary()
        self.last_key = -1
        self.rank = 0
        self.world_size = 1
        self.closed = True
        self.execution = NULL
        self.fork_generation = fork_generation()

    def __dealloc__(self):
        # Waits for nobody and is not collective: peers are told that this rank is gone, as if it
        # had been closed. Nothing is in flight here, for every operation keeps its communicator.
        if self.session.get() == NULL:
            return
        if self.fork_generation != fork_generation():
            abandon_session(self.session)
            return
        if not self.closed:
            self.session.get().endpoint.leave()
        self.session.get().endpoint.part()

    def _open(self, int rank, int world_size, *, int64_t small_bytes, int64_t staging_bytes,
              int64_t inline_bytes, int64_t one_shot_bytes, int64_t streaming_bytes,
              double timeout_seconds, size_t reserved_bytes, uint64_t token,
              int program_limit, int launcher_pid):
        """Make this rank's memory; gives its ticket for the peers."""
        cdef ScratchSizes sizes
        cdef Session* session
        sizes.small_bytes = small_bytes
        sizes.staging_bytes = staging_bytes
        session = new Session(rank, world_size, sizes, True,
                              <int64_t>(min(timeout_seconds, _LONGEST_SECONDS) * 1e9))
        self.session.reset(session)
        cdef int error = session.create_segment(reserved_bytes, token)
        if error != 0:
            self.session.reset()
            raise _memory_error(error, f"{session.endpoint.regions.heap} bytes of shared memory")
        session.endpoint.launcher_pid = launcher_pid
        self.execution = session.execution.get()
        self.execution.streaming_bytes = streaming_bytes
        self.rank = rank
        self.world_size = world_size
        self.inline_bytes = inline_bytes
        self.one_shot_bytes = one_shot_bytes
        self.program_limit = program_limit
        self.timeout_seconds = timeout_seconds
        return _pack_ticket(session.endpoint.peers[rank].segment.ticket())

    def _attach(self, int peer, bytes ticket):
        """Map a peer's memory. Gives 0 or an errno."""
        cdef SegmentTicket unpacked = _unpack_ticket(ticket)
        return self.session.get().endpoint.attach_segment(peer, unpacked)

    def _set_waiting(self, bint oversubscribed):
        """Say whether the ranks of this host outnumber the processors; before any operation."""
        self.session.get().endpoint.policy = make_wait_policy(oversubscribed)

    def _detach(self, int peer):
        """Forget the memory of a peer that is on another host after all."""
        self.session.get().endpoint.detach_segment(peer)

    def _connect_hosts(self, hosts, WireEnd end):
        """Say which host every rank is on, and what carries messages between them."""
        cdef vector[int32_t] numbers = hosts
        self.session.get().endpoint.connect(numbers, end.wire)

    def _create_commons(self, size_t reserved_bytes):
        """Make the memory of which the host has one copy; the first rank does."""
        cdef Segment* segment = Segment.create(reserved_bytes)
        if segment == NULL:
            raise _memory_error(errno, "shared memory for replicated arrays")
        self.session.get().endpoint.commons = segment
        return _pack_ticket(segment.ticket())

    def _attach_commons(self, bytes ticket):
        """Map the memory that the first rank made."""
        cdef SegmentTicket unpacked = _unpack_ticket(ticket)
        cdef Segment* segment = Segment.attach(unpacked)
        if segment == NULL:
            raise _memory_error(errno, "shared memory for replicated arrays")
        self.session.get().endpoint.commons = segment

    def _opened(self):
        """Everything is mapped: calls may begin."""
        self.closed = False

    def _heap_start(self):
        """The first byte of a rank's segment that symmetric arrays may use."""
        return self.session.get().endpoint.regions.heap

    def _grow(self, bint replicated, size_t nbytes):
        """Make the first bytes of this rank's segment, or of the commons, usable; 0 or an errno."""
        cdef Segment* segment = self._segment(replicated)
        cdef int error
        with nogil:
            error = segment.grow(nbytes)
        return error

    def _block(self, bint replicated, int64_t offset, Py_ssize_t nbytes, key):
        """Give a block of this rank's segment, or of the commons, as an object with a buffer."""
        cdef Segment* segment = self._segment(replicated)
        cdef Block block = Block.__new__(Block)
        segment.retain()
        block.segment = segment
        block.data = segment.base() + offset
        block.nbytes = nbytes
        block.readonly = False
        block.key = key
        block.freed = self.freed_blocks
        return block

    def _take_freed(self):
        """Give the keys of the blocks that were dropped since the last call."""
        freed = list(self.freed_blocks)
        del self.freed_blocks[:len(freed)]
        return freed

    cdef Segment* _segment(self, bint replicated) noexcept:
        cdef Session* session = self.session.get()
        if replicated:
            return session.endpoint.commons
        return session.endpoint.peers[self.rank].segment

    def _huge_pages(self):
        """Whether the kernel gave this rank's memory huge pages."""
        return self._segment(False).huge_pages()

    def _start_recording(self):
        """Keep what every step does from now on."""
        self.session.get().execution.get().recording.start()

    def _stop_recording(self):
        """Give what has been kept, with the facts of the programs, and how much was too much."""
        cdef Recording* recording = &self.session.get().execution.get().recording
        cdef vector[StepTime] kept = recording.stop()
        cdef StepTime entry
        entries = []
        programs = {}
        for index in range(kept.size()):
            entry = kept[index]
            entries.append((entry.sequence, entry.program, entry.step, entry.iteration,
                            entry.begin_nanoseconds, entry.end_nanoseconds, entry.bytes,
                            bool(entry.mapped)))
            if entry.program not in programs:
                program = self.numbered.get(entry.program)
                programs[entry.program] = None if program is None else (<Program>program).facts
        return entries, programs, recording.dropped()

    def _is_leader(self):
        """Whether this is the first rank of its host."""
        return self.session.get().endpoint.leader() == self.rank

    def _wire_detail(self):
        """Give what the wire said when it broke last; empty if nothing."""
        return self.session.get().endpoint.detail.decode(errors="replace")

    def _is_symmetric(self, size_t address, int64_t nbytes):
        """Whether peers can map this memory."""
        return self.session.get().endpoint.reference(<void*>address, nbytes) != kNotMapped

    def _abort_word(self):
        """Give (rank, sequence, reason) of why the communicator was given up, or None."""
        cdef uint64_t word = self.session.get().endpoint.abort_word()
        if word == 0:
            return None
        return int(word & 0xffffff), int((word >> 32) - 1), int((word >> 24) & 0xff)

    def _abort_address(self):
        """Give where the word lies that is set when the communicator is given up; lives with it."""
        return <size_t>self.session.get().endpoint.abort_address()

    def _abort(self, int reason):
        """Give the communicator up on all ranks; in a forked child, nothing."""
        if self._is_inherited():
            return
        self.session.get().endpoint.abort(<AbortReason>reason, self.rank)

    def _flight(self, int peer, uint64_t sequence):
        """Give what a rank recorded of an operation, or None where that is gone."""
        cdef Endpoint* endpoint = &self.session.get().endpoint
        cdef Control* control = endpoint.peers[peer].control
        cdef FlightRecord* record
        if control == NULL:
            # Of a rank on another host this one's first rank keeps what it asked for.
            record = &endpoint.peers[endpoint.leader()].control.mirrored(peer, sequence)
        else:
            record = &control.flight[sequence % kFlightRecords]
        # A record never written has sequence 0, as the first operation has.
        if record.sequence != sequence or flight_state(record) == 0:
            return None
        return (record.kind, record.op, record.dtype, record.options, record.root, record.count,
                record.epilogue, record.algorithm)

    def _inspect(self, int peer):
        """Give what a rank's control page says of it, None of a rank on another host."""
        if self.session.get().endpoint.peers[peer].control == NULL:
            return None
        return _describe_control(self.session.get().endpoint.peers[peer].control)

    def _leave(self):
        """Say that this rank takes part no more, and refuse further calls. Local, never waits."""
        if self.closed:
            return
        self.closed = True
        # A child made by fork leaves nothing: its parent is the rank.
        if not self._is_inherited():
            self.session.get().endpoint.leave()
        self.programs.clear()
        self.last_program = None
        self.last_key = -1

    def _part(self):
        """Say that this rank has no part in what the others go on with. Local, never waits."""
        if self.session.get() != NULL and not self._is_inherited():
            self.session.get().endpoint.part()

    def _has_died(self, int peer):
        """Whether the process of a rank of this host has ended."""
        return self.session.get().endpoint.has_died(peer)

    def _drain(self, double timeout_seconds):
        """Wait until every operation issued on a stream has ended; gives whether they have."""
        cdef Session* session = self.session.get()
        cdef double waited = 0
        if self._is_inherited():
            return False
        while not session.gate.idle():
            if waited >= timeout_seconds:
                return False
            with nogil:
                session.gate.wait_turn(session.gate.issued(), 50000000)
            PyErr_CheckSignals()
            waited += 0.05
        return True

    def _is_inherited(self):
        """Whether this process is a child, made by fork, of the one that is the rank."""
        return self.fork_generation != fork_generation()

    def _is_entered(self):
        """Whether a thread is inside a call."""
        return self.session.get().gate.entered()

    def _next_sequence(self):
        """Give the sequence number of the next operation."""
        return self.session.get().endpoint.sequence

    @property
    def cached_programs(self):
        """How many programs this communicator keeps; at most `program_limit`."""
        return len(self.programs)

    cdef object hold(self, int index, int64_t nbytes):
        # Memory that operations use one after the other; a bound call keeps what it was given.
        memory = self.held.get(index)
        if memory is None or len(memory) < nbytes + 64:
            memory = self.held[index] = bytearray(nbytes + 64)
        return memory

    cdef int check_usable(self) except -1:
        if self.fork_generation != fork_generation():
            raise ForkedProcessError(
                "a communicator does not survive fork: this process is a child of the one that "
                "made it. Make a new communicator, or use the spawn start method"
            )
        if self.closed:
            raise ClosedError(
                f"the communicator of rank {self.rank} is closed; make a new one with cocoll.init()"
            )
        return 0


cdef object _memory_error(int error, str what):
    return OSError(error, f"{strerror(error).decode()}: no {what}")


cdef Program _find(CommunicatorBase comm, object key):
    cdef Program program = comm.programs.get(key)
    if program is not None:
        program.last_used = comm.session.get().endpoint.sequence
    return program


cdef int _keep(CommunicatorBase comm, object key, Program program) except -1:
    # Bounded: the least recently used goes. All ranks make the same calls, so all drop the same.
    if len(comm.programs) >= comm.program_limit:
        oldest = min(comm.programs, key=lambda entry: (<Program>comm.programs[entry]).last_used)
        del comm.programs[oldest]
    program.last_used = comm.session.get().endpoint.sequence
    comm.programs[key] = program
    return 0


cdef object _run(CommunicatorBase comm, Invocation* call, Call keep, PointBatch* batch=NULL):
    # Runs an operation on this thread, or a batch of messages; raises what went wrong. `keep` holds
    # its arrays.
    cdef Session* session = comm.session.get()
    cdef Execution* execution = comm.execution
    cdef PointExecution* points = session.points.get()
    cdef uint64_t ticket = session.gate.issue()
    cdef Status status
    cdef cbool mine = False
    try:
        while not session.gate.is_turn(ticket):
            with nogil:
                session.gate.wait_turn(ticket, 50000000)
            PyErr_CheckSignals()
        mine = True
        with nogil:
            status = execution.begin(call) if batch == NULL else points.begin(batch)
        while status == Status.kPending:
            PyErr_CheckSignals()
            with nogil:
                status = execution.resume() if batch == NULL else points.resume()
    except BaseException:
        # A signal handler raised (Ctrl-C): the operation is half done and cannot be resumed.
        session.endpoint.abort(AbortReason.kInterrupt, comm.rank)
        if mine:
            with nogil:
                if batch == NULL:
                    execution.give_up()
                else:
                    points.give_up()
            if session.endpoint.abandoned:
                Py_INCREF(keep)
        comm._leave()
        session.gate.complete(ticket)
        raise
    session.gate.complete(ticket)
    if status != Status.kDone:
        if session.endpoint.abandoned:
            # A message that could not be taken back may still touch the arrays: they stay for good.
            Py_INCREF(keep)
        raise keep.fail(status, execution.sequence(), session.endpoint.culprit)
    return None


cdef object _failure(CommunicatorBase comm, Status status, uint64_t sequence, int culprit):
    return _hooks.make_failure(comm, <int>status, sequence, culprit)


cdef bytes _pack_ticket(SegmentTicket ticket):
    return PyBytes_FromStringAndSize(<char*>&ticket, sizeof(SegmentTicket))


cdef SegmentTicket _unpack_ticket(bytes ticket) except *:
    cdef SegmentTicket unpacked
    if len(ticket) != sizeof(SegmentTicket):
        raise InternalError(
            f"a segment ticket has {sizeof(SegmentTicket)} bytes; got {len(ticket)}"
        )
    memcpy(&unpacked, <const char*>ticket, sizeof(SegmentTicket))
    return unpacked
