# The driver, GPUs and their streams.

cdef class Library:
    """The driver's functions, loaded from a library for the rest of the process.

    Parameters
    ----------
    path : str
        ``libcuda.so.1``, or a library that has the same functions.

    Raises
    ------
    CudaError
        It cannot be used; `status` says why, `detail` what the system said.
    """

    cdef Driver driver

    def __init__(self, str path):
        cdef bytes name = path.encode()
        cdef LoadError error = load_driver(name, &self.driver)
        if error.status != LoadStatus.kLoaded:
            raise CudaError(
                f"{path} cannot be used: {error.detail.decode()}", status=<int>error.status,
                detail=error.detail.decode(),
            )

    def device_count(self):
        """Give how many GPUs there are."""
        cdef int count = 0
        self.check(device_count(self.driver, &count), "counting GPUs")
        return count

    def device_of(self, uint64_t address):
        """Give the ordinal of the GPU that an address lies on, or -1."""
        cdef int device = -1
        if pointer_device(self.driver, &device, address) != kSuccess:
            return -1
        return device

    cdef int check(self, Result result, str what) except -1:
        if result == kSuccess:
            return 0
        text = describe(self.driver, result).decode()
        raise CudaError(f"{what} failed on the GPU: {text}", status=result)


cdef class NcclLibrary:
    """NCCL's functions, loaded from a library for the rest of the process.

    Parameters
    ----------
    path : str
        ``libnccl.so.2``, or a library that has the same functions.

    Raises
    ------
    NcclError
        It cannot be used; `status` says why, `detail` what the system said.
    """

    cdef Nccl nccl

    def __init__(self, str path):
        cdef bytes name = path.encode()
        cdef LoadError error = load_nccl(name, &self.nccl)
        if error.status != LoadStatus.kLoaded:
            raise NcclError(
                f"{path} cannot be used: {error.detail.decode()}", status=<int>error.status,
                detail=error.detail.decode(),
            )

    @property
    def version(self):
        """Give its version, such as 22809 for 2.28.9."""
        return self.nccl.version

    def make_unique_id(self):
        """Give what all ranks open their communicators with; made on one of them."""
        cdef NcclUniqueId made
        cdef int result
        with nogil:
            result = make_unique_id(self.nccl, &made)
        self.check(result, "making an identifier")
        return PyBytes_FromStringAndSize(<const char*>&made, sizeof(NcclUniqueId))

    cdef int check(self, int result, str what) except -1:
        if result == 0:
            return 0
        text = describe_nccl(self.nccl, result).decode()
        raise NcclError(f"{what} failed in NCCL: {text}", status=result)

    def describe(self, int result):
        """Say what a result means."""
        return describe_nccl(self.nccl, result).decode()


# The end of each needs its device, which a collector of circles would take away first.
@cython.no_gc_clear
cdef class Device:
    """A GPU, through the context that frameworks share.

    Parameters
    ----------
    library : Library
        The driver.
    ordinal : int
        Which GPU.
    """

    cdef readonly Library library
    cdef readonly int ordinal
    cdef void* context
    cdef int pid

    def __init__(self, Library library, int ordinal):
        self.library = library
        self.ordinal = ordinal
        self.pid = getpid()
        library.check(
            retain_context(library.driver, &self.context, ordinal), f"opening GPU {ordinal}"
        )

    def __dealloc__(self):
        if self.context != NULL and not self.is_inherited():
            release_context(self.library.driver, self.ordinal)

    @property
    def name(self):
        """What its maker calls it."""
        cdef char text[256]
        self.library.check(
            device_name(self.library.driver, text, sizeof(text), self.ordinal), "asking a name"
        )
        return (<bytes>text).decode()

    @property
    def target(self):
        """What compilers call its architecture, such as ``"sm_90"``."""
        return (f"sm_{self._attribute(kAttributeComputeMajor)}"
                f"{self._attribute(kAttributeComputeMinor)}")

    @property
    def multiprocessors(self):
        """How many blocks that need a multiprocessor each run at the same time."""
        return self._attribute(kAttributeMultiprocessorCount)

    @property
    def bus(self):
        """Where it is plugged in: the same for all processes, whatever GPUs they see."""
        cdef char text[64]
        self.library.check(
            device_bus(self.library.driver, text, sizeof(text), self.ordinal), "asking for a bus"
        )
        return (<bytes>text).decode()

    def can_reach(self, int peer):
        """Say whether kernels here could use the memory of another GPU."""
        cdef int can = 0
        if peer == self.ordinal:
            return True
        self.library.check(
            can_access(self.library.driver, &can, self.ordinal, peer), "asking for peer access"
        )
        return can != 0

    def reach(self, int peer):
        """Let kernels here use the memory of another GPU of this process, which they can."""
        cdef void* before
        cdef void* context = NULL
        cdef Result result
        if peer == self.ordinal:
            return
        self.library.check(retain_context(self.library.driver, &context, peer), "opening a peer")
        before = self.enter()
        result = enable_peer(self.library.driver, context)
        self.leave(before)
        self.library.check(result, "enabling peer access")

    def _attribute(self, int attribute):
        cdef int value = 0
        self.library.check(
            device_attribute(self.library.driver, &value, attribute, self.ordinal),
            "asking an attribute",
        )
        return value

    def synchronize_all(self):
        """Block until all that was queued on any stream of the GPU's context has completed."""
        cdef Result result
        cdef void* before = self.enter()
        with nogil:
            result = await_context(self.library.driver)
        self.leave(before)
        self.library.check(result, "waiting for the GPU")

    def synchronize(self, size_t stream):
        """Block until all that was queued on a stream has completed."""
        cdef Result result
        cdef void* before = self.enter()
        with nogil:
            result = await_stream(self.library.driver, <void*>stream)
        self.leave(before)
        self.library.check(result, "waiting for a stream")

    def copy(self, size_t to, size_t source, size_t nbytes, size_t stream=0):
        """Queue a copy, to or from the GPU or within it."""
        cdef void* before = self.enter()
        cdef Result result
        # One to or from ordinary memory of the host returns when it is done.
        with nogil:
            result = copy_bytes(self.library.driver, to, source, nbytes, <void*>stream)
        self.leave(before)
        self.library.check(result, "a copy")

    cdef bint is_inherited(self) noexcept nogil:
        # A child made by fork has no GPU: what it drops belongs to its parent.
        return getpid() != self.pid

    # Frameworks may have another context current on this thread: it is theirs to keep.
    cdef void* enter(self) noexcept nogil:
        cdef void* before = NULL
        current_context(self.library.driver, &before)
        if before != self.context:
            make_current(self.library.driver, self.context)
        return before

    cdef void leave(self, void* before) noexcept nogil:
        if before != self.context and before != NULL:
            make_current(self.library.driver, before)


@cython.no_gc_clear
cdef class DeviceStream:
    """A stream of a GPU; goes with the last reference to it.

    Parameters
    ----------
    device : Device
        Which GPU.
    """

    cdef readonly Device device
    cdef void* stream

    def __init__(self, Device device):
        cdef void* before = device.enter()
        cdef Result result = make_stream(device.library.driver, &self.stream)
        device.leave(before)
        device.library.check(result, "making a stream")
        self.device = device

    def __dealloc__(self):
        if self.stream != NULL and not self.device.is_inherited():
            end_stream(self.device.library.driver, self.stream)

    @property
    def handle(self):
        """What the driver calls it."""
        return <size_t>self.stream

    def __cuda_stream__(self):
        """Give the version of this protocol, and the handle."""
        return 0, <size_t>self.stream

    def synchronize(self):
        """Block until all that was queued has completed."""
        self.device.synchronize(<size_t>self.stream)
