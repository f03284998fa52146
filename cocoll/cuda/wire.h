// One rank's end of NCCL: two communicators, one for what plans send and receive, and one, split
// off it, for whole collectives of the library.
//
// A communicator that is given up is aborted by whoever notices, on any thread: its kernels end,
// and nothing is issued on it any more.

#ifndef COCOLL_CUDA_WIRE_H_
#define COCOLL_CUDA_WIRE_H_

#include <atomic>
#include <chrono>
#include <thread>

#include "cocoll/cuda/nccl.h"

namespace cocoll::cuda {

// NCCL's results among the driver's.
constexpr Result kNcclResults = 1 << 20;

inline Result wire_result(NcclResult result) {
  return result == kNcclSuccess || result == kNcclInProgress ? kSuccess : kNcclResults + result;
}

class Wire {
 public:
  Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  ~Wire() { close(); }

  // Blocks until all ranks have come.
  Result open(const Nccl* nccl, const NcclUniqueId& id, int world_size, int rank) {
    nccl_ = nccl;
    NcclResult result = nccl->comm_init_rank(&pairs_, world_size, id, rank);
    if (result == kNcclSuccess) {
      result = nccl->comm_split(pairs_, 0, rank, &collectives_, nullptr);
    }
    return wire_result(result);
  }

  bool is_open() const { return collectives_ != nullptr; }

  // Between `enter` and `leave` a thread may issue operations; false once it is given up.
  bool enter() {
    users_.fetch_add(1);
    if (!aborted_.load()) return true;
    users_.fetch_sub(1);
    return false;
  }
  void leave() { users_.fetch_sub(1); }

  Result group_start() { return wire_result(nccl_->group_start()); }
  Result group_end() { return wire_result(nccl_->group_end()); }
  Result send(DevicePointer from, size_t bytes, int peer, Stream stream) {
    return wire_result(nccl_->send(from, bytes, kNcclInt8, peer, pairs_, stream));
  }
  Result receive(DevicePointer to, size_t bytes, int peer, Stream stream) {
    return wire_result(nccl_->receive(to, bytes, kNcclInt8, peer, pairs_, stream));
  }
  Result all_reduce(DevicePointer to, DevicePointer from, size_t count, int type, int op,
                    Stream stream) {
    return wire_result(nccl_->all_reduce(from, to, count, type, op, collectives_, stream));
  }
  Result all_gather(DevicePointer to, DevicePointer from, size_t bytes, Stream stream) {
    return wire_result(nccl_->all_gather(from, to, bytes, kNcclInt8, collectives_, stream));
  }
  Result broadcast(DevicePointer to, DevicePointer from, size_t bytes, int root, Stream stream) {
    return wire_result(nccl_->broadcast(from, to, bytes, kNcclInt8, root, collectives_, stream));
  }

  // What went wrong without this rank having asked, or kNcclSuccess.
  NcclResult trouble() {
    if (!enter()) return kNcclSuccess;
    NcclResult found = kNcclSuccess;
    for (NcclCommunicator comm : {pairs_, collectives_}) {
      NcclResult result = kNcclSuccess;
      if (comm != nullptr && nccl_->comm_get_async_error(comm, &result) == kNcclSuccess &&
          result != kNcclInProgress && result != kNcclSuccess) {
        found = result;
      }
    }
    leave();
    return found;
  }

  // Makes all that was issued end, well or not. From any thread; once.
  void abort() {
    if (nccl_ == nullptr || aborted_.exchange(true)) return;
    // A thread that is issuing sees the mark when it comes again. One that the library keeps, for
    // it connects to a peer that has gone, comes back by the abort itself.
    constexpr int kPatience = 1000;
    for (int turn = 0; turn < kPatience && users_.load() != 0; ++turn) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (NcclCommunicator comm : {collectives_, pairs_}) {
      if (comm != nullptr) nccl_->comm_abort(comm);
    }
  }

  // Gives both back, once all that was issued has ended.
  void close() {
    if (nccl_ == nullptr) return;
    if (!aborted_.exchange(true)) {
      for (NcclCommunicator comm : {collectives_, pairs_}) {
        if (comm != nullptr) nccl_->comm_destroy(comm);
      }
    }
    nccl_ = nullptr;
    pairs_ = collectives_ = nullptr;
  }

 private:
  const Nccl* nccl_ = nullptr;
  NcclCommunicator pairs_ = nullptr;
  NcclCommunicator collectives_ = nullptr;
  std::atomic<bool> aborted_{false};
  std::atomic<int> users_{0};
};

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_WIRE_H_
