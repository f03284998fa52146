// One rank's end of NCCL: a communicator of its own for each of cocoll's.
//
// It is one that does not block: NCCL connects ranks when they first use a way, and waits for their
// hosts meanwhile, without a limit. Here the host waits with one, and gives up when a peer does. A
// communicator that is given up is aborted by whoever notices, on any thread: its kernels end, and
// nothing is issued on it any more.

#ifndef COCOLL_CUDA_WIRE_H_
#define COCOLL_CUDA_WIRE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "cocoll/cuda/nccl.h"

namespace cocoll::cuda {

// NCCL's results among the driver's, and what else can become of a call.
constexpr Result kNcclResults = 1 << 20;
constexpr NcclResult kNcclAborted = 6;  // ncclRemoteError: what one that was given up answers
constexpr NcclResult kNcclLate = 100;
constexpr NcclResult kNcclInterrupted = 101;

inline Result wire_result(NcclResult result) {
  return result == kNcclSuccess ? kSuccess : kNcclResults + result;
}

class Wire {
 public:
  // Says whether this rank, which waits in NCCL, is to stop: a signal, a peer that gave up.
  typedef std::function<bool()> Interrupted;

  Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  ~Wire() { close(); }

  // Waits for all ranks, for as long as `limit`.
  Result open(const Nccl* nccl, const NcclUniqueId& id, int world_size, int rank,
              std::chrono::nanoseconds limit, Interrupted interrupted) {
    nccl_ = nccl;
    limit_ = limit;
    interrupted_ = std::move(interrupted);
    NcclConfig config;
    const NcclResult result = nccl->comm_init_rank(&comm_, world_size, id, rank, &config);
    const Result opened = wire_result(finish(result));
    open_ = opened == kSuccess;
    if (!open_) abort();
    return opened;
  }

  bool is_open() const { return open_; }

  // How long the host waits in NCCL from now on.
  void set_limit(std::chrono::nanoseconds limit) { limit_ = limit; }

  // Between `enter` and `leave` a thread may issue operations; false once it is given up.
  bool enter() {
    users_.fetch_add(1);
    if (!aborted_.load()) return true;
    users_.fetch_sub(1);
    return false;
  }
  void leave() { users_.fetch_sub(1); }

  // Outside a group one of these is a group by itself.
  Result group_start() { return wire_result(nccl_->group_start()); }
  Result group_end() { return wire_result(finish(nccl_->group_end())); }
  Result send(DevicePointer from, size_t bytes, int peer, Stream stream, bool grouped) {
    return ended(nccl_->send(from, bytes, kNcclInt8, peer, comm_, stream), grouped);
  }
  Result receive(DevicePointer to, size_t bytes, int peer, Stream stream, bool grouped) {
    return ended(nccl_->receive(to, bytes, kNcclInt8, peer, comm_, stream), grouped);
  }
  Result all_reduce(DevicePointer to, DevicePointer from, size_t count, int type, int op,
                    Stream stream) {
    return ended(nccl_->all_reduce(from, to, count, type, op, comm_, stream), false);
  }
  Result all_gather(DevicePointer to, DevicePointer from, size_t bytes, Stream stream) {
    return ended(nccl_->all_gather(from, to, bytes, kNcclInt8, comm_, stream), false);
  }
  Result broadcast(DevicePointer to, DevicePointer from, size_t bytes, int root, Stream stream) {
    return ended(nccl_->broadcast(from, to, bytes, kNcclInt8, root, comm_, stream), false);
  }

  // What went wrong without this rank having asked, or kNcclSuccess.
  NcclResult trouble() {
    NcclResult result = kNcclSuccess;
    if (!open_ || !enter()) return result;
    if (nccl_->comm_get_async_error(comm_, &result) != kNcclSuccess) result = kNcclSuccess;
    leave();
    return result == kNcclInProgress ? kNcclSuccess : result;
  }

  // Makes all that was issued end, well or not. From any thread; once. What NCCL then waits for, a
  // graph or a peer, is waited for a while only.
  void abort() {
    if (comm_ == nullptr || aborted_.exchange(true)) return;
    // A thread that is issuing finds the mark at its next turn, and returns.
    for (int turn = 0; turn < kPatience && users_.load() != 0; ++turn) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    end_with(nccl_->comm_abort);
  }

  // Gives it back, once all that was issued has ended. A graph that is alive holds it: then it goes
  // with the graph, and is waited for a while only.
  void close() {
    if (comm_ != nullptr && !aborted_.exchange(true)) end_with(nccl_->comm_destroy);
    comm_ = nullptr;
    open_ = false;
  }

 private:
  static constexpr int kPatience = 1000;

  Result ended(NcclResult result, bool grouped) {
    // Within a group nothing has happened yet.
    return wire_result(grouped && result == kNcclInProgress ? kNcclSuccess
                       : grouped                            ? result
                                                            : finish(result));
  }

  // Waits until what has been asked is under way.
  NcclResult finish(NcclResult result) {
    const auto start = std::chrono::steady_clock::now();
    auto looked = start;
    while (result == kNcclInProgress) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      const auto now = std::chrono::steady_clock::now();
      if (aborted_.load()) return kNcclAborted;
      if (now - start > limit_) return kNcclLate;
      if (now - looked > std::chrono::milliseconds(20)) {
        looked = now;
        if (interrupted_ && interrupted_()) return kNcclInterrupted;
      }
      const NcclResult asked = nccl_->comm_get_async_error(comm_, &result);
      if (asked != kNcclSuccess) return asked;
    }
    return result;
  }

  // Calls `end` on a thread of its own, and waits for it as long as patience lasts.
  void end_with(NcclResult (*end)(NcclCommunicator)) {
    struct Meeting {
      std::mutex mutex;
      std::condition_variable changed;
      bool done = false;
    };
    const auto meeting = std::make_shared<Meeting>();
    std::thread([meeting, end, comm = comm_] {
      end(comm);
      const std::lock_guard<std::mutex> lock(meeting->mutex);
      meeting->done = true;
      meeting->changed.notify_all();
    }).detach();
    std::unique_lock<std::mutex> lock(meeting->mutex);
    meeting->changed.wait_for(lock, std::chrono::milliseconds(kPatience),
                              [&] { return meeting->done; });
  }

  const Nccl* nccl_ = nullptr;
  NcclCommunicator comm_ = nullptr;
  std::chrono::nanoseconds limit_{0};
  Interrupted interrupted_;
  bool open_ = false;
  std::atomic<bool> aborted_{false};
  std::atomic<int> users_{0};
};

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_WIRE_H_
