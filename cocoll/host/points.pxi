# Messages between two ranks: one, or a group of them that begin together.

@cython.final
cdef class PointArray:
    """The array of one end of a message; goes back when this is dropped."""

    cdef Array array
    cdef object value

    def __dealloc__(self):
        _release(&self.array)


cdef class PointCall(Call):
    """Messages that are issued as one, with their arrays acquired."""

    cdef shared_ptr[PointBatch] batch
    cdef list held
    cdef list on_device
    cdef object error

    cdef int add(self, Direction direction, object value, object peer, str name, str peer_name,
                 object dtype) except -1:
        cdef CommunicatorBase comm = self.comm
        cdef PointArray end = PointArray.__new__(PointArray)
        cdef PointMessage message
        cdef int dtype_code = -1 if dtype is None else _hooks.parse_dtype(dtype)
        message.direction = direction
        message.peer = _peer(comm, peer, peer_name)
        if _on_device(value):
            self.on_device.append((direction == kSends, value, message.peer, name,
                                   dtype_code))
            return self._check_place()
        _acquire(value, name, dtype_code, &end.array)
        end.value = value
        _check_named(comm, &end.array, dtype_code)
        if direction == kReceives:
            _check_writable(&end.array, name, comm, False)
        message.dtype = end.array.dtype
        message.itemsize_bytes = end.array.itemsize_bytes
        message.count = end.array.count
        message.reference = _reference(comm, &end.array)
        _place(&end.array, &message.array)
        self.held.append(end)
        self.batch.get().messages.push_back(message)
        return self._check_place()

    cdef int _check_place(self) except -1:
        if self.on_device and self.held:
            raise UsageError(
                f"messages that are issued together lie all on the host, or all on GPUs; got both "
                f"on rank {self.comm.rank}. Use a group for each"
            )
        return 0

    cdef void cut(self, size_t host_count, size_t device_count) noexcept:
        # Takes back what was added last.
        self.batch.get().messages.resize(host_count)
        del self.held[host_count:]
        del self.on_device[device_count:]

    cdef int check_own(self) except -1:
        # What this rank sends to itself it must receive, and in the same batch.
        cdef vector[PointMessage]* messages = &self.batch.get().messages
        cdef size_t index
        cdef int64_t own = 0
        for index in range(messages.size()):
            if messages.at(index).peer == self.comm.rank:
                own += 1 if messages.at(index).direction == kSends else -1
        if own != 0:
            verb, missing = ("sends", "receives") if own > 0 else ("receives", "sends")
            raise UsageError(
                f"rank {self.comm.rank} {verb} {abs(own)} more message{'s' if abs(own) > 1 else ''}"
                f" to or from itself than it {missing}, and would wait for ever: use sendrecv, or "
                f"give both ends in one group"
            )
        return 0

    cdef int check_apart(self) except -1:
        # An array that receives may share bytes with no other one.
        cdef vector[PointMessage]* messages = &self.batch.get().messages
        cdef size_t count = messages.size()
        cdef size_t written, other
        cdef vector[size_t] first, stop
        if count < 2:
            return 0
        first.resize(count)
        stop.resize(count)
        for other in range(count):
            _extent(&(<PointArray>self.held[other]).array, &first[other], &stop[other])
        for written in range(count):
            if messages.at(written).direction != kReceives:
                continue
            for other in range(count):
                if (first[written] >= stop[other] or first[other] >= stop[written]
                        or other == written):
                    continue
                if messages.at(other).direction == kReceives and other < written:
                    continue
                if _share_bytes((<PointArray>self.held[written]), <PointArray>self.held[other]):
                    raise BufferOverlapError(
                        f"an array that receives must be apart from all others of its group; two "
                        f"share memory on rank {self.comm.rank}. Use a copy of one of them"
                    )
        return 0

    cdef void end(self) noexcept:
        self.held.clear()

    cdef int fill(self, Task* task) except -1:
        task.batch = self.batch
        return 0

    cdef object fail(self, Status status, uint64_t sequence, int culprit):
        cdef PointMessage message
        if self.error is None:
            entries = []
            for message in self.batch.get().messages:
                entries.append((message.direction == kSends, message.peer, message.count,
                                message.dtype, message.sequence, message.ended, message.mismatched,
                                message.their_count, message.their_dtype))
            self.error = _hooks.make_point_failure(self.comm, <int>status, culprit,
                                                   self.batch.get().group_kind != 0, entries)
        return self.error


cdef bint _share_bytes(PointArray a, PointArray b) except -1:
    # Of arrays whose extents overlap: whether some byte belongs to both.
    if a.array.contiguous and b.array.contiguous:
        return True
    return _hooks.share_bytes(_describe_place(a), _describe_place(b))


cdef object _describe_place(PointArray end):
    cdef int dim
    cdef const cocoll_layout* layout = &end.array.layout
    return (<size_t>end.array.data, end.array.itemsize_bytes,
            tuple([layout.shape[dim] for dim in range(layout.ndim)]),
            tuple([layout.stride_bytes[dim] for dim in range(layout.ndim)]))


cdef PointCall _point_call(CommunicatorBase comm, int group_kind):
    cdef PointCall call = PointCall.__new__(PointCall)
    call.comm = comm
    call.in_place = True
    call.held = []
    call.on_device = []
    call.batch = make_shared[PointBatch]()
    call.batch.get().group_kind = group_kind
    return call


cdef int _peer(CommunicatorBase comm, object peer, str name) except -1:
    if not PyIndex_Check(peer):
        raise UsageError(
            f"{name} must be a rank in [0, {comm.world_size}); got {peer!r} on rank {comm.rank}"
        )
    rank = PyNumber_Index(peer)
    if not 0 <= rank < comm.world_size:
        raise RankError(
            f"{name} must be a rank in [0, {comm.world_size}); got {rank} on rank {comm.rank}"
        )
    return rank


cdef object _issue_points(PointCall call, object stream):
    # Runs messages now, or queues them.
    if call.on_device:
        return _hooks.move_points_on_device(call.comm, call.on_device, stream, call.output)
    call.check_apart()
    call.check_own()
    if stream is not None:
        if not isinstance(stream, Stream):
            stream = _hooks.resolve_stream(stream)
        return (<Stream>stream).submit(call)
    _run(call.comm, NULL, call, call.batch.get())
    call.end()
    return DONE if call.output is None else _finished_work(call.output)


def meet_points(CommunicatorBase comm, list ends):
    """Let the ends of messages meet and find out whether they agree; nothing moves here.

    For messages whose bytes go another way, inside a call of this thread. ``ends``: whether it
    sends, peer, dtype and count of each. Gives the error of those that do not agree, or None, and
    of each whether it agrees.
    """
    cdef PointCall call = _point_call(comm, _GROUP if len(ends) > 1 else 0)
    cdef PointMessage message
    message.only_meets = True
    for sends, peer, dtype, count in ends:
        message.direction = kSends if sends else kReceives
        message.peer = peer
        message.dtype = dtype
        message.count = count
        call.batch.get().messages.push_back(message)
    call.check_own()
    try:
        _run(comm, NULL, call, call.batch.get())
    except CollectiveMismatchError as error:
        return error, [not message.mismatched for message in call.batch.get().messages]
    return None, [True] * len(ends)


cdef object _call_points(object comm, object stream, object dtype, object output, list ends):
    # `ends`: direction, array, peer, and the names of both, of each.
    cdef CommunicatorBase communicator = _communicator(comm)
    cdef PointCall call
    communicator.check_usable()
    if communicator.open_group is not None:
        return (<Group>communicator.open_group).take(stream, dtype, output, ends)
    _enter_gate(communicator)
    try:
        call = _point_call(communicator, 0)
        call.output = output
        _add_ends(call, dtype, ends)
        return _issue_points(call, stream)
    finally:
        communicator.session.get().gate.leave()


cdef int _add_ends(PointCall call, object dtype, list ends) except -1:
    # All or none of them.
    cdef size_t host_count = call.batch.get().messages.size()
    cdef size_t device_count = len(call.on_device)
    try:
        for sends, value, peer, name, peer_name in ends:
            call.add(kSends if sends else kReceives, value, peer, name,
                     peer_name, dtype)
    except BaseException:
        call.cut(host_count, device_count)
        raise
    return 0


cdef class Group:
    """Sends and receives that begin together at the end of a ``with`` block; from `group`."""

    cdef CommunicatorBase comm
    cdef PointCall call
    cdef list works
    cdef object stream
    cdef object token
    cdef bint joined
    cdef bint used

    def __enter__(self):
        """Open the block."""
        if self.used:
            raise UsageError("a group is for one block; make another one with cocoll.group()")
        self.comm.check_usable()
        self.used = True
        self.joined = self.comm.open_group is not None
        if not self.joined:
            self.call = _point_call(self.comm, _GROUP)
            self.works = []
            self.comm.open_group = self
        # Calls in the block that name no communicator are for this one.
        self.token = default_communicator.set(self.comm)
        return self

    def __exit__(self, kind, error, traceback):
        """Issue what the block has called, or drop it where an exception leaves the block."""
        default_communicator.reset(self.token)
        # The messages of a group inside another one begin with it.
        if self.joined:
            return
        self.comm.open_group = None
        works, self.works = self.works, []
        call, self.call = self.call, None
        try:
            if error is not None:
                self._settle(works, UsageError(
                    "an exception has left the group's block: none of its messages has begun"
                ))
                return
            self._issue(call, works)
        except BaseException as failure:
            self._settle(works, failure)
            raise

    cdef int _settle(self, list works, object error) except -1:
        for work in works:
            if isinstance(work, Work):
                (<Work>work).finished = True
                (<Work>work).error = error
            else:
                work.drop(error)
        return 0

    cdef int _issue(self, PointCall call, list works) except -1:
        cdef Work work, whole
        self.comm.check_usable()
        _enter_gate(self.comm)
        try:
            issued = _issue_points(call, self.stream)
        finally:
            self.comm.session.get().gate.leave()
        if call.on_device:
            for pending in works:
                pending.begin(issued)
            return 0
        whole = issued
        for work in works:
            work.task = whole.task
            work.call = call
            work.finished = whole.finished
        return 0

    cdef object take(self, object stream, object dtype, object output, list ends):
        cdef Work work
        if self.call.batch.get().messages.empty() and not self.call.on_device:
            self.stream = stream
        elif stream is not self.stream:
            raise UsageError(
                f"the messages of a group are issued together: give all of them one stream, or "
                f"none; got another one on rank {self.comm.rank}"
            )
        _add_ends(self.call, dtype, ends)
        if self.call.on_device:
            pending = _hooks.make_pending_work(output)
            self.works.append(pending)
            return pending
        work = Work.__new__(Work)
        work.output = output
        self.works.append(work)
        return work
