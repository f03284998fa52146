"""The C interface: what `_core` binds, and what embedders may cimport."""

from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "kernels/abi.h" nogil:
    enum:
        COCOLL_MAX_DIMS
        COCOLL_REDUCE_ZERO_SOURCES
        COCOLL_SUM_LANES

    ctypedef struct cocoll_layout:
        int32_t ndim
        int32_t itemsize_bytes
        int64_t shape[8]
        int64_t stride_bytes[8]

    ctypedef struct cocoll_array:
        void* data
        const cocoll_layout* layout
        int64_t index

    ctypedef void (*cocoll_reduce_fn)(const void*) noexcept nogil
    ctypedef void (*cocoll_prepare_fn)(const double*, double*) noexcept nogil


ctypedef int (*mpi_isend)(const void*, int, intptr_t, int, int, intptr_t, void*) noexcept nogil
ctypedef int (*mpi_irecv)(void*, int, intptr_t, int, int, intptr_t, void*) noexcept nogil
ctypedef int (*mpi_test)(void*, int*, void*) noexcept nogil
ctypedef int (*mpi_on_request)(void*) noexcept nogil
ctypedef int (*mpi_error_string)(int, char*, int*) noexcept nogil


cdef extern from "host/thread_wire.h" namespace "cocoll::host" nogil:
    ctypedef intptr_t MpiHandle

    cdef cppclass Wire:
        pass

    cdef cppclass MpiTable:
        mpi_isend isend
        mpi_isend issend
        mpi_irecv irecv
        mpi_test test
        mpi_on_request cancel
        mpi_on_request request_free
        mpi_error_string error_string
        MpiHandle byte_type
        MpiHandle communicator
        int any_source

    cdef cppclass MpiWire(Wire):
        MpiWire(const MpiTable& table, vector[int] ranks, int first_tag)

    cdef cppclass WireCallbacks:
        void* context
        cbool (*send)(void*, int32_t, int32_t, const void*, int64_t, uint64_t*) noexcept
        cbool (*receive)(void*, int32_t, int32_t, void*, int64_t, uint64_t*) noexcept
        int (*test)(void*, uint64_t*) noexcept
        cbool (*cancel)(void*, uint64_t*, cbool) noexcept
        const char* (*error)(void*) noexcept
        void (*release)(void*) noexcept

    cdef cppclass CallbackWire(Wire):
        CallbackWire(const WireCallbacks& callbacks)

    cdef cppclass HostThreadNetwork "cocoll::host::ThreadNetwork":
        HostThreadNetwork(int32_t world_size, uint64_t seed)
        int64_t bytes() const
        int64_t messages() const
        void lose(int32_t rank)

    cdef cppclass ThreadWire(Wire):
        ThreadWire(shared_ptr[HostThreadNetwork] network, vector[int] ranks, int32_t rank,
                   int32_t first_tag)


cdef extern from "host/tensors.h" namespace "cocoll::host" nogil:
    cdef cppclass TensorTable:
        int32_t count
        const int64_t* starts
        const cocoll_array* tensors
        const uint64_t* references

    cocoll_array list_of(const TensorTable* table)


cdef extern from "host/extents.h" namespace "cocoll::host" nogil:
    cdef cppclass Extents:
        void add(size_t first, size_t stop)
        cbool overlap(const Extents& others) const
        cbool overlap() const


cdef extern from "host/totals.h" namespace "cocoll::host" nogil:
    int32_t kMaxTotals

    cdef cppclass Total:
        double* values
        double* sums
        cbool per_tensor

    cdef cppclass Totals:
        int32_t known_count
        int32_t summed_count
        Total known[8]
        Total summed[8]


cdef extern from "host/stream.h" namespace "cocoll::host" nogil:
    uint64_t digest_of(const uint64_t* numbers, size_t count)
    int32_t kMaxResults
    int32_t kMaxOperands
    int32_t kMaxScalars
    uint64_t kNotMapped
    uint64_t kReplicatedBit
    uint32_t kFlightRecords
    uint32_t kPointRecords

    cdef enum class Status(int32_t):
        kDone
        kPending
        kMismatch
        kTimeout
        kPeerLost
        kAborted
        kNotPrepared

    cdef enum class AbortReason(uint32_t):
        kNone
        kException
        kInterrupt
        kTimeout
        kPeerLost
        kRequested

    cdef cppclass SegmentTicket:
        uint64_t process
        uint64_t address
        int32_t pid
        int32_t fd
        uint64_t reserved_bytes
        uint64_t inode

    cdef cppclass Segment:
        @staticmethod
        Segment* create(size_t reserved_bytes)

        @staticmethod
        Segment* attach(const SegmentTicket& ticket)
        SegmentTicket ticket() const
        int grow(size_t nbytes)
        char* base() const
        size_t size_bytes() const
        cbool huge_pages() const
        void retain()
        void release()

    cdef cppclass ScratchSizes:
        int64_t small_bytes
        int64_t staging_bytes

    cdef cppclass Regions:
        int64_t heap

    cdef cppclass FlightRecord:
        uint64_t sequence
        uint64_t digest
        int64_t count
        uint64_t epilogue
        uint64_t started_ticks
        int32_t root
        uint8_t kind
        uint8_t op
        uint8_t dtype
        uint8_t options
        uint8_t algorithm

    uint64_t kControlMagic
    uint32_t kControlVersion

    cdef cppclass Control:
        uint64_t magic
        uint32_t version
        int32_t rank
        int32_t world_size
        int32_t pid
        uint64_t token
        FlightRecord flight[256]
        FlightRecord points[64]
        FlightRecord& mirrored(int32_t of, uint64_t sequence)

        @staticmethod
        size_t bytes(int32_t world_size)

    cdef cppclass Peer:
        Segment* segment
        char* base
        Control* control

    cdef cppclass WaitPolicy:
        pass

    WaitPolicy make_wait_policy(cbool oversubscribed)

    cdef cppclass Endpoint:
        int32_t rank
        int32_t world_size
        Regions regions
        int64_t timeout_nanoseconds
        int32_t launcher_pid
        Segment* commons
        uint64_t sequence
        int32_t culprit
        WaitPolicy policy
        vector[Peer] peers
        string detail
        cbool abandoned
        vector[int32_t] neighbours
        int attach_segment(int32_t peer, const SegmentTicket& ticket)
        void detach_segment(int32_t peer)
        void connect(const vector[int32_t]& hosts, shared_ptr[Wire] wire)
        cbool spans_hosts() const
        int32_t leader() const
        uint64_t reference(const void* data, int64_t nbytes) const
        char* region(int32_t peer, int64_t offset_bytes) const
        Control* own() const
        void abort(AbortReason reason, int32_t culprit)
        void leave()
        void part()
        cbool has_died(int32_t peer) const
        uint64_t abort_word() const
        const void* abort_address() const

    cdef cppclass Letter:
        uint64_t total_bytes
        unsigned char payload[4080]

    cdef cppclass Signature:
        uint8_t kind
        uint8_t op
        uint8_t dtype
        uint8_t options
        int32_t root
        uint64_t epilogue
        uint64_t tensors

    cdef cppclass Record:
        pass

    cdef cppclass PlanLimits:
        int32_t part_count

    cdef cppclass PlanImage:
        cbool load(const Record* records, size_t count, const PlanLimits& limits)
        const string& error() const

    cdef cppclass HostProgram "cocoll::host::Program":
        PlanImage mapped
        PlanImage staged
        cbool has_mapped
        cbool has_staged
        cocoll_reduce_fn reduce
        cocoll_reduce_fn partial
        cocoll_prepare_fn prepare
        int32_t derived_count
        int32_t result_count
        uint8_t algorithm
        uint64_t number

    cdef cppclass StepTime:
        uint64_t sequence
        uint64_t program
        int64_t begin_nanoseconds
        int64_t end_nanoseconds
        int64_t iteration
        int64_t bytes
        int32_t step
        int32_t mapped

    cdef cppclass Recording:
        cbool is_on() const
        void start()
        vector[StepTime] stop()
        int64_t dropped() const

    cdef cppclass Invocation:
        HostProgram* program
        Signature signature
        int64_t count
        cocoll_array source
        int64_t source_bytes
        cocoll_array results[8]
        cocoll_array operands[16]
        const cocoll_array* parts
        const TensorTable* tensors
        const double* tensor_scalars
        const Totals* totals
        uint64_t source_reference
        uint64_t result_references[8]
        uint32_t reduce_flags
        cbool may_stream
        int32_t scalar_count
        double scalars[32]

    cdef cppclass Execution:
        int64_t streaming_bytes
        Recording recording
        Status begin(Invocation* invocation)
        Status resume()
        void give_up()
        uint64_t sequence() const

    cdef enum Direction:
        kSends
        kReceives

    cdef cppclass PointMessage:
        Direction direction
        int32_t peer
        uint32_t dtype
        int64_t itemsize_bytes
        int64_t count
        cocoll_array array
        uint64_t reference
        cbool only_meets
        uint64_t sequence
        cbool ended
        cbool mismatched
        int64_t their_count
        uint32_t their_dtype

    cdef cppclass PointBatch:
        vector[PointMessage] messages
        uint8_t group_kind

    cdef cppclass PointExecution:
        Status begin(PointBatch* batch)
        Status resume()
        void give_up()

    cdef cppclass Gate:
        cbool enter()
        void leave()
        uint64_t issue()
        cbool is_turn(uint64_t ticket) const
        cbool entered() const
        cbool idle() const
        uint64_t issued() const
        cbool wait_turn(uint64_t ticket, int64_t nanoseconds)
        void complete(uint64_t ticket)

    cdef cppclass Session:
        Session(int32_t rank, int32_t world_size, const ScratchSizes& sizes,
                cbool oversubscribed, int64_t timeout_nanoseconds) except +
        Endpoint endpoint
        unique_ptr[Execution] execution
        unique_ptr[PointExecution] points
        Gate gate
        int create_segment(size_t reserved_bytes, uint64_t token) except +
        PlanLimits limits() const

    cdef cppclass Task:
        shared_ptr[Session] session
        shared_ptr[HostProgram] program
        Invocation invocation
        shared_ptr[PointBatch] batch
        shared_ptr[Task] after
        uint64_t ticket
        cbool finished() const
        cbool wait(int64_t nanoseconds)
        Status status() const
        uint64_t sequence() const
        int32_t culprit() const

    int flight_state(const FlightRecord* record)
    int32_t waiting_rank(const Control* control)
    int32_t waiting_flag(const Control* control)
    uint64_t waiting_sequence(const Control* control)
    cbool has_left(const Control* control)
    uint64_t survival_round(const Control* control)
    void skip_turn(Session* session, uint64_t ticket)
    uint64_t fork_generation()
    void abandon_session(const shared_ptr[Session]& session)

    cdef cppclass HostStream "cocoll::host::Stream":
        HostStream() except +
        cbool submit(shared_ptr[Task] task)
        void close()


cdef extern from "host/survivors.h" namespace "cocoll::host" nogil:
    size_t kLetterBytes

    cdef cppclass HostSurvivors "cocoll::host::Survivors":
        HostSurvivors(Endpoint* endpoint)
        void announce(uint64_t round)
        uint64_t announced(int32_t peer) const
        cbool has_gone(int32_t peer) const
        void propose(uint64_t round, const vector[int32_t]& members)
        uint64_t decided(vector[int32_t]* members) const
        int32_t conclude(uint64_t round, cbool succeeded)
        int32_t outcome(uint64_t round) const
        void post(uint64_t turn, uint64_t total_bytes, const char* data, size_t nbytes)
        const Letter* letter(int32_t peer, uint64_t turn) const
        uint32_t doorbell() const
        void doze(uint32_t seen, int64_t nanoseconds)


cdef struct Array:
    # One array of a call: what the caller passed, read once.
    void* data
    int64_t count
    int64_t nbytes
    int32_t dtype
    int32_t itemsize_bytes
    cbool contiguous
    cbool readonly
    cbool acquired
    void* tensors  # a TensorList, where a list was passed
    cocoll_layout layout
    Py_buffer view


cdef class Program:
    cdef shared_ptr[HostProgram] host
    cdef readonly object facts
    cdef uint64_t last_used
    cdef object __weakref__


cdef class CommunicatorBase:
    cdef shared_ptr[Session] session
    cdef Execution* execution
    cdef readonly int rank
    cdef readonly int world_size
    cdef readonly bint closed
    cdef readonly double timeout_seconds
    cdef dict programs
    cdef dict epilogues
    cdef readonly dict shard_counts
    cdef dict held
    cdef int64_t last_key
    cdef Program last_program
    cdef int64_t inline_bytes
    cdef int64_t one_shot_bytes
    cdef int program_limit
    cdef uint64_t fork_generation
    cdef list freed_blocks
    cdef object numbered
    cdef uint64_t program_count
    cdef object open_group
    cdef object __weakref__

    cdef int check_usable(self) except -1
    cdef object hold(self, int index, int64_t nbytes)
    cdef Segment* _segment(self, bint replicated) noexcept
