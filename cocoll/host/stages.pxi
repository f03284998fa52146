# Calls in stages: an epilogue with totals as operations one after the other, issued as one call.

cdef class Stages:
    """The operations of one call, and what passes between them."""

    cdef list calls
    # The totals, and their partial sums.
    cdef object totals
    cdef object sums
    # What carries values of shards from one stage to another.
    cdef list held
    cdef list places
    cdef vector[Totals] of_stage
    cdef bint has_lists
    cdef object facts

    cdef dict read_totals(self):
        # What callers may ask for, as it is now.
        cdef dict found = {}
        cdef int index
        for index, label in enumerate(self.facts.labels):
            if label:
                values = list(self.totals[self.places[index]:self.places[index + 1]])
                each = self.has_lists and self.facts.per_tensor[index]
                found[label] = values if each else values[0]
        return found

    cdef int share_scalars(self, Call whole, Call stage) except -1:
        # Gives a stage the scalars that the call was given last.
        cdef int index
        if stage.invocation.signature.epilogue == 0:
            return 0
        stage.invocation.scalar_count = whole.invocation.scalar_count
        for index in range(whole.invocation.scalar_count):
            stage.invocation.scalars[index] = whole.invocation.scalars[index]
        stage.invocation.tensor_scalars = whole.invocation.tensor_scalars
        return 0


cdef Stages _bind_stages(CommunicatorBase comm, Call whole, int kind, int op, bint zero_grad):
    # `whole` has the call's arrays, bound as if one kernel did everything.
    cdef Stages made = Stages.__new__(Stages)
    cdef object facts = whole.program.facts.stages
    cdef int tensors = 1 if whole.invocation.tensors == NULL else whole.invocation.tensors.count
    cdef list places = [0]
    cdef Call stage
    cdef int number, first, stop
    cdef int64_t shard = _block_length(comm, _ALLREDUCE_FUSED, whole.invocation.count, 0)
    for per_tensor in facts.per_tensor:
        places.append(places[-1] + (tensors if per_tensor else 1))
    made.totals = number_array("d", bytes(8 * places[-1]))
    made.sums = bytearray(8 * COCOLL_SUM_LANES * places[-1])
    made.held = [comm.hold(index, shard * itemsize_bytes)
                 for index, itemsize_bytes in enumerate(facts.held_itemsizes_bytes)]
    made.calls = []
    # Calls point into it.
    made.of_stage.resize(len(facts.programs))
    made.places = places
    made.has_lists = whole.invocation.tensors != NULL
    made.facts = facts
    for number in range(len(facts.programs)):
        stage = _make_stage(comm, whole, made, number, kind, op, places)
        made.calls.append(stage)
        first, stop = facts.summed[number]
        if stop > first:
            made.calls.append(_bind_simple(
                comm, _ALLREDUCE, memoryview(made.totals)[places[first]:places[stop]], "sum", None,
                None, None, None))
    if facts.gathers:
        _gather_results(comm, whole, made)
    (<Call>made.calls[0]).invocation.source = whole.invocation.source
    (<Call>made.calls[0]).invocation.source_reference = whole.invocation.source_reference
    (<Call>made.calls[0]).invocation.reduce_flags = whole.invocation.reduce_flags
    return made


cdef Call _make_stage(CommunicatorBase comm, Call whole, Stages made, int number, int kind, int op,
                      list places):
    cdef object facts = whole.program.facts.stages
    cdef Call stage = Call.__new__(Call)
    cdef Program program = facts.programs[number]
    cdef Invocation* invocation = &stage.invocation
    cdef Totals* totals
    cdef int index, place
    cdef bint last = number == len(facts.programs) - 1
    _start(stage, comm, program, kind, op, whole.invocation.signature.dtype, -1,
           whole.invocation.signature.options)
    invocation.signature.epilogue = facts.digests[number]
    invocation.signature.tensors = whole.invocation.signature.tensors
    invocation.count = whole.invocation.count
    invocation.source_bytes = whole.invocation.source_bytes
    invocation.tensors = whole.invocation.tensors
    invocation.source_reference = 0
    for index, place in enumerate(facts.operands[number]):
        if place >= 0:
            invocation.operands[index] = whole.invocation.operands[place]
        else:
            invocation.operands[index].data = <void*><size_t>_held_address(made.held[-1 - place])
            invocation.operands[index].layout = NULL
            invocation.operands[index].index = 0
    totals = &made.of_stage[number]
    for index in range(facts.known[number]):
        _bind_total(made, facts, places, index, &totals.known[index])
    totals.known_count = facts.known[number]
    first, stop = facts.summed[number]
    for index in range(first, stop):
        _bind_total(made, facts, places, index, &totals.summed[index - first])
    totals.summed_count = stop - first
    invocation.totals = totals
    if last:
        invocation.may_stream = whole.invocation.may_stream
        for index in range(program.host.get().result_count):
            invocation.results[index] = whole.invocation.results[index]
            invocation.result_references[index] = whole.invocation.result_references[index]
    return stage


cdef int _gather_results(CommunicatorBase comm, Call whole, Stages made) except -1:
    # The last stage leaves shards, which go to all ranks as in any all-gather.
    cdef Call stage = made.calls[len(made.calls) - 1]
    cdef Call gather
    cdef Array* shard
    cdef int index, place
    cdef object facts = whole.program.facts
    cdef int64_t length = _block_length(comm, _ALLREDUCE_FUSED, whole.invocation.count, 0)
    cdef int64_t start = min(comm.rank * length, whole.invocation.count)
    x, out, _, names = whole.keep
    for index in range(len(facts.results)):
        place = facts.results[index]
        target = names[facts.operands[place]] if place >= 0 else (x if out is None else out)
        dtype = facts.result_dtypes[index]
        part = _hooks.make_output_like(target[0] if _is_list(target) else target,
                                       min(length, whole.invocation.count - start), dtype)
        gather = _bind_simple(comm, _ALLGATHER, part, "sum", target,
                              dtype.label if dtype == _BFLOAT16 else None, None, "shard")
        shard = &gather.arrays[0]
        _place(shard, &stage.invocation.results[index])
        stage.invocation.result_references[index] = 0
        made.calls.append(gather)
    return 0


cdef int _bind_total(Stages made, object facts, list places, int index, Total* total) except -1:
    cdef double[::1] values = made.totals
    cdef char[::1] sums = made.sums
    cdef int64_t place = places[index]
    total.per_tensor = facts.per_tensor[index]
    total.values = &values[place]
    total.sums = <double*>&sums[place * 8 * COCOLL_SUM_LANES]
    return 0


cdef size_t _held_address(object memory) except 0:
    # From a cache line on.
    cdef char[::1] view = memory
    return (<size_t>&view[0] + 63) & ~<size_t>63
