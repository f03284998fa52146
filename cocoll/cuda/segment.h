// Device memory that peers can reach: one plain allocation, exported once.
//
// Never memory of a framework's pool: an IPC handle names a whole allocation, and pools hand out
// parts of theirs. Ranks of one process use the pointer as it is: a process may not open what it
// has exported itself.

#ifndef COCOLL_CUDA_SEGMENT_H_
#define COCOLL_CUDA_SEGMENT_H_

#include <cstring>

#include "cocoll/cuda/driver.h"
#include "cocoll/host/arena.h"

namespace cocoll::cuda {

// What a rank tells its peers about a segment, as bytes.
struct SegmentTicket {
  uint64_t process;  // host::process_token()
  DevicePointer base;
  uint64_t bytes;
  int32_t device;
  int32_t exported;  // whether `handle` can be opened; ranks of one process need none
  IpcMemHandle handle;
};

// A rank's own segment, or its view of a peer's.
class Segment {
 public:
  Segment() = default;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment() { close(); }

  // Allocates; the memory is cleared on `stream`, before anything that is issued there later.
  Result create(const Driver* driver, Device device, size_t bytes, Stream stream) {
    DevicePointer base = 0;
    Result result = driver->mem_alloc(&base, bytes);
    if (result != kSuccess) return result;
    driver_ = driver;
    base_ = base;
    held_ = Held::kAllocation;
    ticket_ = {host::process_token(), base, bytes, device, 0, {}};
    ticket_.exported = driver->ipc_get_mem_handle(&ticket_.handle, base) == kSuccess;
    return driver->memset_async(base, 0, bytes, stream);
  }

  // Makes a peer's segment reachable.
  Result attach(const Driver* driver, const SegmentTicket& ticket) {
    driver_ = driver;
    ticket_ = ticket;
    if (ticket.process == host::process_token()) {
      base_ = ticket.base;
      return kSuccess;
    }
    const Result result = driver->ipc_open_mem_handle(&base_, ticket.handle, kIpcLazyPeerAccess);
    if (result == kSuccess) held_ = Held::kMapping;
    return result;
  }

  // Gives the memory or the mapping back; nothing may use it any more. A peer's mapping goes first,
  // then, after a barrier, the allocation.
  void close() {
    if (held_ == Held::kAllocation) driver_->mem_free(base_);
    if (held_ == Held::kMapping) driver_->ipc_close_mem_handle(base_);
    held_ = Held::kNothing;
    base_ = 0;
  }

  // At the end of a process the driver may have gone first: then nothing is given back.
  void abandon() { held_ = Held::kNothing; }

  DevicePointer base() const { return base_; }
  const SegmentTicket& ticket() const { return ticket_; }

 private:
  enum class Held { kNothing, kAllocation, kMapping };

  const Driver* driver_ = nullptr;
  DevicePointer base_ = 0;
  Held held_ = Held::kNothing;
  SegmentTicket ticket_ = {};
};

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_SEGMENT_H_
