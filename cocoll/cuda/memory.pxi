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
        cdef Result result
        with nogil:
            result = load_module(device.library.driver, &self.module, data)
        device.leave(before)
        device.library.check(result, "loading kernels")
        self.device = device

    def function(self, str name):
        """Give the handle of a kernel, which is then on the GPU.

        Drivers load kernels when they are first launched, and may wait for all others to end before
        they do: kernels that wait for each other must not be among them. To ask for a kernel's
        occupancy loads it.
        """
        cdef void* found = NULL
        cdef int blocks = 0
        cdef bytes symbol = name.encode()
        cdef const char* text = symbol
        cdef void* before = self.device.enter()
        cdef Result result
        with nogil:
            result = find_function(self.device.library.driver, &found, self.module, text)
            if result == kSuccess:
                result = resident_blocks(self.device.library.driver, &blocks, found)
        self.device.leave(before)
        self.device.library.check(result, f"looking for the kernel {name}")
        if blocks < 1:
            raise CudaError(f"no block of the kernel {name} fits a multiprocessor", status=0)
        return <size_t>found


@cython.no_gc_clear
cdef class Memory:
    """Device memory: this rank's own, which peers may map, or the view of a peer's.

    ``close`` gives it back; dropping the object does too, unless peers may have it mapped
    (`expose`): then it stays for as long as the process, until `withdraw` says that they have not.
    """

    cdef Device device
    cdef Segment* segment
    cdef readonly size_t nbytes
    cdef bint exposed

    def __cinit__(self):
        self.segment = NULL
        self.exposed = False

    def __dealloc__(self):
        if self.segment == NULL:
            return
        if self.exposed or self.device.is_inherited():
            self.segment.abandon()
        self.close()

    @staticmethod
    def create(Device device, size_t nbytes):
        """Allocate zeros."""
        cdef Memory made = Memory.__new__(Memory)
        # Not the default stream: waiting for that is waiting for what others queue.
        cdef DeviceStream stream = DeviceStream(device)
        cdef void* before = device.enter()
        cdef Result result
        made.device = device
        made.nbytes = nbytes
        made.segment = new Segment()
        with nogil:
            result = create_segment(
                made.segment[0], &device.library.driver, device.ordinal, nbytes, stream.stream)
            if result == kSuccess:
                result = await_stream(device.library.driver, stream.stream)
        device.leave(before)
        device.library.check(result, f"allocating {nbytes} bytes")
        return made

    @staticmethod
    def attach(Device device, bytes ticket, size_t nbytes):
        """Map what a peer's `ticket` names."""
        cdef Memory made = Memory.__new__(Memory)
        cdef void* before = device.enter()
        cdef SegmentTicket unpacked = _unpack(ticket)
        cdef Result result
        made.device = device
        made.nbytes = nbytes
        made.segment = new Segment()
        with nogil:
            result = made.segment.attach(&device.library.driver, unpacked)
        device.leave(before)
        device.library.check(result, "mapping a peer's memory")
        return made

    def expose(self):
        """Give what peers attach with; from then on they may have it mapped."""
        self.exposed = True
        return _pack(self.segment.ticket())

    def withdraw(self):
        """No peer has it mapped any more: it goes with the last reference."""
        self.exposed = False

    @property
    def address(self):
        """Where it lies in this process."""
        return self.segment.base()

    def close(self):
        """Give it back. Idempotent."""
        cdef void* before
        cdef Segment* segment = self.segment
        if segment == NULL:
            return
        self.segment = NULL
        before = self.device.enter()
        with nogil:
            segment.close()
        self.device.leave(before)
        del segment


cdef bytes _pack(const SegmentTicket& ticket):
    return PyBytes_FromStringAndSize(<const char*>&ticket, sizeof(SegmentTicket))


cdef SegmentTicket _unpack(bytes data) except *:
    cdef SegmentTicket ticket
    if len(data) != sizeof(SegmentTicket):
        raise ValueError(f"a ticket has {sizeof(SegmentTicket)} bytes; got {len(data)}")
    memcpy(&ticket, <const char*>data, sizeof(SegmentTicket))
    return ticket
