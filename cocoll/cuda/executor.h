// Runs operations on streams: one rank's end of a communicator on a GPU.
//
// Operations of a communicator form one sequence, whatever streams they are issued on. One on
// another stream than the last waits for it by an event, on the device; the host never waits. A
// run allocates nothing and runs no Python: a few calls of the driver, one for each of its steps.

#ifndef COCOLL_CUDA_EXECUTOR_H_
#define COCOLL_CUDA_EXECUTOR_H_

#include <deque>
#include <memory>
#include <vector>

#include "cocoll/cuda/driver.h"
#include "cocoll/cuda/segment.h"
#include "cocoll/kernels/grid_abi.h"

namespace cocoll::cuda {

constexpr int kGridThreads = 512;      // COCOLL_GRID_THREADS: what the kernels are bounded to
constexpr size_t kPendingEvents = 32;  // before those that have completed are looked for

// Where things lie in a rank's first segment. The same on all ranks, for the sizes are agreed.
struct ControlLayout {
  size_t poison, flags, counters, staging, window, end;

  static ControlLayout of(int blocks, size_t staging_bytes, size_t window_bytes) {
    constexpr size_t kUnit = 128;
    ControlLayout layout = {};
    layout.poison = 0;
    layout.flags = kUnit;
    layout.counters = layout.flags + sizeof(cocoll_grid_flags) * static_cast<size_t>(blocks);
    layout.staging = host::round_up(
        layout.counters + sizeof(cocoll_grid_counters) * static_cast<size_t>(blocks), kUnit);
    layout.window = layout.staging + 2 * staging_bytes;
    layout.end = layout.window + window_bytes;
    return layout;
  }
};

struct ExecutorOptions {
  int rank = 0;
  int world_size = 1;
  Device device = 0;
  int blocks = 1;            // the largest grid; all of it must be resident
  size_t staging_bytes = 0;  // of one half, for one-shot; a multiple of 128
  size_t window_bytes = 0;   // where chunks of ordinary arrays are handed over; a multiple of 128
  uint64_t limit_nanoseconds = 0;
};

// One thing that a stream does.
struct Step {
  enum class Kind { kLaunch, kCopy, kClear };

  Kind kind;
  int32_t blocks;  // of a launch
  size_t call;     // which of the sequence's
  Function function;
  DevicePointer to, from;
  size_t bytes;
};

// What one operation of one rank is on a stream: made once, run often.
struct Sequence {
  std::vector<Step> steps;
  std::vector<cocoll_grid_call> calls;

  void launch(Function function, const cocoll_grid_call& call, int blocks) {
    steps.push_back({Step::Kind::kLaunch, blocks, calls.size(), function, 0, 0, 0});
    calls.push_back(call);
  }
  void copy(DevicePointer to, DevicePointer from, size_t bytes) {
    steps.push_back({Step::Kind::kCopy, 0, 0, nullptr, to, from, bytes});
  }
  void clear(DevicePointer to, size_t bytes) {
    steps.push_back({Step::Kind::kClear, 0, 0, nullptr, to, 0, bytes});
  }
};

class Executor {
 public:
  // What `run` gives as the number of an operation that was captured.
  static constexpr uint64_t kCaptured = ~uint64_t{0};

  Executor(const Driver* driver, const ExecutorOptions& options)
      : driver_(driver),
        options_(options),
        layout_(ControlLayout::of(options.blocks, options.staging_bytes, options.window_bytes)),
        segments_(static_cast<size_t>(options.world_size)) {}

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

  // Where a rank's window lies.
  DevicePointer window(int rank) const {
    return reinterpret_cast<DevicePointer>(at<void>(rank, layout_.window));
  }

  // Queues a sequence behind the communicator's last operation and behind what is on `stream`.
  // `*number` is how many operations were issued before it, or kCaptured.
  Result run(const Sequence& sequence, Stream stream, uint64_t* number) {
    int capturing = kCaptureNone;
    *number = kCaptured;
    Result result = driver_->stream_is_capturing(stream, &capturing);
    if (result != kSuccess) return result;
    // Also on the same stream: a handle may be that of another stream by now, and one of them
    // stands for a stream of each thread. A capture may not depend on what runs outside it: its
    // streams are the caller's to order.
    if (capturing == kCaptureNone && last_ != nullptr) {
      result = driver_->stream_wait_event(stream, last_, 0);
      if (result != kSuccess) return result;
    }
    for (const Step& step : sequence.steps) {
      result = queue(sequence, step, stream);
      if (result != kSuccess) return result;
    }
    captured_ |= capturing != kCaptureNone;
    if (capturing != kCaptureNone) return result;
    result = take_event(&last_);
    if (result != kSuccess) return result;
    pending_.push_back(last_);
    *number = issued_++;
    return driver_->event_record(last_, stream);
  }

  // Whether an operation has completed: kSuccess, or kNotReady.
  Result query(uint64_t number) {
    const Result result = retire();
    if (result != kSuccess) return result;
    const uint64_t first = issued_ - pending_.size();
    return number < first ? kSuccess : driver_->event_query(pending_[number - first]);
  }

  uint64_t issued() const { return issued_; }

  // Whether anything was ever captured: replays of it are not counted.
  bool has_captured() const { return captured_; }

  // Tells all ranks that the communicator is given up: kernels that wait end. When it returns, no
  // peer's memory is written any more.
  void poison() {
    for (int rank = 0; rank < options_.world_size; ++rank) {
      if (segments_[static_cast<size_t>(rank)].base() == 0) continue;
      driver_->memset_async(reinterpret_cast<DevicePointer>(at<void>(rank, layout_.poison)), 1, 4,
                            setup_);
    }
    driver_->stream_synchronize(setup_);
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
    for (Event event : pending_) driver_->event_destroy(event);
    for (Event event : spare_) driver_->event_destroy(event);
    pending_.clear();
    spare_.clear();
    last_ = nullptr;
    if (setup_ != nullptr) driver_->stream_destroy(setup_);
    failure_ = nullptr;
    setup_ = nullptr;
  }

 private:
  size_t own_index() const { return static_cast<size_t>(options_.rank); }
  Segment& own() { return segments_[own_index()]; }

  // Takes the events of operations that have completed off the list; the last one's stays, for the
  // next operation to wait for.
  Result retire() {
    while (pending_.size() > 1) {
      const Result result = driver_->event_query(pending_.front());
      if (result == kNotReady) return kSuccess;
      if (result != kSuccess) return result;
      spare_.push_back(pending_.front());
      pending_.pop_front();
    }
    return kSuccess;
  }

  // Gives an event that no operation needs. They are made until there are as many as operations in
  // flight, and never after.
  Result take_event(Event* event) {
    if (pending_.size() >= kPendingEvents) {
      const Result result = retire();
      if (result != kSuccess) return result;
    }
    if (spare_.empty()) return driver_->event_create(event, kEventDisableTiming);
    *event = spare_.back();
    spare_.pop_back();
    return kSuccess;
  }

  Result queue(const Sequence& sequence, const Step& step, Stream stream) {
    switch (step.kind) {
      case Step::Kind::kCopy:
        return driver_->memcpy_async(step.to, step.from, step.bytes, stream);
      case Step::Kind::kClear:
        return driver_->memset_async(step.to, 0, step.bytes, stream);
      case Step::Kind::kLaunch:
        break;
    }
    void* parameters[] = {const_cast<cocoll_grid_call*>(&sequence.calls[step.call])};
    return driver_->launch_kernel(step.function, static_cast<unsigned>(step.blocks), 1, 1,
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
  Stream setup_ = nullptr;
  std::deque<Event> pending_;  // of the last operations, the oldest first
  std::vector<Event> spare_;
  Event last_ = nullptr;  // of the last operation; one of `pending_`
  uint64_t issued_ = 0;
  bool captured_ = false;
  cocoll_grid_failure* failure_ = nullptr;
  DevicePointer failure_on_device_ = 0;
};

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_EXECUTOR_H_
