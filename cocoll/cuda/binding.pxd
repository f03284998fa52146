"""What `binding` needs of ``cuda/*.h``."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "kernels/grid_abi.h" nogil:
    enum:
        COCOLL_MAX_DIMS
        COCOLL_GRID_MAX_RANKS
        COCOLL_GRID_MAX_BLOCKS
        COCOLL_GRID_MAX_LAYOUTS
        COCOLL_GRID_MAX_DERIVED
        COCOLL_GRID_SIGNALS
        COCOLL_GRID_ZERO_SOURCES
        COCOLL_GRID_ALIGNED
        COCOLL_GRID_ALONE

    ctypedef struct cocoll_layout:
        int32_t ndim
        int32_t itemsize_bytes
        int64_t shape[8]
        int64_t stride_bytes[8]

    ctypedef struct cocoll_grid_array:
        void* data
        int64_t origin
        int32_t layout

    ctypedef struct cocoll_grid_failure:
        int32_t reason
        int32_t block
        int32_t peer
        uint64_t wanted
        uint64_t seen

    ctypedef struct cocoll_grid_call:
        uint32_t flags
        uint32_t signature
        int32_t destination_count
        int32_t source_count
        int64_t begin
        int64_t end
        const void* own_source
        void* sources[8]
        void* destinations[4][8]
        cocoll_grid_array operands[8]
        cocoll_layout layouts[4]
        double derived[24]

    ctypedef void (*cocoll_prepare_fn)(const double*, double*) noexcept nogil


cdef extern from "cuda/executor.h" namespace "cocoll::cuda" nogil:
    ctypedef int Result
    ctypedef void* Context
    ctypedef void* Module
    ctypedef void* Function "cocoll::cuda::Function"
    ctypedef void* CudaStream "cocoll::cuda::Stream"
    Result kSuccess
    Result kNotReady
    int kStreams
    int kAttributeMultiprocessorCount
    int kAttributeComputeMajor
    int kAttributeComputeMinor
    int kPointerDeviceOrdinal

    cdef enum class LoadStatus(int):
        kLoaded

    cdef cppclass LoadError:
        LoadStatus status
        string detail

    # Handles are pointers of the driver's own types; Cython needs to know no more than that.
    cdef cppclass Driver:
        pass

    cdef cppclass SegmentTicket:
        int32_t exported

    cdef cppclass ExecutorOptions:
        int rank
        int world_size
        int device
        int blocks
        size_t staging_bytes
        size_t window_bytes
        size_t low_latency_bytes
        uint64_t limit_nanoseconds

    cdef cppclass Segment:
        Result create(const Driver*, int, size_t, CudaStream)
        Result attach(const Driver*, const SegmentTicket&)
        void close()
        void abandon()
        uint64_t base()
        const SegmentTicket& ticket()

    cdef enum class StepKind "cocoll::cuda::Step::Kind"(int):
        kGroupStart
        kGroupEnd
        kSend
        kReceive
        kAllGather
        kBroadcast

    cdef cppclass Sequence:
        vector[cocoll_grid_call] calls
        int stream_count()
        void copy(uint64_t, uint64_t, size_t, int)
        void store(uint64_t, uint32_t, int)
        void mark(StepKind, int)
        void move(StepKind, uint64_t, uint64_t, size_t, int, int)
        void all_reduce(uint64_t, uint64_t, size_t, int, int, int)
        Result record(const Driver&, int, size_t*)
        void wait_for(size_t, int)
        void close(const Driver&)

    cdef cppclass Nccl:
        int version

    cdef cppclass NcclUniqueId:
        char bytes[128]

    cdef cppclass Executor:
        Executor(const Driver*, const ExecutorOptions&)
        Result create()
        const SegmentTicket& ticket()
        Result attach(int, const SegmentTicket&)
        void prepare(cocoll_grid_call*)
        void stage(cocoll_grid_call*, const void*)
        void push(cocoll_grid_call*, const void*)
        uint64_t window(int)
        uint64_t greetings()
        uint64_t signals(int)
        Result open_streams(int)
        cbool has_wire()
        void drop_wire()
        Result run(const Sequence&, CudaStream, uint64_t*)
        Result query(uint64_t)
        uint64_t issued()
        cbool has_captured()
        void poison()
        const cocoll_grid_failure* failure()
        void detach()
        void close()

    LoadError load_driver(const char*, Driver*)
    string describe(const Driver&, Result)
    LoadError load_nccl(const char*, Nccl*)
    string describe_nccl "cocoll::cuda::describe"(const Nccl&, int)
    int kNcclResults
    int kNcclLate
    int kNcclInterrupted


cdef extern from "cuda/watch.h" namespace "cocoll::cuda" nogil:
    cdef cppclass Watch:
        void forget_abort_word()


# The driver's functions, by their names in the table.
cdef extern from * nogil:
    """
    namespace cocoll::cuda {
    inline Result device_count(const Driver& d, int* count) { return d.device_get_count(count); }
    inline Result device_name(const Driver& d, char* name, int length, Device device) {
      return d.device_get_name(name, length, device);
    }
    inline Result device_bus(const Driver& d, char* text, int length, Device device) {
      return d.device_get_bus(text, length, device);
    }
    inline Result device_attribute(const Driver& d, int* value, int attribute, Device device) {
      return d.device_get_attribute(value, attribute, device);
    }
    inline Result can_access(const Driver& d, int* can, Device device, Device peer) {
      return d.device_can_access_peer(can, device, peer);
    }
    inline Result retain_context(const Driver& d, void** context, Device device) {
      return d.primary_context_retain(reinterpret_cast<Context*>(context), device);
    }
    inline Result release_context(const Driver& d, Device device) {
      return d.primary_context_release(device);
    }
    inline Result current_context(const Driver& d, void** context) {
      return d.context_get_current(reinterpret_cast<Context*>(context));
    }
    inline Result make_current(const Driver& d, void* context) {
      return d.context_set_current(static_cast<Context>(context));
    }
    inline Result await_context(const Driver& d) { return d.context_synchronize(); }
    inline Result resident_blocks(const Driver& d, int* blocks, void* function) {
      return d.occupancy_max_active_blocks(blocks, static_cast<Function>(function), kGridThreads,
                                           0);
    }
    inline Result enable_peer(const Driver& d, void* context) {
      const Result result = d.context_enable_peer_access(static_cast<Context>(context), 0);
      return result == kPeerAccessAlreadyEnabled ? kSuccess : result;
    }
    inline Result load_module(const Driver& d, void** module, const char* image) {
      return d.module_load_data(reinterpret_cast<Module*>(module), image);
    }
    inline Result find_function(const Driver& d, void** function, void* module, const char* name) {
      return d.module_get_function(reinterpret_cast<Function*>(function),
                                   static_cast<Module>(module), name);
    }
    inline Result make_stream(const Driver& d, void** stream) {
      return d.stream_create(reinterpret_cast<Stream*>(stream), kStreamNonBlocking);
    }
    inline Result end_stream(const Driver& d, void* stream) {
      return d.stream_destroy(static_cast<Stream>(stream));
    }
    inline Result await_stream(const Driver& d, void* stream) {
      return d.stream_synchronize(static_cast<Stream>(stream));
    }
    inline Result is_capturing(const Driver& d, void* stream, int* status) {
      return d.stream_is_capturing(static_cast<Stream>(stream), status);
    }
    inline Result copy_bytes(const Driver& d, uint64_t to, uint64_t from, size_t n, void* stream) {
      return d.memcpy_async(to, from, n, static_cast<Stream>(stream));
    }
    inline Result clear_bytes(const Driver& d, uint64_t to, size_t n, void* stream) {
      return d.memset_async(to, 0, n, static_cast<Stream>(stream));
    }
    inline Result pointer_device(const Driver& d, int* device, uint64_t pointer) {
      return d.pointer_get_attribute(device, kPointerDeviceOrdinal, pointer);
    }
    inline Result run_on(Executor& executor, const Sequence& sequence, void* stream,
                         uint64_t* number) {
      return executor.run(sequence, static_cast<Stream>(stream), number);
    }
    inline Result create_segment(Segment& segment, const Driver* d, int device, size_t bytes,
                                 void* stream) {
      return segment.create(d, device, bytes, static_cast<Stream>(stream));
    }
    inline void add_launch(Sequence& sequence, void* function, const cocoll_grid_call& call,
                           int blocks, int stream) {
      sequence.launch(static_cast<Function>(function), call, blocks, stream);
    }
    inline int make_unique_id(const Nccl& nccl, NcclUniqueId* id) {
      return nccl.get_unique_id(id);
    }
    inline Result open_wire(Executor& executor, const Nccl* nccl, const NcclUniqueId& id,
                            int (*ask)(void*), void* whom) {
      return executor.open_wire(nccl, id, [ask, whom] { return ask(whom) != 0; });
    }
    inline Watch* make_watch(const Driver* driver, void* context, Executor* executor,
                             size_t abort_word) {
      return new Watch(driver, static_cast<Context>(context), executor,
                       reinterpret_cast<const uint64_t*>(abort_word));
    }
    constexpr uint64_t kCaptured = Executor::kCaptured;
    }  // namespace cocoll::cuda
    """
    uint64_t kCaptured "cocoll::cuda::kCaptured"
    Result device_count "cocoll::cuda::device_count"(const Driver&, int*)
    Result device_name "cocoll::cuda::device_name"(const Driver&, char*, int, int)
    Result device_bus "cocoll::cuda::device_bus"(const Driver&, char*, int, int)
    Result device_attribute "cocoll::cuda::device_attribute"(const Driver&, int*, int, int)
    Result can_access "cocoll::cuda::can_access"(const Driver&, int*, int, int)
    Result retain_context "cocoll::cuda::retain_context"(const Driver&, void**, int)
    Result release_context "cocoll::cuda::release_context"(const Driver&, int)
    Result current_context "cocoll::cuda::current_context"(const Driver&, void**)
    Result make_current "cocoll::cuda::make_current"(const Driver&, void*)
    Result await_context "cocoll::cuda::await_context"(const Driver&)
    Result resident_blocks "cocoll::cuda::resident_blocks"(const Driver&, int*, void*)
    Result enable_peer "cocoll::cuda::enable_peer"(const Driver&, void*)
    Result load_module "cocoll::cuda::load_module"(const Driver&, void**, const char*)
    Result find_function "cocoll::cuda::find_function"(const Driver&, void**, void*, const char*)
    Result make_stream "cocoll::cuda::make_stream"(const Driver&, void**)
    Result end_stream "cocoll::cuda::end_stream"(const Driver&, void*)
    Result await_stream "cocoll::cuda::await_stream"(const Driver&, void*)
    Result is_capturing "cocoll::cuda::is_capturing"(const Driver&, void*, int*)
    Result copy_bytes "cocoll::cuda::copy_bytes"(const Driver&, uint64_t, uint64_t, size_t, void*)
    Result clear_bytes "cocoll::cuda::clear_bytes"(const Driver&, uint64_t, size_t, void*)
    Result pointer_device "cocoll::cuda::pointer_device"(const Driver&, int*, uint64_t)
    Result run_on "cocoll::cuda::run_on"(Executor&, const Sequence&, void*, uint64_t*)
    Result create_segment "cocoll::cuda::create_segment"(
        Segment&, const Driver*, int, size_t, void*)
    void add_launch "cocoll::cuda::add_launch"(
        Sequence&, void*, const cocoll_grid_call&, int, int)
    int make_unique_id "cocoll::cuda::make_unique_id"(const Nccl&, NcclUniqueId*)
    Watch* make_watch "cocoll::cuda::make_watch"(const Driver*, void*, Executor*, size_t)
    Result open_wire "cocoll::cuda::open_wire"(
        Executor&, const Nccl*, const NcclUniqueId&, int (*)(void*) noexcept nogil, void*)
