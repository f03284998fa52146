// Runs operations on streams: one rank's end of a communicator on a GPU.
//
// Operations of a communicator form one sequence, whatever streams they are issued on. One on
// another stream than the last waits for it by an event, on the device; the host never waits. A
// run allocates nothing and runs no Python: a few calls of the driver, one for each of its steps.

#ifndef COCOLL_CUDA_EXECUTOR_H_
#define COCOLL_CUDA_EXECUTOR_H_

#include <chrono>
#include <mutex>
#include <vector>

#include "cocoll/cuda/driver.h"
#include "cocoll/cuda/in_flight.h"
#include "cocoll/cuda/segment.h"
#include "cocoll/cuda/sequence.h"
#include "cocoll/cuda/wire.h"
#include "cocoll/kernels/grid_abi.h"

namespace cocoll::cuda {

constexpr int kGridThreads = 512;   // COCOLL_GRID_THREADS: what the kernels are bounded to
constexpr NcclResult kAborted = 6;  // ncclRemoteError: what a given up communicator answers

// Where things lie in a rank's first segment. The same on all ranks, for the sizes are agreed.
struct ControlLayout {
  size_t poison, greetings, flags, counters, staging, window, received, end;

  static ControlLayout of(int blocks, size_t staging_bytes, size_t window_bytes, int world_size,
                          size_t low_latency_bytes) {
    constexpr size_t kUnit = 128;
    ControlLayout layout = {};
    layout.poison = 0;
    layout.greetings = kUnit;
    layout.flags = 2 * kUnit;
    layout.counters = layout.flags + sizeof(cocoll_grid_flags) * static_cast<size_t>(blocks);
    layout.staging = host::round_up(
        layout.counters + sizeof(cocoll_grid_counters) * static_cast<size_t>(blocks), kUnit);
    layout.window = layout.staging + 2 * staging_bytes;
    layout.received = host::round_up(layout.window + window_bytes, kUnit);
    layout.end =
        layout.received + 2 * static_cast<size_t>(world_size) * pushed_bytes(low_latency_bytes);
    return layout;
  }

  // What one rank pushes to another in one operation, at most: half of a word is data.
  static size_t pushed_bytes(size_t low_latency_bytes) {
    return host::round_up(COCOLL_GRID_HEADER_BYTES + 2 * low_latency_bytes,
                          COCOLL_GRID_HEADER_BYTES);
  }
};

struct ExecutorOptions {
  int rank = 0;
  int world_size = 1;
  Device device = 0;
  int blocks = 1;            // the largest grid; all of it must be resident
  size_t staging_bytes = 0;  // of one half, for one-shot; a multiple of 128
  size_t window_bytes = 0;   // where chunks of ordinary arrays are handed over; a multiple of 128
  size_t low_latency_bytes = 0;  // the most that is pushed, in whole packs; a multiple of 16
  uint64_t limit_nanoseconds = 0;
};

class Executor {
 public:
  // What `run` gives as the number of an operation that was captured.
  static constexpr uint64_t kCaptured = ~uint64_t{0};

  Executor(const Driver* driver, const ExecutorOptions& options)
      : driver_(driver),
        options_(options),
        layout_(ControlLayout::of(options.blocks, options.staging_bytes, options.window_bytes,
                                  options.world_size, options.low_latency_bytes)),
        segments_(static_cast<size_t>(options.world_size)),
        in_flight_(driver) {}

  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor() { close(); }

  // Makes this rank's memory. The context of the device is current, here and in every later call.
  Result create() {
    Result result = driver_->stream_create(&setup_, kStreamNonBlocking);
    if (result == kSuccess) {
      void* host = nullptr;
      result = driver_->mem_host_alloc(&host, sizeof(cocoll_grid_failure),
                                       kHostAllocMapped | kHostAllocPortable);
      failure_ = static_cast<cocoll_grid_failure*>(host);
    }
    if (result != kSuccess) return result;
    *failure_ = {};
    result = driver_->mem_host_get_device_pointer(&failure_on_device_, failure_, 0);
    if (result == kSuccess) {
      result = own().create(driver_, options_.device, layout_.end, setup_);
    }
    // Peers write flags there as soon as they have the ticket.
    return result == kSuccess ? driver_->stream_synchronize(setup_) : result;
  }

  const SegmentTicket& ticket() const { return segments_[own_index()].ticket(); }

  Result attach(int peer, const SegmentTicket& ticket) {
    return segments_[static_cast<size_t>(peer)].attach(driver_, ticket);
  }

  // Fills in what all calls of this communicator have in common.
  void prepare(cocoll_grid_call* call) const {
    call->rank = options_.rank;
    call->world_size = options_.world_size;
    call->block_limit = options_.blocks;
    call->limit_nanoseconds = options_.limit_nanoseconds;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      if (!is_mapped(rank)) continue;
      call->flags_of[rank] = at<cocoll_grid_flags>(rank, layout_.flags);
      call->poison_of[rank] = at<uint32_t>(rank, layout_.poison);
    }
    call->poisoned = call->poison_of[options_.rank];
    call->counters = at<cocoll_grid_counters>(options_.rank, layout_.counters);
    call->failure = reinterpret_cast<cocoll_grid_failure*>(failure_on_device_);
  }

  // Makes a call one-shot over `source`: through the staging of all ranks.
  void stage(cocoll_grid_call* call, const void* source) const {
    call->flags |= COCOLL_GRID_ONE_SHOT;
    call->own_source = source;
    call->staging_bytes = static_cast<int64_t>(options_.staging_bytes);
    for (int rank = 0; rank < options_.world_size; ++rank) {
      call->sources[rank] = at<void>(rank, layout_.staging);
    }
  }

  // Where this rank has what the ranks say over the wire of their operations: a word of each.
  DevicePointer greetings() const {
    return reinterpret_cast<DevicePointer>(at<void>(options_.rank, layout_.greetings));
  }

  // Makes a call one of low latency: `source` is pushed to all ranks.
  void push(cocoll_grid_call* call, const void* source) const {
    call->flags |= COCOLL_GRID_LOW_LATENCY;
    call->own_source = source;
    call->staging_bytes =
        static_cast<int64_t>(ControlLayout::pushed_bytes(options_.low_latency_bytes));
    for (int rank = 0; rank < options_.world_size; ++rank) {
      call->sources[rank] = at<void>(rank, layout_.received);
    }
  }

  // Where a rank's window lies.
  DevicePointer window(int rank) const {
    return reinterpret_cast<DevicePointer>(at<void>(rank, layout_.window));
  }

  // Lets the ranks reach each other over NCCL. Blocks until all of them have come.
  Result open_wire(const Nccl* nccl, const NcclUniqueId& id) {
    const Result result = driver_->stream_create(&second_, kStreamNonBlocking);
    if (result != kSuccess) return result;
    return wire_.open(nccl, id, options_.world_size, options_.rank);
  }
  bool has_wire() const { return wire_.is_open(); }

  // Queues a sequence behind the communicator's last operation and behind what is on `stream`.
  // `*number` is how many operations were issued before it, or kCaptured.
  Result run(const Sequence& sequence, Stream stream, uint64_t* number) {
    *number = kCaptured;
    if (sequence.uses_wire() && !wire_.enter()) return kNcclResults + kAborted;
    const Result result = run_alone(sequence, stream, number);
    if (sequence.uses_wire()) wire_.leave();
    return result;
  }

  // Whether an operation has completed: kSuccess, or kNotReady.
  Result query(uint64_t number) { return in_flight_.query(number); }

  // Looks after what nobody else would notice: the host never waits for what NCCL runs, and NCCL
  // waits for ever. `abort_word` is what peers set who give up.
  void watch(const uint64_t* abort_word) {
    if (failure() == nullptr) {
      const NcclResult trouble = wire_.trouble();
      if (trouble != kNcclSuccess) {
        fail(COCOLL_GRID_WIRE, static_cast<uint64_t>(trouble));
      } else if (abort_word != nullptr && __atomic_load_n(abort_word, __ATOMIC_ACQUIRE) != 0) {
        fail(COCOLL_GRID_POISONED, 0);
      } else if (in_flight_.is_overdue(std::chrono::nanoseconds(options_.limit_nanoseconds))) {
        fail(COCOLL_GRID_LATE, 0);
      }
    }
    if (failure() == nullptr || given_up_) return;
    given_up_ = true;
    poison();
  }

  uint64_t issued() const { return in_flight_.issued(); }

  // Whether anything was ever captured: replays of it are not counted.
  bool has_captured() const { return captured_; }

  // Tells all ranks that the communicator is given up: kernels that wait end. When it returns, no
  // peer's memory is written any more. From any thread.
  void poison() {
    const std::lock_guard<std::mutex> lock(poison_mutex_);
    for (int rank = 0; rank < options_.world_size; ++rank) {
      if (!is_mapped(rank)) continue;
      driver_->memset_async(reinterpret_cast<DevicePointer>(at<void>(rank, layout_.poison)), 1, 4,
                            setup_);
    }
    driver_->stream_synchronize(setup_);
    // What comes after on the streams finds the poison.
    wire_.abort();
  }

  // What a kernel has left, or nullptr. Asks nothing of the device.
  const cocoll_grid_failure* failure() const {
    if (failure_ == nullptr || __atomic_load_n(&failure_->state, __ATOMIC_ACQUIRE) != 2) {
      return nullptr;
    }
    return failure_;
  }

  // Lets go of peers' memory; after a barrier, `close` frees this rank's own.
  void detach() {
    for (size_t rank = 0; rank < segments_.size(); ++rank) {
      if (rank != own_index()) segments_[rank].close();
    }
  }

  void close() {
    detach();
    wire_.close();
    own().close();
    if (failure_ != nullptr) driver_->mem_free_host(failure_);
    in_flight_.close();
    for (Stream* stream : {&setup_, &second_}) {
      if (*stream != nullptr) driver_->stream_destroy(*stream);
      *stream = nullptr;
    }
    failure_ = nullptr;
  }

 private:
  size_t own_index() const { return static_cast<size_t>(options_.rank); }
  Segment& own() { return segments_[own_index()]; }

  bool is_mapped(int rank) const { return segments_[static_cast<size_t>(rank)].base() != 0; }

  Result run_alone(const Sequence& sequence, Stream stream, uint64_t* number) {
    int capturing = kCaptureNone;
    Result result = driver_->stream_is_capturing(stream, &capturing);
    if (result != kSuccess) return result;
    captured_ |= capturing != kCaptureNone;
    if (capturing != kCaptureNone) return queue_all(sequence, stream);
    Pending operation;
    result = in_flight_.begin(sequence.uses_wire(), &operation);
    if (result != kSuccess) return result;
    // Also on the same stream: a handle may be that of another stream by now, and one of them
    // stands for a stream of each thread. A capture may not depend on what runs outside it: its
    // streams are the caller's to order.
    const Event last = in_flight_.last();
    if (last != nullptr) result = driver_->stream_wait_event(stream, last, 0);
    if (result == kSuccess && operation.started != nullptr) {
      result = driver_->event_record(operation.started, stream);
    }
    if (result == kSuccess) result = queue_all(sequence, stream);
    // Also after an error: steps that were queued before it are on their way.
    const Result recorded = driver_->event_record(operation.done, stream);
    *number = in_flight_.issue(operation);
    return result == kSuccess ? recorded : result;
  }

  // Leaves for the host what kernels leave when they fail.
  void fail(int reason, uint64_t seen) {
    uint32_t expected = 0;
    if (!__atomic_compare_exchange_n(&failure_->state, &expected, 1u, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED)) {
      return;
    }
    failure_->reason = reason;
    failure_->block = failure_->peer = -1;
    failure_->wanted = 0;
    failure_->seen = seen;
    __atomic_store_n(&failure_->state, 2u, __ATOMIC_RELEASE);
  }

  Result queue_all(const Sequence& sequence, Stream stream) {
    const Stream streams[kStreams] = {stream, second_};
    bool grouped = false;
    for (const Step& step : sequence.steps) {
      const Result result = queue(sequence, step, streams[step.stream]);
      if (step.kind == Step::Kind::kGroupStart) grouped = true;
      if (step.kind == Step::Kind::kGroupEnd) grouped = false;
      if (result != kSuccess) {
        // The thread's next use of NCCL, maybe another library's, must not fall into this group.
        if (grouped) wire_.group_end();
        return result;
      }
    }
    return kSuccess;
  }

  Result queue(const Sequence& sequence, const Step& step, Stream stream) {
    switch (step.kind) {
      case Step::Kind::kCopy:
        return driver_->memcpy_async(step.to, step.from, step.count, stream);
      case Step::Kind::kStore:
        return driver_->memset_words_async(step.to, static_cast<unsigned>(step.count), 1, stream);
      case Step::Kind::kRecord:
        return driver_->event_record(sequence.events[step.index], stream);
      case Step::Kind::kAwait:
        return driver_->stream_wait_event(stream, sequence.events[step.index], 0);
      case Step::Kind::kGroupStart:
        return wire_.group_start();
      case Step::Kind::kGroupEnd:
        return wire_.group_end();
      case Step::Kind::kSend:
        return wire_.send(step.from, step.count, step.number, stream);
      case Step::Kind::kReceive:
        return wire_.receive(step.to, step.count, step.number, stream);
      case Step::Kind::kAllReduce:
        return wire_.all_reduce(step.to, step.from, step.count, step.type, step.op, stream);
      case Step::Kind::kAllGather:
        return wire_.all_gather(step.to, step.from, step.count, stream);
      case Step::Kind::kBroadcast:
        return wire_.broadcast(step.to, step.from, step.count, step.number, stream);
      case Step::Kind::kLaunch:
        break;
    }
    void* parameters[] = {const_cast<cocoll_grid_call*>(&sequence.calls[step.index])};
    return driver_->launch_kernel(step.function, static_cast<unsigned>(step.number), 1, 1,
                                  kGridThreads, 1, 1, 0, stream, parameters, nullptr);
  }

  template <class T>
  T* at(int rank, size_t offset) const {
    return reinterpret_cast<T*>(segments_[static_cast<size_t>(rank)].base() + offset);
  }

  const Driver* driver_;
  const ExecutorOptions options_;
  const ControlLayout layout_;
  std::vector<Segment> segments_;
  Wire wire_;
  Stream setup_ = nullptr;
  Stream second_ = nullptr;  // the second of a sequence's streams; there with the wire
  std::mutex poison_mutex_;
  InFlight in_flight_;
  bool given_up_ = false;  // by the watch
  bool captured_ = false;
  cocoll_grid_failure* failure_ = nullptr;
  DevicePointer failure_on_device_ = 0;
};

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_EXECUTOR_H_
