# Wires between hosts: MPI's own functions, mpi4py's, or a stand-in between threads.

cdef class WireEnd:
    """One rank's end of what carries messages between hosts; given to a communicator."""

    cdef shared_ptr[Wire] wire


cdef class ThreadNetwork:
    """Messages between ranks of one process: what tests of several hosts run on.

    Parameters
    ----------
    world_size : int
        How many ranks.
    seed : int, default 0
        Of the times that messages take.
    """

    cdef shared_ptr[HostThreadNetwork] network

    def __init__(self, int world_size, uint64_t seed=0):
        self.network = make_shared[HostThreadNetwork](world_size, seed)

    @property
    def messages(self):
        """How many have moved."""
        return self.network.get().messages()

    @property
    def nbytes(self):
        """How many bytes they had."""
        return self.network.get().bytes()

    def lose(self, int rank):
        """Let no further message of a rank arrive, as if its host had died."""
        self.network.get().lose(rank)

    def open(self, ranks, int rank, int first_tag):
        """Give one rank's end; ``ranks`` says where the communicator's ranks are here."""
        cdef WireEnd end = WireEnd.__new__(WireEnd)
        cdef vector[int] places = ranks
        end.wire = shared_ptr[Wire](new ThreadWire(self.network, places, rank, first_tag))
        return end


def open_mpi(functions, constants, ranks, int first_tag):
    """Give one rank's end of a wire that calls MPI.

    Parameters
    ----------
    functions : mapping of str to int
        The addresses of MPI's functions, by their names without ``MPI_``.
    constants : mapping of str to int
        The handles BYTE and COMM, and ANY_SOURCE.
    ranks : sequence of int
        Where the communicator's ranks are in MPI's.
    first_tag : int
        The first of its tags.

    Returns
    -------
    WireEnd
        For a communicator.
    """
    cdef WireEnd end = WireEnd.__new__(WireEnd)
    cdef vector[int] places = ranks
    cdef MpiTable table
    table.isend = <mpi_isend><size_t>functions["Isend"]
    table.issend = <mpi_isend><size_t>functions["Issend"]
    table.irecv = <mpi_irecv><size_t>functions["Irecv"]
    table.test = <mpi_test><size_t>functions["Test"]
    table.cancel = <mpi_on_request><size_t>functions["Cancel"]
    table.request_free = <mpi_on_request><size_t>functions["Request_free"]
    table.error_string = <mpi_error_string><size_t>functions["Error_string"]
    table.byte_type = <MpiHandle>constants["BYTE"]
    table.communicator = <MpiHandle>constants["COMM"]
    table.any_source = constants["ANY_SOURCE"]
    end.wire = shared_ptr[Wire](new MpiWire(table, places, first_tag))
    return end


def open_messages(messages):
    """Give one rank's end of a wire that calls an object's methods, with the GIL.

    Parameters
    ----------
    messages : cocoll.wire.PersistentMessages
        What carries the messages. It is kept.

    Returns
    -------
    WireEnd
        For a communicator.
    """
    cdef WireEnd end = WireEnd.__new__(WireEnd)
    cdef WireCallbacks callbacks
    Py_INCREF(messages)
    callbacks.context = <void*>messages
    callbacks.send = _callback_send
    callbacks.receive = _callback_receive
    callbacks.test = _callback_test
    callbacks.cancel = _callback_cancel
    callbacks.error = _callback_error
    callbacks.release = _callback_release
    end.wire = shared_ptr[Wire](new CallbackWire(callbacks))
    return end


cdef cbool _callback_send(void* context, int32_t peer, int32_t tag, const void* data,
                          int64_t nbytes, uint64_t* request) noexcept with gil:
    request[0] = (<object>context).begin(True, peer, tag, <size_t>data, nbytes)
    return request[0] != 0


cdef cbool _callback_receive(void* context, int32_t peer, int32_t tag, void* data,
                             int64_t nbytes, uint64_t* request) noexcept with gil:
    request[0] = (<object>context).begin(False, peer, tag, <size_t>data, nbytes)
    return request[0] != 0


cdef int _callback_test(void* context, uint64_t* request) noexcept with gil:
    cdef int outcome
    if request[0] == 0:
        return 1
    outcome = (<object>context).test(request[0])
    if outcome != 0:
        request[0] = 0
    return outcome


cdef cbool _callback_cancel(void* context, uint64_t* request, cbool receives) noexcept with gil:
    if request[0] == 0:
        return True
    outcome = (<object>context).cancel(request[0], receives)
    request[0] = 0
    return outcome


cdef const char* _callback_error(void* context) noexcept with gil:
    # The object keeps the bytes.
    return PyBytes_AS_STRING((<object>context).error)


cdef void _callback_release(void* context) noexcept with gil:
    Py_DECREF(<object>context)
