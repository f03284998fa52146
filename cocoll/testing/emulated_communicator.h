// One rank's end of a communicator of the emulated NCCL, and the operations that it is given.

#ifndef COCOLL_TESTING_EMULATED_COMMUNICATOR_H_
#define COCOLL_TESTING_EMULATED_COMMUNICATOR_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cocoll/testing/emulated_device.h"
#include "cocoll/testing/emulated_reduction.h"
#include "cocoll/testing/emulated_transport.h"

namespace cocoll::emulated {

enum class Kind : uint64_t {
  kSend = 1,
  kReceive,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast
};

struct Call {
  Kind kind;
  DevicePointer from, to;
  size_t count;
  int type;
  int op = 0;
  int peer = 0;  // or the root

  size_t bytes() const { return count * kTypeBytes[type]; }

  // What ranks must agree on, but for the bytes.
  uint64_t signature() const {
    if (kind == Kind::kSend || kind == Kind::kReceive) return 0;
    return static_cast<uint64_t>(kind) | static_cast<uint64_t>(type) << 8 |
           static_cast<uint64_t>(op) << 16 | static_cast<uint64_t>(peer) << 32;
  }
};

inline char* memory_at(DevicePointer pointer) { return reinterpret_cast<char*>(pointer); }

typedef std::vector<Call> Calls;

// What each rank was asked to send to each other one, by all communicators of this process.
inline std::atomic<uint64_t> sent_bytes[kMostRanks][kMostRanks];

class Communicator {
 public:
  Communicator(std::shared_ptr<Region> region, int rank, int world_size, bool is_blocking)
      : region(std::move(region)), rank(rank), world_size(world_size), is_blocking(is_blocking) {}

  Meeting& meeting() { return region->meeting(); }
  Seat& seat() { return meeting().seats[rank]; }

  // What the first use of connections waits for: words that their other ends set. Says that this
  // end has come.
  std::vector<const std::atomic<int>*> connect(const Calls& calls) {
    std::vector<const std::atomic<int>*> awaited;
    const auto add = [&](Lane lane, int peer, bool sends, bool receives) {
      if (peer == rank) return;
      Channel& there = region->channel(lane, rank, peer);
      Channel& here = region->channel(lane, peer, rank);
      if (sends && there.sender_came.exchange(1) == 0) awaited.push_back(&there.receiver_came);
      if (receives && here.receiver_came.exchange(1) == 0) awaited.push_back(&here.sender_came);
    };
    for (const Call& call : calls) {
      const bool sends = call.kind == Kind::kSend, receives = call.kind == Kind::kReceive;
      if (sends || receives) {
        add(kPointToPoint, call.peer, sends, receives);
        continue;
      }
      for (int peer = 0; peer < world_size; ++peer) add(kCollective, peer, true, true);
    }
    return awaited;
  }

  // What goes on in a thread of its own, if the communicator is not blocking. As long as its state
  // is "in progress", nothing else may use the communicator.
  void begin_job() {
    ++jobs_;
    state.store(cuda::kNcclInProgress);
  }

  // Its last use of the communicator.
  void end_job(cuda::NcclResult result) {
    state.store(result);
    --jobs_;
  }

  // What a stream runs: a group, when its turn has come.
  void run(const Calls& calls, uint64_t turn) {
    Patience patience;
    while (completed.load() != turn && !aborted.load()) patience.wait();
    ++moving_;
    if (!aborted.load()) move(calls);
    --moving_;
    ++completed;
  }

  // Ends what runs and what is queued; when it returns, nothing uses the caller's memory any more.
  void abort() {
    aborted.store(true);
    meeting().aborted.store(1);
    Patience patience;
    while (moving_.load() != 0 || jobs_.load() != 0) patience.wait();
  }

  // As NCCL does: graphs hold what they were captured with.
  void await_graphs() const {
    Patience patience;
    while (in_graphs.use_count() > 1) patience.wait();
  }

  const std::shared_ptr<Region> region;
  const int rank, world_size;
  const bool is_blocking;
  const std::shared_ptr<void> in_graphs = std::make_shared<int>(0);  // which share it
  std::atomic<cuda::NcclResult> state{cuda::kNcclSuccess};
  uint64_t splits = 0;
  std::atomic<bool> aborted{false};
  std::atomic<bool> closed{false};                // its handle is no longer valid
  std::atomic<uint64_t> issued{0}, completed{0};  // groups

 private:
  void move(const Calls& calls) {
    Pump pump(region.get(), rank);
    std::vector<std::vector<char>> scratch;
    for (const Call& call : calls) scratch.push_back(queue(call, &pump));
    if (!pump.run(aborted)) return;
    for (size_t which = 0; which < calls.size(); ++which) finish(calls[which], scratch[which]);
  }

  // Says what moves between ranks; gives the memory that peers' inputs of a reduction come to.
  std::vector<char> queue(const Call& call, Pump* pump) const {
    const size_t bytes = call.bytes();
    std::vector<char> scratch;
    if (call.kind == Kind::kSend) {
      sent_bytes[rank][call.peer] += bytes;
      pump->send(kPointToPoint, call.peer, memory_at(call.from), bytes, 0);
      return scratch;
    }
    if (call.kind == Kind::kReceive) {
      pump->receive(kPointToPoint, call.peer, memory_at(call.to), bytes, 0);
      return scratch;
    }
    const bool reduces = call.kind == Kind::kAllReduce || call.kind == Kind::kReduceScatter;
    if (reduces) scratch.resize(bytes * static_cast<size_t>(world_size));
    for (int peer = 0; peer < world_size; ++peer) {
      if (peer == rank) continue;
      const size_t place = bytes * static_cast<size_t>(peer);
      const char* from = memory_at(call.from);
      char* to = reduces ? scratch.data() + place : memory_at(call.to);
      if (call.kind == Kind::kReduceScatter) from += place;
      if (call.kind == Kind::kAllGather) to += place;
      const bool is_broadcast = call.kind == Kind::kBroadcast;
      if (!is_broadcast || call.peer == rank) {
        sent_bytes[rank][peer] += bytes;
        pump->send(kCollective, peer, from, bytes, call.signature());
      }
      if (!is_broadcast || call.peer == peer) {
        pump->receive(kCollective, peer, to, bytes, call.signature());
      }
    }
    return scratch;
  }

  // What is left to do once everything has moved.
  void finish(const Call& call, const std::vector<char>& scratch) const {
    const size_t ranks = static_cast<size_t>(world_size), own = static_cast<size_t>(rank);
    const size_t bytes = call.bytes();
    std::vector<const char*> inputs;
    if (!scratch.empty()) {
      for (size_t peer = 0; peer < ranks; ++peer) inputs.push_back(scratch.data() + peer * bytes);
    }
    switch (call.kind) {
      case Kind::kAllReduce: {
        inputs[own] = memory_at(call.from);
        const size_t block = (call.count + ranks - 1) / ranks;
        for (size_t which = 0; which * block < call.count; ++which) {
          reduce_block(call, inputs, which * block, std::min(call.count, (which + 1) * block),
                       (which + 1) % ranks);
        }
        break;
      }
      case Kind::kReduceScatter:
        inputs[own] = memory_at(call.from) + own * bytes;
        reduce_block(call, inputs, 0, call.count, (own + 1) % ranks);
        break;
      case Kind::kAllGather:
        copy(memory_at(call.to) + own * bytes, memory_at(call.from), bytes);
        break;
      case Kind::kBroadcast:
        if (call.peer == rank) copy(memory_at(call.to), memory_at(call.from), bytes);
        break;
      default:
        break;
    }
  }

  static void reduce_block(const Call& call, std::vector<const char*> inputs, size_t begin,
                           size_t end, size_t first) {
    const size_t offset = begin * kTypeBytes[call.type];
    for (const char*& input : inputs) input += offset;
    reduce(call.type, call.op, memory_at(call.to) + offset, inputs, end - begin, first);
  }

  static void copy(char* to, const char* from, size_t bytes) {
    if (to != from) memcpy(to, from, bytes);
  }

  std::atomic<int> moving_{0}, jobs_{0};
};

}  // namespace cocoll::emulated

#endif  // COCOLL_TESTING_EMULATED_COMMUNICATOR_H_
