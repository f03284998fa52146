// What one operation of one rank is on its GPU: made once, run often.
//
// Steps stand in the order in which they are issued, each on one of several streams: the caller's,
// and those of the communicator's own. Events order them. A run records an event anew; what an
// earlier run waits for stays as it was.

#ifndef COCOLL_CUDA_SEQUENCE_H_
#define COCOLL_CUDA_SEQUENCE_H_

#include <algorithm>
#include <array>
#include <vector>

#include "cocoll/cuda/driver.h"
#include "cocoll/kernels/grid_abi.h"

namespace cocoll::cuda {

constexpr int kStreams = 8;

// The streams of a communicator's own, made when a sequence first needs so many.
class OwnStreams {
 public:
  Result open(const Driver& driver, int count) {
    Result result = kSuccess;
    for (size_t index = 0; index + 1 < static_cast<size_t>(count) && result == kSuccess; ++index) {
      if (streams_[index] == nullptr) {
        result = driver.stream_create(&streams_[index], kStreamNonBlocking);
      }
    }
    return result;
  }
  void close(const Driver& driver) {
    for (Stream& stream : streams_) {
      if (stream != nullptr) driver.stream_destroy(stream);
      stream = nullptr;
    }
  }
  Stream operator[](size_t index) const { return streams_[index]; }

 private:
  std::array<Stream, kStreams - 1> streams_{};
};

// One thing that a stream does.
struct Step {
  enum class Kind {
    kLaunch,
    kCopy,
    kStore,
    kRecord,
    kAwait,
    kGroupStart,
    kGroupEnd,
    kSend,
    kReceive,
    kAllReduce,
    kAllGather,
    kBroadcast,
  };

  Kind kind;
  int32_t stream;    // 0: the caller's
  int32_t number;    // blocks of a launch, the peer of a send, the root of a broadcast
  int32_t type, op;  // of a reduction, as NCCL counts them
  size_t index;      // which of the sequence's calls or events
  Function function;
  DevicePointer to, from;
  size_t count;  // bytes; elements of a reduction; the word that is stored
};

class Sequence {
 public:
  Sequence() = default;
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  std::vector<Step> steps;
  std::vector<cocoll_grid_call> calls;
  std::vector<Event> events;

  bool uses_wire() const { return uses_wire_; }

  // How many streams it is spread over.
  int stream_count() const { return stream_count_; }

  void launch(Function function, const cocoll_grid_call& call, int blocks, int stream) {
    Step step = make(Step::Kind::kLaunch, stream);
    step.number = blocks;
    step.index = calls.size();
    step.function = function;
    steps.push_back(step);
    calls.push_back(call);
  }
  void copy(DevicePointer to, DevicePointer from, size_t bytes, int stream) {
    move(Step::Kind::kCopy, to, from, bytes, 0, stream);
  }
  void store(DevicePointer to, uint32_t word, int stream) {
    move(Step::Kind::kStore, to, 0, word, 0, stream);
  }
  void mark(Step::Kind kind, int stream) { steps.push_back(make(kind, stream)); }

  // A send, a receive, a gather or a broadcast.
  void move(Step::Kind kind, DevicePointer to, DevicePointer from, size_t bytes, int rank,
            int stream) {
    Step step = make(kind, stream);
    step.number = rank;
    step.to = to;
    step.from = from;
    step.count = bytes;
    steps.push_back(step);
  }
  void all_reduce(DevicePointer to, DevicePointer from, size_t elements, int type, int op,
                  int stream) {
    move(Step::Kind::kAllReduce, to, from, elements, 0, stream);
    steps.back().type = type;
    steps.back().op = op;
  }

  // An event for all that stands on `stream` so far; `*event` is its number.
  Result record(const Driver& driver, int stream, size_t* event) {
    Event made = nullptr;
    const Result result = driver.event_create(&made, kEventDisableTiming);
    if (result != kSuccess) return result;
    *event = events.size();
    events.push_back(made);
    steps.push_back(make(Step::Kind::kRecord, stream));
    steps.back().index = *event;
    return kSuccess;
  }
  // What comes on `stream` waits for an event that was recorded before.
  void wait_for(size_t event, int stream) {
    steps.push_back(make(Step::Kind::kAwait, stream));
    steps.back().index = event;
  }

  // Gives the events back. Those that are still waited for stay until then.
  void close(const Driver& driver) {
    for (Event event : events) driver.event_destroy(event);
    events.clear();
    steps.clear();
  }

 private:
  Step make(Step::Kind kind, int stream) {
    uses_wire_ |= kind >= Step::Kind::kGroupStart;
    stream_count_ = std::max(stream_count_, stream + 1);
    return {kind, stream, 0, 0, 0, 0, nullptr, 0, 0, 0};
  }

  bool uses_wire_ = false;
  int stream_count_ = 1;
};

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_SEQUENCE_H_
