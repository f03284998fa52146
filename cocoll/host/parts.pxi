# Plans over any number of arrays: views of boxes of the caller's tensors.

cdef class Parts:
    """Where the arrays lie that the parts of a plan stand for.

    Parameters
    ----------
    entries : sequence of (int, sequence of int, sequence of int, int)
        Of each part the address of its first element, shape, strides in bytes and bytes of an
        element. Nothing is kept alive here.
    """

    cdef vector[cocoll_array] arrays
    cdef vector[cocoll_layout] layouts

    def __init__(self, entries):
        cdef Array array
        cdef cocoll_array part
        cdef int dim
        # Arrays point to layouts, which must not move.
        self.layouts.reserve(len(entries))
        for address, shape, stride_bytes, itemsize_bytes in entries:
            if len(shape) > COCOLL_MAX_DIMS:
                raise UsageError(
                    f"wanted arrays of at most {COCOLL_MAX_DIMS} dims; got shape {tuple(shape)}"
                )
            array.data = <void*><size_t>address
            array.itemsize_bytes = itemsize_bytes
            array.layout.itemsize_bytes = itemsize_bytes
            array.layout.ndim = len(shape)
            for dim in range(array.layout.ndim):
                array.layout.shape[dim] = shape[dim]
                array.layout.stride_bytes[dim] = stride_bytes[dim]
            _settle(&array)
            self.layouts.push_back(array.layout)
            part.data = array.data
            part.layout = NULL
            if not array.contiguous:
                part.layout = &self.layouts.back()
            part.index = 0
            self.arrays.push_back(part)


def resolve_communicator(comm):
    """Give the communicator that a call is for: the one given, or else the default."""
    return _communicator(comm)


def bind_parts(CommunicatorBase comm, Program program, Parts parts, keep, output, *, int kind,
               int op, int dtype, int64_t nbytes, uint64_t digest, stream=None):
    """Bind a program to arrays of its parts; `keep` holds what must live as long, `output` is what
    calls give."""
    cdef Call call = Call.__new__(Call)
    cdef int index
    comm.check_usable()
    _start(call, comm, program, kind, op, dtype, -1, 0)
    call.keep = (parts, keep)
    call.output = output
    call.invocation.signature.epilogue = digest
    call.invocation.count = nbytes
    call.invocation.parts = parts.arrays.data()
    for index in range(kMaxScalars):
        call.invocation.scalars[index] = float("nan")
    _bind_scalars(call, {}, True)
    return _bound(call, stream)
