// Launches grid kernels: one rank's end of a communicator on a GPU.
//
// Operations of a communicator form one sequence, whatever streams they are issued on. A launch on
// another stream than the last one waits for it by an event, on the device; the host never waits.
// A launch makes three calls of the driver at most, allocates nothing and runs no Python.

#ifndef COCOLL_CUDA_EXECUTOR_H_
#define COCOLL_CUDA_EXECUTOR_H_

#include <memory>
#include <vector>

#include "cocoll/cuda/driver.h"
#include "cocoll/cuda/segment.h"
#include "cocoll/kernels/grid_abi.h"

namespace cocoll::cuda {

constexpr int kGridThreads = 512;  // COCOLL_GRID_THREADS: what the kernels are bounded to

// Where things lie in a rank's first segment. The same on all ranks, for `blocks` and the staging
// are agreed.
struct ControlLayout {
  size_t poison, flags, counters, staging, end;

  static ControlLayout of(int blocks, size_t staging_bytes) {
    constexpr size_t kUnit = 128;
    ControlLayout layout = {};
    layout.poison = 0;
    layout.flags = kUnit;
    layout.counters = layout.flags + sizeof(cocoll_grid_flags) * static_cast<size_t>(blocks);
    layout.staging = host::round_up(
        layout.counters + sizeof(cocoll_grid_counters) * static_cast<size_t>(blocks), kUnit);
    layout.end = layout.staging + 2 * staging_bytes;
    return layout;
  }
};

struct ExecutorOptions {
  int rank = 0;
  int world_size = 1;
  Device device = 0;
  int blocks = 1;            // the largest grid; all of it must be resident
  size_t staging_bytes = 0;  // of one half; a multiple of 128
  uint64_t limit_nanoseconds = 0;
};

class Executor {
 public:
  Executor(const Driver* driver, const ExecutorOptions& options)
      : driver_(driver),
        options_(options),
        layout_(ControlLayout::of(options.blocks, options.staging_bytes)),
        segments_(static_cast<size_t>(options.world_size)) {}

  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor() { close(); }

  // Makes this rank's memory. The context of the device is current, here and in every later call.
  Result create() {
    Result result = driver_->stream_create(&setup_, kStreamNonBlocking);
    if (result == kSuccess) result = driver_->event_create(&last_, kEventDisableTiming);
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

  // Queues a kernel behind the communicator's last operation and behind what is on `stream`. The
  // call is copied before this returns.
  Result launch(Function function, const cocoll_grid_call& call, int blocks, Stream stream) {
    int capturing = kCaptureNone;
    Result result = driver_->stream_is_capturing(stream, &capturing);
    if (result != kSuccess) return result;
    // A capture may not depend on what runs outside it: its streams are the caller's to order.
    if (capturing == kCaptureNone && launched_ && stream != last_stream_) {
      result = driver_->stream_wait_event(stream, last_, 0);
      if (result != kSuccess) return result;
    }
    void* parameters[] = {const_cast<cocoll_grid_call*>(&call)};
    result = driver_->launch_kernel(function, static_cast<unsigned>(blocks), 1, 1, kGridThreads, 1,
                                    1, 0, stream, parameters, nullptr);
    if (result != kSuccess || capturing != kCaptureNone) return result;
    launched_ = true;
    last_stream_ = stream;
    return driver_->event_record(last_, stream);
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
    own().close();
    if (failure_ != nullptr) driver_->mem_free_host(failure_);
    if (last_ != nullptr) driver_->event_destroy(last_);
    if (setup_ != nullptr) driver_->stream_destroy(setup_);
    failure_ = nullptr;
    last_ = nullptr;
    setup_ = nullptr;
  }

 private:
  size_t own_index() const { return static_cast<size_t>(options_.rank); }
  Segment& own() { return segments_[own_index()]; }

  template <class T>
  T* at(int rank, size_t offset) const {
    return reinterpret_cast<T*>(segments_[static_cast<size_t>(rank)].base() + offset);
  }

  const Driver* driver_;
  const ExecutorOptions options_;
  const ControlLayout layout_;
  std::vector<Segment> segments_;
  Stream setup_ = nullptr;
  Event last_ = nullptr;
  Stream last_stream_ = nullptr;
  bool launched_ = false;
  cocoll_grid_failure* failure_ = nullptr;
  DevicePointer failure_on_device_ = 0;
};

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_EXECUTOR_H_
