# Calls that are bound, and what running them gives.

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
        except BaseException:
            if endpoint.executor.failure() != NULL:
                # Peers may have a part of it: it is over for all.
                self.fail()
            raise
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
