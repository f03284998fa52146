# Bound operations: a call with its arrays acquired, run again and again.

cdef class BoundOperation:
    """A call with its arrays bound: made by `Communicator.bind`, run by calling it.

    Calling it gives what the call itself would: the scalars that change are its keyword arguments.
    The arrays stay acquired until it is closed or dropped, so they must not be resized meanwhile.
    """

    cdef Call call
    cdef object stream
    cdef bint closed

    def __call__(self, **scalars):
        """Run the operation once, with these scalars."""
        cdef Call call = self.call
        cdef CommunicatorBase comm
        if self.closed:
            raise ClosedError("the bound operation is closed; bind it again")
        comm = call.comm
        comm.check_usable()
        _enter(comm)
        try:
            if scalars:
                self._take(scalars)
            if self.stream is not None:
                return self._submit()
            if call.invocation.scalar_count > 0:
                self._check_scalars()
            _run_call(call)
        finally:
            comm.session.get().gate.leave()
        return _finished(call)

    cdef int _take(self, dict scalars) except -1:
        cdef Invocation* invocation = &self.call.invocation
        cdef tuple known = self.call.program.facts.scalars
        for name, value in scalars.items():
            for index in range(invocation.scalar_count):
                if known[index] == name:
                    _set_scalar(self.call, index, name, value)
                    break
            else:
                raise UsageError(
                    f"the bound operation has no scalar {name!r}; it has "
                    f"{', '.join(known) or 'none'}"
                )
        return 0

    cdef int _check_scalars(self) except -1:
        cdef int index
        for index in range(self.call.invocation.scalar_count):
            if self.call.invocation.scalars[index] != self.call.invocation.scalars[index]:
                raise UsageError(
                    f"the scalar {self.call.program.facts.scalars[index]!r} has not been given"
                )
        return 0

    cdef object _submit(self):
        # The queue may hold several runs of one binding, each with its own scalars; the arrays
        # stay acquired by the binding, which each run keeps alive.
        cdef Call run = Call.__new__(Call)
        self._check_scalars()
        run.comm = self.call.comm
        run.program = self.call.program
        run.invocation = self.call.invocation
        run.stages = self.call.stages
        if not self.call.tensor_scalars.empty():
            run.tensor_scalars = self.call.tensor_scalars
            run.invocation.tensor_scalars = run.tensor_scalars.data()
        run.output = self.call.output
        run.keep = self.call
        return (<Stream>self.stream).submit(run)

    def close(self):
        """Give the arrays back. Idempotent."""
        if not self.closed:
            self.closed = True
            self.call.release()

    def explain(self):
        """Say why this algorithm serves the call, and what it should take. Local; simulates.

        Returns
        -------
        cocoll.plan.explainer.Explanation
            Algorithm, lower bound, prediction, alternatives, bytes on every port; `str` gives it
            for people.

        Raises
        ------
        UnsupportedError
            It is a plan of the caller's own.
        """
        cdef Invocation* invocation = &self.call.invocation
        cdef int index
        mapped = invocation.source_reference != kNotMapped
        for index in range(self.call.program.host.get().result_count):
            mapped = mapped and invocation.result_references[index] != kNotMapped
        return _hooks.explain_call(self.call.comm, self.call.program.facts, invocation.count,
                                   mapped)

    @property
    def algorithm(self):
        """The algorithm that serves the call."""
        return self.call.program.facts.algorithm


cdef BoundOperation _bound(Call call, object stream):
    cdef BoundOperation bound = BoundOperation.__new__(BoundOperation)
    if stream is not None and not isinstance(stream, Stream):
        stream = _hooks.resolve_stream(stream)
    bound.call = call
    bound.stream = stream
    return bound
