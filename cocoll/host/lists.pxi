# Lists of arrays: one logical vector, its tensors end to end, none of them copied together.

cdef class TensorList:
    """The arrays of a list that is an argument of a call."""

    cdef Array* arrays
    cdef int count
    cdef vector[int64_t] starts
    cdef vector[cocoll_array] placed
    cdef vector[uint64_t] references
    cdef TensorTable table

    def __cinit__(self):
        self.arrays = NULL
        self.count = 0

    def __dealloc__(self):
        self.release()
        PyMem_Free(self.arrays)

    cdef void release(self) noexcept:
        cdef int index
        for index in range(self.count):
            _release(&self.arrays[index])
        self.count = 0


cdef bint _is_list(object value) noexcept:
    return type(value) is list or type(value) is tuple


cdef TensorList _acquire_list(object values, str name, int dtype, Array* whole):
    # Fills `whole` with what the arrays are together: a vector that nobody reads by its address.
    cdef TensorList made = TensorList.__new__(TensorList)
    cdef Array* array
    if not values:
        raise UsageError(
            f"{name} must hold at least one array; got an empty {type(values).__name__}"
        )
    made.arrays = <Array*>PyMem_Malloc(len(values) * sizeof(Array))
    if made.arrays == NULL:
        raise MemoryError()
    whole.acquired = False
    whole.count = 0
    whole.contiguous = True
    whole.readonly = False
    made.starts.reserve(len(values) + 1)
    for value in values:
        array = &made.arrays[made.count]
        try:
            _acquire(value, name, dtype, array)
        except Exception:
            # Once more, for a message that says which one.
            _acquire(value, f"{name}[{made.count}]", dtype, array)
            raise
        made.count += 1
        if made.count == 1:
            whole.dtype = array.dtype
            whole.itemsize_bytes = array.itemsize_bytes
        elif array.dtype != whole.dtype:
            raise DTypeError(
                f"{name} must hold arrays of one dtype; got {_dtype_label(whole.dtype)} and, at "
                f"index {made.count - 1}, {_dtype_label(array.dtype)}. Make a call for each"
            )
        made.starts.push_back(whole.count)
        whole.count += array.count
        whole.contiguous = whole.contiguous and array.contiguous
        whole.readonly = whole.readonly or array.readonly
    made.starts.push_back(whole.count)
    made.placed.resize(made.count)
    made.references.resize(made.count)
    made.table.count = made.count
    made.table.starts = made.starts.data()
    made.table.tensors = made.placed.data()
    made.table.references = made.references.data()
    whole.data = &made.table
    whole.nbytes = whole.count * whole.itemsize_bytes
    whole.layout.ndim = 1
    whole.layout.itemsize_bytes = whole.itemsize_bytes
    whole.layout.shape[0] = whole.count
    whole.layout.stride_bytes[0] = whole.itemsize_bytes
    whole.tensors = <void*>made
    return made


cdef int _check_same_tensors(CommunicatorBase comm, const Array* source, const Array* other,
                             str name) except -1:
    # A list goes with lists of the same lengths.
    cdef TensorList mine, theirs
    cdef int index
    if (source.tensors == NULL) != (other.tensors == NULL):
        raise UsageError(
            f"{name} must be {'one array' if source.tensors == NULL else 'a list'}, as x is; got "
            f"{'a list' if source.tensors == NULL else 'one array'} on rank {comm.rank}"
        )
    if source.tensors == NULL or source.tensors == other.tensors:
        return 0
    mine, theirs = <TensorList>source.tensors, <TensorList>other.tensors
    if mine.count != theirs.count:
        raise BufferMismatchError(
            f"{name} must hold {mine.count} arrays, as x does; got {theirs.count} on rank "
            f"{comm.rank}"
        )
    for index in range(mine.count):
        if mine.arrays[index].count != theirs.arrays[index].count:
            raise BufferMismatchError(
                f"{name}[{index}] must have {mine.arrays[index].count} elements, as x[{index}] "
                f"has; got {theirs.arrays[index].count} on rank {comm.rank}"
            )
    return 0


cdef void _place_tensors(TensorList tensors, cocoll_array* slot) noexcept:
    cdef int index
    for index in range(tensors.count):
        _place(&tensors.arrays[index], &tensors.placed[index])
    slot[0] = list_of(&tensors.table)


cdef uint64_t _reference_tensors(CommunicatorBase comm, TensorList tensors) noexcept:
    # One number for where all tensors are found; equal numbers, equal places.
    cdef int index
    for index in range(tensors.count):
        tensors.references[index] = _reference(comm, &tensors.arrays[index])
        if tensors.references[index] == kNotMapped:
            return kNotMapped
    return digest_of(tensors.references.data(), tensors.count) >> 1


cdef void _add_extents(const Array* array, Extents* extents) noexcept:
    cdef size_t first, stop
    cdef TensorList tensors
    cdef int index
    if array.tensors == NULL:
        _extent(array, &first, &stop)
        extents.add(first, stop)
        return
    tensors = <TensorList>array.tensors
    for index in range(tensors.count):
        _extent(&tensors.arrays[index], &first, &stop)
        extents.add(first, stop)


cdef bint _overlap_tensors(const Array* a, const Array* b) noexcept:
    cdef Extents mine, theirs
    _add_extents(a, &mine)
    _add_extents(b, &theirs)
    return mine.overlap(theirs)


cdef bint _same_tensors(const Array* a, const Array* b) noexcept:
    cdef TensorList mine, theirs
    cdef int index
    if a.tensors == NULL or b.tensors == NULL:
        return False
    mine, theirs = <TensorList>a.tensors, <TensorList>b.tensors
    if mine.count != theirs.count:
        return False
    for index in range(mine.count):
        if not _same_memory(&mine.arrays[index], &theirs.arrays[index]):
            return False
    return True


cdef bint _tensors_are_replicated(CommunicatorBase comm, TensorList tensors) noexcept:
    # A list is replicated where all its tensors are.
    cdef int index
    cdef bint any_bytes = False
    for index in range(tensors.count):
        if tensors.arrays[index].nbytes > 0:
            any_bytes = True
            if not _is_replicated(comm, &tensors.arrays[index]):
                return False
    return any_bytes


cdef int _check_writable_tensors(const Array* array, str name, CommunicatorBase comm,
                                 bint replicated_allowed) except -1:
    cdef TensorList tensors = <TensorList>array.tensors
    cdef Extents extents
    cdef int index
    cdef bint replicated = _tensors_are_replicated(comm, tensors)
    for index in range(tensors.count):
        if not replicated and _is_replicated(comm, &tensors.arrays[index]):
            raise UsageError(
                f"either all arrays of {name} are replicated or none is; {name}[{index}] differs "
                f"from others on rank {comm.rank}"
            )
        _check_writable(&tensors.arrays[index], f"{name}[{index}]", comm, replicated_allowed)
    _add_extents(array, &extents)
    if extents.overlap():
        raise BufferOverlapError(
            f"{name} is written, so its arrays must be apart; got two that overlap on rank "
            f"{comm.rank}. Give each array once"
        )
    return 0


cdef int _broadcast_tensors(Array* array, const Array* source, str name, bint written,
                            int rank) except -1:
    # Each tensor is read as if it had the shape of the input's.
    cdef TensorList theirs, mine = <TensorList>source.tensors
    cdef int index
    if array.tensors == NULL or (<TensorList>array.tensors).count != mine.count:
        got = "one array" if array.tensors == NULL else (<TensorList>array.tensors).count
        raise BufferMismatchError(
            f"{name} must be a list of {mine.count} arrays, as x is; got {got} on rank {rank}"
        )
    theirs = <TensorList>array.tensors
    array.contiguous = True
    for index in range(mine.count):
        _broadcast(&theirs.arrays[index], &mine.arrays[index], f"{name}[{index}]", written, rank)
        array.contiguous = array.contiguous and theirs.arrays[index].contiguous
    theirs.starts = mine.starts
    theirs.table.starts = theirs.starts.data()
    array.count = source.count
    array.nbytes = array.count * array.itemsize_bytes
    array.layout.shape[0] = array.count
    return 0


cdef int _bind_tensors(Call call, const Array* source, const Array* result) except -1:
    # Says where the tensors of a call begin, if it has lists.
    cdef TensorList tensors
    if source.tensors == NULL and result.tensors == NULL:
        return 0
    tensors = <TensorList>(source.tensors if source.tensors != NULL else result.tensors)
    call.invocation.tensors = &tensors.table
    call.invocation.signature.tensors = digest_of(
        <const uint64_t*>tensors.starts.data(), tensors.starts.size()) | 1
    return 0


cdef int _set_scalar(Call call, int index, object name, object value) except -1:
    # One number for all tensors, or one for each.
    cdef Invocation* invocation = &call.invocation
    cdef int count, row, scalars = invocation.scalar_count
    if _is_list(value) or (_ndarray is not None and type(value) is _ndarray and value.ndim == 1):
        count = 0 if invocation.tensors == NULL else invocation.tensors.count
        if len(value) != count:
            wanted = "a number"
            if count > 0:
                wanted = f"a number, or {count} of them, one for each array of x"
            raise UsageError(
                f"the scalar {name!r} must be {wanted}; got {len(value)} of them on rank "
                f"{call.comm.rank}"
            )
        if call.tensor_scalars.empty():
            for row in range(count):
                for place in range(scalars):
                    call.tensor_scalars.push_back(invocation.scalars[place])
            invocation.tensor_scalars = call.tensor_scalars.data()
        for row in range(count):
            call.tensor_scalars[row * scalars + index] = _scalar(value[row], name)
        invocation.scalars[index] = call.tensor_scalars[index]
        return 0
    invocation.scalars[index] = _scalar(value, name)
    if not call.tensor_scalars.empty():
        for row in range(invocation.tensors.count):
            call.tensor_scalars[row * scalars + index] = invocation.scalars[index]
    return 0
