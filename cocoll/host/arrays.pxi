# The caller's arrays: read once a call, checked, and given back.

# numpy.ndarray, once an array of it has come.
cdef object _ndarray = None


cdef int _dtype_of_number(int number) noexcept:
    # One of NumPy's own dtypes by its number, or -1.
    if number == NPY_FLOAT:
        return _FLOAT32
    if number == NPY_DOUBLE:
        return _FLOAT64
    if number == NPY_HALF:
        return _FLOAT16
    if number == NPY_INT:
        return _INT32
    if number == NPY_LONGLONG or number == NPY_LONG and sizeof(long) == 8:
        return _INT64
    if number == NPY_LONG:
        return _INT32
    if number == NPY_UBYTE:
        return _UINT8
    return -1


cdef int _itemsize_bytes(int dtype) noexcept:
    if dtype == _FLOAT64 or dtype == _INT64:
        return 8
    if dtype == _FLOAT32 or dtype == _INT32:
        return 4
    return 1 if dtype == _UINT8 else 2


cdef bint _read_ndarray(PyArrayObject* value, Array* array) noexcept:
    # Reads NumPy's own array, which takes a quarter of the time that its buffer takes; gives
    # whether it could. Nothing is acquired: the caller holds `value`.
    cdef int dim
    array.dtype = _dtype_of_number(PyArray_TYPE(value))
    if (array.dtype < 0 or PyArray_DESCR(value).byteorder == NPY_OPPBYTE
            or PyArray_NDIM(value) > COCOLL_MAX_DIMS):
        return False
    array.data = PyArray_DATA(value)
    array.readonly = not PyArray_FLAGS(value) & NPY_ARRAY_WRITEABLE
    array.itemsize_bytes = _itemsize_bytes(array.dtype)
    array.layout.ndim = PyArray_NDIM(value)
    array.layout.itemsize_bytes = array.itemsize_bytes
    for dim in range(array.layout.ndim):
        array.layout.shape[dim] = PyArray_DIMS(value)[dim]
        array.layout.stride_bytes[dim] = PyArray_STRIDES(value)[dim]
    return True


cdef int _dtype_of_format(const char* text, Py_ssize_t itemsize) noexcept:
    # A struct-module format of one native element, or -1.
    if text == NULL:
        return _UINT8
    if text[0] == b"@" or text[0] == b"=" or text[0] == b"<":
        text += 1
    if text[0] == 0 or text[1] != 0:
        return -1
    if text[0] == b"f":
        return _FLOAT32
    if text[0] == b"d":
        return _FLOAT64
    if text[0] == b"e":
        return _FLOAT16
    if text[0] == b"i" or text[0] == b"l" or text[0] == b"q":
        return _INT32 if itemsize == 4 else (_INT64 if itemsize == 8 else -1)
    if text[0] == b"B":
        return _UINT8
    return -1


cdef int _settle(Array* array) except -1:
    # Derives counts and contiguity from shape and strides. What is not aligned to its elements
    # counts as strided: it is then read and written byte by byte.
    cdef int dim
    cdef int64_t expected = array.itemsize_bytes
    array.count = 1
    for dim in range(array.layout.ndim):
        array.count *= array.layout.shape[dim]
    array.nbytes = array.count * array.itemsize_bytes
    array.contiguous = True
    if array.count == 0:
        return 0
    if <size_t>array.data & <size_t>(array.itemsize_bytes - 1):
        array.contiguous = False
        return 0
    for dim in range(array.layout.ndim - 1, -1, -1):
        if array.layout.shape[dim] != 1 and array.layout.stride_bytes[dim] != expected:
            array.contiguous = False
            return 0
        expected *= array.layout.shape[dim]
    return 0


cdef int _acquire(object value, str name, int dtype, Array* array) except -1:
    # Fills `array` from any array that cocoll accepts. `dtype` (or -1) says what 16-bit integers
    # stand for. The caller releases.
    cdef int dim
    cdef int64_t stride_bytes
    global _ndarray
    array.acquired = False
    array.tensors = NULL
    if type(value) is _ndarray and _read_ndarray(<PyArrayObject*>value, array):
        return _settle(array)
    if PyObject_CheckBuffer(value) and type(value) is not Block:
        try:
            PyObject_GetBuffer(value, &array.view, PyBUF_FULL_RO)
        except (ValueError, BufferError):
            # NumPy cannot describe every dtype through the buffer protocol (bfloat16).
            return _acquire_described(value, name, dtype, array)
        array.acquired = True
        array.dtype = _dtype_of_format(array.view.format, array.view.itemsize)
        if array.dtype < 0 or array.view.ndim > COCOLL_MAX_DIMS or array.view.suboffsets != NULL:
            _release(array)
            return _acquire_described(value, name, dtype, array)
        array.data = array.view.buf
        array.readonly = array.view.readonly
        array.itemsize_bytes = <int32_t>array.view.itemsize
        array.layout.ndim = array.view.ndim
        array.layout.itemsize_bytes = array.itemsize_bytes
        stride_bytes = array.itemsize_bytes
        for dim in range(array.view.ndim - 1, -1, -1):
            array.layout.shape[dim] = array.view.shape[dim]
            # Some exporters (ctypes) give no strides, whatever they are asked for.
            if array.view.strides != NULL:
                stride_bytes = array.view.strides[dim]
            array.layout.stride_bytes[dim] = stride_bytes
            stride_bytes *= array.view.shape[dim]
        if _ndarray is None and "numpy" in sys.modules:
            _ndarray = sys.modules["numpy"].ndarray
        return _settle(array)
    return _acquire_described(value, name, dtype, array)


cdef int _acquire_described(object value, str name, int dtype, Array* array) except -1:
    # The slow way: cocoll.array knows frameworks, DLPack and what to say of the rest. Nothing is
    # kept alive here; the caller holds `value` for as long as it uses the array.
    cdef int dim
    description = _hooks.describe_array(value, name, dtype)
    array.data = <void*><size_t>description.address
    array.readonly = description.readonly
    array.dtype = description.dtype
    array.itemsize_bytes = description.dtype.itemsize_bytes
    array.layout.ndim = len(description.shape)
    array.layout.itemsize_bytes = array.itemsize_bytes
    for dim in range(array.layout.ndim):
        array.layout.shape[dim] = description.shape[dim]
        array.layout.stride_bytes[dim] = description.stride_bytes[dim]
    return _settle(array)


cdef void _release(Array* array) noexcept:
    if array.acquired:
        PyBuffer_Release(&array.view)
        array.acquired = False


cdef void _extent(const Array* array, size_t* first, size_t* stop) noexcept:
    # The bytes between the lowest and the highest element.
    cdef int dim
    cdef int64_t low = 0, high = 0, reach
    if array.count == 0:
        first[0] = stop[0] = 0
        return
    for dim in range(array.layout.ndim):
        reach = (array.layout.shape[dim] - 1) * array.layout.stride_bytes[dim]
        if reach < 0:
            low += reach
        else:
            high += reach
    first[0] = <size_t>array.data + low
    stop[0] = <size_t>array.data + high + array.itemsize_bytes


cdef bint _same_memory(const Array* a, const Array* b) noexcept:
    # Whether element i of one is element i of the other.
    cdef int dim
    if a.tensors != NULL or b.tensors != NULL:
        return _same_tensors(a, b)
    if a.data != b.data or a.count != b.count or a.itemsize_bytes != b.itemsize_bytes:
        return False
    if a.contiguous and b.contiguous:
        return True
    if a.layout.ndim != b.layout.ndim:
        return False
    for dim in range(a.layout.ndim):
        if (a.layout.shape[dim] != b.layout.shape[dim]
                or a.layout.stride_bytes[dim] != b.layout.stride_bytes[dim]):
            return False
    return True


cdef bint _overlap(const Array* a, const Array* b) noexcept:
    cdef size_t a_first, a_stop, b_first, b_stop
    if a.tensors != NULL or b.tensors != NULL:
        return _overlap_tensors(a, b)
    _extent(a, &a_first, &a_stop)
    _extent(b, &b_first, &b_stop)
    return a_first < b_stop and b_first < a_stop


cdef bint _shares_bytes(const Array* array) noexcept:
    # Whether elements may share bytes. They do not where every stride steps over all that the
    # smaller ones reach; views that slices, transposes and reshapes can make are of that form.
    cdef int order[COCOLL_MAX_DIMS]
    cdef int dims = 0
    cdef int dim, place
    cdef int64_t stride, reach
    if array.contiguous or array.count < 2:
        return False
    for dim in range(array.layout.ndim):
        if array.layout.shape[dim] == 1:
            continue
        stride = _step(array, dim)
        place = dims
        while place > 0 and _step(array, order[place - 1]) > stride:
            order[place] = order[place - 1]
            place -= 1
        order[place] = dim
        dims += 1
    reach = array.itemsize_bytes
    for place in range(dims):
        dim = order[place]
        stride = _step(array, dim)
        if stride < reach:
            return True
        reach += stride * (array.layout.shape[dim] - 1)
    return False


cdef int64_t _step(const Array* array, int dim) noexcept:
    cdef int64_t stride = array.layout.stride_bytes[dim]
    return -stride if stride < 0 else stride


cdef int _check_writable(const Array* array, str name, CommunicatorBase comm,
                         bint replicated_allowed) except -1:
    cdef bint replicated
    if array.tensors != NULL:
        return _check_writable_tensors(array, name, comm, replicated_allowed)
    replicated = _is_replicated(comm, array)
    if replicated and not replicated_allowed:
        raise UsageError(
            f"{name} is a replicated array: the host has one copy, and every rank would change it; "
            f"got it where each rank writes its own result, on rank {comm.rank}. Use an array from "
            f"comm.empty(...) without replicated=True"
        )
    if array.readonly and not replicated:
        raise UsageError(
            f"{name} must be writable; got a read-only array on rank {comm.rank}. Pass a copy, or "
            f"give out="
        )
    if _shares_bytes(array):
        raise BufferOverlapError(
            f"{name} is written, so its elements must be distinct; got a view whose elements share "
            f"memory on rank {comm.rank}. Pass a copy"
        )
    return 0


cdef bint _is_replicated(CommunicatorBase comm, const Array* array) noexcept:
    cdef uint64_t reference
    if array.tensors != NULL:
        return _tensors_are_replicated(comm, <TensorList>array.tensors)
    reference = comm.session.get().endpoint.reference(array.data, array.nbytes)
    return reference != kNotMapped and (reference & kReplicatedBit) != 0


cdef uint64_t _reference(CommunicatorBase comm, const Array* array) noexcept:
    # Where peers find the array. An empty array is everywhere.
    if array.nbytes == 0:
        return 0
    if array.tensors != NULL:
        return _reference_tensors(comm, <TensorList>array.tensors)
    if not array.contiguous:
        return kNotMapped
    return comm.session.get().endpoint.reference(array.data, array.nbytes)


cdef void _place(const Array* array, cocoll_array* slot) noexcept:
    if array.tensors != NULL:
        _place_tensors(<TensorList>array.tensors, slot)
        return
    slot.data = array.data
    slot.layout = &array.layout
    if array.contiguous:
        slot.layout = NULL
    slot.index = 0


cdef tuple _shape_of(const Array* array):
    cdef int dim
    return tuple([array.layout.shape[dim] for dim in range(array.layout.ndim)])
