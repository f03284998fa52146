# What lies on a GPU: kernels, and memory that peers map.

cdef class Kernels:
    """Compiled kernels, loaded on a GPU for as long as this object lives, and longer.

    Nothing unloads them: a captured graph may launch them after every object of cocoll has gone.

    Parameters
    ----------
    device : Device
        Where.
    image : bytes
        What the compiler made.
    """

    cdef Device device
    cdef void* module

    def __init__(self, Device device, bytes image):
        cdef const char* data = image
        cdef void* before = device.enter()
        cdef Result result = load_module(device.library.driver, &self.module, data)
        device.leave(before)
        device.library.check(result, "loading kernels")
        self.device = device

    def function(self, str name):
        """Give the handle of a kernel."""
        cdef void* found = NULL
        cdef bytes symbol = name.encode()
        self.device.library.check(
            find_function(self.device.library.driver, &found, self.module, symbol),
            f"looking for the kernel {name}",
        )
        return <size_t>found


@cython.no_gc_clear
cdef class Memory:
    """Device memory that peers can map: this rank's own, or the view of a peer's.

    ``close`` gives it back; dropping the object does too.
    """

    cdef Device device
    cdef Segment* segment
    cdef readonly size_t nbytes

    def __cinit__(self):
        self.segment = NULL

    def __dealloc__(self):
        self.close()

    @staticmethod
    def create(Device device, size_t nbytes):
        """Allocate zeros."""
        cdef Memory made = Memory.__new__(Memory)
        cdef void* before = device.enter()
        cdef Result result
        made.device = device
        made.nbytes = nbytes
        made.segment = new Segment()
        with nogil:
            result = create_segment(
                made.segment[0], &device.library.driver, device.ordinal, nbytes, NULL)
            if result == kSuccess:
                result = await_stream(device.library.driver, NULL)
        device.leave(before)
        device.library.check(result, f"allocating {nbytes} bytes")
        return made

    @staticmethod
    def attach(Device device, bytes ticket, size_t nbytes):
        """Map what a peer's `ticket` names."""
        cdef Memory made = Memory.__new__(Memory)
        cdef void* before = device.enter()
        cdef SegmentTicket unpacked = _unpack(ticket)
        made.device = device
        made.nbytes = nbytes
        made.segment = new Segment()
        cdef Result result = made.segment.attach(&device.library.driver, unpacked)
        device.leave(before)
        device.library.check(result, "mapping a peer's memory")
        return made

    def ticket(self):
        """Give what peers attach with."""
        return _pack(self.segment.ticket())

    @property
    def address(self):
        """Where it lies in this process."""
        return self.segment.base()

    def close(self):
        """Give it back. Idempotent."""
        cdef void* before
        if self.segment == NULL:
            return
        before = self.device.enter()
        self.segment.close()
        self.device.leave(before)
        del self.segment
        self.segment = NULL


cdef bytes _pack(const SegmentTicket& ticket):
    return PyBytes_FromStringAndSize(<const char*>&ticket, sizeof(SegmentTicket))


cdef SegmentTicket _unpack(bytes data) except *:
    cdef SegmentTicket ticket
    if len(data) != sizeof(SegmentTicket):
        raise ValueError(f"a ticket has {sizeof(SegmentTicket)} bytes; got {len(data)}")
    memcpy(&ticket, <const char*>data, sizeof(SegmentTicket))
    return ticket
