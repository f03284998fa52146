// What an operation that fails leaves for its host: kernels do, and whoever looks after NCCL.

#ifndef COCOLL_CUDA_FAILURE_WORD_H_
#define COCOLL_CUDA_FAILURE_WORD_H_

#include "cocoll/cuda/driver.h"
#include "cocoll/kernels/grid_abi.h"

namespace cocoll::cuda {

class FailureWord {
 public:
  Result create(const Driver* driver) {
    void* host = nullptr;
    const Result result = driver->mem_host_alloc(&host, sizeof(cocoll_grid_failure),
                                                 kHostAllocMapped | kHostAllocPortable);
    if (result != kSuccess) return result;
    driver_ = driver;
    word_ = static_cast<cocoll_grid_failure*>(host);
    *word_ = {};
    return driver->mem_host_get_device_pointer(&on_device_, word_, 0);
  }

  void close() {
    if (word_ != nullptr) driver_->mem_free_host(word_);
    word_ = nullptr;
  }

  cocoll_grid_failure* on_device() const {
    return reinterpret_cast<cocoll_grid_failure*>(on_device_);
  }

  // The first failure, or nullptr. Asks nothing of the device.
  const cocoll_grid_failure* get() const {
    if (word_ == nullptr || __atomic_load_n(&word_->state, __ATOMIC_ACQUIRE) != 2) return nullptr;
    return word_;
  }

  // Leaves what a kernel would, unless one has.
  void leave(int reason, uint64_t seen) {
    uint32_t expected = 0;
    if (!__atomic_compare_exchange_n(&word_->state, &expected, 1u, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED)) {
      return;
    }
    word_->reason = reason;
    word_->block = word_->peer = -1;
    word_->wanted = 0;
    word_->seen = seen;
    __atomic_store_n(&word_->state, 2u, __ATOMIC_RELEASE);
  }

 private:
  const Driver* driver_ = nullptr;
  cocoll_grid_failure* word_ = nullptr;
  DevicePointer on_device_ = 0;
};

}  // namespace cocoll::cuda

#endif  // COCOLL_CUDA_FAILURE_WORD_H_
