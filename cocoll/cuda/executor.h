// Runs operations on streams: one rank's end of a communicator on a GPU.
//
// Operations of a communicator form one sequence, whatever streams they are issued on. One on
// another stream than the last waits for it by an event, on the device. A run allocates nothing and
// runs no Python: a few calls of the driver, one for each of its steps.

#ifndef COCOLL_CUDA_EXECUTOR_H_
#define COCOLL_CUDA_EXECUTOR_H_

#include <chrono>
#include <mutex>
#include <vector>

#include "cocoll/cuda/control.h"
#include "cocoll/cuda/driver.h"
#include "cocoll/cuda/failure_word.h"
#include "cocoll/cuda/in_flight.h"
#include "cocoll/cuda/segment.h"
#include "cocoll/cuda/sequence.h"
#include "cocoll/cuda/wire.h"
#include "cocoll/kernels/grid_abi.h"

namespace cocoll::cuda {

constexpr int kGridThreads = 512;  // COCOLL_GRID_THREADS: what the kernels are bounded to

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
    if (result == kSuccess) result = failure_.create(driver_);
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
    call->source_count = options_.world_size;
    call->block_limit = options_.blocks;
    call->limit_nanoseconds = options_.limit_nanoseconds;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      if (!is_mapped(rank)) continue;
      call->flags_of[rank] = at<cocoll_grid_flags>(rank, layout_.flags);
      call->poison_of[rank] = at<uint32_t>(rank, layout_.poison);
    }
    call->poisoned = call->poison_of[options_.rank];
    call->counters = at<cocoll_grid_counters>(options_.rank, layout_.counters);
    call->failure = failure_.on_device();
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

  // Where a rank's counters of plans' signals lie: a cocoll_grid_signals.
  DevicePointer signals(int rank) const {
    return reinterpret_cast<DevicePointer>(at<void>(rank, layout_.signals));
  }

  // Where a rank's window lies.
  DevicePointer window(int rank) const {
    return reinterpret_cast<DevicePointer>(at<void>(rank, layout_.window));
  }

  // Lets the ranks reach each other over NCCL, and connects them. Waits for all of them, half as
  // long as they wait for each other anyway: who could not begin waits for the outcome meanwhile.
  Result open_wire(const Nccl* nccl, const NcclUniqueId& id, Wire::Interrupted interrupted) {
    const auto limit = std::chrono::nanoseconds(options_.limit_nanoseconds / 4);
    const Result opened =
        wire_.open(nccl, id, options_.world_size, options_.rank, limit, interrupted);
    const Result result = opened == kSuccess ? connect(limit, interrupted) : opened;
    wire_.set_limit(std::chrono::nanoseconds(options_.limit_nanoseconds));
    return result;
  }
  bool has_wire() const { return wire_.is_open(); }

  // Forgets NCCL, which not all ranks could open.
  void drop_wire() {
    wire_.abort();
    wire_.close();
  }

  // Makes the streams that a sequence is spread over, besides the caller's. They stay.
  Result open_streams(int count) {
    const Result result = own_streams_.open(*driver_, count);
    return result == kSuccess ? captured_streams_.open(*driver_, count) : result;
  }

  // Queues a sequence behind the communicator's last operation and behind what is on `stream`.
  // `*number` is how many operations were issued before it, or kCaptured.
  Result run(const Sequence& sequence, Stream stream, uint64_t* number) {
    *number = kCaptured;
    bool begun = false;
    if (!sequence.uses_wire()) return run_alone(sequence, stream, number, &begun);
    if (!wire_.enter()) return kNcclResults + kNcclAborted;
    const Result result = run_alone(sequence, stream, number, &begun);
    wire_.leave();
    // Peers may have a part of it: what comes next would meet the wrong messages.
    if (result != kSuccess && begun) fail_wire(result);
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
        failure_.leave(COCOLL_GRID_WIRE, static_cast<uint64_t>(trouble));
      } else if (abort_word != nullptr && __atomic_load_n(abort_word, __ATOMIC_ACQUIRE) != 0) {
        failure_.leave(COCOLL_GRID_POISONED, 0);
      } else if (in_flight_.is_overdue(std::chrono::nanoseconds(options_.limit_nanoseconds))) {
        failure_.leave(COCOLL_GRID_LATE, 0);
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
  const cocoll_grid_failure* failure() const { return failure_.get(); }

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
    failure_.close();
    in_flight_.close();
    if (last_captured_ != nullptr) driver_->event_destroy(last_captured_);
    last_captured_ = nullptr;
    if (setup_ != nullptr) driver_->stream_destroy(setup_);
    setup_ = nullptr;
    own_streams_.close(*driver_);
    captured_streams_.close(*driver_);
  }

 private:
  size_t own_index() const { return static_cast<size_t>(options_.rank); }
  Segment& own() { return segments_[own_index()]; }

  bool is_mapped(int rank) const { return segments_[static_cast<size_t>(rank)].base() != 0; }

  // `*begun`: whether anything of it may be on its way.
  Result run_alone(const Sequence& sequence, Stream stream, uint64_t* number, bool* begun) {
    int capturing = kCaptureNone;
    uint64_t capture = 0;
    Result result =
        driver_->stream_get_capture(stream, &capturing, &capture, nullptr, nullptr, nullptr);
    if (result != kSuccess) return result;
    if (capturing != kCaptureNone) return capture_all(sequence, stream, capture);
    Pending operation;
    result = in_flight_.begin(sequence.uses_wire(), &operation);
    if (result != kSuccess) return result;
    // Also on the same stream: a handle may be that of another stream by now, and one of them
    // stands for a stream of each thread.
    const Event last = in_flight_.last();
    if (last != nullptr) result = driver_->stream_wait_event(stream, last, 0);
    if (result == kSuccess && operation.started != nullptr) {
      result = driver_->event_record(operation.started, stream);
    }
    *begun = result == kSuccess;
    if (*begun) result = queue_all(sequence, stream, own_streams_);
    // Also after an error: steps that were queued before it are on their way.
    const Result recorded = driver_->event_record(operation.done, stream);
    *number = in_flight_.issue(operation);
    return result == kSuccess ? recorded : result;
  }

  // In a capture too operations are one sequence. It may not depend on what runs outside it: that
  // order is the caller's to keep.
  Result capture_all(const Sequence& sequence, Stream stream, uint64_t capture) {
    Result result = kSuccess;
    for (size_t index = 0; index + 1 < static_cast<size_t>(sequence.stream_count()); ++index) {
      int capturing = kCaptureNone;
      uint64_t other = 0;
      result = driver_->stream_get_capture(captured_streams_[index], &capturing, &other, nullptr,
                                           nullptr, nullptr);
      if (result != kSuccess) return result;
      // Two captures at a time that both need it.
      if (capturing != kCaptureNone && other != capture) return kCaptureUnsupported;
    }
    captured_ = true;
    if (last_captured_ == nullptr) {
      result = driver_->event_create(&last_captured_, kEventDisableTiming);
    } else if (capture == capture_) {
      result = driver_->stream_wait_event(stream, last_captured_, 0);
    }
    if (result == kSuccess) result = queue_all(sequence, stream, captured_streams_);
    if (result != kSuccess) return result;
    capture_ = capture;
    return driver_->event_record(last_captured_, stream);
  }

  // Gives an operation over NCCL up, and with it the communicator.
  void fail_wire(Result result) {
    const NcclResult told = result > kNcclResults ? result - kNcclResults : 0;
    if (told == kNcclLate) {
      failure_.leave(COCOLL_GRID_LATE, 0);
    } else if (told == kNcclAborted || told == kNcclInterrupted) {
      failure_.leave(COCOLL_GRID_POISONED, 0);
    } else {
      failure_.leave(COCOLL_GRID_WIRE, static_cast<uint64_t>(told));
    }
    poison();
  }

  // Lets all ranks meet once over NCCL, which connects each to each: later the host need not wait.
  Result connect(std::chrono::nanoseconds limit, const Wire::Interrupted& interrupted) {
    Result result = wire_.enter() ? wire_.group_start() : kNcclResults + kNcclAborted;
    if (result != kSuccess) return result;
    const DevicePointer words = greetings();
    for (int peer = 0; peer < options_.world_size; ++peer) {
      if (peer == options_.rank || result != kSuccess) continue;
      result = wire_.send(words + 4 * own_index(), 4, peer, setup_, true);
      if (result != kSuccess) continue;
      result = wire_.receive(words + 4 * static_cast<size_t>(peer), 4, peer, setup_, true);
    }
    const Result ended = wire_.group_end();
    wire_.leave();
    if (result == kSuccess) result = ended;
    const auto start = std::chrono::steady_clock::now();
    while (result == kSuccess) {
      result = driver_->stream_query(setup_);
      if (result != kNotReady) break;
      result = kSuccess;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (std::chrono::steady_clock::now() - start > limit) result = kNcclResults + kNcclLate;
      if (interrupted && interrupted()) result = kNcclResults + kNcclInterrupted;
    }
    if (result != kSuccess) wire_.abort();
    return result;
  }

  Result queue_all(const Sequence& sequence, Stream stream, const OwnStreams& own) {
    bool grouped = false;
    for (const Step& step : sequence.steps) {
      const Stream where = step.stream == 0 ? stream : own[static_cast<size_t>(step.stream) - 1];
      const Result result = queue(sequence, step, where, grouped);
      if (step.kind == Step::Kind::kGroupStart) grouped = true;
      if (step.kind == Step::Kind::kGroupEnd) grouped = false;
      if (result == kSuccess) continue;
      // The thread's next use of NCCL, maybe another library's, must not fall into this group.
      if (grouped) wire_.group_end();
      join(sequence, stream, own);
      return result;
    }
    return kSuccess;
  }

  // Lets the caller's stream wait for all that a sequence has queued on others.
  void join(const Sequence& sequence, Stream stream, const OwnStreams& own) {
    for (size_t index = 0; index + 1 < static_cast<size_t>(sequence.stream_count()); ++index) {
      Event event = nullptr;
      if (driver_->event_create(&event, kEventDisableTiming) != kSuccess) continue;
      if (driver_->event_record(event, own[index]) == kSuccess) {
        driver_->stream_wait_event(stream, event, 0);
      }
      driver_->event_destroy(event);
    }
  }

  Result queue(const Sequence& sequence, const Step& step, Stream stream, bool grouped) {
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
        return wire_.send(step.from, step.count, step.number, stream, grouped);
      case Step::Kind::kReceive:
        return wire_.receive(step.to, step.count, step.number, stream, grouped);
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
  // Of sequences, behind the caller's; others in captures, for a stream that has joined one is no
  // use elsewhere until that ends.
  OwnStreams own_streams_, captured_streams_;
  std::mutex poison_mutex_;
  InFlight in_flight_;
  bool given_up_ = false;  // by the watch
  bool captured_ = false;
  uint64_t capture_ = 0;           // the last one, as the driver numbers them
  Event last_captured_ = nullptr;  // of the last operation in it
  FailureWord failure_;
};

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_EXECUTOR_H_
